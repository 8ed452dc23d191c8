"""MobileNetV2 (Sandler et al., 2018), with the weights' names of torchvision."""

from __future__ import annotations

from typing import Any

from netcl import autograd as ag
from netcl._netcl import Tensor
from netcl._netcl.nn import constant_, kaiming_normal_, normal_
from netcl.nn._arguments import queue_first
from netcl.nn.activation import ReLU6
from netcl.nn.container import Sequential
from netcl.nn.conv import Conv2d
from netcl.nn.dropout import Dropout
from netcl.nn.linear import Linear
from netcl.nn.module import Module
from netcl.nn.normalization import BatchNorm2d

__all__ = ["InvertedResidual", "MobileNetV2"]

# Expansion, channels, blocks, stride of the first.
_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def _divisible(channels: float, by: int = 8) -> int:
    """The nearest multiple, but not more than a tenth below."""
    rounded = max(by, int(channels + by / 2) // by * by)
    return rounded + by if rounded < 0.9 * channels else rounded


def _conv(queue: Any, inputs: int, outputs: int, kernel: int, stride: int, groups: int, dtype: str | None) -> Sequential:
    conv = Conv2d(queue, inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False, dtype=dtype)
    return Sequential(conv, BatchNorm2d(queue, outputs, dtype=dtype), ReLU6())


class InvertedResidual(Module):
    """A 1x1 convolution that widens, a 3x3 one for each channel, and a 1x1 one that narrows; bypassed where the shape stays."""

    @queue_first
    def __init__(
        self, queue: Any, inputs: int, outputs: int, stride: int, expand_ratio: int, dtype: str | None = None
    ) -> None:
        wide = inputs * expand_ratio
        self.bypassed = stride == 1 and inputs == outputs
        widen = [] if expand_ratio == 1 else [_conv(queue, inputs, wide, 1, 1, 1, dtype)]
        narrow = Conv2d(queue, wide, outputs, 1, bias=False, dtype=dtype)
        each = _conv(queue, wide, wide, 3, stride, wide, dtype)
        self.conv = Sequential(*widen, each, narrow, BatchNorm2d(queue, outputs, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return x + y if self.bypassed else y


class MobileNetV2(Module):
    """Inverted residual blocks: images (N, 3, H, W) to logits (N, num_classes).

    ``width_mult`` makes all layers wider or narrower. Weights have torchvision's names, so that its files load; they start as
    torchvision's do.
    """

    @queue_first
    def __init__(
        self,
        queue: Any = None,
        num_classes: int = 1000,
        width_mult: float = 1.0,
        dropout: float = 0.2,
        dtype: str | None = None,
    ) -> None:
        self.num_classes, self.width_mult = num_classes, width_mult
        width = _divisible(32 * width_mult)
        last = _divisible(1280 * max(1.0, width_mult))
        features: list[Module] = [_conv(queue, 3, width, 3, 2, 1, dtype)]
        for expansion, channels, count, stride in _STAGES:
            outputs = _divisible(channels * width_mult)
            for i in range(count):
                features.append(InvertedResidual(queue, width, outputs, stride if i == 0 else 1, expansion, dtype))
                width = outputs
        self.features = Sequential(*features, _conv(queue, width, last, 1, 1, 1, dtype))
        self.classifier = Sequential(Dropout(dropout), Linear(queue, last, num_classes, dtype=dtype))
        for module in self.modules():
            if isinstance(module, Conv2d):
                kaiming_normal_(module.weight, mode="fan_out")
            elif isinstance(module, Linear) and module.bias is not None:
                normal_(module.weight, 0.0, 0.01)
                constant_(module.bias, 0.0)

    def extra_repr(self) -> str:
        return f"num_classes={self.num_classes}, width_mult={self.width_mult}"

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.classifier(ag.mean(self.features(x), (2, 3)))
        return y
