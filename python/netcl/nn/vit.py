"""The vision transformer (Dosovitskiy et al., 2020), with the weights' names of torchvision."""

from __future__ import annotations

import math
from typing import Any

from netcl import autograd as ag
from netcl._netcl import Tensor
from netcl._netcl.nn import constant_, normal_, trunc_normal_, xavier_uniform_
from netcl.nn._arguments import queue_first
from netcl.nn.activation import GELU
from netcl.nn.attention import MultiheadAttention
from netcl.nn.container import Sequential
from netcl.nn.conv import Conv2d
from netcl.nn.dropout import Dropout
from netcl.nn.linear import Linear
from netcl.nn.module import Module, Parameter
from netcl.nn.normalization import LayerNorm

__all__ = ["ViTB16", "VisionTransformer"]


class _Block(Module):
    """Self-attention and two linear layers, each behind a norm and bypassed."""

    def __init__(
        self, queue: Any, width: int, heads: int, mlp: int, dropout: float, attention: float, dtype: str | None
    ) -> None:
        self.ln_1 = LayerNorm(queue, width, eps=1e-6, dtype=dtype)
        self.self_attention = MultiheadAttention(queue, width, heads, dropout=attention, batch_first=True, dtype=dtype)
        self.dropout = Dropout(dropout)
        self.ln_2 = LayerNorm(queue, width, eps=1e-6, dtype=dtype)
        first, second = Linear(queue, width, mlp, dtype=dtype), Linear(queue, mlp, width, dtype=dtype)
        self.mlp = Sequential(first, GELU(), Dropout(dropout), second, Dropout(dropout))
        for layer in (first, second):
            xavier_uniform_(layer.weight)
            if layer.bias is not None:
                normal_(layer.bias, 0.0, 1e-6)

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.dropout(self.self_attention(self.ln_1(x)))
        z: Tensor = y + self.mlp(self.ln_2(y))
        return z


class _Encoder(Module):
    """The positions, the blocks and a last norm."""

    def __init__(self, queue: Any, length: int, layers: int, width: int, dropout: float, block: Any, dtype: str | None) -> None:
        self.pos_embedding = normal_(_zeros(queue, (1, length, width), dtype), 0.0, 0.02)
        self.dropout = Dropout(dropout)
        self.layers = Sequential({f"encoder_layer_{i}": block() for i in range(layers)})
        self.ln = LayerNorm(queue, width, eps=1e-6, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.ln(self.layers(self.dropout(x + self.pos_embedding)))
        return y


def _zeros(queue: Any, shape: tuple[int, ...], dtype: str | None) -> Tensor:
    return Parameter(Tensor.from_shape(queue, shape, dtype))


class VisionTransformer(Module):
    """Images (N, in_channels, image_size, image_size), cut into patches, to logits (N, num_classes).

    Weights have torchvision's names, so that its files load; they start as torchvision's do (the head as zeros).
    """

    @queue_first
    def __init__(
        self,
        queue: Any,
        image_size: int,
        patch_size: int,
        num_layers: int,
        num_heads: int,
        hidden_dim: int,
        mlp_dim: int,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        num_classes: int = 1000,
        dtype: str | None = None,
        in_channels: int = 3,
    ) -> None:
        if image_size % patch_size:
            raise ValueError(f"{type(self).__name__}: patches of {patch_size} do not divide images of {image_size}")
        self.image_size, self.patch_size, self.num_classes = image_size, patch_size, num_classes
        self.in_channels = in_channels
        self.class_token = _zeros(queue, (1, 1, hidden_dim), dtype)
        self.conv_proj = Conv2d(queue, in_channels, hidden_dim, patch_size, patch_size, dtype=dtype)
        self.encoder = _Encoder(
            queue,
            (image_size // patch_size) ** 2 + 1,
            num_layers,
            hidden_dim,
            dropout,
            lambda: _Block(queue, hidden_dim, num_heads, mlp_dim, dropout, attention_dropout, dtype),
            dtype,
        )
        self.heads = Sequential({"head": Linear(queue, hidden_dim, num_classes, dtype=dtype)})
        trunc_normal_(self.conv_proj.weight, 0.0, math.sqrt(1 / (in_channels * patch_size**2)))
        for tensor in (self.conv_proj.bias, self.heads.head.weight, self.heads.head.bias):
            assert tensor is not None
            constant_(tensor, 0.0)

    def extra_repr(self) -> str:
        return f"image_size={self.image_size}, patch_size={self.patch_size}, num_classes={self.num_classes}"

    def forward(self, x: Tensor) -> Tensor:
        if tuple(x.shape[1:]) != (self.in_channels, self.image_size, self.image_size):
            wanted = f"(N, {self.in_channels}, {self.image_size}, {self.image_size})"
            raise ValueError(f"{type(self).__name__} takes {wanted}; the input has shape {tuple(x.shape)}")
        patches = ag.transpose(ag.flatten(self.conv_proj(x), 2), 1, 2)
        token = ag.expand(self.class_token, (x.shape[0], 1, patches.shape[2]))
        y = self.encoder(ag.cat([token, patches], 1))
        logits: Tensor = self.heads(y[:, 0])
        return logits


class ViTB16(VisionTransformer):
    """``ViTB16(queue, num_classes=1000)``: twelve blocks of 768 values over patches of 16 pixels (ViT-B/16)."""

    @queue_first
    def __init__(self, queue: Any = None, num_classes: int = 1000, image_size: int = 224, **more: Any) -> None:
        super().__init__(queue, image_size, 16, 12, 12, 768, 3072, num_classes=num_classes, **more)
