"""The loader: batches of a data set, made by workers ahead of the training loop."""

from __future__ import annotations

import atexit
import functools
import os
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from itertools import islice
from types import TracebackType
from typing import Any
from weakref import WeakSet

from netcl._factories import Generator
from netcl._netcl import IndexTensor, Tensor, data as _native
from netcl.data._collate import default_collate
from netcl.data.augment import Mix, Transform, flat, takes_seed
from netcl.data.dataset import ConcatDataset, Subset, TensorDataset, native_of
from netcl.data.sampler import BatchSampler, RandomSampler, Sampler, SequentialSampler

__all__ = ["DataLoader", "default_collate"]


class DataLoader:
    """Batches of a data set, in an order that depends on nothing but the seed and the epoch.

    >>> from netcl.data import DataLoader, digits
    >>> loader = DataLoader(digits(), batch_size=64, shuffle=True, num_workers=2, seed=42)
    >>> for images, labels in loader:
    ...     pass
    >>> images.dtype, images.shape[1:], len(loader)
    (dtype('uint8'), (1, 8, 8), 23)

    ``dataset`` is anything with ``__len__`` and ``__getitem__``, or an iterable of samples, which decides its order itself.
    Batches are NumPy arrays in tuples, lists and dicts as the samples are (``default_collate``), or what ``collate_fn`` makes
    of a list of samples. Every ``iter()`` is the next epoch.

    ``transforms`` are those of ``netcl.data.augment`` and functions of one's own, in order. They change the first field of a
    sample that is a tuple or list, and otherwise the sample; transforms of images take the first array of three axes of a dict.
    A function with a parameter ``seed`` is given a number that depends on the seed, the epoch and the sample. ``MixUp`` and
    ``CutMix`` come last and change whole batches.

    With ``num_workers`` batches are made ahead, ``prefetch`` for each worker. Workers are threads, which need the interpreter's
    lock for Python code only: data sets and transforms of ``netcl.data`` run without it. ``workers="process"`` starts processes
    instead, for data sets whose Python code takes long; the data set, the transforms and ``collate_fn`` are pickled then.
    ``persistent_workers`` keeps the processes for the next epoch; threads start in microseconds and end with their epoch.

    ``device_queue`` (or ``bind_queue``) brings batches to a device: arrays arrive as ``Tensor`` and ``IndexTensor``.
    Samples that hold tensors come as tensors on the device of the first of them, unless processes make the batches.
    PyTorch's ``prefetch_factor`` is ``prefetch``, the seed of its ``generator`` is ``seed``, and ``pin_memory`` changes
    nothing: uploads pass through page-locked memory anyway.
    ``timeout`` is how many seconds to wait for a batch before that is a ``TimeoutError``; 0 and ``None`` wait for ever.

    An exception of the data set, a transform or ``collate_fn`` keeps its type and traceback and gets a note with the number of
    the sample. The batch is lost; the next ones may be asked for.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        num_workers: int = 0,
        transforms: Any = None,
        device_queue: Any = None,
        *,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[list[int]] | None = None,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        prefetch: int = 2,
        seed: int = 0,
        timeout: float | None = None,
        persistent_workers: bool = False,
        workers: str = "thread",
        generator: Generator | None = None,
        pin_memory: bool = False,
        prefetch_factor: int | None = None,
    ) -> None:
        if prefetch_factor is not None:
            prefetch = prefetch_factor
        if generator is not None:
            seed = generator.initial_seed()
        for name, value, least in [("batch_size", batch_size, 1), ("num_workers", num_workers, 0), ("prefetch", prefetch, 1)]:
            if not isinstance(value, int) or value < least:
                raise ValueError(f"DataLoader: {name} must be a whole number of at least {least}, got {value!r}")
        if not isinstance(seed, int) or not 0 <= seed < 2**64:
            raise ValueError(f"DataLoader: seed must be a whole number from 0 to 2**64 - 1, got {seed!r}")
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"DataLoader: timeout must be a number of seconds, got {timeout!r}")
        if workers not in ("thread", "process"):
            raise ValueError(f"DataLoader: workers must be 'thread' or 'process', got {workers!r}")
        if sampler is not None and (shuffle or batch_sampler is not None):
            raise ValueError("DataLoader: a sampler decides the order; leave out shuffle and batch_sampler")
        if batch_sampler is not None and (shuffle or drop_last or batch_size != 1):
            raise ValueError("DataLoader: a batch_sampler decides the batches; leave out batch_size, shuffle and drop_last")
        if collate_fn is not None and not callable(collate_fn):
            raise TypeError(f"DataLoader: collate_fn must be a function, got {type(collate_fn).__name__}")
        self._stream = _is_stream(dataset)
        if self._stream and (shuffle or sampler is not None or batch_sampler is not None):
            raise ValueError("DataLoader: an iterable data set decides its order itself; leave out shuffle and samplers")
        if self._stream and workers == "process" and num_workers:
            raise ValueError("DataLoader: an iterable data set is read by one thread; leave out workers='process'")
        self.dataset = dataset
        self.batch_size, self.shuffle, self.drop_last = batch_size, shuffle, drop_last
        self.sampler, self.batch_sampler = sampler, batch_sampler
        self.num_workers, self.prefetch, self.workers = num_workers, prefetch, workers
        self.persistent_workers = persistent_workers
        self.collate_fn = collate_fn
        self.transforms = transforms
        self.seed = seed
        self.timeout = timeout or None
        self.device_queue = device_queue
        self._changes, self._mixes = _changes(transforms)
        # Where the next iteration starts, and where the latest one is: the epoch, and the samples that were handed over.
        self._start = self._position = (0, 0)
        self._latest = 0
        self._running: WeakSet[_Batches] = WeakSet()
        self._processes: Any = None

    def __len__(self) -> int:
        """The number of batches of an epoch."""
        if self.batch_sampler is not None:
            return len(self.batch_sampler)  # type: ignore[arg-type]
        samples = len(self.dataset if self.sampler is None else self.sampler)  # type: ignore[arg-type]
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)

    def __iter__(self) -> _Batches:
        epoch, samples = self._position = self._start
        self._start = (epoch + 1, 0)
        self._latest += 1
        batches = _Batches(self, epoch, samples, self._latest)
        self._running.add(batches)
        return batches

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends the workers of all iterators, when they have finished the samples at hand."""
        for batches in list(self._running):
            batches.close()
        if self._processes is not None:
            self._processes.close()
            self._processes = None

    def bind_queue(self, queue: Any) -> DataLoader:
        """Has batches brought to a queue's device from the next iteration on; ``None`` gives arrays again."""
        self.device_queue = queue
        return self

    def set_epoch(self, epoch: int) -> None:
        """Decides which epoch the next iteration is: epochs have different orders and random changes."""
        if not isinstance(epoch, int) or epoch < 0:
            raise ValueError(f"DataLoader: an epoch is a whole number of 0 or more, got {epoch!r}")
        self._start = self._position = (epoch, 0)

    def state_dict(self) -> dict[str, int]:
        """Where the latest iteration is, to the sample: numbers that can be saved anywhere."""
        epoch, samples = self._position
        return {"seed": self.seed, "epoch": epoch, "samples": samples}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Has the next iteration go on where ``state_dict`` was asked. The batch size and the workers may be other ones.

        A sampler that is none of ``netcl.data`` must give the same order again.
        """
        if state["seed"] != self.seed:
            raise ValueError(
                f"DataLoader: the state was saved by a loader with the seed {state['seed']}, this one has {self.seed}: the "
                "order of the samples would be another one"
            )
        self._start = self._position = (int(state["epoch"]), int(state["samples"]))

    def _batch_lists(self, epoch: int, skipped: int) -> _native.BatchSampler | Iterator[list[int]]:
        """The numbers of each batch's samples: a sampler of the extension, or Python code where there is some."""
        batches, sampler = self.batch_sampler, self.sampler
        if isinstance(batches, BatchSampler):
            return batches._rust
        if batches is None:
            if sampler is None:
                sampler = RandomSampler(self.dataset, self.seed) if self.shuffle else SequentialSampler(self.dataset)
            if isinstance(sampler, Sampler):
                return _native.BatchSampler.fixed(sampler._rust, self.batch_size, self.drop_last)
        _tell_epoch(batches if batches is not None else sampler, epoch)
        return self._chunks(iter(sampler or ()), skipped) if batches is None else _rest(iter(batches), skipped)

    def _chunks(self, order: Iterator[int], skipped: int) -> Iterator[list[int]]:
        order = islice(order, skipped, None)
        while batch := list(islice(order, self.batch_size)):
            if self.drop_last and len(batch) < self.batch_size:
                return
            yield batch


