"""Worker processes of the loader: spawned, never forked; batches come back through a ring in shared memory."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import Pipe, process, spawn
from multiprocessing.connection import wait
from typing import Any

import numpy as np

from netcl.data._collate import default_collate
from netcl.data._worker import STARTING, BatchMaker
from netcl.data.shared_batch import SharedBatchRing

# Address space, not memory: pages are used when a batch is written.
_SLOT_BYTES = 1 << 30
# How long workers may take to end by themselves, and to start: `timeout` is for batches.
_GRACE = 0.1
_START = 60.0
_PROGRAM = """
import json, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.path[:] = json.loads(sys.argv[1])
from netcl.data._worker import main
main(*map(int, sys.argv[2:]))
"""


class ProcessWorkers:
    """Processes that make batches of a data set, as a `DataLoader` without workers would.

    The data set, the collate function and the transforms are pickled once; arrays of theirs are shared by all workers. The
    processes start with the first batch and stay until `close`, after which they can start again.
    """

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[list[Any]], Any] | None,
        transforms: Any,
        seed: int,
        num_workers: int,
        prefetch: int = 2,
        timeout: float | None = None,
    ) -> None:
        if sys.platform != "linux":
            raise RuntimeError("DataLoader: worker processes need Linux; use threads")
        self._payload = _pickled(BatchMaker(dataset, None if collate_fn is default_collate else collate_fn, transforms, seed))
        self._count, self._prefetch, self._timeout = num_workers, prefetch, timeout
        self._running: _Running | None = None
        self._epoch: _Epoch | None = None

    def batches(self, epoch: int, index_lists: Iterable[list[int]]) -> Iterator[Any]:
        """The batches of these samples, in order. Ends an epoch that is still being iterated.

        A sample's exception does not end the epoch: the next batches may be asked for.
        """
        if self._epoch is not None:
            self._epoch.close(RuntimeError("DataLoader: another epoch of the same workers was begun, which ended this one"))
        if self._running is None:
            self._running = _Running(self._count, self._prefetch, self._timeout, self._payload)
        self._epoch = _Epoch(self, self._running, epoch, iter(index_lists))
        return self._epoch

    def close(self) -> None:
        """Ends the processes at once. Batches that were handed over stay."""
        if self._epoch is not None:
            self._epoch.close()
        if self._running is not None:
            self._running.end()
        self._epoch = self._running = None

    def processes(self) -> list[int]:
        """The process numbers of the workers."""
        return [] if self._running is None else [worker.process.pid for worker in self._running.workers]


class _Epoch:
    """The batches of an epoch."""

    def __init__(self, workers: ProcessWorkers, running: _Running, epoch: int, lists: Iterator[list[int]]) -> None:
        self._workers, self._running = workers, running
        self._epoch, self._lists = epoch, lists
        # Numbers of the batches that were asked for, in order, and how many were handed over.
        self._order: deque[int] = deque()
        self._position = -1
        self._end: Exception | None = None

    def __iter__(self) -> _Epoch:
        return self

    def __next__(self) -> Any:
        if self._end is not None:
            raise self._end
        try:
            while len(self._order) < self._running.capacity and (worker := self._running.idlest()):
                if (indices := next(self._lists, None)) is None:
                    break
                self._order.append(self._running.ask(worker, self._epoch, list(indices)))
            if not self._order:
                raise StopIteration
            self._position += 1
            return self._running.batch(self._order.popleft(), self._position)
        except StopIteration:
            self.close()
            raise
        except _SampleError as error:
            raise error.args[0] from error.args[1]
        except BaseException:
            # A worker has died, a batch is late, or Ctrl+C.
            self._workers.close()
            raise

    def close(self, end: Exception | None = None) -> None:
        """Throws away what is on its way. Who asks for more gets an exception, or hears that there is none."""
        self._end = self._end or end or StopIteration()
        self._running.forget(self._order)


class _Worker:
    """A process and the connection to it."""

    def __init__(self, payload: _Payload, ring: SharedBatchRing) -> None:
        self.jobs = 0
        self.connection, theirs = Pipe()
        memory = int(ring.path.rpartition("/")[2])
        inherited = [theirs.fileno(), payload.file.fileno(), memory]
        flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        command = [sys.executable, *flags, "-c", _PROGRAM, json.dumps(sys.path), *map(str, inherited)]
        with theirs, _without_interrupts():
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=inherited)
        with contextlib.suppress(OSError):
            self.connection.send((payload.preparation, payload.extents))

    def describe_end(self) -> str:
        """How the process ended."""
        try:
            code = self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            return f"DataLoader: worker process {self.process.pid} has closed its connection"
        if code >= 0:
            how = f"ended with exit code {code}"
        else:
            how = f"was ended by the signal {signal.Signals(-code).name}"
            how += " (by a person, or by the system for lack of memory)" if code == -signal.SIGKILL else ""
        return f"DataLoader: worker process {self.process.pid} {how}; its batches are lost"


class _SampleError(Exception):
    """An exception of a sample or a batch with its cause: the workers are well."""


class _Running:
    """The processes and their ring, which end together: by `end`, when nobody refers to them any more, or at exit."""

    def __init__(self, count: int, prefetch: int, timeout: float | None, payload: _Payload) -> None:
        self.prefetch, self.timeout = prefetch, timeout
        # Batches that are asked for and not handed over yet; each of them is sure of a slot, see `batch`.
        self.capacity = count * prefetch
        self.slots = 2 * self.capacity + 4
        self.ring = SharedBatchRing(self.slots, _SLOT_BYTES)
        self.workers: list[_Worker] = []
        self.end = weakref.finalize(self, _end, self.workers, self.ring, os.getpid())
        for _ in range(count):
            self.workers.append(_Worker(payload, self.ring))
        # How many have not said yet that they are ready, and when the last one did.
        self.starting, self.started = count, 0.0
        self.next = 0
        # Batches that have arrived (or what went wrong), and the numbers of those that somebody wants.
        self.arrived: dict[int, Any] = {}
        self.wanted: set[int] = set()

    def idlest(self) -> _Worker | None:
        """The worker with the fewest jobs, if it may have another one."""
        worker = min(self.workers, key=lambda worker: worker.jobs)
        return worker if worker.jobs < self.prefetch else None

    def ask(self, worker: _Worker, epoch: int, indices: list[int]) -> int:
        """Has a batch made; returns its number."""
        number, self.next = self.next, self.next + 1
        self.wanted.add(number)
        worker.jobs += 1
        # Where it has ended, reading from it says how.
        with contextlib.suppress(OSError):
            worker.connection.send((number, epoch, indices))
        return number

    def forget(self, numbers: Iterable[int]) -> None:
        """Batches that nobody wants any more; those on their way are thrown away when they arrive."""
        for number in numbers:
            self.wanted.discard(number)
            self.arrived.pop(number, None)

    def batch(self, number: int, position: int) -> Any:
        """Waits for a batch. The user may keep it, and with it its slot; where slots would run out it is a copy."""
        asked = time.monotonic()
        while number not in self.arrived:
            left = None
            if self.timeout is not None:
                limit = self.timeout if self.starting == 0 else max(self.timeout, _START)
                left = max(asked, self.started) + limit - time.monotonic()
            ready = wait([worker.connection for worker in self.workers], left) if left is None or left > 0 else []
            if not ready:
                raise TimeoutError(
                    f"DataLoader: batch {position} did not arrive within {self.timeout} s; allow more with `timeout`, use "
                    "more workers, or look for what the data set waits for"
                )
            for worker in self.workers:
                if worker.connection in ready:
                    self._receive(worker)
        self.wanted.discard(number)
        batch = self.arrived.pop(number)
        if isinstance(batch, _SampleError):
            raise batch
        waiting = sum(not isinstance(other, _SampleError) for other in self.arrived.values())
        kept = self.ring.counts()["reading"] - waiting
        return _copied(batch) if kept > self.slots - self.capacity else batch

    def _receive(self, worker: _Worker) -> None:
        try:
            number, failure = worker.connection.recv()
        except (EOFError, OSError):
            raise RuntimeError(worker.describe_end()) from None
        if number == STARTING:
            if failure is not None:
                error = _exception(failure)
                raise error.args[0] from error.args[1]
            self.starting -= 1
            self.started = time.monotonic()
            return
        worker.jobs -= 1
        if failure is None:
            # The batch that was published first, perhaps another worker's whose message is still on its way.
            number, result = self.ring.get(timeout=1.0)
        else:
            result = _exception(failure)
        if number in self.wanted:
            self.arrived[number] = result


def _end(workers: list[_Worker], ring: SharedBatchRing, owner: int) -> None:
    # A process that somebody forked has copies of these objects, but the workers are its parent's.
    if os.getpid() != owner:
        return
    for worker in workers:
        worker.connection.close()
    patience = time.monotonic() + _GRACE
    for worker in workers:
        try:
            worker.process.wait(max(0.0, patience - time.monotonic()))
        except subprocess.TimeoutExpired:
            worker.process.kill()
    for worker in workers:
        worker.process.wait()
    ring.close()


class _Payload:
    """What workers start with: pickled functions in memory without a name, followed by the arrays they refer to."""

    def __init__(self, content: bytes, buffers: list[pickle.PickleBuffer]) -> None:
        self.file = open(os.memfd_create("netcl-worker"), "wb")  # noqa: SIM115, it lives as long as this object
        self.extents: list[tuple[int, int]] = []
        for part in [memoryview(content), *(buffer.raw() for buffer in buffers)]:
            start = -(-self.file.tell() // 64) * 64
            self.file.seek(start)
            self.file.write(part)
            self.extents.append((start, start + len(part)))
        self.file.truncate(max(self.file.tell(), 1))
        self.file.flush()

    @property
    def preparation(self) -> dict[str, Any]:
        """How a process makes its main module that of this one."""
        # The check in there is for scripts without `if __name__ == "__main__"`, which would start workers of workers.
        preparation = spawn.get_preparation_data("netcl worker")
        preparation["authkey"] = bytes(process.current_process().authkey)
        return preparation


def _pickled(make: BatchMaker) -> _Payload:
    buffers: list[pickle.PickleBuffer] = []
    try:
        content = pickle.dumps(make, protocol=5, buffer_callback=buffers.append)
    except Exception as error:
        raise TypeError(
            f"DataLoader: the data set, the transforms or collate_fn cannot be pickled for worker processes: {error}; "
            'define classes and functions at the top of a module, open files in the worker, or use workers="thread"'
        ) from error
    return _Payload(content, buffers)


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """A process that is started meanwhile sees no Ctrl+C before it can ignore it: the parent handles it for all."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _WorkerTraceback(Exception):
    """The traceback of an exception in a worker, as text: the cause of the one that is raised here."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def _exception(failure: dict[str, Any]) -> _SampleError:
    """The exception of a worker with the worker's traceback as its cause, and the sample among its notes."""
    error: BaseException | None = None
    if failure["error"] is not None:
        with contextlib.suppress(Exception):
            error = pickle.loads(failure["error"])
    if not isinstance(error, Exception):
        error = RuntimeError(f"{failure['kind']}: {failure['text']}")
    # What `add_note` of Python 3.11 does. An exception that takes no attributes goes without.
    with contextlib.suppress(Exception):
        error.__notes__ = failure["notes"]
    return _SampleError(error, _WorkerTraceback(failure["trace"]))


def _copied(batch: Any) -> Any:
    if isinstance(batch, np.ndarray):
        return batch.copy()
    if isinstance(batch, dict):
        return {key: _copied(field) for key, field in batch.items()}
    if isinstance(batch, (list, tuple)):
        fields = [_copied(field) for field in batch]
        return type(batch)(*fields) if hasattr(batch, "_fields") else type(batch)(fields)
    return batch
