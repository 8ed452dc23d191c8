"""Ready-made parametrisations: ``netcl.nn.utils.parametrizations``."""

from __future__ import annotations

from typing import Any

from netcl import _factories as make
from netcl._netcl import Tensor
from netcl.autograd import ops
from netcl.autograd.tape import no_grad
from netcl.nn.module import Module
from netcl.nn.utils.parametrize import register_parametrization

__all__ = ["spectral_norm", "weight_norm"]


def norm_except(v: Tensor, dim: int | None) -> Tensor:
    """The norm of each slice of an axis, broadcastable to the tensor; of all of it where there is no axis."""
    if dim is None or dim == -1:
        return ops.norm(v)
    axes = [axis for axis in range(v.ndim) if axis != dim % v.ndim]
    # The kernel adds up squares of 16-bit numbers in float32.
    return ops.norm(v, 2.0, axes, True) if axes else ops.abs(v)


class _WeightNorm(Module):
    def __init__(self, dim: int | None) -> None:
        self.dim = dim

    def forward(self, g: Tensor, v: Tensor) -> Tensor:
        return v * (g / norm_except(v, self.dim))

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The lengths and the directions."""
        return norm_except(weight, self.dim), weight


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Splits a weight into lengths (``parametrizations.weight.original0``) and directions (``original1``), which train apart
    (Salimans and Kingma, 2016). A length belongs to each slice of axis ``dim``, or with None to the whole."""
    return register_parametrization(module, name, _WeightNorm(dim))


class _SpectralNorm(Module):
    _u: Tensor
    _v: Tensor

    def __init__(self, weight: Tensor, n_power_iterations: int, dim: int, eps: float) -> None:
        self.n_power_iterations, self.dim, self.eps = n_power_iterations, dim, eps
        matrix = self._matrix(weight.detach())
        for name, length in zip(("_u", "_v"), matrix.shape):
            start = make.randn(length, dtype=weight.dtype, device=weight.queue)
            self.register_buffer(name, ops.normalize(start, axis=0, eps=eps))
        self._iterate(matrix, 15)

    def _matrix(self, weight: Tensor) -> Tensor:
        if weight.ndim < 2:
            return ops.reshape(weight, (weight.shape[0], 1))
        return ops.flatten(ops.movedim(weight, self.dim, 0), 1)

    def _iterate(self, matrix: Tensor, count: int) -> None:
        with no_grad():
            for _ in range(count):
                self._u.copy_(ops.normalize(ops.mv(matrix, self._v), axis=0, eps=self.eps))
                self._v.copy_(ops.normalize(ops.mv(matrix.T, self._u), axis=0, eps=self.eps))

    def forward(self, weight: Tensor) -> Tensor:
        matrix = self._matrix(weight)
        if self.training:
            self._iterate(matrix.detach(), self.n_power_iterations)
        u, v = self._u.clone(), self._v.clone()
        result: Tensor = weight / ops.dot(u, ops.mv(matrix, v))
        return result


def spectral_norm(
    module: Module, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None
) -> Module:
    """Divides a weight by its largest singular value, which power iterations follow in training (Miyato et al., 2018)."""
    weight: Any = module._parameters.get(name)
    if weight is None:
        raise ValueError(f"spectral_norm: {type(module).__name__} has no parameter {name!r}")
    if dim is None:
        dim = 1 if "ConvTranspose" in type(module).__name__ else 0
    return register_parametrization(module, name, _SpectralNorm(weight, n_power_iterations, dim, eps))
