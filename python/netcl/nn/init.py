"""First values of parameters: each function overwrites a tensor in place, unrecorded, and returns it.

Random numbers come from netcl's own generator (``netcl.manual_seed``, or ``seed=`` for one call): uniform ones are the same
bits on every device. The fans of a shape ``(out, in, k...)`` are ``in * k...`` and ``out * k...``. Names that end in an
underscore are PyTorch's, with its defaults.
"""

from __future__ import annotations

import math

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

__all__ = [
    "calculate_gain",
    "constant",
    "constant_",
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