class _Batches:
    """The batches of an epoch of a ``DataLoader``."""

    def __init__(self, loader: DataLoader, epoch: int, samples: int, number: int) -> None:
        self._loader, self._epoch, self._number = loader, epoch, number
        self._uploader = None if loader.device_queue is None else _native.Uploader(loader.device_queue)
        self._samples = _Samples(loader.dataset)
        self._batches: _native.Epoch | _ProcessBatches
        if loader.workers == "process" and loader.num_workers:
            self._batches = _ProcessBatches(loader, epoch, samples)
            self._look = float("inf")
        else:
            self._batches = _thread_batches(loader, self._samples, epoch, samples)
            self._look = time.monotonic() + _LOOK if loader.num_workers > 1 else float("inf")
        self._started = time.monotonic()

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
        except StopIteration:
            self._at(self._epoch + 1, 0)
            raise
        self._at(self._epoch, self._batches.samples)
        if time.monotonic() > self._look:
            self._look = time.monotonic() + _LOOK
            self._warn_of_lock()
        if self._uploader is None and self._samples.queue is not None:
            self._uploader = _native.Uploader(self._samples.queue)
        # The copy runs beside what the device is still doing for the batch before.
        return batch if self._uploader is None else self._uploader.upload(batch)

    def _at(self, epoch: int, samples: int) -> None:
        if self._loader._latest == self._number:
            self._loader._position = (epoch, samples)

    def close(self) -> None:
        """Ends the workers, when they have finished the samples at hand."""
        self._batches.close(wait=True)

    def _warn_of_lock(self) -> None:
        """Says once when threads do not work in parallel because all of them run Python code."""
        global _warned
        stats = self._batches.stats()
        workers = self._loader.num_workers
        if _warned or stats is None or (os.cpu_count() or 1) < 2:
            return
        elapsed = time.monotonic() - self._started
        # The loop waits and all workers are busy, but with waiting for the lock; or, where single samples take long, together
        # they have no more than one processor.
        busy = stats["worker_busy"]
        waited_for = stats["consumer_wait"] > 0.3 * elapsed and busy > 0.8 * workers * elapsed
        locked = stats["lock_wait"] > 0.3 * busy or 0.6 * elapsed < stats["python_busy"] < 1.15 * elapsed
        if waited_for and locked:
            _warned = True
            warnings.warn(
                f"DataLoader: {workers} worker threads make batches no faster than one, because Python code of the data set, "
                "the transforms or collate_fn holds the interpreter's lock; pass workers='process', or use data sets and "
                "transforms of netcl.data, which do not need it",
                RuntimeWarning,
                stacklevel=3,
            )


