"""Pooling."""

from __future__ import annotations

from typing import Any

from netcl.nn._layer import Layer, given

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AvgPool1d",
    "AvgPool2d",
    "GlobalAvgPool2d",
    "LPPool1d",
    "LPPool2d",
    "MaxPool1d",
    "MaxPool2d",
]


class MaxPool2d(Layer):
    """The largest element of each window of images (N, C, H, W); windows lie side by side unless a stride is given."""

    kernel_size: Any = 2
    stride: Any = None
    padding: Any = 0
    dilation: Any = 1
    ceil_mode: bool = False


class MaxPool1d(MaxPool2d):
    """``MaxPool2d`` for sequences (N, C, L)."""


class AvgPool2d(Layer):
    """The mean of each window of images (N, C, H, W); windows lie side by side unless a stride is given."""

    kernel_size: Any = 2
    stride: Any = None
    padding: Any = 0
    ceil_mode: bool = False
    count_include_pad: bool = True
    divisor_override: int | None = None


class AvgPool1d(AvgPool2d):
    """``AvgPool2d`` for sequences (N, C, L)."""


class LPPool2d(Layer):
    """The p-norm of each window of images (N, C, H, W); windows lie side by side unless a stride is given."""

    norm_type: float = given()
    kernel_size: Any = given()
    stride: Any = None
    ceil_mode: bool = False


class LPPool1d(LPPool2d):
    """``LPPool2d`` for sequences (N, C, L)."""


class AdaptiveAvgPool2d(Layer):
    """The means of as many windows as the output has elements: ``AdaptiveAvgPool2d(1)``; None keeps an axis as it is."""

    output_size: Any = 1


class AdaptiveAvgPool1d(AdaptiveAvgPool2d):
    """``AdaptiveAvgPool2d`` for sequences (N, C, L)."""


class AdaptiveMaxPool2d(AdaptiveAvgPool2d):
    """The largest elements of as many windows as the output has elements."""


class AdaptiveMaxPool1d(AdaptiveAvgPool2d):
    """``AdaptiveMaxPool2d`` for sequences (N, C, L)."""


class GlobalAvgPool2d(Layer):
    """The mean of each channel: (N, C, H, W) to (N, C, 1, 1)."""
