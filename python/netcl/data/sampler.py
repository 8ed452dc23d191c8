"""Samplers: which samples an epoch has, in which order.

Every order is a function of a seed and the epoch's number, so that it does not depend on the number of workers and an
interrupted epoch can go on. Any iterable of numbers is a sampler too; one with a ``set_epoch`` is told the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from typing import Any

from netcl._netcl import data as _native

__all__ = [
    "BatchSampler",
    "DistributedSampler",
    "LengthBatchSampler",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "SubsetRandomSampler",
    "WeightedRandomSampler",
]


def _length(source: Sized | int) -> int:
    return source if isinstance(source, int) else len(source)


class Sampler:
    """An order of samples. Iterating gives the numbers of the epoch that ``set_epoch`` named, at first of epoch 0."""

    _rust: _native.Sampler
    _epoch = 0

    def __len__(self) -> int:
        return len(self._rust)

    def __iter__(self) -> Iterator[int]:
        order: list[int] = self._rust.order(self._epoch).tolist()
        return iter(order)

    def set_epoch(self, epoch: int) -> None:
        """Decides the order of the next iteration. A ``DataLoader`` counts epochs itself."""
        self._epoch = epoch


class SequentialSampler(Sampler):
    """All samples in their order; of a data set, or of a number of samples.

    >>> list(SequentialSampler(3))
    [0, 1, 2]
    """

    def __init__(self, data_source: Sized | int) -> None:
        self._rust = _native.Sampler.sequential(_length(data_source))


class RandomSampler(Sampler):
    """All samples in another order each epoch.

    >>> sorted(RandomSampler(4, seed=1))
    [0, 1, 2, 3]
    """

    def __init__(self, data_source: Sized | int, seed: int = 0) -> None:
        self._rust = _native.Sampler.random(_length(data_source), seed)


class SubsetRandomSampler(Sampler):
    """Some samples, by their numbers, in another order each epoch.

    >>> sorted(SubsetRandomSampler([5, 2, 9], seed=1))
    [2, 5, 9]
    """

    def __init__(self, indices: Sequence[int], seed: int = 0) -> None:
        self.indices = [int(index) for index in indices]
        self._rust = _native.Sampler.random(len(self.indices), seed)

    def __iter__(self) -> Iterator[int]:
        return (self.indices[place] for place in super().__iter__())


class WeightedRandomSampler(Sampler):
    """Draws ``num_samples`` with replacement, each as often as its weight says; weights need not add up to 1.

    >>> set(WeightedRandomSampler([0.0, 1.0, 0.0], 5))
    {1}
    """

    def __init__(
        self,
        weights: Sequence[float] | Any,
        num_samples: int,
        seed: int = 0,
        *,
        replacement: bool = True,
        generator: Any = None,
    ) -> None:
        if isinstance(seed, bool):  # PyTorch's third argument
            replacement, seed = bool(seed), 0
        if not replacement:
            raise ValueError("WeightedRandomSampler: draws are with replacement; RandomSampler has every sample once")
        if generator is not None:
            seed = generator._next() >> 1
        if hasattr(weights, "tolist"):
            weights = weights.tolist()
        self._rust = _native.Sampler.weighted(weights, num_samples, seed)


class DistributedSampler(Sampler):
    """The share of one of ``world`` processes: every ``world``th sample of an order that all of them have.

    Where the samples do not divide evenly, the first ones occur twice, or the last ones are left out (``drop_last``). The order
    is shuffled by ``seed``, which must be the same everywhere, or that of a ``Sampler``.

    >>> [list(DistributedSampler(4, rank, 2, shuffle=False)) for rank in range(2)]
    [[0, 2], [1, 3]]
    """

    def __init__(
        self,
        data_source: Sampler | Sized | int,
        rank: int,
        world: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if isinstance(data_source, Sampler):
            inner = data_source
        else:
            inner = RandomSampler(data_source, seed) if shuffle else SequentialSampler(data_source)
        self._rust = _native.Sampler.distributed(inner._rust, rank, world, drop_last)


class BatchSampler:
    """A sampler's order in batches of one size, the last one smaller or left out.

    >>> list(BatchSampler(SequentialSampler(5), 2))
    [[0, 1], [2, 3], [4]]
    """

    _rust: _native.BatchSampler
    _epoch = 0

    def __init__(self, sampler: Sampler, batch_size: int, drop_last: bool = False) -> None:
        self._rust = _native.BatchSampler.fixed(sampler._rust, batch_size, drop_last)

    def __len__(self) -> int:
        return len(self._rust)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._rust.batches(self._epoch, 0))

    def set_epoch(self, epoch: int) -> None:
        """Decides the order of the next iteration. A ``DataLoader`` counts epochs itself."""
        self._epoch = epoch


class LengthBatchSampler(BatchSampler):
    """Batches of samples of similar lengths, so that little padding is needed.

    The samples of a shuffled order are sorted by length within groups of ``group`` batches; the batches come in a random order.

    >>> len(LengthBatchSampler([3, 1, 2, 5, 4], batch_size=2))
    3
    """

    def __init__(
        self, lengths: Sequence[int], batch_size: int, *, group: int = 50, seed: int = 0, drop_last: bool = False
    ) -> None:
        sampler = _native.Sampler.random(len(lengths), seed)
        self._rust = _native.BatchSampler.by_length(sampler, lengths, batch_size, group, seed, drop_last)
