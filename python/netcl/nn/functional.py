"""The recorded operations as functions, under PyTorch's name for the place: ``from netcl.nn import functional as F``."""

from __future__ import annotations

from netcl._netcl import Tensor
from netcl._netcl.autograd import elementwise
from netcl.autograd.ops import *


def relu(x: Tensor, inplace: bool = False) -> Tensor:  # type: ignore[no-redef]
    """``max(x, 0)``; NaN stays NaN. ``inplace`` changes nothing."""
    return elementwise("relu", x)


def global_avg_pool2d(x: Tensor) -> Tensor:
    """The mean of each channel: (N, C, H, W) to (N, C, 1, 1)."""
    return adaptive_avg_pool2d(x, 1)
