"""ResNet (He et al., 2015), with the weights' names of torchvision."""

from __future__ import annotations

from typing import Any

from netcl import autograd as ag
from netcl._netcl import Tensor
from netcl._netcl.nn import kaiming_normal_
from netcl.nn._arguments import positive, queue_first
from netcl.nn.container import Sequential
from netcl.nn.conv import Conv2d
from netcl.nn.linear import Linear
from netcl.nn.module import Module
from netcl.nn.normalization import BatchNorm2d
from netcl.nn.pooling import AdaptiveAvgPool2d, MaxPool2d
from netcl.nn.shape import Identity

__all__ = ["BasicBlock", "Bottleneck", "ResNet", "ResNet18", "ResNet34", "ResNet50", "ResNet101", "ResNet152"]


class _Parts:
    """Makes the convolutions and norms of one network."""

    def __init__(self, queue: Any, batchnorm: bool, dtype: str | None) -> None:
        self.queue, self.batchnorm, self.dtype = queue, batchnorm, dtype

    def conv(self, inputs: int, outputs: int, kernel_size: int, stride: int = 1) -> Conv2d:
        # A norm behind it has a bias of its own.
        pad = kernel_size // 2
        return Conv2d(self.queue, inputs, outputs, kernel_size, stride, pad, bias=not self.batchnorm, dtype=self.dtype)

    def norm(self, channels: int) -> Module:
        return BatchNorm2d(self.queue, channels, dtype=self.dtype) if self.batchnorm else Identity()


class BasicBlock(Module):
    """Two convolutions of 3x3 and a shortcut: the block of ResNet-18 and -34."""

    expansion = 1
    _folded = (("conv1", "bn1"), ("conv2", "bn2"))

    def __init__(self, parts: _Parts, inputs: int, width: int, stride: int, downsample: Module | None) -> None:
        self.conv1, self.bn1 = parts.conv(inputs, width, 3, stride), parts.norm(width)
        self.conv2, self.bn2 = parts.conv(width, width, 3), parts.norm(width)
        self.add_module("downsample", downsample)

    def forward(self, x: Tensor) -> Tensor:
        y = ag.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return ag.relu(y + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(Module):
    """Convolutions of 1x1, 3x3 and 1x1 and a shortcut: the block of ResNet-50. The stride is in the 3x3 one."""

    expansion = 4
    _folded = (("conv1", "bn1"), ("conv2", "bn2"), ("conv3", "bn3"))

    def __init__(self, parts: _Parts, inputs: int, width: int, stride: int, downsample: Module | None) -> None:
        outputs = width * self.expansion
        self.conv1, self.bn1 = parts.conv(inputs, width, 1), parts.norm(width)
        self.conv2, self.bn2 = parts.conv(width, width, 3, stride), parts.norm(width)
        self.conv3, self.bn3 = parts.conv(width, outputs, 1), parts.norm(outputs)
        self.add_module("downsample", downsample)

    def forward(self, x: Tensor) -> Tensor:
        y = ag.relu(self.bn1(self.conv1(x)))
        y = ag.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return ag.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(Module):
    """Four stages of residual blocks: images (N, in_channels, H, W) to logits (N, num_classes).

    ``stem="cifar"`` begins with a 3x3 convolution, for small images; ``stem="imagenet"`` with 7x7 of stride 2 and a pool.
    Weights have torchvision's names, so that its files load; they start as torchvision's do.
    """

    _folded = (("conv1", "bn1"),)

    @queue_first
    def __init__(
        self,
        queue: Any,
        block: type[BasicBlock] | type[Bottleneck],
        layers: Any,
        num_classes: int = 10,
        base_channels: int = 64,
        use_batchnorm: bool = True,
        *,
        stem: str = "cifar",
        in_channels: int = 3,
        dtype: str | None = None,
    ) -> None:
        kind = type(self).__name__
        positive(kind, num_classes=num_classes, base_channels=base_channels, in_channels=in_channels)
        if len(layers) != 4:
            raise ValueError(f"{kind}: layers are the blocks at each of four sizes, not {layers!r}")
        if stem not in ("cifar", "imagenet"):
            raise ValueError(f'{kind}: stem is "cifar" or "imagenet", not {stem!r}')
        self.num_classes, self.base_channels, self.use_batchnorm = num_classes, base_channels, use_batchnorm
        self.stem, self.in_channels = stem, in_channels
        parts = _Parts(queue, use_batchnorm, dtype)
        small = stem == "cifar"
        self.conv1 = parts.conv(in_channels, base_channels, 3 if small else 7, 1 if small else 2)
        self.bn1 = parts.norm(base_channels)
        if not small:
            self.maxpool = MaxPool2d(3, 2, 1)
        width = base_channels
        for number, count in enumerate(layers, 1):
            channels = base_channels * 2 ** (number - 1)
            blocks = Sequential()
            for i in range(count):
                stride = 2 if i == 0 and number > 1 else 1
                outputs = channels * block.expansion
                shortcut = None
                if stride != 1 or width != outputs:
                    shortcut = Sequential(parts.conv(width, outputs, 1, stride), parts.norm(outputs))
                blocks.append(block(parts, width, channels, stride, shortcut))
                width = outputs
            self.add_module(f"layer{number}", blocks)
        self.avgpool = AdaptiveAvgPool2d(1)
        self.fc = Linear(queue, width, num_classes, dtype=dtype)
        for module in self.modules():
            if isinstance(module, Conv2d):
                kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def extra_repr(self) -> str:
        return f'num_classes={self.num_classes}, stem="{self.stem}"'

    def forward(self, x: Tensor) -> Tensor:
        x = ag.relu(self.bn1(self.conv1(x)))
        if self.stem == "imagenet":
            x = self.maxpool(x)
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
        return self.fc(ag.flatten(self.avgpool(x), 1))


class _Sized(ResNet):
    _block: type[BasicBlock] | type[Bottleneck] = BasicBlock
    _layers: tuple[int, ...]

    @queue_first
    def __init__(
        self, queue: Any = None, num_classes: int = 10, base_channels: int = 64, use_batchnorm: bool = True, **more: Any
    ) -> None:
        super().__init__(queue, self._block, self._layers, num_classes, base_channels, use_batchnorm, **more)


class ResNet18(_Sized):
    """``ResNet18(queue, num_classes=10)``, or with ``stem="imagenet"`` the network of that data set."""

    _layers = (2, 2, 2, 2)


class ResNet34(_Sized):
    """``ResNet34(queue, num_classes=10)``."""

    _layers = (3, 4, 6, 3)


class ResNet50(_Sized):
    """``ResNet50(queue, num_classes=10)``; its blocks have three convolutions."""

    _block, _layers = Bottleneck, (3, 4, 6, 3)


class ResNet101(_Sized):
    """``ResNet101(queue, num_classes=10)``."""

    _block, _layers = Bottleneck, (3, 4, 23, 3)


class ResNet152(_Sized):
    """``ResNet152(queue, num_classes=10)``."""

    _block, _layers = Bottleneck, (3, 8, 36, 3)
