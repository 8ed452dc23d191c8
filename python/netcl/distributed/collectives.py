"""Collectives: over a list of tensors on devices of this process, or over the ranks of a job with one tensor each.

    a = Tensor.from_host(manager.default("gpu").queue, grads_a)
    b = Tensor.from_host(manager.default("cpu").queue, grads_b)
    all_reduce([a, b], op="mean")  # both hold the mean now

    group = netcl.distributed.init()
    all_reduce(x)  # x holds the sum over all ranks

Devices are mixed at will. Sums are formed in the order of the list (or of the ranks), so that a result is the same from run to
run, bit for bit. Inside of ``netcl.runtime.capture`` a collective is a step of the captured program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from netcl._netcl import IndexTensor, Tensor, distributed as _lists
from netcl.core.device import manager
from netcl.distributed.group import init

__all__ = [
    "DeviceManager",
    "all_gather",
    "all_reduce",
    "all_reduce_p2p",
    "all_to_all",
    "barrier",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "scatter",
]

T = TypeVar("T")
AnyTensor = Tensor | IndexTensor


def _ranks(tensors: Any, group: Any) -> Any:
    """The group of a call with one tensor; None for a list."""
    if isinstance(tensors, (Tensor, IndexTensor)):
        return init() if group is None else group
    if group is not None:
        raise TypeError("group= goes with the one tensor of this rank; a list holds tensors of this process's devices")
    return None


def all_reduce(tensors: T, op: str = "sum", overlap: bool = False, *, group: Any = None) -> T:
    """Overwrites every tensor with their ``"sum"``, ``"mean"``, ``"max"`` or ``"min"``, and returns what it was given.

    ``overlap`` is there for programs that pass it: copies of different chunks and devices always overlap.
    """
    ranks = _ranks(tensors, group)
    if ranks is not None:
        ranks.all_reduce(tensors, op)
    else:
        _lists.all_reduce(tensors, op)  # type: ignore[arg-type]
    return tensors


def all_reduce_p2p(tensors: T, op: str = "sum") -> T:
    """The same as :func:`all_reduce`, which itself reduces on the device where all tensors are on one."""
    return all_reduce(tensors, op)


def reduce(tensors: T, op: str = "sum", root: int = 0, *, group: Any = None) -> T:
    """Overwrites the tensor of ``root`` with the reduction of all; the others stay."""
    ranks = _ranks(tensors, group)
    if ranks is not None:
        ranks.reduce(tensors, op, root)
    else:
        _lists.reduce(tensors, op, root)  # type: ignore[arg-type]
    return tensors


def broadcast(tensors: T, root: int = 0, *, group: Any = None) -> T:
    """Overwrites every tensor with that of ``root``, and returns what it was given."""
    ranks = _ranks(tensors, group)
    if ranks is not None:
        ranks.broadcast(tensors, root)
    else:
        _lists.broadcast(tensors, root)  # type: ignore[arg-type]
    return tensors


def gather(tensors: Any, queue: Any = None, *, root: int = 0, group: Any = None) -> Any:
    """All tensors, one after the other along the first axis, as one tensor on ``queue`` (the first tensor's).

    ``np.asarray(gather(tensors))`` is the array. Over ranks, ``root`` gets the tensors of all.
    """
    ranks = _ranks(tensors, group)
    return ranks.gather(tensors, root) if ranks is not None else _lists.gather(tensors, queue)


def scatter(tensor: AnyTensor, chunks: int | Sequence[Any]) -> list[AnyTensor]:
    """Parts of a tensor along its first axis, as ``numpy.array_split`` cuts it.

    ``chunks`` is their number, or a list of queues or device handles: then each part goes to one of them.
    ``np.asarray`` makes a part an array.
    """
    return _lists.scatter(tensor, chunks)


def all_gather(tensors: Any, *, group: Any = None) -> list[Any]:
    """What :func:`gather` gives, on the device of each tensor. Over ranks: the tensors of all, in a list."""
    ranks = _ranks(tensors, group)
    return list(ranks.all_gather(tensors)) if ranks is not None else _lists.all_gather(tensors)


def reduce_scatter(tensors: Any, op: str = "sum", *, group: Any = None) -> Any:
    """Part ``k`` of the reduction of all along the first axis, on the device of tensor ``k`` (over ranks: this rank's part)."""
    ranks = _ranks(tensors, group)
    if ranks is None:
        return _lists.reduce_scatter(tensors, op)
    return ranks.reduce_scatter(_lists.scatter(tensors, ranks.size), op)


def all_to_all(tensors: Any, *, group: Any = None) -> Any:
    """Cuts every tensor as :func:`scatter` does, and gives device (or rank) ``k`` the joined parts ``k`` of all."""
    ranks = _ranks(tensors, group)
    if ranks is None:
        return _lists.all_to_all(tensors)
    return _lists.gather(ranks.all_to_all(_lists.scatter(tensors, ranks.size)))


def barrier(tensors: Sequence[AnyTensor] | None = None, *, group: Any = None) -> None:
    """Returns when all ranks have called it; with a list of tensors, when the work of their devices is done."""
    if tensors is None:
        (init() if group is None else group).barrier()
        return
    for tensor in (tensors,) if isinstance(tensors, (Tensor, IndexTensor)) else tensors:
        tensor.queue.finish()


class DeviceManager:
    """The queues of several devices: all OpenCL devices (the native CPU where there is none), or those that are named.

    ``devices`` holds selectors as for ``manager.default``, device handles, queues, or devices of ``manager.discover()``.
    """

    def __init__(self, devices: Sequence[Any] | None = None) -> None:
        found = [device for _, device in manager.discover()]
        if devices is None:
            devices = range(len(found)) if found else ["cpu"]
        if isinstance(devices, str):
            raise TypeError("devices is a list of devices, not a str")
        self.queues: list[Any] = [self._queue(device, found) for device in devices]
        self.devices: list[Any] = [queue.device for queue in self.queues]
        self.contexts: list[Any] = [queue.context for queue in self.queues]

    @staticmethod
    def _queue(device: Any, found: list[Any]) -> Any:
        if hasattr(device, "finish"):
            return device
        if hasattr(device, "queue"):
            return device.queue
        handle = manager.default(found.index(device) if device in found else device)
        if handle is None:
            raise ValueError(f"no device matches {device!r}; netcl.manager.discover() lists them")
        return handle.queue

    def num_devices(self) -> int:
        """How many there are."""
        return len(self.queues)

    def get_queues(self) -> list[Any]:
        """A queue for each."""
        return self.queues
