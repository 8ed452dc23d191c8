"""Attention."""

from __future__ import annotations

import math
from typing import Any

from netcl import autograd as ag
from netcl._netcl import Tensor
from netcl._netcl.nn import constant_, xavier_uniform_
from netcl.nn._arguments import parameter, positive, queue_first
from netcl.nn.linear import Linear
from netcl.nn.module import Module

__all__ = ["MultiheadAttention"]


class MultiheadAttention(Module):
    """Attention of several heads: ``MultiheadAttention(queue, 64, 4)(x)`` is self-attention, ``(query, key, value)`` any.

    Tensors have the axes (batch, length, embed_dim), or with ``batch_first=False`` (length, batch, embed_dim). The weights are
    PyTorch's: ``in_proj_weight`` of shape ``(3 * embed_dim, embed_dim)`` makes queries, keys and values, ``out_proj`` joins the
    heads.
    """

    _settings = ("embed_dim", "num_heads", "dropout", "bias", "batch_first")
    in_proj_weight: Tensor
    in_proj_bias: Tensor | None

    @queue_first
    def __init__(
        self,
        queue: Any,
        embed_dim: int,
        num_heads: int,
        *,
        dropout: float = 0.0,
        bias: bool = True,
        batch_first: bool = True,
        dtype: str | None = None,
    ) -> None:
        positive("MultiheadAttention", embed_dim=embed_dim, num_heads=num_heads)
        if embed_dim % num_heads:
            raise ValueError(f"MultiheadAttention: num_heads={num_heads} must divide embed_dim={embed_dim}")
        self.embed_dim, self.num_heads, self.dropout, self.batch_first = embed_dim, num_heads, dropout, batch_first
        self.head_dim = embed_dim // num_heads
        self.in_proj_weight = xavier_uniform_(parameter(queue, (3 * embed_dim, embed_dim), dtype=dtype))
        self.register_parameter("in_proj_bias", parameter(queue, (3 * embed_dim,), dtype=dtype) if bias else None)
        self.out_proj = Linear(queue, embed_dim, embed_dim, bias=bias, dtype=dtype)
        if self.out_proj.bias is not None:
            constant_(self.out_proj.bias, 0.0)

    def settings(self) -> dict[str, Any]:
        return {**{name: getattr(self, name) for name in self._settings if name != "bias"}, "bias": self.in_proj_bias is not None}

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        key_padding_mask: Any = None,
        need_weights: bool = False,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> Any:
        """The joined heads; with ``need_weights`` also the attention of each query to each key (means over the heads).

        Keys and values are the query unless given, values the key. In masks of truth values True hides a key, as in PyTorch;
        numbers are added to the scores. ``key_padding_mask`` is (batch, keys); ``attn_mask`` is (queries, keys) or (batch *
        heads, queries, keys). With ``is_causal`` a query sees the keys up to its own place.
        """
        key = query if key is None else key
        value = key if value is None else value
        q, k, v = self._project(query, key, value)
        mask = self._mask(key_padding_mask, attn_mask, q, k)
        p = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            weights = self._weights(q, k, mask, is_causal)
            out = ag.matmul(ag.dropout(weights, p) if p else weights, v)
        else:
            out = ag.scaled_dot_product_attention(q, k, v, mask, p, is_causal)
        batch, _, length, _ = out.shape
        out = ag.reshape(ag.permute(out, (0, 2, 1, 3)), (batch, length, self.embed_dim))
        out = self.out_proj(out)
        if not self.batch_first:
            out = ag.transpose(out, 0, 1)
        if weights is None:
            return out
        return out, ag.mean(weights, 1) if average_attn_weights else weights

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Queries, keys and values as (batch, heads, length, head_dim)."""
        for name, x in (("query", query), ("key", key), ("value", value)):
            if x.ndim != 3 or x.shape[2] != self.embed_dim:
                axes = f"({'batch, length' if self.batch_first else 'length, batch'}, {self.embed_dim})"
                raise ValueError(f"MultiheadAttention: {name} has shape {tuple(x.shape)}; it must be {axes}")
        weight, bias, width = self.in_proj_weight, self.in_proj_bias, self.embed_dim
        if query is key is value:
            parts = ag.split(ag.linear(query, weight, bias), width, -1)
        else:
            weights = ag.split(weight, width, 0)
            biases = [None] * 3 if bias is None else ag.split(bias, width, 0)
            parts = [ag.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases)]
        heads = []
        for part in parts:
            if not self.batch_first:
                part = ag.transpose(part, 0, 1)
            batch, length, _ = part.shape
            heads.append(ag.permute(ag.reshape(part, (batch, length, self.num_heads, self.head_dim)), (0, 2, 1, 3)))
        return heads

    def _mask(self, key_padding_mask: Any, attn_mask: Any, q: Tensor, k: Tensor) -> Any:
        """What is added to the scores, (batch or 1, heads or 1, queries or 1, keys)."""
        import numpy as np

        def added(name: str, given: Any, shapes: list[tuple[int, ...]]) -> Any:
            array = np.asarray(given)
            if array.shape not in shapes:
                wanted = " or ".join(map(str, shapes))
                raise ValueError(f"MultiheadAttention: {name} has shape {array.shape}; it must be {wanted}")
            return np.where(array, -np.inf, 0.0) if array.dtype == bool else array.astype(np.float64)

        batch, heads, queries, keys = *q.shape[:3], k.shape[2]
        mask = None
        if attn_mask is not None:
            mask = added("attn_mask", attn_mask, [(queries, keys), (batch * heads, queries, keys)])
            mask = mask.reshape((1, 1, queries, keys) if mask.ndim == 2 else (batch, heads, queries, keys))
        if key_padding_mask is not None:
            hidden = added("key_padding_mask", key_padding_mask, [(batch, keys)]).reshape(batch, 1, 1, keys)
            mask = hidden if mask is None else mask + hidden
        return mask if mask is None else Tensor.from_host(q.queue, mask, q.dtype)

    def _weights(self, q: Tensor, k: Tensor, mask: Any, is_causal: bool) -> Tensor:
        import numpy as np

        scores = ag.matmul(q, k, transpose_b=True) * (1.0 / math.sqrt(self.head_dim))
        if mask is not None:
            scores = scores + mask
        if is_causal:
            scores = ag.masked_fill(scores, np.triu(np.ones((q.shape[2], k.shape[2]), bool), 1), -math.inf)
        return ag.softmax(scores, -1)
