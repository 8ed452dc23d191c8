"""Batches from process to process through shared memory, without pickling: a ring of slots, each with room for one batch.

A writer copies a batch's arrays into a free slot; a reader in another process gets arrays over the slot's own memory, and the
slot is free again when the last of them is gone. A process that dies while it holds a slot loses it: the next writer that needs
one takes it back. The memory has no name (nothing is left in ``/dev/shm`` whatever happens) and is used page by page: a slot
much larger than its batches costs nothing.

    >>> import numpy as np
    >>> from netcl.data.shared_batch import SharedBatchRing
    >>> with SharedBatchRing(slots=4, slot_bytes=1 << 20) as ring:
    ...     other = SharedBatchRing.open(ring.path)  # in another process
    ...     _ = other.put({"image": np.ones((2, 3), np.float32), "label": [1, 7]})
    ...     batch = ring.get(timeout=5)
    >>> batch["image"].shape, batch["label"]
    ((2, 3), [1, 7])

A ring can be pickled to a process that is being started (``multiprocessing``), which opens the same memory::

    context = multiprocessing.get_context("spawn")
    context.Process(target=produce, args=(ring,)).start()
    batch = ring.get()

Linux only. ``DataLoader(workers="process")`` uses it; see there for batches of a data set.
"""

from __future__ import annotations

import json
import sys
from collections import namedtuple
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from netcl._netcl.data import BatchRing

__all__ = ["SharedBatchRing"]

# Where arrays start: at cache lines.
_ALIGN = 64


class SharedBatchRing:
    """A ring of `slots` in shared memory, each with room for one batch of `slot_bytes` (its arrays and a small header).

    A batch is a nested structure of (named) tuples, lists and dicts of NumPy arrays (of any dtype but objects), NumPy and
    Python numbers, texts, bytes and None. What else can become an array (a tensor) arrives as one.

    Any number of processes and threads may put and get. Batches come in the order in which they were put, each to one reader.
    """

    def __init__(self, slots: int, slot_bytes: int) -> None:
        self._ring: BatchRing | None = BatchRing(slots, slot_bytes)

    @classmethod
    def open(cls, path: str) -> SharedBatchRing:
        """A ring that another process made, by its `path`."""
        ring = cls.__new__(cls)
        ring._ring = BatchRing.open(path)
        return ring

    @property
    def path(self) -> str:
        """Where other processes of the same user can open the ring while this process has it open."""
        return self._open().path

    @property
    def slots(self) -> int:
        """The number of slots."""
        return self._open().slots

    @property
    def slot_bytes(self) -> int:
        """The bytes of a slot: what was asked for, rounded up to whole pages."""
        return self._open().slot_bytes

    def counts(self) -> dict[str, int]:
        """How many slots are ``"free"``, ``"writing"``, ``"ready"`` (with a batch that nobody has taken) and ``"reading"``."""
        return self._open().counts()

    def put(self, batch: Any, timeout: float | None = None) -> bool:
        """Copies a batch into a free slot; false if none became free within `timeout` seconds (None: waits for ever).

        Raises:
            TypeError: If the batch holds something that is neither an array nor one of the plain types.
            ValueError: If the batch is larger than a slot.
        """
        ring = self._open()
        parts: list[tuple[int, NDArray[Any]]] = []
        header = json.dumps(_pack(batch, parts, "batch"), separators=(",", ":")).encode()
        return ring.put(header, parts, timeout)

    def get(self, timeout: float | None = None) -> Any:
        """The next batch, whose arrays are the slot's own memory and keep the slot until they are gone.

        Raises:
            TimeoutError: If there was none within `timeout` seconds (None: waits for ever).
            ValueError: If the slot holds no batch.
        """
        found = self._open().get(timeout)
        if found is None:
            raise TimeoutError(f"SharedBatchRing: no batch arrived within {timeout} s")
        header, body = found
        try:
            return _unpack(json.loads(header), body)
        except (KeyError, IndexError, OverflowError, RecursionError, TypeError, ValueError) as error:
            raise ValueError(f"SharedBatchRing: the slot holds no batch: {error}") from error

    def close(self) -> None:
        """Lets go of the memory. It stays as long as another process has it open or an array of it lives."""
        self._ring = None

    def _open(self) -> BatchRing:
        if self._ring is None:
            raise ValueError("SharedBatchRing: the ring is closed")
        return self._ring

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return type(self).open, (self.path,)

    def __enter__(self) -> SharedBatchRing:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._ring is None:
            return "SharedBatchRing(closed)"
        return f"SharedBatchRing(slots={self.slots}, slot_bytes={self.slot_bytes})"


