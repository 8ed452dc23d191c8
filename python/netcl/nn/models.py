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


def _settings(name: str, more: dict[str, Any]) -> dict[str, Any]:
    """The settings of a network without those that ask torchvision for trained weights."""
    wanted = [more.pop("pretrained", None), more.pop("weights", None)]
    if any(one not in (None, False) for one in wanted):
        raise ValueError(
            f"{name}: no trained weights come with netcl and none are downloaded; load torchvision's file: "
            f'model = models.{name}(); netcl.io.load_model("{name}-....pth", model=model)'
        )
    return more


def resnet18(queue: Any = None, num_classes: int = 1000, **more: Any) -> ResNet:
    """ResNet-18 for images of ImageNet's size."""
    return ResNet18(queue, num_classes, stem="imagenet", **_settings("resnet18", more))


def resnet34(queue: Any = None, num_classes: int = 1000, **more: Any) -> ResNet:
    """ResNet-34 for images of ImageNet's size."""
    return ResNet34(queue, num_classes, stem="imagenet", **_settings("resnet34", more))


def resnet50(queue: Any = None, num_classes: int = 1000, **more: Any) -> ResNet:
    """ResNet-50 for images of ImageNet's size."""
    return ResNet50(queue, num_classes, stem="imagenet", **_settings("resnet50", more))


def resnet101(queue: Any = None, num_classes: int = 1000, **more: Any) -> ResNet:
    """ResNet-101 for images of ImageNet's size."""
    return ResNet101(queue, num_classes, stem="imagenet", **_settings("resnet101", more))


def resnet152(queue: Any = None, num_classes: int = 1000, **more: Any) -> ResNet:
    """ResNet-152 for images of ImageNet's size."""
    return ResNet152(queue, num_classes, stem="imagenet", **_settings("resnet152", more))


def mobilenet_v2(queue: Any = None, num_classes: int = 1000, **more: Any) -> MobileNetV2:
    """MobileNetV2."""
    return MobileNetV2(queue, num_classes, **_settings("mobilenet_v2", more))


def vit_b_16(queue: Any = None, num_classes: int = 1000, **more: Any) -> VisionTransformer:
    """The base vision transformer over patches of 16 pixels."""
    return ViTB16(queue, num_classes, **_settings("vit_b_16", more))
