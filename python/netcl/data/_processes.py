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
from collections.abc import Callable, Generator, Iterable, Iterator
from multiprocessing import Pipe, process, spawn
from multiprocessing.connection import wait
from typing import Any

import numpy as np

from netcl.data._worker import STARTING
from netcl.data.shared_batch import SharedBatchRing

# Address space, not memory: pages are used when a batch is written.
_SLOT_BYTES = 1 << 30
# How long workers may take to end by themselves, and to start: `timeout` is for batches.
_GRACE = 0.1
_START = 60.0
_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from netcl.data._worker import main
main(*map(int, sys.argv[2:]))
"""


class ProcessWorkers:
    """Processes that make batches of samples.

    `make(epoch, index)` makes a sample, `collate(samples, epoch, first)` a batch of samples of which `first` is the first one's
    number. Both are pickled once; arrays of theirs are shared by all workers. Random numbers that depend on the epoch and the
    sample's number alone make batches that do not depend on the workers; Python's and NumPy's global generators are
    seeded for each batch by `seed`, the epoch and the first sample.

    The processes start with the first batch and stay until `close`, after which they can start again.
    """

    def __init__(
        self,
        make: Callable[[int, int], Any],
        collate: Callable[[list[Any], int, int], Any],
        *,
        seed: int = 0,
        num_workers: int = 1,
        prefetch: int = 2,
        timeout: float | None = None,
        slot_bytes: int = _SLOT_BYTES,
    ) -> None:
        if sys.platform != "linux":
            raise RuntimeError("DataLoader: worker processes need Linux; use threads")
        if num_workers < 1 or prefetch < 1:
            raise ValueError(
                f"DataLoader: {num_workers} workers that make {prefetch} batches ahead; there must be at least 1 of each"
            )
        self._payload = _pickled(make, collate, seed)
        self._workers = num_workers
        self._timeout = timeout
        # Batches that are asked for and not handed over yet; each of them is sure of a slot, see `_hand_over`.
        self._capacity = num_workers * prefetch
        self._prefetch = prefetch
        self._slots = 2 * self._capacity + 4
        self._slot_bytes = slot_bytes
        self._running: _Running | None = None
        self._next = 0
        # The batches of the running epoch that have arrived, and the numbers of those that have not.
        self._arrived: dict[int, Any] = {}
        self._expected: set[int] = set()
        self._failed: dict[int, Exception] = {}
        self._epoch: object = None

    def batches(self, epoch: int, index_lists: Iterable[list[int]]) -> Generator[Any, None, None]:
        """The batches of these samples, in order. Ends an epoch that is still being iterated."""
        lists = iter(index_lists)
        token = self._epoch = object()
        self._forget()
        order: deque[int] = deque()
        position = 0
        more = True
        try:
            running = self._start()
            while True:
                while more and len(order) < self._capacity and (worker := running.idlest(self._prefetch)):
                    if (indices := next(lists, None)) is None:
                        more = False
                        break
                    number, self._next = self._next, self._next + 1
                    self._expected.add(number)
                    order.append(number)
                    self._send(worker, (number, epoch, list(indices)))
                if not order:
                    return
                self._wait_for(order[0], position, running)
                position += 1
                yield self._hand_over(order.popleft(), running)
                if self._epoch is not token:
                    raise RuntimeError("DataLoader: another epoch of the same loader was begun, which ended this one")
        except KeyboardInterrupt:
            self.close()
            raise
        finally:
            if self._epoch is token:
                self._forget()

    def close(self) -> None:
        """Ends the processes at once. Batches that were handed over stay."""
        self._forget()
        if self._running is not None:
            self._running.end()
            self._running = None

    def processes(self) -> list[int]:
        """The process numbers of the workers."""
        return [] if self._running is None else [worker.process.pid for worker in self._running.workers]

    def _forget(self) -> None:
        """Batches on their way will be thrown away when they arrive."""
        self._arrived.clear()
        self._expected.clear()
        self._failed.clear()

    def _start(self) -> _Running:
        if self._running is None:
            self._running = _Running(self._workers, self._payload, SharedBatchRing(self._slots, self._slot_bytes))
        return self._running

    def _send(self, worker: _Worker, job: tuple[int, int, list[int]]) -> None:
        worker.jobs += 1
        # Where it has ended, reading from it says how.
        with contextlib.suppress(OSError):
            worker.connection.send(job)

    def _wait_for(self, number: int, position: int, running: _Running) -> None:
        asked = time.monotonic()
        while number not in self._arrived:
            if number in self._failed:
                raise self._failed.pop(number)
            left = None
            if self._timeout is not None:
                limit = self._timeout if running.starting == 0 else max(self._timeout, _START)
                left = max(asked, running.started) + limit - time.monotonic()
            connections = {worker.connection: worker for worker in running.workers}
            ready = wait(list(connections), left) if left is None or left > 0 else []
            if not ready:
                self.close()
                raise TimeoutError(
                    f"DataLoader: batch {position} did not arrive within {self._timeout} s; allow more with `timeout`, use "
                    "more workers, or look for what the data set waits for"
                )
            for connection in ready:
                self._receive(connections[connection], running)  # type: ignore[index]

    def _receive(self, worker: _Worker, running: _Running) -> None:
        try:
            number, failure = worker.connection.recv()
        except (EOFError, OSError):
            text = worker.describe_end()
            self.close()
            raise RuntimeError(text) from None
        if number == STARTING and failure is not None:
            self.close()
            raise _exception(failure)
        if number == STARTING:
            running.starting -= 1
            running.started = time.monotonic()
            return
        worker.jobs -= 1
        if failure is not None:
            if number in self._expected:
                self._failed[number] = _exception(failure)
            return
        # The batch that was published first, perhaps another worker's whose message is still on its way.
        number, batch = running.ring.get(timeout=1.0)
        if number in self._expected:
            self._arrived[number] = batch

    def _hand_over(self, number: int, running: _Running) -> Any:
        """A batch for the user, who may keep it, and with it its slot. Where slots would run out it is a copy."""
        self._expected.discard(number)
        batch = self._arrived.pop(number)
        kept = running.ring.counts()["reading"] - len(self._arrived)
        return _copied(batch) if kept > self._slots - self._capacity else batch


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


class _Running:
    """The processes and their ring, which end together: by `end`, when nobody refers to them any more, or at exit."""

    def __init__(self, count: int, payload: _Payload, ring: SharedBatchRing) -> None:
        self.ring = ring
        self.workers: list[_Worker] = []
        # How many have not said yet that they are ready, and when the last one did.
        self.starting, self.started = count, 0.0
        self.end = weakref.finalize(self, _end, self.workers, ring, os.getpid())
        for _ in range(count):
            self.workers.append(_Worker(payload, ring))

    def idlest(self, most: int) -> _Worker | None:
        """The worker with the fewest jobs, if it has fewer than `most`."""
        worker = min(self.workers, key=lambda worker: worker.jobs)
        return worker if worker.jobs < most else None


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


def _pickled(make: Callable[..., Any], collate: Callable[..., Any], seed: int) -> _Payload:
    buffers: list[pickle.PickleBuffer] = []
    try:
        content = pickle.dumps((make, collate, seed), protocol=5, buffer_callback=buffers.append)
    except Exception as error:
        raise TypeError(
            f"DataLoader: the data set, the transforms or collate_fn cannot be pickled for worker processes: {error}; "
            'define classes and functions at the top of a module, open files in the worker, or use workers="thread"'
        ) from error
    return _Payload(content, buffers)


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """A process that is started meanwhile never sees Ctrl+C, which the parent handles for all."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _WorkerTraceback(Exception):
    """The traceback of an exception in a worker, as text: the cause of the one that is raised here."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def _exception(failure: dict[str, Any]) -> Exception:
    """The exception of a worker, with its traceback as the cause and the sample as a note."""
    error: BaseException | None = None
    if failure["error"] is not None:
        with contextlib.suppress(Exception):
            error = pickle.loads(failure["error"])
    if not isinstance(error, Exception):
        error = RuntimeError(f"{failure['kind']}: {failure['text']}")
    error.__cause__ = _WorkerTraceback(f"{failure['trace']}{failure['where']}\n")
    if sys.version_info >= (3, 11):
        error.add_note(failure["where"])
    return error


def _copied(batch: Any) -> Any:
    if isinstance(batch, np.ndarray):
        return batch.copy()
    if isinstance(batch, dict):
        return {key: _copied(field) for key, field in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch)(_copied(field) for field in batch)
    return batch