def _place(array: NDArray[Any], parts: list[tuple[int, NDArray[Any]]]) -> int:
    """Adds an array to the body; returns its first byte there."""
    last, before = (parts[-1][0], parts[-1][1].nbytes) if parts else (0, 0)
    start = -(-(last + before) // _ALIGN) * _ALIGN
    parts.append((start, array))
    return start


def _pack(value: Any, parts: list[tuple[int, NDArray[Any]]], where: str) -> Any:
    """The header of a batch as JSON knows it (crates/netcl-data/src/shared_batch.rs describes it); its arrays go to `parts`."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        named = [type(value).__module__, type(value).__name__, list(value._fields)]
        return {"named": [named, _pack(list(value), parts, where)]}
    if isinstance(value, tuple):
        return {"tuple": [_pack(field, parts, f"{where}[{at}]") for at, field in enumerate(value)]}
    if isinstance(value, list):
        return [_pack(field, parts, f"{where}[{at}]") for at, field in enumerate(value)]
    if isinstance(value, Mapping):
        pairs = []
        for key, field in value.items():
            if type(key) not in (bool, int, float, str):
                raise TypeError(f"SharedBatchRing: {where} has the key {key!r}; keys are texts and numbers")
            pairs.append([key, _pack(field, parts, f"{where}[{key!r}]")])
        return {"dict": pairs}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": [len(value), _place(np.frombuffer(value, np.uint8), parts)]}
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _refused(value, where) from error
    if array.dtype.hasobject or array.dtype.fields is not None or not np.little_endian:
        raise _refused(value, where)
    array = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="), copy=False)).reshape(array.shape)
    kind = "number" if isinstance(value, np.generic) else "array"
    return {kind: [array.dtype.str, list(array.shape), _place(array, parts)]}


def _refused(value: Any, where: str) -> TypeError:
    kind = f"an array of dtype {value.dtype}" if isinstance(value, np.ndarray) else f"an object of type {type(value).__name__}"
    return TypeError(
        f"SharedBatchRing: {where} is {kind}; between processes go tuples, lists and dicts of arrays (of numbers, texts or "
        "dates), numbers, texts, bytes and None: let the collate function make such"
    )


def _unpack(header: Any, body: NDArray[np.uint8]) -> Any:
    """The batch of a header. Whatever that says: NumPy lets nobody reach past the end of `body`."""
    if isinstance(header, list):
        return [_unpack(field, body) for field in header]
    if not isinstance(header, dict):
        return header
    ((kind, content),) = header.items()
    if kind == "tuple":
        return tuple([_unpack(field, body) for field in content])
    if kind == "named":
        described, fields = content
        return _named(*described)(*[_unpack(field, body) for field in fields])
    if kind == "dict":
        return {key: _unpack(field, body) for key, field in content}
    if kind == "bytes":
        length, start = content
        return _window(body, start, length).tobytes()
    if kind not in ("array", "number"):
        raise ValueError(f"there is no kind of field {kind!r}")
    name, shape, start = content
    dtype = np.dtype(name)
    if dtype.hasobject:
        raise ValueError(f"arrays of dtype {dtype} have no memory of their own")
    length = dtype.itemsize
    for axis in shape:
        length *= axis
    array = _window(body, start, length).view(dtype).reshape(shape)
    return array[()].copy() if kind == "number" else array


def _named(module: str, name: str, fields: list[str]) -> Any:
    """A named tuple's class: that of the program where it has one of the same fields, otherwise a new one."""
    # The main module of a spawned process goes by another name.
    for place in (module, "__main__" if module == "__mp_main__" else "__mp_main__"):
        found = getattr(sys.modules.get(place), name, None)
        if isinstance(found, type) and issubclass(found, tuple) and getattr(found, "_fields", None) == tuple(fields):
            return found
    return namedtuple(name, fields)


def _window(body: NDArray[np.uint8], start: int, length: int) -> NDArray[np.uint8]:
    # A slice that ends too early is no error for NumPy, and one of negative numbers starts at the end.
    if start < 0 or length < 0 or start + length > len(body):
        raise ValueError(f"bytes {start} to {start + length} are not in the {len(body)} of the batch")
    return body[start : start + length]
