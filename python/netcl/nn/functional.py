"""The recorded operations as functions, under PyTorch's name for the place: ``from netcl.nn import functional as F``."""

from __future__ import annotations

from netcl._netcl import Tensor
from netcl.autograd import ops as _ops
from netcl.autograd.ops import *  # noqa: F403
from netcl.autograd.ops import adaptive_avg_pool2d
from netcl.nn.dropout import Dropout1d, Dropout2d

__all__ = [*_ops.__all__, "dropout1d", "dropout2d", "global_avg_pool2d", "normalize"]


def dropout1d(x: Tensor, p: float = 0.5, training: bool = True, *, seed: int | None = None) -> Tensor:
    """Dropout of whole channels of sequences (N, C, L)."""
    return Dropout1d(p, seed).train(training)(x)


def dropout2d(x: Tensor, p: float = 0.5, training: bool = True, *, seed: int | None = None) -> Tensor:
    """Dropout of whole channels of images (N, C, H, W)."""
    return Dropout2d(p, seed).train(training)(x)


def global_avg_pool2d(x: Tensor) -> Tensor:
    """The mean of each channel: (N, C, H, W) to (N, C, 1, 1)."""
    return adaptive_avg_pool2d(x, 1)


def normalize(x: Tensor, p: float = 2.0, axis: int = 1, eps: float = 1e-12) -> Tensor:
    """Vectors along an axis divided by their norm, or by ``eps`` where that is larger."""
    return x / _ops.maximum(_ops.norm(x, p, axis, True), eps)
