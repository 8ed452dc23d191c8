"""First values of parameters: each function overwrites a tensor in place, unrecorded, and returns it.

Random numbers come from netcl's own generator (``netcl.manual_seed``, or ``seed=`` for one call): uniform ones are the same
bits on every device. The fans of a shape ``(out, in, k...)`` are ``in * k...`` and ``out * k...``. Names that end in an
underscore are PyTorch's, with its defaults.
"""

from __future__ import annotations

import math

import numpy as np

from netcl._netcl import Tensor
from netcl._netcl.nn import (
    calculate_gain,
    constant_,
    kaiming_normal_,
    kaiming_uniform_,
    normal_,
    orthogonal_,
    trunc_normal_,
    uniform_,
    xavier_normal_,
    xavier_uniform_,
)
from netcl.autograd.tape import no_grad

__all__ = [
    "calculate_gain",
    "constant",
    "constant_",
    "dirac_",
    "eye_",
    "kaiming_normal_",
    "kaiming_uniform",
    "kaiming_uniform_",
    "normal",
    "normal_",
    "ones_",
    "orthogonal_",
    "trunc_normal_",
    "uniform_",
    "xavier_normal_",
    "xavier_uniform",
    "xavier_uniform_",
    "zeros_",
]


def zeros_(tensor: Tensor) -> Tensor:
    """Fills a tensor with zeros."""
    return constant_(tensor, 0.0)


def ones_(tensor: Tensor) -> Tensor:
    """Fills a tensor with ones."""
    return constant_(tensor, 1.0)


def eye_(tensor: Tensor) -> Tensor:
    """Fills a matrix with ones on its diagonal and zeros beside it."""
    if tensor.ndim != 2:
        raise ValueError(f"eye_: a matrix is needed, not shape {tensor.shape}")
    return _overwrite(tensor, np.eye(tensor.shape[0], tensor.shape[1]))


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Fills the weight of a convolution so that each group passes as many channels through as it can."""
    out, channels, *kernel = tensor.shape
    if tensor.ndim < 3 or groups < 1 or out % groups:
        raise ValueError(f"dirac_: the weight of a convolution in {groups} groups is needed, not shape {tensor.shape}")
    values = np.zeros(tensor.shape)
    middle = tuple(size // 2 for size in kernel)
    for group in range(groups):
        for channel in range(min(out // groups, channels)):
            values[(group * (out // groups) + channel, channel, *middle)] = 1
    return _overwrite(tensor, values)


def _overwrite(tensor: Tensor, values: np.ndarray) -> Tensor:
    with no_grad():
        return tensor.copy_(Tensor.from_host(tensor.queue, values.astype(np.float32)))


def constant(tensor: Tensor, val: float) -> None:
    """Fills a tensor with a value."""
    constant_(tensor, val)


def normal(tensor: Tensor, mean: float = 0.0, std: float = 0.02) -> None:
    """Fills a tensor with normal numbers, of the small deviation that transformers start with."""
    normal_(tensor, mean, std)


def xavier_uniform(tensor: Tensor) -> None:
    """``xavier_uniform_`` with gain 1."""
    xavier_uniform_(tensor)


def kaiming_uniform(tensor: Tensor, a: float = math.sqrt(5)) -> None:
    """``kaiming_uniform_`` with the slope that gives linear layers and convolutions their bound, ``1 / sqrt(fan_in)``."""
    kaiming_uniform_(tensor, a)


def _calculate_fan_in_and_fan_out(tensor: Tensor) -> tuple[int, int]:
    """How many inputs and outputs an element of a weight joins; a name of PyTorch's that layers of one's own use."""
    if tensor.ndim < 2:
        raise ValueError(f"a weight of shape {tensor.shape} has no fans: at least two axes are needed")
    field = 1
    for length in tensor.shape[2:]:
        field *= length
    return tensor.shape[1] * field, tensor.shape[0] * field
