"""Linear layers."""

from __future__ import annotations

from typing import Any

from netcl import autograd as ag
from netcl._netcl import Tensor
from netcl._netcl.nn import linear_parameters
from netcl.nn._arguments import queue_first
from netcl.nn.module import Module

__all__ = ["Linear"]


class Linear(Module):
    """``x @ weight.T + bias`` over the last axis: ``Linear(queue, 2, 32)``, or ``Linear(2, 32)`` on the active device.

    The weight has shape ``(out_features, in_features)``; both start uniform within ``1 / sqrt(in_features)``.
    """

    _settings = ("in_features", "out_features", "bias")
    weight: Tensor
    bias: Tensor | None

    @queue_first
    def __init__(self, queue: Any, in_features: int, out_features: int, bias: bool = True, dtype: str | None = None) -> None:
        self.in_features, self.out_features = in_features, out_features
        self.weight, made = linear_parameters(queue, in_features, out_features, bias, dtype)
        self.register_parameter("bias", made)

    def forward(self, x: Tensor) -> Tensor:
        return ag.linear(x, self.weight, self.bias)
