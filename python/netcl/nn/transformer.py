"""Encoders and decoders of transformers, with PyTorch's names."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from netcl import _factories as make, autograd as ag
from netcl._netcl import Tensor
from netcl.nn import init
from netcl.nn._arguments import depth, queue_first, resolve_queue
from netcl.nn.attention import MultiheadAttention
from netcl.nn.container import ModuleList
from netcl.nn.dropout import Dropout
from netcl.nn.linear import Linear
from netcl.nn.module import Module
from netcl.nn.normalization import LayerNorm

__all__ = ["Transformer", "TransformerDecoder", "TransformerDecoderLayer", "TransformerEncoder", "TransformerEncoderLayer"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": ag.relu, "gelu": ag.gelu, "silu": ag.silu}


class _TransformerLayer(Module):
    """Attentions and two linear layers, each with a shortcut and a layer norm after it (``norm_first``: before it)."""

    _attentions: tuple[str, ...]

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
            raise ValueError(f"{type(self).__name__}: activation is one of {', '.join(ACTIVATIONS)}, not {activation!r}")
        self.d_model, self.nhead, self.dim_feedforward, self.p = d_model, nhead, dim_feedforward, dropout
        self.activation, self.layer_norm_eps = activation, layer_norm_eps
        self.batch_first, self.norm_first = batch_first, norm_first
        places = range(1, len(self._attentions) + 2)
        for name in self._attentions:
            made = MultiheadAttention(
                queue, d_model, nhead, dropout=dropout, bias=bias, batch_first=batch_first, dtype=dtype
            )
            self.add_module(name, made)
        self.linear1 = Linear(queue, d_model, dim_feedforward, bias=bias, dtype=dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(queue, dim_feedforward, d_model, bias=bias, dtype=dtype)
        for i in places:
            self.add_module(f"norm{i}", LayerNorm(queue, d_model, layer_norm_eps, bias=bias, dtype=dtype))
        for i in places:
            self.add_module(f"dropout{i}", Dropout(dropout))

    def settings(self) -> dict[str, Any]:
        names = ("d_model", "nhead", "dim_feedforward", "activation", "layer_norm_eps", "batch_first", "norm_first")
        return {**{name: getattr(self, name) for name in names}, "dropout": self.p, "bias": self.linear1.bias is not None}

    def _around(self, x: Tensor, norm: Module, dropout: Module, part: Callable[[Tensor], Tensor]) -> Tensor:
        """``x`` and what a part makes of it."""
        return x + dropout(part(norm(x))) if self.norm_first else norm(x + dropout(part(x)))

    def _feed(self, x: Tensor) -> Tensor:
        return self.linear2(self.dropout(ACTIVATIONS[self.activation](self.linear1(x))))


class TransformerEncoderLayer(_TransformerLayer):
    """Self-attention and two linear layers, each with a shortcut and a layer norm after it (``norm_first``: before it).

    Tensors are (batch, length, d_model), or with ``batch_first=False`` (length, batch, d_model); weights have PyTorch's names.
    """

    _attentions = ("self_attn",)

    def forward(
        self, src: Tensor, src_mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool = False
    ) -> Tensor:
        """Masks are those of ``MultiheadAttention``: True hides a key."""

        def attend(x: Tensor) -> Tensor:
            return self.self_attn(x, attn_mask=src_mask, key_padding_mask=src_key_padding_mask, is_causal=is_causal)

        x = self._around(src, self.norm1, self.dropout1, attend)
        return self._around(x, self.norm2, self.dropout2, self._feed)


class TransformerDecoderLayer(_TransformerLayer):
    """Self-attention, attention to an encoder's ``memory`` and two linear layers, each with a shortcut and a layer norm.

    Arguments and shapes are those of ``TransformerEncoderLayer``; names of weights are PyTorch's.
    """

    _attentions = ("self_attn", "multihead_attn")

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Masks are those of ``MultiheadAttention``: True hides a key."""

        def attend(x: Tensor) -> Tensor:
            return self.self_attn(x, attn_mask=tgt_mask, key_padding_mask=tgt_key_padding_mask, is_causal=tgt_is_causal)

        def look(x: Tensor) -> Tensor:
            masks = {"attn_mask": memory_mask, "key_padding_mask": memory_key_padding_mask, "is_causal": memory_is_causal}
            return self.multihead_attn(x, memory, **masks)

        x = self._around(tgt, self.norm1, self.dropout1, attend)
        x = self._around(x, self.norm2, self.dropout2, look)
        return self._around(x, self.norm3, self.dropout3, self._feed)


