"""Distributions of numbers beside the normal ones."""

from __future__ import annotations

import math
from typing import Any

from netcl import _factories as make
from netcl._netcl import Tensor
from netcl.autograd import ops
from netcl.distributions.distribution import Distribution, broadcast

__all__ = ["Exponential", "Laplace", "Uniform"]


def _uniform(shape: tuple[int, ...], near: Tensor) -> Tensor:
    bits = {"float16": 11, "bfloat16": 8}.get(near.dtype)
    if bits is None:
        return make.rand(shape, dtype=near.dtype, device=near.queue)
    # Rounded to 16 bits, some would be 1.
    drawn = ops.floor(make.rand(shape, device=near.queue) * 2.0**bits) * 2.0**-bits
    return drawn.to(dtype=near.dtype)


class Uniform(Distribution):
    """Numbers from ``low`` to ``high``."""

    has_rsample = True

    def __init__(self, low: Any, high: Any, validate_args: bool | None = None) -> None:
        self.low, self.high = broadcast(low, high)
        super().__init__(self.low.shape)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.low + _uniform(self._shape(sample_shape), self.low) * (self.high - self.low)

    def log_prob(self, value: Any) -> Tensor:
        (value,) = broadcast(value)
        inside = (value >= self.low) & (value < self.high)
        return ops.where(inside, -ops.log(self.high - self.low), -math.inf)

    def entropy(self) -> Tensor:
        return ops.log(self.high - self.low)

    @property
    def mean(self) -> Tensor:
        return (self.low + self.high) / 2

    @property
    def variance(self) -> Tensor:
        return ops.square(self.high - self.low) / 12


class Exponential(Distribution):
    """Waiting times of events that happen ``rate`` times per unit."""

    has_rsample = True

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = broadcast(rate)
        super().__init__(self.rate.shape)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        # Uniform numbers may be 0, never 1.
        return -ops.log1p(-_uniform(self._shape(sample_shape), self.rate)) / self.rate

    def log_prob(self, value: Any) -> Tensor:
        found: Tensor = ops.log(self.rate) - self.rate * value
        return found

    def entropy(self) -> Tensor:
        return 1 - ops.log(self.rate)

    @property
    def mean(self) -> Tensor:
        return 1 / self.rate

    @property
    def variance(self) -> Tensor:
        return 1 / ops.square(self.rate)


class Laplace(Distribution):
    """Numbers of mean ``loc`` whose distance from it is exponential of mean ``scale``."""

    has_rsample = True

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast(loc, scale)
        super().__init__(self.loc.shape)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        # From -1 (excluded) to 1 (excluded): -1 would be infinitely far away.
        side = _uniform(self._shape(sample_shape), self.loc) * 2 - 1
        below = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float64": 2.0**-53}.get(side.dtype, 2.0**-24)
        side = ops.clamp(side, min=-1 + below)
        return self.loc - self.scale * ops.sign(side) * ops.log1p(-ops.abs(side))

    def log_prob(self, value: Any) -> Tensor:
        found: Tensor = -ops.log(2 * self.scale) - ops.abs(value - self.loc) / self.scale
        return found

    def entropy(self) -> Tensor:
        return 1 + ops.log(2 * self.scale)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return 2 * ops.square(self.scale)
