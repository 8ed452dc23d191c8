"""The recorded operations as functions, under PyTorch's name for the place: ``from netcl.nn import functional as F``."""

from __future__ import annotations

from netcl import _functions
from netcl._netcl import Tensor
from netcl._netcl.autograd import elementwise
from netcl.autograd.ops import *


def relu(x: Tensor, inplace: bool = False) -> Tensor:  # type: ignore[no-redef]
    """``max(x, 0)``; NaN stays NaN. ``inplace`` changes nothing."""
    return elementwise("relu", x)


def softmax(x: Tensor, axis: int = -1, *, dim: int | None = None, dtype: str | None = None) -> Tensor:  # type: ignore[no-redef]
    """``exp(x) / sum(exp(x))`` along an axis, of values cast to ``dtype`` first where one is given."""
    return _functions.softmax(x, axis, dim=dim, dtype=dtype)


def log_softmax(x: Tensor, axis: int = -1, *, dim: int | None = None, dtype: str | None = None) -> Tensor:  # type: ignore[no-redef]
    """``log(softmax(x))`` along an axis, of values cast to ``dtype`` first where one is given."""
    return _functions.log_softmax(x, axis, dim=dim, dtype=dtype)


def leaky_relu_(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """``leaky_relu``, written over the tensor."""
    return x.leaky_relu_(negative_slope)


def relu_(x: Tensor) -> Tensor:
    """``relu``, written over the tensor."""
    return x.relu_()


def global_avg_pool2d(x: Tensor) -> Tensor:
    """The mean of each channel: (N, C, H, W) to (N, C, 1, 1)."""
    return adaptive_avg_pool2d(x, 1)
