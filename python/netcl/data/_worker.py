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


def main(connection: int, payload: int, ring: int) -> None:
    """Works until the other end of the connection is closed; the arguments are inherited descriptors."""
    parent: Connection[Any, Any] = Connection(connection)
    messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(parent, messages), daemon=True).start()
    try:
        make, collate, seed = _start(payload, *messages.get())
        batches = SharedBatchRing.open(f"/proc/self/fd/{ring}")
    except BaseException as error:
        parent.send((STARTING, failure(error, "when the worker process started")))
        return
    parent.send((STARTING, None))
    while True:
        number, epoch, indices = messages.get()
        try:
            batches.put((number, _batch(make, collate, seed, epoch, indices)))
            answer = None
        except BaseException as error:
            answer = failure(error, None)
        parent.send((number, answer))


def _receive(parent: Connection[Any, Any], messages: queue.SimpleQueue[Any]) -> None:
    """Reads the parent's messages. In a thread of its own, so that the process ends with its parent whatever it is doing."""
    try:
        while True:
            messages.put(parent.recv())
    except (EOFError, OSError):
        sys.stdout.flush()
        os._exit(0)


def _start(payload: int, preparation: dict[str, Any], extents: list[tuple[int, int]]) -> tuple[Any, Any, int]:
    """Makes the main module what it is in the parent, then the functions that make samples and batches."""
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
    make, collate, seed = pickle.loads(content, buffers=buffers)
    return make, collate, seed


def _batch(
    make: Callable[[int, int], Any], collate: Callable[[list[Any], int, int], Any], seed: int, epoch: int, indices: list[int]
) -> Any:
    # For transforms that use Python's or NumPy's global generators: the same numbers whichever worker makes the batch.
    random.seed(f"{seed} {epoch} {indices[:1]}")
    np.random.seed(random.getrandbits(32))
    samples = []
    for index in indices:
        try:
            samples.append(make(epoch, index))
        except BaseException as error:
            error.__netcl_index__ = index  # type: ignore[attr-defined]
            raise
    return collate(samples, epoch, indices[0] if indices else 0)


def failure(error: BaseException, where: str | None) -> dict[str, Any]:
    """What the parent needs to raise an exception again."""
    if where is None:
        index = error.__dict__.pop("__netcl_index__", None)
        where = "when the samples of a batch were joined" if index is None else f"sample {index}"
    answer: dict[str, Any] = {
        "kind": type(error).__name__,
        "text": str(error),
        "trace": "".join(traceback.format_exception(type(error), error, error.__traceback__)),
        "where": f"{where}, worker process {os.getpid()}",
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
