"""Padding layers. Their numbers have PyTorch's order: (left, right), or (left, right, top, bottom)."""

from __future__ import annotations

from netcl.nn._layer import Layer, given

__all__ = [
    "CircularPad1d",
    "CircularPad2d",
    "ConstantPad1d",
    "ConstantPad2d",
    "ReflectionPad1d",
    "ReflectionPad2d",
    "ReplicationPad1d",
    "ReplicationPad2d",
    "ZeroPad1d",
    "ZeroPad2d",
]


class _Pad(Layer):
    padding: tuple[int, ...] = given()


class ZeroPad1d(_Pad):
    """Zeros before and after a sequence; negative numbers cut off."""


class ZeroPad2d(_Pad):
    """Zeros around an image; negative numbers cut off."""


class ConstantPad1d(Layer):
    """One value before and after a sequence; negative numbers cut off."""

    padding: tuple[int, ...] = given()
    value: float = given()


class ConstantPad2d(ConstantPad1d):
    """One value around an image; negative numbers cut off."""


class ReflectionPad1d(_Pad):
    """The sequence mirrored at its ends, which are not repeated."""


class ReflectionPad2d(_Pad):
    """The image mirrored at its edges, which are not repeated."""


class ReplicationPad1d(_Pad):
    """The ends of the sequence repeated."""


class ReplicationPad2d(_Pad):
    """The edges of the image repeated."""


class CircularPad1d(_Pad):
    """The sequence continued with its other end."""


class CircularPad2d(_Pad):
    """The image continued with its opposite edges."""
