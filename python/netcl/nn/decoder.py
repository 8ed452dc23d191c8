"""Parts of transformers that predict what comes next."""

from __future__ import annotations

from typing import Any

from netcl import autograd as ag
from netcl._netcl import Tensor, nn as _nn
from netcl._netcl.nn import KVCache
from netcl.nn._arguments import queue_first
from netcl.nn._layer import KW_ONLY, Parametric, given
from netcl.nn.linear import Linear
from netcl.nn.module import Module
from netcl.nn.normalization import LayerNorm, RMSNorm
from netcl.nn.transformer import ACTIVATIONS

__all__ = [
    "CausalSelfAttention",
    "DecoderBlock",
    "KVCache",
    "PositionalEmbedding",
    "RotaryAttention",
    "SinusoidalEmbedding",
    "SwiGLU",
    "TiedLinear",
    "TransformerBlock",
]


class _CachedAttention(Parametric):
    """Attention of places to themselves, over what a cache holds as well."""

    def forward(self, x: Tensor, cache: KVCache | None = None, layer: int = 0) -> Tensor:
        if cache is None:
            return self._layer.forward(self.__dict__, x)
        return _nn.cached_attention(self._layer, self.__dict__, x, cache, layer)


class CausalSelfAttention(_CachedAttention):
    """Attention of several heads in which a place sees itself and those before it: (batch, length, embed_dim) to the same."""

    embed_dim: int = given()
    num_heads: int = given()
    causal: bool = True
    dropout: float = 0.0
    bias: bool = True
    c_attn: Linear
    c_proj: Linear


class RotaryAttention(_CachedAttention):
    """Causal attention that knows places by rotation: only distances count. ``qk_norm`` normalises queries and keys."""

    dim: int = given()
    n_head: int = given()
    rope_base: float = 10000.0
    dropout: float = 0.0
    bias: bool = False
    qk_norm: bool = True
    eps: float = 1e-6
    qkv: Linear
    proj: Linear
    q_norm: RMSNorm
    k_norm: RMSNorm


class SwiGLU(Parametric):
    """A gated pair of linear layers: ``down(silu(gate(x)) * up(x))``.

    The inner width is 8/3 of the outer one, up to a multiple of 64, unless given: as many weights as without a gate.
    """

    dim: int = given()
    hidden: int = given(None)
    bias: bool = False
    gate: Linear
    up: Linear
    down: Linear


class _FeedForward(Parametric, kind="FeedForward"):
    """Two linear layers with an activation between them."""

    dim: int = given()
    hidden: int = given()
    activation: str = "gelu"
    dropout: float = 0.0
    bias: bool = True


class TransformerBlock(Module):
    """``x + attn(ln_1(x))``, then ``x + mlp(ln_2(x))``: the block of GPT."""

    _settings = ("d_model", "num_heads", "dim_feedforward", "dropout", "causal", "activation", "bias")

    @queue_first
    def __init__(
        self,
        queue: Any,
        d_model: int,
        num_heads: int,
        dim_feedforward: int | None = None,
        dropout: float = 0.0,
        causal: bool = True,
        activation: str = "gelu",
        *,
        bias: bool = True,
        dtype: str | None = None,
    ) -> None:
        if activation not in ACTIVATIONS:
            raise ValueError(f"TransformerBlock: activation is one of {', '.join(ACTIVATIONS)}, not {activation!r}")
        inner = 4 * d_model if dim_feedforward is None else dim_feedforward
        self.d_model, self.num_heads, self.dim_feedforward = d_model, num_heads, inner
        self.dropout, self.causal, self.activation, self.bias = dropout, causal, activation, bias
        self.ln_1 = LayerNorm(queue, d_model, bias=bias, dtype=dtype)
        self.attn = CausalSelfAttention(queue, d_model, num_heads, causal, dropout, bias, dtype=dtype)
        self.ln_2 = LayerNorm(queue, d_model, bias=bias, dtype=dtype)
        self.mlp = _FeedForward(queue, d_model, inner, activation, dropout, bias, dtype=dtype)

    def forward(self, x: Tensor, cache: KVCache | None = None, layer: int = 0) -> Tensor:
        x = x + self.attn(self.ln_1(x), cache, layer)
        return x + self.mlp(self.ln_2(x))


class DecoderBlock(Module):
    """``x + attn(norm1(x))``, then ``x + ffn(norm2(x))``, with ``RotaryAttention``, ``RMSNorm`` and ``SwiGLU``."""

    _settings = ("dim", "n_head", "hidden", "dropout", "rope_base", "eps", "qk_norm")

    @queue_first
    def __init__(
        self,
        queue: Any,
        dim: int,
        n_head: int,
        hidden: int | None = None,
        dropout: float = 0.0,
        rope_base: float = 10000.0,
        eps: float = 1e-6,
        qk_norm: bool = True,
        dtype: str | None = None,
    ) -> None:
        self.dim, self.n_head, self.dropout = dim, n_head, dropout
        self.rope_base, self.eps, self.qk_norm = rope_base, eps, qk_norm
        self.norm1 = RMSNorm(queue, dim, eps, dtype=dtype)
        self.attn = RotaryAttention(queue, dim, n_head, rope_base, dropout, qk_norm=qk_norm, eps=eps, dtype=dtype)
        self.norm2 = RMSNorm(queue, dim, eps, dtype=dtype)
        self.ffn = SwiGLU(queue, dim, hidden, dtype=dtype)
        self.hidden = self.ffn.hidden

    def forward(self, x: Tensor, cache: KVCache | None = None, layer: int = 0) -> Tensor:
        x = x + self.attn(self.norm1(x), cache, layer)
        y = self.ffn(self.norm2(x))
        return x + (ag.dropout(y, self.dropout) if self.dropout and self.training else y)


class _Places(Parametric):
    """A vector for each place."""

    max_len: int = given()
    d_model: int = given()
    weight: Tensor

    def forward(self, length: int, start: int = 0) -> Tensor:
        """The vectors of ``length`` places from ``start`` on."""
        return _nn.places(self._layer, self.__dict__, self.weight, length, start)


class PositionalEmbedding(_Places):
    """A learned vector for each place: ``PositionalEmbedding(queue, 512, 64)(length)`` is (length, d_model)."""

    _: KW_ONLY
    init_std: float = 0.02


class SinusoidalEmbedding(_Places):
    """A fixed vector for each place, of sines and cosines of waves that get longer along the width."""

    _: KW_ONLY
    base: float = 10000.0


class TiedLinear(Module):
    """``x @ weight.T`` with the table of an ``Embedding``: the parameter stays one."""

    weight: Tensor

    def __init__(self, weight: Tensor) -> None:
        if weight.ndim != 2:
            raise ValueError(f"TiedLinear takes the weight of an Embedding; this one has shape {tuple(weight.shape)}")
        self.register_parameter("weight", weight)

    def extra_repr(self) -> str:
        return f"in_features={self.weight.shape[1]}, out_features={self.weight.shape[0]}"

    def forward(self, x: Tensor) -> Tensor:
        return ag.linear(x, self.weight)
