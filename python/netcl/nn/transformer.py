"""Blocks of transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from netcl import autograd as ag
from netcl._netcl import Tensor
from netcl.nn._arguments import depth, queue_first
from netcl.nn.attention import MultiheadAttention
from netcl.nn.container import ModuleList
from netcl.nn.dropout import Dropout
from netcl.nn.linear import Linear
from netcl.nn.module import Module
from netcl.nn.normalization import LayerNorm

__all__ = ["TransformerEncoder", "TransformerEncoderLayer"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": ag.relu, "gelu": ag.gelu, "silu": ag.silu}


class TransformerEncoderLayer(Module):
    """Self-attention and two linear layers, each with a shortcut and a layer norm behind it (``norm_first``: before it).

    Tensors are (batch, length, d_model), or with ``batch_first=False`` (length, batch, d_model); names of weights are PyTorch's.
    """

    @queue_first
    def __init__(
        self,
        queue: Any,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str = "relu",
        *,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = True,
        norm_first: bool = False,
        bias: bool = True,
        dtype: str | None = None,
    ) -> None:
        if activation not in ACTIVATIONS:
            raise ValueError(f"TransformerEncoderLayer: activation is one of {', '.join(ACTIVATIONS)}, not {activation!r}")
        self.d_model, self.nhead, self.dim_feedforward, self.p = d_model, nhead, dim_feedforward, dropout
        self.activation, self.layer_norm_eps = activation, layer_norm_eps
        self.batch_first, self.norm_first = batch_first, norm_first
        self.self_attn = MultiheadAttention(
            queue, d_model, nhead, dropout=dropout, bias=bias, batch_first=batch_first, dtype=dtype
        )
        self.linear1 = Linear(queue, d_model, dim_feedforward, bias=bias, dtype=dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(queue, dim_feedforward, d_model, bias=bias, dtype=dtype)
        self.norm1 = LayerNorm(queue, d_model, layer_norm_eps, bias=bias, dtype=dtype)
        self.norm2 = LayerNorm(queue, d_model, layer_norm_eps, bias=bias, dtype=dtype)
        self.dropout1, self.dropout2 = Dropout(dropout), Dropout(dropout)

    def settings(self) -> dict[str, Any]:
        names = ("d_model", "nhead", "dim_feedforward", "activation", "layer_norm_eps", "batch_first", "norm_first")
        return {**{name: getattr(self, name) for name in names}, "dropout": self.p, "bias": self.linear1.bias is not None}

    def forward(
        self, src: Tensor, src_mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool = False
    ) -> Tensor:
        """Masks are those of ``MultiheadAttention``: True hides a key."""

        def attend(x: Tensor) -> Tensor:
            y = self.self_attn(x, attn_mask=src_mask, key_padding_mask=src_key_padding_mask, is_causal=is_causal)
            return self.dropout1(y)

        def feed(x: Tensor) -> Tensor:
            return self.dropout2(self.linear2(self.dropout(ACTIVATIONS[self.activation](self.linear1(x)))))

        if self.norm_first:
            x = src + attend(self.norm1(src))
            return x + feed(self.norm2(x))
        x = self.norm1(src + attend(src))
        return self.norm2(x + feed(x))


class TransformerEncoder(Module):
    """Layers one after the other, and a last norm if one is given: ``TransformerEncoder(TransformerEncoderLayer(64, 4), 6)``.

    The layers start as copies of the one given.
    """

    def __init__(self, encoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        import copy

        depth("TransformerEncoder", num_layers=num_layers)
        self.num_layers = num_layers
        self.layers = ModuleList(copy.deepcopy(encoder_layer) for _ in range(num_layers))
        self.add_module("norm", norm)

    def forward(
        self, src: Tensor, mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool = False
    ) -> Tensor:
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, is_causal)
        return src if self.norm is None else self.norm(src)
