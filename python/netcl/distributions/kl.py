"""How far one distribution is from another."""

from __future__ import annotations

import math
from typing import Any

from netcl._netcl import Tensor
from netcl.autograd import ops
from netcl.distributions.categorical import Bernoulli, Categorical
from netcl.distributions.distribution import Distribution
from netcl.distributions.independent import Independent
from netcl.distributions.normal import Normal

__all__ = ["kl_divergence"]


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """The mean of ``p.log_prob - q.log_prob`` over draws of ``p``; for two of a kind: normal, categorical, Bernoulli, and
    ``Independent`` of these."""
    a: Any = p
    b: Any = q
    found: Tensor
    if isinstance(p, Independent) and isinstance(q, Independent):
        return p._joined(kl_divergence(p.base_dist, q.base_dist))
    if isinstance(p, Normal) and isinstance(q, Normal):
        ratio = ops.square(a.scale / b.scale)
        found = (ratio + ops.square((a.loc - b.loc) / b.scale) - 1 - ops.log(ratio)) / 2
        return found
    if isinstance(p, Categorical) and isinstance(q, Categorical):
        # What p never draws adds nothing, even where q cannot draw it either.
        terms = ops.where(b.probs == 0, math.inf, a.probs * (a.logits - b.logits))
        found = ops.sum(ops.where(a.probs == 0, 0.0, terms), -1)
        return found
    if isinstance(p, Bernoulli) and isinstance(q, Bernoulli):
        ones = a.probs * (ops.softplus(-b.logits) - ops.softplus(-a.logits))
        zeros = (1 - a.probs) * (ops.softplus(b.logits) - ops.softplus(a.logits))
        ones = ops.where(a.probs == 0, 0.0, ops.where(b.probs == 0, math.inf, ones))
        zeros = ops.where(a.probs == 1, 0.0, ops.where(b.probs == 1, math.inf, zeros))
        found = ones + zeros
        return found
    raise NotImplementedError(f"kl_divergence: no formula for {type(p).__name__} and {type(q).__name__}; average log_prob")
