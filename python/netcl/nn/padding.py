"""Padding layers. Their numbers have PyTorch's order: (left, right), or (left, right, top, bottom)."""

from __future__ import annotations

from typing import Any

from netcl import autograd as ag
from netcl._netcl import Tensor
from netcl.nn.module import Module

__all__ = [
    "ConstantPad1d",
    "ConstantPad2d",
    "ReflectionPad1d",
    "ReflectionPad2d",
    "ReplicationPad1d",
    "ReplicationPad2d",
    "ZeroPad1d",
    "ZeroPad2d",
]


class _Pad(Module):
    """Something around the last axes; negative numbers cut off."""

    _settings: tuple[str, ...] = ("padding",)
    _axes: int
    _mode = "constant"
    value = 0.0

    def __init__(self, padding: Any) -> None:
        sides = 2 * self._axes
        values = tuple(padding) if isinstance(padding, (list, tuple)) else (padding,) * sides
        if len(values) != sides or any(isinstance(value, bool) or not hasattr(value, "__index__") for value in values):
            order = "(left, right)" if self._axes == 1 else "(left, right, top, bottom)"
            raise TypeError(f"{type(self).__name__}: padding is a whole number or {sides} of them, {order}; not {padding!r}")
        self.padding = values

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim <= self._axes:
            axes = "(..., L)" if self._axes == 1 else "(..., H, W)"
            raise ValueError(f"{type(self).__name__} takes {axes}; the input has shape {tuple(x.shape)}")
        pairs = [self.padding[i : i + 2] for i in range(0, len(self.padding), 2)]
        return ag.pad(x, pairs[::-1], mode=self._mode, value=self.value)


class ZeroPad1d(_Pad):
    """Zeros before and after a sequence."""

    _axes = 1


class ZeroPad2d(_Pad):
    """Zeros around an image."""

    _axes = 2


class _ConstantPad(_Pad):
    _settings = ("padding", "value")

    def __init__(self, padding: Any, value: float) -> None:
        super().__init__(padding)
        self.value = value


class ConstantPad1d(_ConstantPad):
    """One value before and after a sequence."""

    _axes = 1


class ConstantPad2d(_ConstantPad):
    """One value around an image."""

    _axes = 2


class ReflectionPad1d(_Pad):
    """The sequence mirrored at its ends, which are not repeated."""

    _axes, _mode = 1, "reflect"


class ReflectionPad2d(_Pad):
    """The image mirrored at its edges, which are not repeated."""

    _axes, _mode = 2, "reflect"


class ReplicationPad1d(_Pad):
    """The ends of the sequence repeated."""

    _axes, _mode = 1, "replicate"


class ReplicationPad2d(_Pad):
    """The edges of the image repeated."""

    _axes, _mode = 2, "replicate"
