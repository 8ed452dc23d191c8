"""Random changes of images on the device: the transforms of ``netcl.data.augment``, for a batch that is there already.

    augment = AugmentGPU([
        RandomCrop(32, padding=4, padding_mode="reflect"),
        RandomHorizontalFlip(),
        Normalize([0.49, 0.48, 0.45], [0.2, 0.2, 0.2]),
    ], seed=42)
    for epoch in range(10):
        for images, labels in loader:
            images = augment(images, epoch)  # one launch

What happens to an image is decided by the seed, the epoch and the image's number in its data set. The host calculates the same:
a loader with the same transforms and seed makes the same images.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from netcl._netcl import Tensor
from netcl._netcl.data import Augment, mix
from netcl.data.augment import Compose, Transform

__all__ = ["AugmentGPU", "cutmix", "mixup"]


class AugmentGPU:
    """Transforms of ``netcl.data.augment`` one after the other, on batches of images on a device."""

    def __init__(self, transforms: Iterable[Transform] | Compose, seed: int = 0) -> None:
        self.transforms: list[Transform] = []
        for transform in transforms.transforms if isinstance(transforms, Compose) else transforms:
            if not isinstance(transform, Transform):
                raise TypeError(f"AugmentGPU takes transforms of netcl.data.augment, not a {type(transform).__name__}")
            self.transforms.append(transform)
        self.seed = seed
        self._augment = Augment([transform._rust for transform in self.transforms], seed)

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
