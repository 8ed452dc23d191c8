"""Attention."""

from __future__ import annotations

from typing import Any

from netcl import autograd as ag
from netcl._netcl import Tensor, nn as _nn
from netcl.nn._layer import KW_ONLY, Parametric, given
from netcl.nn.linear import Linear

__all__ = ["MultiheadAttention"]


class MultiheadAttention(Parametric):
    """Attention of several heads: ``MultiheadAttention(queue, 64, 4)(x)`` is self-attention, ``(query, key, value)`` any.

    Tensors have the axes (batch, length, embed_dim), or with ``batch_first=False`` (length, batch, embed_dim), or no batch.
    The weights are PyTorch's: ``in_proj_weight`` of shape ``(3 * embed_dim, embed_dim)`` makes queries, keys and values,
    ``out_proj`` joins the heads.
    """

    embed_dim: int = given()
    num_heads: int = given()
    _: KW_ONLY
    dropout: float = 0.0
    bias: bool = True
    batch_first: bool = True
    in_proj_weight: Tensor
    in_proj_bias: Tensor | None
    out_proj: Linear

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        key_padding_mask: Any = None,
        need_weights: bool | None = None,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> Any:
        """The joined heads, and the attention of each query to each key (means over the heads).

        Called with three tensors it gives both, as in PyTorch: ``out, weights = attention(x, x, x)``, where the weights are
        ``None`` with ``need_weights=False``, which is faster. Called with fewer it gives the tensor alone unless
        ``need_weights=True``: keys are the query unless given, values the key.

        In masks of truth values True hides a key, as in PyTorch;
        numbers are added to the scores. ``key_padding_mask`` is (batch, keys); ``attn_mask`` is (queries, keys) or (batch *
        heads, queries, keys). With ``is_causal`` a query sees the keys up to its own place.
        """
        pair = value is not None
        wanted = pair if need_weights is None else need_weights
        masks = _added(key_padding_mask), _added(attn_mask), is_causal
        out = _nn.multihead_attention(self._layer, self.__dict__, query, key, value, *masks, wanted, average_attn_weights)
        return (out, None) if pair and not wanted else out


def _added(mask: Any) -> Any:
    """A mask as what is added to scores: minus infinity where a tensor of truth values hides a key."""
    if not isinstance(mask, Tensor) or mask.is_floating_point():
        return mask
    if mask.dtype != "bool":
        raise TypeError(f"MultiheadAttention: a mask holds truth values or floats, not {mask.dtype}; compare first (mask == 0)")
    return ag.where(mask, float("-inf"), 0.0)