_warned = False
# After how many seconds, and how often, a loader looks at how its threads got on.
_LOOK = 1.0
_epochs: WeakSet[_native.Epoch] = WeakSet()


class _Samples:
    """A data set whose first sample is looked at: the queue of a tensor in it is where batches belong."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.queue = _home(dataset)
        self._seen = False

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        return self._noted(self._dataset[index])

    def __iter__(self) -> Iterator[Any]:
        return map(self._noted, self._dataset)

    def _noted(self, sample: Any) -> Any:
        if not self._seen:
            self._seen, self.queue = True, _queue_of(sample)
        return sample


def _home(dataset: Any) -> Any:
    """The queue of the tensors that a data set was made of, if it was."""
    if isinstance(dataset, TensorDataset):
        return dataset.queue
    parts = [dataset.dataset] if isinstance(dataset, Subset) else dataset.datasets if isinstance(dataset, ConcatDataset) else []
    return next((queue for queue in map(_home, parts) if queue is not None), None)


def _queue_of(sample: Any) -> Any:
    """The queue of the first tensor in a sample, if it holds any."""
    if isinstance(sample, (Tensor, IndexTensor)):
        return sample.queue
    parts = sample.values() if isinstance(sample, dict) else sample if isinstance(sample, (tuple, list)) else ()
    return next((queue for queue in map(_queue_of, parts) if queue is not None), None)


def _thread_batches(loader: DataLoader, watched: _Samples, epoch: int, samples: int) -> _native.Epoch:
    _end_at_exit()
    if loader._stream:
        _tell_epoch(loader.dataset, epoch)
        dataset: Any = iter(watched)
        lists = None
    else:
        dataset, lists = native_of(loader.dataset), loader._batch_lists(epoch, samples)
        if dataset is None:
            dataset = watched
    batches = _native.Epoch(
        dataset,
        lists,
        stream=loader._stream,
        batch_size=loader.batch_size,
        drop_last=loader.drop_last,
        transforms=loader._changes,
        mixes=loader._mixes,
        collate=loader.collate_fn or default_collate,
        always_collate=loader.collate_fn is not None,
        seed=loader.seed,
        epoch=epoch,
        samples=samples,
        workers=loader.num_workers,
        prefetch=loader.prefetch,
        timeout=loader.timeout,
    )
    _epochs.add(batches)
    return batches


@functools.cache
def _end_at_exit() -> None:
    """Registered with the first epoch: later than what the program needs to the end, so it runs before."""

    def end() -> None:
        for epoch in list(_epochs):
            epoch.close(wait=False)
        _native.finish()

    atexit.register(end)


class _ProcessBatches:
    """Batches of worker processes, with a count of the samples that were handed over."""

    _workers: Any = None

    def __init__(self, loader: DataLoader, epoch: int, samples: int) -> None:
        self.samples = samples
        self._loader = loader
        self._sizes: deque[int] = deque()
        workers = loader._processes
        loader._processes = None
        if workers is None:
            workers = import_module("netcl.data._processes").ProcessWorkers(
                loader.dataset,
                loader.collate_fn or default_collate,
                flat(loader.transforms),
                loader.seed,
                loader.num_workers,
                loader.prefetch,
                loader.timeout,
            )
        self._workers = workers
        lists = loader._batch_lists(epoch, samples)
        if isinstance(lists, _native.BatchSampler):
            lists = iter(lists.batches(epoch, samples))
        self._batches: Iterator[Any] = workers.batches(epoch, _counted(lists, self._sizes))

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
        except StopIteration:
            self._end()
            raise
        except TimeoutError:
            # The batch may still come.
            raise
        except Exception:
            self._handed_over()
            raise
        self._handed_over()
        return batch

    def _handed_over(self) -> None:
        if self._sizes:
            self.samples += self._sizes.popleft()

    def __iter__(self) -> _ProcessBatches:
        return self

    def stats(self) -> None:
        return None

    def _end(self) -> None:
        workers, self._workers = self._workers, None
        if workers is None:
            return
        if self._loader.persistent_workers and self._loader._processes is None:
            self._loader._processes = workers
        else:
            workers.close()

    def close(self, wait: bool = True) -> None:
        workers, self._workers = self._workers, None
        if workers is not None:
            workers.close()

    def __del__(self) -> None:
        self._end()


def _counted(lists: Iterable[list[int]], sizes: deque[int]) -> Iterator[list[int]]:
    """Batches, with note of their sizes. No method: the workers would hold the iterator that is to end them."""
    for batch in lists:
        sizes.append(len(batch))
        yield batch


def _is_stream(dataset: Any) -> bool:
    """Whether a data set gives samples one after the other and has no numbers for them."""
    # PyTorch's class of them inherits a __getitem__ that only raises.
    named = any(base.__name__ == "IterableDataset" for base in type(dataset).__mro__)
    if not named and hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        return False
    if not hasattr(dataset, "__iter__"):
        raise TypeError(
            f"DataLoader: a {type(dataset).__name__} is no data set: it needs __len__ and __getitem__, or __iter__ where "
            "samples come one after the other"
        )
    return True


def _tell_epoch(what: Any, epoch: int) -> None:
    tell = getattr(what, "set_epoch", None)
    if callable(tell):
        tell(epoch)


def _rest(batches: Iterator[Any], skipped: int) -> Iterator[list[int]]:
    """Batches without the first samples; the first batch may have been had in part."""
    for batch in batches:
        rest = list(batch)[skipped:]
        skipped = max(0, skipped - len(batch))
        if rest:
            yield rest


def _changes(transforms: Any) -> tuple[list[Any], list[_native.Mix]]:
    """Transforms as the extension takes them: those of samples, and those of batches, which come last."""
    changes: list[Any] = []
    mixes: list[_native.Mix] = []
    for transform in flat(transforms):
        if isinstance(transform, Mix):
            mixes.append(transform._rust)
            continue
        if mixes:
            raise ValueError("DataLoader: MixUp and CutMix change whole batches: put them after the transforms of samples")
        if type(transform).__call__ is Transform.__call__:
            changes.append(transform._rust)
        else:
            changes.append((transform, takes_seed(transform)))
    return changes, mixes
