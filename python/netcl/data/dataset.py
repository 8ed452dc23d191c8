"""Data sets. Those of this module are read by worker threads without the interpreter's lock; any object with ``__len__`` and
``__getitem__`` is a data set too.
"""

from __future__ import annotations

import bisect
import itertools
import operator
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from netcl._factories import Generator
from netcl._netcl import IndexTensor, Tensor, data as _native
from netcl._netcl.data import CharTokenizer, read_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "MNIST",
    "CharTokenizer",
    "ConcatDataset",
    "CsvTable",
    "Dataset",
    "FashionMNIST",
    "ImageDataset",
    "ImageFolder",
    "IterableDataset",
    "NpyDataset",
    "NpzDataset",
    "Subset",
    "TensorDataset",
    "TextDataset",
    "digits",
    "idx",
    "random_split",
    "read_text",
]

Path = str | os.PathLike[str]
Size = int | Sequence[int]


def pair(name: str, size: Size) -> tuple[int, int]:
    """Height and width of a size that is one number for both or two."""
    if isinstance(size, int):
        return size, size
    if not isinstance(size, tuple | list) or len(size) != 2:
        raise ValueError(f"{name}: a size is a number or (height, width), got {size!r:.200}")
    return size[0], size[1]


class Dataset:
    """Samples by number. A class of one's own may derive from it; it needs ``__len__`` and ``__getitem__``."""

    _rust: _native.Dataset | None = None

    def __len__(self) -> int:
        if self._rust is None:
            raise TypeError(f"{type(self).__name__}: a data set needs __len__ and __getitem__")
        return len(self._rust)

    def __getitem__(self, index: int) -> Any:
        if self._rust is None:
            raise TypeError(f"{type(self).__name__}: a data set needs __len__ and __getitem__")
        return self._rust.get(_within(index, len(self)))

    def _open(self) -> None:
        """Makes what cannot be pickled of the attributes that can."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_rust", "queue")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open()


def _within(index: int, length: int) -> int:
    """The number that an index means; negative ones count from the end."""
    number = operator.index(index)
    number += length if number < 0 else 0
    if not 0 <= number < length:
        raise IndexError(f"there is no sample {index}: the data set has {length}")
    return number


def native_of(dataset: Any) -> _native.Dataset | None:
    """The extension's data set for one that workers can read without Python code."""
    if isinstance(dataset, Dataset):
        # A class that overrides how samples are read wants its own code to run.
        mine = type(dataset).__getitem__ in _GETTERS and type(dataset).__len__ in _LENGTHS
        return dataset._rust if mine else None
    import numpy as np

    # An array that is not dense would have to be copied.
    if type(dataset) is not np.ndarray or dataset.ndim == 0 or not dataset.dtype.isnative or not dataset.flags.c_contiguous:
        return None
    numbers = dataset.dtype.kind in "biuf" and dataset.dtype.itemsize <= 8
    return _native.Dataset.of_arrays([dataset], None, True) if numbers else None


class IterableDataset:
    """Samples in an order of their own: a class of one's own derives from it and has ``__iter__``."""

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(f"{type(self).__name__}: an iterable data set needs __iter__")


class TensorDataset(Dataset):
    """Arrays with one first axis: sample ``i`` has row ``i`` of each, in a tuple, or by name in a dict.

    The arrays' own memory is read; they are not copied if they are dense. Where tensors are given, a loader gives tensors.

    >>> import numpy as np
    >>> x, y = TensorDataset(np.arange(6).reshape(3, 2), np.array([4, 5, 6]))[1]
    >>> x, int(y)
    (array([2, 3]), 5)
    >>> list(TensorDataset(x=np.zeros((3, 2)), y=np.ones(3))[0])
    ['x', 'y']
    """

    queue: Any = None
    """The queue of the first tensor that was given. It does not travel to other processes."""

    def __init__(self, *arrays: Any, **named: Any) -> None:
        import numpy as np

        if arrays and named:
            raise TypeError("TensorDataset: give all arrays names, or none")
        given = arrays or tuple(named.values())
        self.arrays = [np.asarray(array) for array in given]
        self.queue = next((array.queue for array in given if isinstance(array, (Tensor, IndexTensor))), None)
        self.names = list(named) or None
        self._open()

    def _open(self) -> None:
        self._rust = _native.Dataset.of_arrays(self.arrays, self.names, False)


