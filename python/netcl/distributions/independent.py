"""Several distributions as one of vectors."""

from __future__ import annotations

from typing import Any

from netcl._netcl import Tensor
from netcl.autograd import ops
from netcl.distributions.distribution import Distribution

__all__ = ["Independent"]


class Independent(Distribution):
    """A distribution whose last axes of distributions count as elements of one draw: ``Independent(Normal(mean, std), 1)``."""

    def __init__(
        self, base_distribution: Distribution, reinterpreted_batch_ndims: int, validate_args: bool | None = None
    ) -> None:
        base, count = base_distribution, reinterpreted_batch_ndims
        if count > len(base.batch_shape):
            raise ValueError(f"Independent: {base!r} has fewer than {count} axes of distributions")
        self.base_dist, self.reinterpreted_batch_ndims = base, count
        self.has_rsample = base.has_rsample
        cut = len(base.batch_shape) - count
        super().__init__(base.batch_shape[:cut], (*base.batch_shape[cut:], *base.event_shape))

    def _joined(self, values: Tensor) -> Tensor:
        axes = tuple(range(-self.reinterpreted_batch_ndims, 0))
        return ops.sum(values, axes) if axes else values

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.base_dist.rsample(sample_shape)

    def log_prob(self, value: Any) -> Tensor:
        return self._joined(self.base_dist.log_prob(value))

    def entropy(self) -> Tensor:
        return self._joined(self.base_dist.entropy())

    @property
    def mean(self) -> Tensor:
        return self.base_dist.mean

    @property
    def variance(self) -> Tensor:
        return self.base_dist.variance
