"""Parts of transformers that predict what comes next."""

from __future__ import annotations

from typing import Any

from netcl import autograd as ag
from netcl._netcl import Tensor
from netcl._netcl.nn import assign, normal_
from netcl.nn._arguments import depth, parameter, positive, queue_first
from netcl.nn.dropout import Dropout
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
    "SwiGLU",
    "TiedLinear",
    "TransformerBlock",
]


class KVCache:
    """Keys and values of the places that were seen, so that the next one costs one step instead of all of them again.

    Every attention layer appends its part; ``advance`` moves on when all have. For inference: nothing is recorded.
    """

    def __init__(
        self,
        n_layer: int,
        batch: int,
        n_head: int,
        head_dim: int,
        capacity: int,
        queue: Any = None,
        dtype: str | None = None,
    ) -> None:
        positive("KVCache", n_layer=n_layer, batch=batch, n_head=n_head, head_dim=head_dim, capacity=capacity)
        depth("KVCache", n_layer=n_layer)
        shape = (batch, n_head, capacity, head_dim)
        self.k = [Tensor.from_shape(queue, shape, dtype) for _ in range(n_layer)]
        self.v = [Tensor.from_shape(queue, shape, dtype) for _ in range(n_layer)]
        self.capacity = capacity
        self.length = 0

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Writes the keys and values (batch, heads, new places, head_dim) of a layer; returns all of it so far."""
        end = self.length + k.shape[2]
        if end > self.capacity:
            raise ValueError(f"KVCache holds {self.capacity} places: {k.shape[2]} more do not fit behind {self.length}")
        for store, new in ((self.k[layer], k), (self.v[layer], v)):
            assign(store[:, :, self.length : end], new.detach())
        return self.k[layer][:, :, :end], self.v[layer][:, :, :end]

    def advance(self, n: int = 1) -> None:
        """Counts places as seen."""
        self.length += n

    def reset(self) -> None:
        """Forgets all places."""
        self.length = 0


def _heads(x: Tensor, heads: int) -> Tensor:
    """(batch, length, width) as (batch, heads, length, width / heads)."""
    batch, length, width = x.shape
    return ag.permute(ag.reshape(x, (batch, length, heads, width // heads)), (0, 2, 1, 3))


def _joined(x: Tensor) -> Tensor:
    """(batch, heads, length, head_dim) as (batch, length, heads * head_dim)."""
    batch, heads, length, width = x.shape
    return ag.reshape(ag.permute(x, (0, 2, 1, 3)), (batch, length, heads * width))


def _attend(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, dropout: float, cache: KVCache | None, layer: int
) -> Tensor:
    """Attention, over what a cache holds as well."""
    if cache is None:
        return ag.scaled_dot_product_attention(q, k, v, None, dropout, causal)
    before = cache.length
    k, v = cache.append(layer, k, v)
    if before and q.shape[2] > 1:
        raise ValueError(f"{q.shape[2]} places cannot follow {before} at once: after the first call give one place at a time")
    return ag.scaled_dot_product_attention(q, k, v, None, 0.0, causal and before == 0)


class CausalSelfAttention(Module):
    """Attention of several heads in which a place sees itself and those before it: (batch, length, embed_dim) to the same."""

    _settings = ("embed_dim", "num_heads", "causal", "dropout", "bias")

    @queue_first
    def __init__(
        self,
        queue: Any,
        embed_dim: int,
        num_heads: int,
        causal: bool = True,
        dropout: float = 0.0,
        bias: bool = True,
        dtype: str | None = None,
    ) -> None:
        positive("CausalSelfAttention", embed_dim=embed_dim, num_heads=num_heads)
        if embed_dim % num_heads:
            raise ValueError(f"CausalSelfAttention: num_heads={num_heads} must divide embed_dim={embed_dim}")
        self.embed_dim, self.num_heads, self.causal, self.dropout, self.bias = embed_dim, num_heads, causal, dropout, bias
        self.c_attn = Linear(queue, embed_dim, 3 * embed_dim, bias=bias, dtype=dtype)
        self.c_proj = Linear(queue, embed_dim, embed_dim, bias=bias, dtype=dtype)
        self.resid_dropout = Dropout(dropout)

    def forward(self, x: Tensor, cache: KVCache | None = None, layer: int = 0) -> Tensor:
        q, k, v = (_heads(part, self.num_heads) for part in ag.split(self.c_attn(x), self.embed_dim, -1))
        y = _attend(q, k, v, self.causal, self.dropout if self.training else 0.0, cache, layer)
        return self.resid_dropout(self.c_proj(_joined(y)))


class _FeedForward(Module):
    """Two linear layers with an activation between them."""

    def __init__(self, queue: Any, width: int, inner: int, activation: str, p: float, bias: bool, dtype: str | None) -> None:
        self.activation = activation
        self.c_fc = Linear(queue, width, inner, bias=bias, dtype=dtype)
        self.c_proj = Linear(queue, inner, width, bias=bias, dtype=dtype)
        self.dropout = Dropout(p)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.c_proj(ACTIVATIONS[self.activation](self.c_fc(x))))


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
        self.attn = CausalSelfAttention(queue, d_model, num_heads, causal, dropout, bias, dtype)
        self.ln_2 = LayerNorm(queue, d_model, bias=bias, dtype=dtype)
        self.mlp = _FeedForward(queue, d_model, inner, activation, dropout, bias, dtype)

    def forward(self, x: Tensor, cache: KVCache | None = None, layer: int = 0) -> Tensor:
        x = x + self.attn(self.ln_1(x), cache, layer)
        return x + self.mlp(self.ln_2(x))


class PositionalEmbedding(Module):
    """A learned vector for each place: ``PositionalEmbedding(queue, 512, 64)(length)`` is (length, d_model)."""

    _settings = ("max_len", "d_model")
    weight: Tensor

    @queue_first
    def __init__(
        self, queue: Any, max_len: int, d_model: int, *, init_std: float = 0.02, dtype: str | None = None
    ) -> None:
        positive("PositionalEmbedding", max_len=max_len, d_model=d_model)
        self.max_len, self.d_model = max_len, d_model
        self.weight = normal_(parameter(queue, (max_len, d_model), dtype=dtype), 0.0, init_std)

    def forward(self, length: int, start: int = 0) -> Tensor:
        """The vectors of ``length`` places from ``start`` on."""
        if start < 0 or length < 0 or start + length > self.max_len:
            raise ValueError(f"PositionalEmbedding knows the places 0 to {self.max_len - 1}, not {length} from {start} on")
        return ag.slice(self.weight, 0, start, start + length)


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


class SwiGLU(Module):
    """A gated pair of linear layers: ``down(silu(gate(x)) * up(x))``.

    The inner width is 8/3 of the outer one, up to a multiple of 64, unless given: as many weights as without a gate.
    """

    _settings = ("dim", "hidden", "bias")

    @queue_first
    def __init__(
        self, queue: Any, dim: int, hidden: int | None = None, bias: bool = False, dtype: str | None = None
    ) -> None:
        positive("SwiGLU", dim=dim)
        self.dim, self.bias = dim, bias
        self.hidden = -(-int(8 * dim / 3) // 64) * 64 if hidden is None else hidden
        self.gate = Linear(queue, dim, self.hidden, bias=bias, dtype=dtype)
        self.up = Linear(queue, dim, self.hidden, bias=bias, dtype=dtype)
        self.down = Linear(queue, self.hidden, dim, bias=bias, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(ag.silu(self.gate(x)) * self.up(x))


class RotaryAttention(Module):
    """Causal attention that knows places by rotation: only distances count. With ``qk_norm`` queries and keys are normalised."""

    _settings = ("dim", "n_head", "rope_base", "dropout", "bias", "qk_norm", "eps")

    @queue_first
    def __init__(
        self,
        queue: Any,
        dim: int,
        n_head: int,
        rope_base: float = 10000.0,
        dropout: float = 0.0,
        bias: bool = False,
        qk_norm: bool = True,
        eps: float = 1e-6,
        dtype: str | None = None,
    ) -> None:
        positive("RotaryAttention", dim=dim, n_head=n_head)
        if dim % (2 * n_head):
            raise ValueError(f"RotaryAttention: dim={dim} must be n_head={n_head} times an even number")
        self.dim, self.n_head, self.rope_base, self.dropout = dim, n_head, rope_base, dropout
        self.bias, self.qk_norm, self.eps = bias, qk_norm, eps
        self.qkv = Linear(queue, dim, 3 * dim, bias=bias, dtype=dtype)
        self.proj = Linear(queue, dim, dim, bias=bias, dtype=dtype)
        for name in ("q_norm", "k_norm"):
            self.add_module(name, RMSNorm(queue, dim // n_head, eps, dtype=dtype) if qk_norm else None)

    def forward(self, x: Tensor, cache: KVCache | None = None, layer: int = 0) -> Tensor:
        q, k, v = (_heads(part, self.n_head) for part in ag.split(self.qkv(x), self.dim, -1))
        if self.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        start = 0 if cache is None else cache.length
        q, k = (ag.rotary(part, base=self.rope_base, start=start) for part in (q, k))
        p = self.dropout if self.training else 0.0
        y = self.proj(_joined(_attend(q, k, v, True, p, cache, layer)))
        return ag.dropout(y, p) if p else y


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
        self.dim, self.n_head, self.dropout, self.rope_base, self.eps, self.qk_norm = dim, n_head, dropout, rope_base, eps, qk_norm
        self.norm1 = RMSNorm(queue, dim, eps, dtype=dtype)
        self.attn = RotaryAttention(queue, dim, n_head, rope_base, dropout, qk_norm=qk_norm, eps=eps, dtype=dtype)
        self.norm2 = RMSNorm(queue, dim, eps, dtype=dtype)
        self.ffn = SwiGLU(queue, dim, hidden, dtype=dtype)
        self.hidden = self.ffn.hidden

    def forward(self, x: Tensor, cache: KVCache | None = None, layer: int = 0) -> Tensor:
        x = x + self.attn(self.norm1(x), cache, layer)
        y = self.ffn(self.norm2(x))
        return x + (ag.dropout(y, self.dropout) if self.dropout and self.training else y)
