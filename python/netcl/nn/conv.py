"""Convolutions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from netcl import autograd as ag
from netcl._netcl import Tensor
from netcl.nn._arguments import numbers, positive, queue_first, uniform_parameter
from netcl.nn.module import Module

__all__ = ["Conv1d", "Conv2d", "ConvTranspose2d", "DepthwiseConv2d"]


def _text(settings: dict[str, Any]) -> str:
    """Settings for print-outs, without those that few convolutions have."""
    usual = {"dilation": 1, "groups": 1, "output_padding": 0, "padding_mode": "zeros"}

    def shown(name: str, value: Any) -> bool:
        return name not in usual or any(part != usual[name] for part in (value if isinstance(value, tuple) else (value,)))

    return ", ".join(f"{name}={value!r}" for name, value in settings.items() if shown(name, value))


class _Convolution(Module):
    """Filters over one or two axes."""

    _settings: tuple[str, ...] = (
        *("in_channels", "out_channels", "kernel_size", "stride", "pad"),
        *("dilation", "groups", "bias", "padding_mode"),
    )
    _axes: int
    _function: Callable[..., Tensor]
    weight: Tensor
    bias: Tensor | None

    @queue_first
    def __init__(
        self,
        queue: Any,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        pad: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        dtype: str | None = None,
        *,
        padding: Any = None,
    ) -> None:
        kind, axes = type(self).__name__, self._axes
        positive(kind, in_channels=in_channels, out_channels=out_channels, groups=groups)
        if in_channels % groups or out_channels % groups:
            raise ValueError(f"{kind}: groups={groups} must divide in_channels={in_channels} and out_channels={out_channels}")
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = numbers(kind, "kernel_size", kernel_size, axes)
        self.stride = numbers(kind, "stride", stride, axes)
        self.dilation = numbers(kind, "dilation", dilation, axes)
        self.pad = self._padding(pad if padding is None else padding)
        if padding_mode not in ("zeros", "reflect", "replicate"):
            raise ValueError(f'{kind}: padding_mode is "zeros", "reflect" or "replicate", not {padding_mode!r}')
        self.padding_mode = padding_mode
        shape = (out_channels, in_channels // groups, *self.kernel_size)
        fan_in = math.prod(shape[1:])
        self.weight = uniform_parameter(queue, shape, fan_in, dtype)
        self.register_parameter("bias", uniform_parameter(queue, (out_channels,), fan_in, dtype) if bias else None)

    def extra_repr(self) -> str:
        return _text(self.settings())

    @property
    def padding(self) -> tuple[int, ...]:
        """PyTorch's name of ``pad``."""
        return self.pad

    def _padding(self, given: Any) -> tuple[int, ...]:
        """One number per axis, or two (before and after) where the sides differ."""
        kind = type(self).__name__
        if given == "valid":
            return (0,) * self._axes
        if given == "same":
            if any(step != 1 for step in self.stride):
                raise ValueError(f'{kind}: padding="same" needs a stride of 1, not {self.stride}')
            spans = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size)]
            if all(span % 2 == 0 for span in spans):
                return tuple(span // 2 for span in spans)
            return tuple(side for span in spans for side in (span // 2, span - span // 2))
        if isinstance(given, str):
            raise ValueError(f'{kind}: padding is a number, "same" or "valid", not {given!r}')
        sides = 2 * self._axes
        if isinstance(given, (list, tuple)) and len(given) == sides:
            return numbers(kind, "padding", given, sides, least=0)
        return numbers(kind, "padding", given, self._axes, least=0)

    def forward(self, x: Tensor) -> Tensor:
        alone = x.ndim == self._axes + 1
        if not (alone or x.ndim == self._axes + 2) or x.shape[-self._axes - 1] != self.in_channels:
            wanted = ", ".join(["N", str(self.in_channels), *("L",) * (self._axes == 1), *("H", "W") * (self._axes == 2)])
            raise ValueError(
                f"{type(self).__name__}(in_channels={self.in_channels}) takes ({wanted}); the input has shape {tuple(x.shape)}"
            )
        x, pad = self._framed(ag.unsqueeze(x, 0) if alone else x)
        y = type(self)._function(x, self.weight, self.bias, self.stride, pad, self.dilation, self.groups)
        return ag.squeeze(y, 0) if alone else y

    def _framed(self, x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """The input and the padding that is left to the convolution: all of it, unless it is not made of zeros."""
        if self.padding_mode == "zeros":
            return x, self.pad
        sides = self.pad if len(self.pad) == 2 * self._axes else tuple(p for p in self.pad for _ in range(2))
        pairs = [(sides[i], sides[i + 1]) for i in range(0, len(sides), 2)]
        return ag.pad(x, pairs, mode=self.padding_mode), (0,) * self._axes


class Conv2d(_Convolution):
    """Filters over images (N, C, H, W), or one image (C, H, W): ``Conv2d(queue, 3, 16, kernel_size=3, pad=1)``.

    The weight has shape ``(out_channels, in_channels / groups, KH, KW)``; weight and bias start uniform within
    ``1 / sqrt(fan_in)``. Sizes are one number or two. ``padding`` is another name of ``pad``: a number, two (height, width), four
    (top, bottom, left, right), ``"same"`` or ``"valid"``.
    """

    _axes = 2
    _function = staticmethod(ag.conv2d)


class Conv1d(_Convolution):
    """Filters over sequences (N, C, L); the arguments are those of ``Conv2d``."""

    _axes = 1
    _function = staticmethod(ag.conv1d)


class DepthwiseConv2d(Conv2d):
    """One filter for each channel: ``Conv2d`` with as many groups as channels."""

    _settings = ("channels", "kernel_size", "stride", "pad", "dilation", "bias", "padding_mode")

    @queue_first
    def __init__(self, queue: Any, channels: int, kernel_size: Any, stride: Any = 1, pad: Any = 0, **more: Any) -> None:
        super().__init__(queue, channels, channels, kernel_size, stride, pad, groups=channels, **more)

    @property
    def channels(self) -> int:
        """The number of channels, in and out."""
        return self.in_channels


class ConvTranspose2d(Module):
    """The transpose of a convolution over images, which makes them larger: ``ConvTranspose2d(queue, 16, 3, 4, stride=2, pad=1)``.

    The weight has shape ``(in_channels, out_channels / groups, KH, KW)``. ``padding`` is another name of ``pad``.
    """

    _settings = (
        *("in_channels", "out_channels", "kernel_size", "stride", "pad"),
        *("output_padding", "groups", "bias", "dilation"),
    )
    weight: Tensor
    bias: Tensor | None

    @queue_first
    def __init__(
        self,
        queue: Any,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        pad: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Any = 1,
        dtype: str | None = None,
        *,
        padding: Any = None,
    ) -> None:
        kind = type(self).__name__
        positive(kind, in_channels=in_channels, out_channels=out_channels, groups=groups)
        if in_channels % groups or out_channels % groups:
            raise ValueError(f"{kind}: groups={groups} must divide in_channels={in_channels} and out_channels={out_channels}")
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = numbers(kind, "kernel_size", kernel_size, 2)
        self.stride = numbers(kind, "stride", stride, 2)
        self.pad = numbers(kind, "padding", pad if padding is None else padding, 2, least=0)
        self.output_padding = numbers(kind, "output_padding", output_padding, 2, least=0)
        self.dilation = numbers(kind, "dilation", dilation, 2)
        shape = (in_channels, out_channels // groups, *self.kernel_size)
        fan_in = math.prod(shape[1:])
        self.weight = uniform_parameter(queue, shape, fan_in, dtype)
        self.register_parameter("bias", uniform_parameter(queue, (out_channels,), fan_in, dtype) if bias else None)

    def extra_repr(self) -> str:
        return _text(self.settings())

    @property
    def padding(self) -> tuple[int, ...]:
        """PyTorch's name of ``pad``."""
        return self.pad

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 4 or x.shape[1] != self.in_channels:
            raise ValueError(
                f"{type(self).__name__}(in_channels={self.in_channels}) takes (N, {self.in_channels}, H, W); "
                f"the input has shape {tuple(x.shape)}"
            )
        return ag.conv_transpose2d(
            x, self.weight, self.bias, self.stride, self.pad, self.output_padding, self.groups, self.dilation
        )
