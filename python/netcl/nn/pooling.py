"""Pooling."""

from __future__ import annotations

from typing import Any

from netcl import autograd as ag
from netcl._netcl import Tensor
from netcl.nn._arguments import numbers
from netcl.nn.module import Module

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AvgPool1d",
    "AvgPool2d",
    "GlobalAvgPool2d",
    "MaxPool1d",
    "MaxPool2d",
]


def _size(layer: Module, name: str, given: Any, axes: int, least: int = 1) -> Any:
    """A size as it was given, if it is one number or one for each axis."""
    values = numbers(type(layer).__name__, name, given, axes, least)
    return values if isinstance(given, (list, tuple)) else values[0]


class MaxPool2d(Module):
    """The largest element of each window of images (N, C, H, W); windows lie side by side unless a stride is given."""

    _settings = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
    _function = staticmethod(ag.max_pool2d)
    _axes = 2

    def __init__(
        self, kernel_size: Any = 2, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> None:
        self.kernel_size = _size(self, "kernel_size", kernel_size, self._axes)
        self.stride = self.kernel_size if stride is None else _size(self, "stride", stride, self._axes)
        self.padding = _size(self, "padding", padding, self._axes, least=0)
        self.dilation, self.ceil_mode = _size(self, "dilation", dilation, self._axes), ceil_mode

    def forward(self, x: Tensor) -> Tensor:
        return type(self)._function(x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)


class MaxPool1d(MaxPool2d):
    """``MaxPool2d`` for sequences (N, C, L)."""

    _function = staticmethod(ag.max_pool1d)
    _axes = 1


class AvgPool2d(Module):
    """The mean of each window of images (N, C, H, W); windows lie side by side unless a stride is given."""

    _settings = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
    _function = staticmethod(ag.avg_pool2d)
    _axes = 2

    def __init__(
        self,
        kernel_size: Any = 2,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        self.kernel_size = _size(self, "kernel_size", kernel_size, self._axes)
        self.stride = self.kernel_size if stride is None else _size(self, "stride", stride, self._axes)
        self.padding = _size(self, "padding", padding, self._axes, least=0)
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad
        self.divisor_override = divisor_override

    def forward(self, x: Tensor) -> Tensor:
        return type(self)._function(
            x, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad, self.divisor_override
        )


class AvgPool1d(AvgPool2d):
    """``AvgPool2d`` for sequences (N, C, L)."""

    _function = staticmethod(ag.avg_pool1d)
    _axes = 1


class AdaptiveAvgPool2d(Module):
    """The means of as many windows as the output has elements: ``AdaptiveAvgPool2d(1)``; None keeps an axis as it is."""

    _settings = ("output_size",)
    _function = staticmethod(ag.adaptive_avg_pool2d)

    def __init__(self, output_size: Any = 1) -> None:
        self.output_size = tuple(output_size) if isinstance(output_size, (list, tuple)) else output_size

    def forward(self, x: Tensor) -> Tensor:
        return type(self)._function(x, self.output_size)


class AdaptiveAvgPool1d(AdaptiveAvgPool2d):
    """``AdaptiveAvgPool2d`` for sequences (N, C, L)."""

    _function = staticmethod(ag.adaptive_avg_pool1d)


class AdaptiveMaxPool2d(AdaptiveAvgPool2d):
    """The largest elements of as many windows as the output has elements."""

    _function = staticmethod(ag.adaptive_max_pool2d)


class AdaptiveMaxPool1d(AdaptiveAvgPool2d):
    """``AdaptiveMaxPool2d`` for sequences (N, C, L)."""

    _function = staticmethod(ag.adaptive_max_pool1d)


class GlobalAvgPool2d(Module):
    """The mean of each channel: (N, C, H, W) to (N, C, 1, 1)."""

    def forward(self, x: Tensor) -> Tensor:
        return ag.adaptive_avg_pool2d(x, 1)
