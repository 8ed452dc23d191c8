"""Random changes of images on the host.

Names and arguments are torchvision's; every transform is one declaration. An image is an array of shape ``(channels, height,
width)``: bytes, or float32 with colours from 0 to 1. The result is float32 (``Resize`` keeps bytes). In a ``DataLoader`` the
random numbers depend on the seed, the epoch and the sample; called by hand a transform takes its seed.

>>> import numpy as np
>>> image = np.zeros((3, 32, 32), np.uint8)
>>> Compose([RandomCrop(28, padding=2), RandomHorizontalFlip(), Normalize([0.5] * 3, [0.25] * 3)])(image, seed=7).shape
(3, 28, 28)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from netcl._netcl import data as _native
from netcl.data.dataset import Size, pair

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "Brightness",
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "Contrast",
    "CutMix",
    "Cutout",
    "GaussianBlur",
    "MixUp",
    "Normalize",
    "RandAugment",
    "RandomAffine",
    "RandomCrop",
    "RandomErasing",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomVerticalFlip",
    "Resize",
    "Transform",
]


def _up_to(name: str, what: str, value: float | Sequence[float]) -> float:
    """The largest change of a symmetric range that is given as one number or two."""
    if isinstance(value, Sequence):
        if len(value) != 2 or value[0] != -value[1]:
            raise ValueError(f"{name}: {what} must reach as far either way, got {value!r}")
        return float(value[1])
    return float(value)


class Transform:
    """A random change of an image. Call it with an image and a seed."""

    def __post_init__(self) -> None:
        # Made at once, so that settings out of range are refused where they are written.
        vars(self)["_rust"] = self._make()

    def _make(self) -> _native.Transform:
        raise NotImplementedError(f"{type(self).__name__}: derive from a transform of netcl.data.augment, or write a function")

    def __call__(self, image: NDArray[Any], seed: int = 0) -> NDArray[Any]:
        return _native.apply_transforms([self._rust], image, seed)

    @property
    def _rust(self) -> _native.Transform:
        made: _native.Transform = vars(self)["_rust"]
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]


@dataclass(frozen=True)
class RandomHorizontalFlip(Transform):
    """Mirrors left and right with probability ``p``."""

    p: float = 0.5

    def _make(self) -> _native.Transform:
        return _native.Transform.flip(True, self.p)


@dataclass(frozen=True)
class RandomVerticalFlip(Transform):
    """Mirrors top and bottom with probability ``p``."""

    p: float = 0.5

    def _make(self) -> _native.Transform:
        return _native.Transform.flip(False, self.p)


@dataclass(frozen=True)
class RandomCrop(Transform):
    """Takes a part of a size at a random place of the image with ``padding`` more pixels on each side.

    They are ``fill`` (``padding_mode="constant"``), the nearest pixel (``"edge"``) or the mirrored image (``"reflect"``).
    """

    size: Size
    padding: int = 0
    fill: float = 0.0
    padding_mode: str = "constant"

    def _make(self) -> _native.Transform:
        return _native.Transform.crop(pair("RandomCrop", self.size), self.padding, self.padding_mode, self.fill)


@dataclass(frozen=True)
class CenterCrop(Transform):
    """Takes the middle; what is outside of the image is black."""

    size: Size

    def _make(self) -> _native.Transform:
        return _native.Transform.center_crop(pair("CenterCrop", self.size))


@dataclass(frozen=True)
class RandomResizedCrop(Transform):
    """Takes a part of a random share of the area (``scale``) and of random proportions (``ratio``) and stretches it to a size.

    Bilinear without antialiasing: shrink large images with ``Resize`` first.
    """

    size: Size
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3.0 / 4.0, 4.0 / 3.0)

    def _make(self) -> _native.Transform:
        return _native.Transform.resized_crop(pair("RandomResizedCrop", self.size), self.scale, self.ratio)


@dataclass(frozen=True)
class Resize(Transform):
    """Changes the size of an image of bytes, bit for bit as Pillow's bilinear filter does.

    A number is the length of the shorter side; ``(height, width)`` stretches.
    """

    size: Size

    def _make(self) -> _native.Transform:
        return _native.Transform.resize("shorter" if isinstance(self.size, int) else "exact", *pair("Resize", self.size))


@dataclass(frozen=True)
class RandomRotation(Transform):
    """Turns about the centre by up to ``degrees`` either way."""

    degrees: float | Sequence[float]
    fill: float = 0.0
    padding_mode: str = "constant"

    def _make(self) -> _native.Transform:
        degrees = _up_to("RandomRotation", "degrees", self.degrees)
        return _native.Transform.rotation(degrees, self.padding_mode, self.fill)


@dataclass(frozen=True)
class RandomAffine(Transform):
    """Turns, shifts (by a share of the width and of the height), scales and shears (by degrees) about the centre."""

    degrees: float | Sequence[float]
    translate: tuple[float, float] | None = None
    scale: tuple[float, float] | None = None
    shear: float | Sequence[float] | None = None
    fill: float = 0.0
    padding_mode: str = "constant"

    def _make(self) -> _native.Transform:
        return _native.Transform.affine(
            _up_to("RandomAffine", "degrees", self.degrees),
            self.translate or (0.0, 0.0),
            self.scale or (1.0, 1.0),
            _up_to("RandomAffine", "shear", self.shear or 0.0),
            self.padding_mode,
            self.fill,
        )


@dataclass(frozen=True)
class ColorJitter(Transform):
    """Changes brightness, contrast and saturation by factors of ``1 - x`` to ``1 + x`` and turns the hue, in a random order."""

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0

    def _make(self) -> _native.Transform:
        return _native.Transform.color_jitter(self.brightness, self.contrast, self.saturation, self.hue)


@dataclass(frozen=True)
class Brightness(Transform):
    """Changes the brightness by a factor of ``1 - most`` to ``1 + most``."""

    most: float

    def _make(self) -> _native.Transform:
        return _native.Transform.color_jitter(self.most, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Contrast(Transform):
    """Changes the contrast by a factor of ``1 - most`` to ``1 + most``."""

    most: float

    def _make(self) -> _native.Transform:
        return _native.Transform.color_jitter(0.0, self.most, 0.0, 0.0)


@dataclass(frozen=True)
class GaussianBlur(Transform):
    """Blurs with a Gaussian of ``kernel_size`` taps (odd) and a random deviation in pixels."""

    kernel_size: int
    sigma: float | tuple[float, float] = (0.1, 2.0)

    def _make(self) -> _native.Transform:
        sigma = (self.sigma, self.sigma) if isinstance(self.sigma, float | int) else self.sigma
        return _native.Transform.blur(self.kernel_size, sigma)


@dataclass(frozen=True)
class RandomErasing(Transform):
    """Overwrites a rectangle of a random share of the area (``scale``) and random proportions, with probability ``p``."""

    p: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    value: float = 0.0

    def _make(self) -> _native.Transform:
        return _native.Transform.erase(self.p, self.scale, self.ratio, self.value)


@dataclass(frozen=True)
class Cutout(Transform):
    """Overwrites a square of ``size`` pixels around a random one; what would be outside is left out."""

    size: int
    value: float = 0.0

    def _make(self) -> _native.Transform:
        return _native.Transform.cutout(self.size, self.value)


@dataclass(frozen=True)
class Normalize(Transform):
    """``(x - mean) / std``, with a number for each channel; a single one is for images of one channel."""

    mean: float | Sequence[float]
    std: float | Sequence[float]

    def _make(self) -> _native.Transform:
        def channels(values: float | Sequence[float]) -> Sequence[float]:
            return [values] if isinstance(values, float | int) else values

        return _native.Transform.normalize(channels(self.mean), channels(self.std))


@dataclass(frozen=True)
class RandAugment(Transform):
    """Some operations of 14, all equally likely, of one strength from 0 to 30."""

    num_ops: int = 2
    magnitude: int = 9
    fill: float = 0.0
    padding_mode: str = "constant"

    def _make(self) -> _native.Transform:
        return _native.Transform.rand_augment(self.num_ops, self.magnitude, self.padding_mode, self.fill)


class Compose:
    """Transforms one after the other; functions of one's own may stand anywhere.

    Geometric transforms that follow each other sample the image once. A function with a parameter ``seed`` is given one.
    """

    def __init__(self, transforms: Sequence[Callable[..., Any]]) -> None:
        self.transforms = flat(transforms)

    def __call__(self, image: Any, seed: int = 0) -> Any:
        together: list[_native.Transform] = []
        for at, transform in enumerate(self.transforms):
            if isinstance(transform, Transform):
                together.append(transform._rust)
                continue
            if together:
                image, together = _native.apply_transforms(together, image, seed + at), []
            image = transform(image, seed=seed + at) if takes_seed(transform) else transform(image)
        return _native.apply_transforms(together, image, seed) if together else image

    def __repr__(self) -> str:
        return f"Compose({self.transforms!r})"


def flat(transforms: Any) -> list[Any]:
    """Transforms one by one, whatever way they were given."""
    if transforms is None:
        return []
    if isinstance(transforms, Compose):
        return transforms.transforms
    if isinstance(transforms, list | tuple):
        return [one for transform in transforms for one in flat(transform)]
    if not callable(transforms):
        raise TypeError(f"a transform is a function or one of netcl.data.augment, got {type(transforms).__name__}")
    return [transforms]


def takes_seed(function: Any) -> bool:
    """Whether a function has a parameter ``seed``."""
    try:
        return "seed" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


class Mix:
    """A change of a batch of images with their labels."""

    _cut = False

    def __init__(self, num_classes: int, alpha: float = 1.0) -> None:
        self.num_classes, self.alpha = num_classes, alpha
        self._rust = _native.Mix(self._cut, alpha, num_classes)

    def __call__(self, images: NDArray[Any], labels: NDArray[Any], seed: int = 0) -> tuple[NDArray[Any], NDArray[Any]]:
        return self._rust.apply(images, labels, seed)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.num_classes, self.alpha)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(num_classes={self.num_classes}, alpha={self.alpha})"


class MixUp(Mix):
    """Mixes each image of a batch with the one before it, and their labels, which become shares of ``num_classes`` classes.

    ``alpha`` decides how much: the share is of the beta distribution with this twice.

    >>> import numpy as np
    >>> images, labels = MixUp(num_classes=10, alpha=0.2)(np.zeros((4, 1, 8, 8), np.float32), np.array([3, 1, 4, 1]), seed=5)
    >>> labels.shape
    (4, 10)
    """


class CutMix(Mix):
    """Puts a rectangle of the image before into each image of a batch; labels are the shares of the area."""

    _cut = True
