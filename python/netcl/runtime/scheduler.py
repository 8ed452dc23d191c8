"""Copies beside compute: the next batch travels while the device works on this one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from netcl._netcl.runtime import Scheduler

__all__ = ["Scheduler", "prefetch"]


def prefetch(batches: Iterable[Any], queue: Any, depth: int = 2) -> Iterator[Any]:
    """The batches as tensors of a device, each uploaded while the step before it runs.

    A batch is an array, or a tuple or list of arrays, and comes out as a tensor, or a tuple of them: a ``Tensor`` for floats,
    an ``IndexTensor`` for whole numbers. Use a batch for one step: its memory is that of the batch ``depth`` later.

        for x, y in prefetch(loader, queue):
            step(x, y)
    """
    return _ahead(Scheduler(queue, depth), iter(batches))


def _ahead(feed: Scheduler, source: Iterator[Any]) -> Iterator[Any]:
    alone: list[bool] = []

    def send(count: int) -> None:
        for batch in islice(source, count):
            together = isinstance(batch, (tuple, list))
            feed.submit(*(batch if together else (batch,)))
            alone.append(not together)

    send(feed.depth)
    while feed.waiting:
        tensors = feed.next()
        # The batch before has been used now, and there is room for another one.
        send(feed.depth - feed.waiting - 1)
        yield tensors[0] if alone.pop(0) else tensors