class Subset(Dataset):
    """Some samples of a data set, by number, in an order; numbers may repeat.

    >>> list(Subset(["a", "b", "c"], [2, 0]))
    ['c', 'a']
    """

    def __init__(self, dataset: Any, indices: Iterable[int]) -> None:
        self.dataset, length = dataset, len(dataset)
        self.indices = [_within(index, length) for index in indices]
        self._open()

    def _open(self) -> None:
        whole = native_of(self.dataset)
        self._rust = None if whole is None else whole.subset(self.indices)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.indices[_within(index, len(self))]]


class ConcatDataset(Dataset):
    """Data sets one after the other.

    >>> ConcatDataset([["a", "b"], ["c"]])[2]
    'c'
    """

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        self._ends = list(itertools.accumulate(len(part) for part in self.datasets))
        self._open()

    def _open(self) -> None:
        parts = [native_of(part) for part in self.datasets]
        whole = [part for part in parts if part is not None]
        self._rust = _native.Dataset.concat(whole) if len(whole) == len(parts) else None

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> Any:
        index = _within(index, len(self))
        part = bisect.bisect_right(self._ends, index)
        return self.datasets[part][index - (self._ends[part - 1] if part else 0)]


_GETTERS = {Dataset.__getitem__, Subset.__getitem__, ConcatDataset.__getitem__}
_LENGTHS = {Dataset.__len__, Subset.__len__, ConcatDataset.__len__}


def random_split(
    dataset: Any, lengths: Sequence[int] | Sequence[float], seed: int = 0, *, generator: Generator | None = None
) -> list[Subset]:
    """Parts without a sample in common, at random by seed, or by that of a generator. Sizes are numbers of samples, or shares
    that add up to 1.

    >>> [len(part) for part in random_split(range(10), [0.7, 0.3])]
    [7, 3]
    """
    seed = seed if generator is None else generator.initial_seed()
    return [Subset(dataset, part) for part in _native.split(len(dataset), lengths, seed)]


class ImageDataset(Dataset):
    """Images with labels in memory: samples are ``(image, label)``, bytes of shape ``(channels, height, width)`` and an int64.

    Data sets are looked for in ``root``; without it in the folder that ``NETCL_DATA_DIR`` names, in ``./data``, and where
    packages of distributions put them. If there is none, the error says which package has it.
    """

    #: The names of the classes, in the order of their labels.
    classes: list[str]
    #: The labels of all samples.
    labels: NDArray[np.int64]

    def __init__(self, name: str, root: Path | None = None, split: str = "train") -> None:
        if split not in ("train", "test"):
            raise ValueError(f"{name}: split must be 'train' or 'test', got {split!r}")
        self.name, self.root, self.split = name, root, split
        self._open()

    def _open(self) -> None:
        self._rust, self.classes, self.labels = _native.load_images(self.name, self.root, self.split == "train")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, split={self.split!r}, {len(self)} images, {len(self.classes)} classes)"


def digits(split: str = "train") -> ImageDataset:
    """The 1,797 handwritten digits of 8x8 pixels that come with netcl: 1,437 to train with, 360 to test with.

    >>> digits()[0][0].shape
    (1, 8, 8)
    """
    return ImageDataset("digits", None, split)


def idx(root: Path, split: str = "train") -> ImageDataset:
    """The images of a folder with idx files, MNIST's format: ``train-images-idx3-ubyte`` and so on, plain or with ``.gz``."""
    folder = os.fspath(root)
    return ImageDataset(folder if os.path.dirname(folder) else os.path.join(".", folder), None, split)


class MNIST(ImageDataset):
    """Handwritten digits: 60,000 images of 28x28 pixels to train with, 10,000 to test with."""

    def __init__(self, root: Path | None = None, split: str = "train") -> None:
        super().__init__("mnist", root, split)


class FashionMNIST(ImageDataset):
    """Articles of clothing in the format of MNIST."""

    def __init__(self, root: Path | None = None, split: str = "train") -> None:
        super().__init__("fashion-mnist", root, split)


class CIFAR10(ImageDataset):
    """Colour images of 32x32 pixels in 10 classes: 50,000 to train with, 10,000 to test with."""

    def __init__(self, root: Path | None = None, train: bool = True) -> None:
        super().__init__("cifar-10", root, "train" if train else "test")


class CIFAR100(ImageDataset):
    """Colour images of 32x32 pixels in 100 classes."""

    def __init__(self, root: Path | None = None, train: bool = True) -> None:
        super().__init__("cifar-100", root, "train" if train else "test")


