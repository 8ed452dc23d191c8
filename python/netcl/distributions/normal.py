"""Normal distributions, of numbers and of vectors."""

from __future__ import annotations

import math
from typing import Any

from netcl import _factories as make
from netcl._names import broadcast_shapes
from netcl._netcl import Tensor
from netcl.autograd import ops
from netcl.distributions.distribution import Distribution, broadcast

__all__ = ["LogNormal", "MultivariateNormal", "Normal"]

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class Normal(Distribution):
    """Normal numbers of mean ``loc`` and deviation ``scale``."""

    has_rsample = True

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast(loc, scale)
        super().__init__(self.loc.shape)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        noise = make.randn(self._shape(sample_shape), dtype=self.loc.dtype, device=self.loc.queue)
        drawn: Tensor = self.loc + self.scale * noise
        return drawn

    def log_prob(self, value: Any) -> Tensor:
        found: Tensor = -ops.square((value - self.loc) / self.scale) / 2 - ops.log(self.scale) - _HALF_LOG_2PI
        return found

    def entropy(self) -> Tensor:
        found: Tensor = 0.5 + _HALF_LOG_2PI + ops.log(self.scale)
        return found

    def cdf(self, value: Any) -> Tensor:
        """The probability of smaller numbers."""
        found: Tensor = 0.5 * (1 + ops.erf((value - self.loc) / (self.scale * math.sqrt(2))))
        return found

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return ops.square(self.scale)


class LogNormal(Distribution):
    """Numbers whose logarithms are normal."""

    has_rsample = True

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self._base = Normal(loc, scale)
        self.loc, self.scale = self._base.loc, self._base.scale
        super().__init__(self.loc.shape)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return ops.exp(self._base.rsample(sample_shape))

    def log_prob(self, value: Any) -> Tensor:
        log = ops.log(value)
        return self._base.log_prob(log) - log

    def entropy(self) -> Tensor:
        return self._base.entropy() + self.loc

    @property
    def mean(self) -> Tensor:
        return ops.exp(self.loc + ops.square(self.scale) / 2)

    @property
    def variance(self) -> Tensor:
        square = ops.square(self.scale)
        return ops.expm1(square) * ops.exp(2 * self.loc + square)


class MultivariateNormal(Distribution):
    """Normal vectors of mean ``loc``, with a ``covariance_matrix`` or its Cholesky factor ``scale_tril``."""

    has_rsample = True

    def __init__(
        self,
        loc: Tensor,
        covariance_matrix: Tensor | None = None,
        precision_matrix: Tensor | None = None,
        scale_tril: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        from netcl import linalg

        if sum(given is not None for given in (covariance_matrix, precision_matrix, scale_tril)) != 1:
            raise ValueError("MultivariateNormal: give one of covariance_matrix, precision_matrix and scale_tril")
        if scale_tril is None:
            if precision_matrix is not None:
                covariance_matrix = linalg.inv(precision_matrix)
            assert covariance_matrix is not None
            scale_tril = linalg.cholesky(covariance_matrix)
        size = loc.shape[-1]
        batch = broadcast_shapes(loc.shape[:-1], scale_tril.shape[:-2])
        self.loc, self.scale_tril = ops.expand(loc, (*batch, size)), ops.expand(scale_tril, (*batch, size, size))
        super().__init__(batch, (size,))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        noise = make.randn(self._shape(sample_shape), dtype=self.loc.dtype, device=self.loc.queue)
        drawn: Tensor = self.loc + ops.squeeze(self.scale_tril @ ops.unsqueeze(noise, -1), -1)
        return drawn

    def log_prob(self, value: Any) -> Tensor:
        from netcl import linalg

        away = ops.unsqueeze(value - self.loc, -1)
        factor = ops.expand(self.scale_tril, (*away.shape[:-2], *self.scale_tril.shape[-2:]))
        white = linalg.solve(factor, away)
        found: Tensor = -ops.sum(ops.square(white), (-2, -1)) / 2 - self._log_scale() - self.event_shape[0] * _HALF_LOG_2PI
        return found

    def entropy(self) -> Tensor:
        found: Tensor = self._log_scale() + self.event_shape[0] * (0.5 + _HALF_LOG_2PI)
        return ops.expand(found, self.batch_shape)

    def _log_scale(self) -> Tensor:
        return ops.sum(ops.log(ops.diagonal(self.scale_tril, 0, -2, -1)), -1)

    @property
    def mean(self) -> Tensor:
        return ops.expand(self.loc, (*self.batch_shape, *self.event_shape))

    @property
    def covariance_matrix(self) -> Tensor:
        """The covariances of the elements of a vector."""
        found: Tensor = self.scale_tril @ self.scale_tril.mT
        return found

    @property
    def variance(self) -> Tensor:
        return ops.expand(ops.sum(ops.square(self.scale_tril), -1), (*self.batch_shape, *self.event_shape))
