"""Networks for images by the names that torchvision gives them: its weights load into them.

    from netcl.nn import models

    model = models.resnet50(num_classes=1000)
"""

from __future__ import annotations

from typing import Any

from netcl.nn.mobilenet import MobileNetV2
from netcl.nn.resnet import ResNet, ResNet18, ResNet34, ResNet50, ResNet101, ResNet152
from netcl.nn.vit import VisionTransformer, ViTB16

__all__ = [
    "MobileNetV2",
    "ResNet",
    "VisionTransformer",
    "mobilenet_v2",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "vit_b_16",
]


def resnet18(queue: Any = None, num_classes: int = 1000, **more: Any) -> ResNet:
    """ResNet-18 for images of ImageNet's size."""
    return ResNet18(queue, num_classes, stem="imagenet", **more)


def resnet34(queue: Any = None, num_classes: int = 1000, **more: Any) -> ResNet:
    """ResNet-34 for images of ImageNet's size."""
    return ResNet34(queue, num_classes, stem="imagenet", **more)


def resnet50(queue: Any = None, num_classes: int = 1000, **more: Any) -> ResNet:
    """ResNet-50 for images of ImageNet's size."""
    return ResNet50(queue, num_classes, stem="imagenet", **more)


def resnet101(queue: Any = None, num_classes: int = 1000, **more: Any) -> ResNet:
    """ResNet-101 for images of ImageNet's size."""
    return ResNet101(queue, num_classes, stem="imagenet", **more)


def resnet152(queue: Any = None, num_classes: int = 1000, **more: Any) -> ResNet:
    """ResNet-152 for images of ImageNet's size."""
    return ResNet152(queue, num_classes, stem="imagenet", **more)


def mobilenet_v2(queue: Any = None, num_classes: int = 1000, **more: Any) -> MobileNetV2:
    """MobileNetV2."""
    return MobileNetV2(queue, num_classes, **more)


def vit_b_16(queue: Any = None, num_classes: int = 1000, **more: Any) -> VisionTransformer:
    """The base vision transformer over patches of 16 pixels."""
    return ViTB16(queue, num_classes, **more)