class _Stack(Module):
    """Layers that start as copies of the one given, and a last norm if one is given."""

    def __init__(self, layer: Module, num_layers: int, norm: Module | None = None) -> None:
        depth(type(self).__name__, num_layers=num_layers)
        self.num_layers = num_layers
        self.layers = ModuleList(copy.deepcopy(layer) for _ in range(num_layers))
        self.add_module("norm", norm)

    def _through(self, x: Tensor, *args: Any) -> Tensor:
        for layer in self.layers:
            x = layer(x, *args)
        return x if self.norm is None else self.norm(x)


class TransformerEncoder(_Stack):
    """Layers one after the other, and a last norm if one is given: ``TransformerEncoder(TransformerEncoderLayer(64, 4), 6)``.

    The layers start as copies of the one given.
    """

    def __init__(self, encoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__(encoder_layer, num_layers, norm)

    def forward(
        self, src: Tensor, mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool = False
    ) -> Tensor:
        return self._through(src, mask, src_key_padding_mask, is_causal)


class TransformerDecoder(_Stack):
    """Layers one after the other, and a last norm if one is given: ``TransformerDecoder(TransformerDecoderLayer(64, 4), 6)``.

    The layers start as copies of the one given.
    """

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__(decoder_layer, num_layers, norm)

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        padding = tgt_key_padding_mask, memory_key_padding_mask
        return self._through(tgt, memory, tgt_mask, memory_mask, *padding, tgt_is_causal, memory_is_causal)


class Transformer(Module):
    """An encoder and a decoder: ``Transformer(512, 8)(src, tgt)`` (Vaswani et al., 2017).

    Tensors are (length, batch, d_model) as in PyTorch, or with ``batch_first`` (batch, length, d_model). Weights have PyTorch's
    names. Own layers can take the place of both with ``custom_encoder`` and ``custom_decoder``.
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str = "relu",
        custom_encoder: Module | None = None,
        custom_decoder: Module | None = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        *,
        device: Any = None,
        dtype: str | None = None,
    ) -> None:
        queue = resolve_queue(device)
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first
        sizes = d_model, nhead, dim_feedforward, dropout, activation
        settings: dict[str, Any] = {"batch_first": batch_first, "norm_first": norm_first, "bias": bias}
        settings |= {"layer_norm_eps": layer_norm_eps, "queue": queue, "dtype": dtype}

        def norm() -> LayerNorm:
            return LayerNorm(queue, d_model, layer_norm_eps, bias=bias, dtype=dtype)

        self.encoder = custom_encoder or TransformerEncoder(
            TransformerEncoderLayer(*sizes, **settings), num_encoder_layers, norm()
        )
        self.decoder = custom_decoder or TransformerDecoder(
            TransformerDecoderLayer(*sizes, **settings), num_decoder_layers, norm()
        )
        for parameter in self.parameters():
            if parameter.ndim > 1:
                init.xavier_uniform_(parameter)

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Any = None,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        src_key_padding_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        src_is_causal: bool = False,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Masks are those of ``MultiheadAttention``: True hides a key."""
        memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal)
        padding = tgt_key_padding_mask, memory_key_padding_mask
        result: Tensor = self.decoder(tgt, memory, tgt_mask, memory_mask, *padding, tgt_is_causal, memory_is_causal)
        return result

    @staticmethod
    def generate_square_subsequent_mask(sz: int, device: Any = None, dtype: str | None = None) -> Tensor:
        """A mask that hides what comes after a place: minus infinity above the diagonal, 0 elsewhere."""
        return ag.triu(make.full((sz, sz), float("-inf"), dtype=dtype, device=device), 1)
