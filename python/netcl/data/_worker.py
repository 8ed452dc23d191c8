"""The process of a worker: makes batches as it is told and puts them into the ring. Started by `ProcessWorkers`."""

from __future__ import annotations

import mmap
import multiprocessing.process
import os
import pickle
import queue
import random
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing import spawn
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from netcl.data.shared_batch import SharedBatchRing

# Number of a job that is none: the worker is ready, or could not start.
STARTING = -1


class BatchMaker:
    """Makes the batch of some samples exactly as a loader without workers does, with the same random numbers."""

    def __init__(self, dataset: Any, collate_fn: Callable[[list[Any]], Any] | None, transforms: Any, seed: int) -> None:
        self._settings = {"collate_fn": collate_fn, "transforms": transforms, "seed": seed}
        self._dataset = dataset

    def __call__(self, epoch: int, indices: list[int]) -> Any:
        from netcl.data.dataloader import DataLoader

        # For code that uses Python's or NumPy's global generators: the same numbers whichever worker makes the batch.
        random.seed(f"{self._settings['seed']} {epoch} {indices[:1]}")
        np.random.seed(random.getrandbits(32))
        loader = DataLoader(self._dataset, batch_sampler=[indices], **self._settings)
        loader.set_epoch(epoch)
        return next(iter(loader))


def main(connection: int, payload: int, ring: int) -> None:
    """Works until the other end of the connection is closed; the arguments are inherited descriptors."""
    parent: Connection[Any, Any] = Connection(connection)
    messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(parent, messages), daemon=True).start()
    try:
        make = _start(payload, *messages.get())
        batches = SharedBatchRing.open(f"/proc/self/fd/{ring}")
    except BaseException as error:
        parent.send((STARTING, failure(error)))
        return
    parent.send((STARTING, None))
    while True:
        number, epoch, indices = messages.get()
        try:
            batches.put((number, make(epoch, indices)))
            answer = None
        except BaseException as error:
            answer = failure(error)
        parent.send((number, answer))


def _receive(parent: Connection[Any, Any], messages: queue.SimpleQueue[Any]) -> None:
    """Reads the parent's messages. In a thread of its own, so that the process ends with its parent whatever it is doing."""
    try:
        while True:
            messages.put(parent.recv())
    except (EOFError, OSError):
        sys.stdout.flush()
        os._exit(0)


def _start(payload: int, preparation: dict[str, Any], extents: list[tuple[int, int]]) -> Callable[[int, list[int]], Any]:
    """Makes the main module what it is in the parent, then the function that makes batches."""
    # Whose script starts workers without `if __name__ == "__main__"` gets multiprocessing's own explanation.
    process: Any = multiprocessing.process.current_process()
    process._inheriting = True
    try:
        spawn.prepare(preparation)
    finally:
        process._inheriting = False
    # A copy on write: arrays of the data set are shared by all workers until one of them writes.
    memory = memoryview(mmap.mmap(payload, 0, access=mmap.ACCESS_COPY))
    content, *buffers = [memory[start:end] for start, end in extents]
    make: Callable[[int, list[int]], Any] = pickle.loads(content, buffers=buffers)
    return make


def failure(error: BaseException) -> dict[str, Any]:
    """What the parent needs to raise an exception again."""
    notes = [*getattr(error, "__notes__", []), f"netcl.data: in worker process {os.getpid()}"]
    answer: dict[str, Any] = {
        "kind": type(error).__name__,
        "text": str(error),
        "trace": "".join(traceback.format_exception(type(error), error, error.__traceback__)),
        "notes": notes,
        "error": None,
    }
    try:
        # Exceptions with an `__init__` of their own can often be pickled but not unpickled.
        content = pickle.dumps(error)
        pickle.loads(content)
        answer["error"] = content
    except Exception:
        pass
    return answer
