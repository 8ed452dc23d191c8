"""Convolutions."""

from __future__ import annotations

from typing import Any

from netcl._netcl import Tensor
from netcl.nn._layer import Parametric, given

__all__ = ["Conv1d", "Conv2d", "ConvTranspose1d", "ConvTranspose2d", "DepthwiseConv2d"]


class _Filters(Parametric, also=("padding",)):
    """What convolutions have in common."""

    in_channels: int = given()
    out_channels: int = given()
    kernel_size: tuple[int, ...] = given()
    stride: tuple[int, ...] = given(1)
    pad: Any = 0
    dilation: tuple[int, ...] = given(1)
    groups: int = 1
    bias: Tensor | None = given(True)
    weight: Tensor

    @property
    def padding(self) -> Any:
        """PyTorch's name of ``pad``."""
        return self.pad

    @padding.setter
    def padding(self, given: Any) -> None:
        self.pad = given


class _Convolution(_Filters):
    padding_mode: str = "zeros"


class Conv2d(_Convolution):
    """Filters over images (N, C, H, W), or one image (C, H, W): ``Conv2d(queue, 3, 16, kernel_size=3, pad=1)``.

    The weight has shape ``(out_channels, in_channels / groups, KH, KW)``; weight and bias start uniform within
    ``1 / sqrt(fan_in)``. Sizes are one number or two. ``padding`` is another name of ``pad``: a number, two (height, width),
    four (top, bottom, left, right), ``"same"`` or ``"valid"``. ``padding_mode`` is ``"zeros"``, ``"reflect"``, ``"replicate"``
    or ``"circular"``.
    """


class Conv1d(_Convolution):
    """Filters over sequences (N, C, L); the arguments are those of ``Conv2d``."""


class DepthwiseConv2d(Conv2d):
    """One filter for each channel: ``Conv2d`` with as many groups as channels."""

    channels: int = given()
    kernel_size: tuple[int, ...] = given()
    stride: tuple[int, ...] = given(1)
    pad: Any = 0
    dilation: tuple[int, ...] = given(1)
    bias: Tensor | None = given(True)
    padding_mode: str = "zeros"

    @property
    def in_channels(self) -> int:  # type: ignore[override]
        """The number of channels."""
        return self.channels

    out_channels = groups = in_channels


class _Transposed(_Filters):
    output_padding: tuple[int, ...] = given(0)
    groups: int = 1
    bias: Tensor | None = given(True)
    dilation: tuple[int, ...] = given(1)


class ConvTranspose2d(_Transposed):
    """The transpose of a convolution over images, which makes them larger: ``ConvTranspose2d(queue, 16, 3, 4, stride=2)``.

    The weight has shape ``(in_channels, out_channels / groups, KH, KW)``. ``padding`` is another name of ``pad``.
    """


class ConvTranspose1d(_Transposed):
    """The transpose of a convolution over sequences (N, C, L); the arguments are those of ``ConvTranspose2d``."""
