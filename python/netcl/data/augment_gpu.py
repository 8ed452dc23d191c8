"""Random changes of images on the device: the transforms of ``netcl.data.augment``, for a batch that is there already.

    augment = AugmentGPU([
        ("Crop", {"size": (32, 32), "padding": 4, "border": "reflect"}),
        ("HorizontalFlip", {"probability": 0.5}),
        ("Normalize", {"mean": [0.49, 0.48, 0.45], "deviation": [0.2, 0.2, 0.2]}),
    ], seed=42)
    for epoch in range(10):
        for images, labels in loader:
            images = augment(images, epoch)  # one launch

What happens to an image is decided by the seed, the epoch and the image's number in its data set. The host calculates the same:
a loader with the same transforms and seed makes the same images.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from netcl._netcl import Tensor
from netcl._netcl.data import Augment, mix

__all__ = ["AugmentGPU", "cutmix", "mixup"]


class AugmentGPU:
    """Transforms one after the other, on batches of images on a device.

    A transform is one of ``netcl.data.augment``, or a pair of its name and a dict of its settings:

    - ``HorizontalFlip`` and ``VerticalFlip``: ``probability``
    - ``Crop``: ``size``, ``padding``, ``border``; ``CenterCrop``: ``size``
    - ``RandomResizedCrop``: ``size``, ``area``, ``ratio``
    - ``Rotation``: ``degrees``, ``border``; ``Affine``: ``degrees``, ``translate``, ``scale``, ``shear``, ``border``
    - ``ColorJitter``: ``brightness``, ``contrast``, ``saturation``, ``hue``; ``GaussianBlur``: ``taps``, ``sigma``
    - ``Erase``: ``probability``, ``area``, ``ratio``, ``value``; ``Cutout``: ``side``, ``value``
    - ``Normalize``: ``mean``, ``deviation``; ``RandAugment``: ``operations``, ``magnitude``, ``border``

    A border is a number, ``"edge"`` or ``"reflect"``.
    """

    def __init__(self, transforms: Iterable[Any], seed: int = 0) -> None:
        self.transforms = [getattr(transform, "spec", transform) for transform in transforms]
        self.seed = seed
        self._augment = Augment(self.transforms, seed)

    def __call__(self, images: Tensor, epoch: int = 0, indices: Sequence[int] | None = None) -> Tensor:
        """The changed images of a batch (count, channels, height, width) of colours from 0 to 1, in float32.

        ``indices`` are the images' numbers in their data set, 0, 1, 2 and so on unless given: two batches without them are
        changed alike.
        """
        return self._augment(images, epoch, indices)

    def __repr__(self) -> str:
        return f"AugmentGPU({self.transforms!r}, seed={self.seed})"


def mixup(
    images: Tensor, labels: Tensor, alpha: float = 0.2, seed: int = 0, epoch: int = 0, first: int = 0
) -> tuple[Tensor, Tensor]:
    """Mixes each image with the one before it, and the labels with them (Zhang et al., 2017).

    ``labels`` are shares of classes, (count, classes): see ``netcl.ops.one_hot``. ``first`` is the number of the batch's first
    image in its data set.
    """
    return mix("mixup", images, labels, alpha, seed, epoch, first)


def cutmix(
    images: Tensor, labels: Tensor, alpha: float = 1.0, seed: int = 0, epoch: int = 0, first: int = 0
) -> tuple[Tensor, Tensor]:
    """Puts a rectangle of the image before into each image, and mixes the labels by its area (Yun et al., 2019).

    Otherwise as ``mixup``.
    """
    return mix("cutmix", images, labels, alpha, seed, epoch, first)
