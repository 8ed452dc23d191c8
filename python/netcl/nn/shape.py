"""Layers that move elements and change none of them, and resampling."""

from __future__ import annotations

from typing import Any

from netcl import autograd as ag
from netcl._netcl import Tensor
from netcl.nn._layer import Layer, given
from netcl.nn.module import Module

__all__ = [
    "ChannelShuffle", "Concat", "Flatten", "Fold", "Identity", "PixelShuffle", "PixelUnshuffle", "Unflatten", "Unfold",
    "Upsample", "UpsamplingBilinear2d", "UpsamplingNearest2d",
]  # fmt: skip


class Flatten(Layer):
    """Joins the axes from ``start_dim`` to ``end_dim``, both included, into one."""

    start_dim: int = 1
    end_dim: int = -1


class Unflatten(Layer):
    """Splits an axis into several: ``Unflatten(1, (16, 4, 4))``. One of the lengths may be -1."""

    dim: int = given()
    unflattened_size: tuple[int, ...] = given()


class Identity(Module):
    """The input itself, whatever it is."""

    def forward(self, x: Any) -> Any:
        return x


class Concat(Module):
    """Several tensors along an axis: ``Concat(1)(a, b)``, or of a list."""

    _settings = ("axis",)

    def __init__(self, axis: int = 1) -> None:
        self.axis = axis

    def forward(self, *inputs: Any) -> Tensor:
        if len(inputs) == 1 and isinstance(inputs[0], (list, tuple)):
            inputs = tuple(inputs[0])
        return ag.cat(inputs, self.axis)


class ChannelShuffle(Module):
    """The channels of (N, C, ...) dealt out to groups in turn."""

    _settings = ("groups",)

    def __init__(self, groups: int) -> None:
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        return ag.channel_shuffle(x, self.groups)


class PixelShuffle(Layer):
    """(..., C * r * r, H, W) to (..., C, H * r, W * r): each group of r * r channels becomes a block of pixels."""

    upscale_factor: int = given()


class PixelUnshuffle(Layer):
    """(..., C, H * r, W * r) to (..., C * r * r, H, W): undoes ``PixelShuffle``."""

    downscale_factor: int = given()


class Unfold(Layer):
    """The patches of images (N, C, H, W) as columns (N, C * kernel height * kernel width, patches)."""

    kernel_size: Any = given()
    dilation: Any = 1
    padding: Any = 0
    stride: Any = 1


class Fold(Layer):
    """Images (N, C, H, W) from columns (N, C * kernel height * kernel width, patches), added up where they overlap."""

    output_size: Any = given()
    kernel_size: Any = given()
    dilation: Any = 1
    padding: Any = 0
    stride: Any = 1


class Upsample(Layer):
    """Images (N, C, H, W) or sequences (N, C, L) of another size.

    ``Upsample(scale_factor=2)``, ``Upsample(size=(32, 32), mode="bilinear")``, ``Upsample(size=100, mode="linear")``.
    """

    size: Any = None
    scale_factor: Any = None
    mode: str = "nearest"
    align_corners: bool | None = False


class _Upsampling(Upsample, kind="Upsample"):
    def settings(self) -> dict[str, Any]:
        return {name: value for name, value in super().settings().items() if name in ("size", "scale_factor")}


class UpsamplingNearest2d(_Upsampling, kind="Upsample"):
    """``Upsample`` of images by their nearest pixels."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        self._make(size=size, scale_factor=scale_factor)


class UpsamplingBilinear2d(_Upsampling, kind="Upsample"):
    """``Upsample`` of images by straight lines between pixels, with the corners where they were."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        self._make(size=size, scale_factor=scale_factor, mode="bilinear", align_corners=True)