class ImageFolder(Dataset):
    """PNG and JPEG files in a folder for each class, decoded when they are asked for.

    ``size`` is a number or ``(height, width)``; ``resize`` says how an image gets it: ``"cover"`` takes the middle that fills
    it, ``"exact"`` stretches, ``"shorter"`` makes the shorter side that long. Images keep their sizes without it. Samples are
    ``(image, label)``, bytes of shape ``(channels, height, width)`` and an int64.
    """

    #: The names of the classes (the folders), in the order of their labels.
    classes: list[str]
    #: The labels of all samples.
    labels: NDArray[np.int64]

    def __init__(
        self,
        root: Path,
        size: Size | None = None,
        *,
        resize: str = "cover",
        channels: int = 3,
        max_pixels: int | None = None,
    ) -> None:
        self.root, self.size, self.resize, self.channels, self.max_pixels = root, size, resize, channels, max_pixels
        self._open()

    def _open(self) -> None:
        resize = None if self.size is None else (self.resize, *pair("ImageFolder", self.size))
        opened = _native.Dataset.image_folder(self.root, resize, self.channels, self.max_pixels)
        self._rust, self.classes, self.labels = opened


class CsvTable(Dataset):
    """A CSV file: samples are rows, dicts of the columns' names.

    A column of whole numbers is int64, one of numbers float32 (an empty field is NaN), every other one text.
    """

    def __init__(self, path: Path, delimiter: str = ",", header: bool = True) -> None:
        self.path, self.delimiter, self.header = path, delimiter, header
        self._open()

    def _open(self) -> None:
        self._table = _native.Table(self.path, self.delimiter, self.header)
        self._rust = self._table.dataset()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_table"}

    @property
    def columns(self) -> list[str]:
        """The names of the columns; without a header their numbers."""
        return self._table.names

    def column(self, name: str) -> NDArray[Any] | list[str]:
        """The values of a column: an array of numbers or a list of texts."""
        return self._table.column(name)

    def matrix(self, names: Sequence[str]) -> NDArray[np.float32]:
        """Columns of numbers side by side, of shape ``(rows, columns)``."""
        return self._table.matrix(list(names))

    def classes(self, name: str) -> tuple[NDArray[np.int64], list[str]]:
        """A column as labels, with the names of the classes in alphabetical order, or of whole numbers in theirs."""
        return self._table.classes(name)


class NpyDataset(Dataset):
    """The rows of a ``.npy`` file, which is mapped into memory, not read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open()

    def _open(self) -> None:
        self._rust = _native.Dataset.npy(self.path)


class NpzDataset(Dataset):
    """The arrays of an ``.npz`` file, which have one first axis: samples are dicts of their rows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open()

    def _open(self) -> None:
        self._rust = _native.Dataset.npz(self.path)


class TextDataset(Dataset):
    """Windows of a text for a language model: samples are ``(tokens, next tokens)``, int64 of shape ``(length,)``.

    Tokens are bytes (``tokenizer="bytes"``, the default), characters (``tokenizer="characters"``), or what the ``encode`` of a
    tokenizer gives. Windows start every ``stride`` tokens, at first one after the other. ``read_text`` reads a file or a folder
    of texts.

    >>> TextDataset("hello world", 4)[1]
    (array([111,  32, 119, 111]), array([ 32, 119, 111, 114]))
    """

    def __init__(self, text: str | bytes, length: int, *, stride: int | None = None, tokenizer: Any = None) -> None:
        import numpy as np

        if isinstance(tokenizer, str):
            # A text has an encode too, which would take ours for the name of an encoding.
            if tokenizer not in ("chars", "characters", "bytes"):
                raise ValueError(
                    f"TextDataset: tokenizer is {tokenizer!r:.200}; use 'characters', 'bytes' or an object with encode"
                )
            characters = tokenizer != "bytes"
            tokenizer = CharTokenizer(text if isinstance(text, str) else text.decode()) if characters else None
        #: What makes tokens of a text; none for bytes.
        self.tokenizer = tokenizer
        if tokenizer is None:
            self.tokens = np.frombuffer(text.encode() if isinstance(text, str) else text, dtype=np.uint8)
        else:
            encoded = tokenizer.encode(text)
            self.tokens = np.asarray(getattr(encoded, "ids", encoded))
        if self.tokens.ndim == 1 and len(self.tokens) <= operator.index(length):
            raise ValueError(f"TextDataset: the text has {len(self.tokens)} tokens, length={length} needs {length + 1}")
        self.length, self.stride = length, length if stride is None else stride
        self._open()

    def _open(self) -> None:
        self._rust = _native.Dataset.token_windows(self.tokens, self.length, self.stride)
