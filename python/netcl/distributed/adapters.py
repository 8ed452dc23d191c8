"""Ranks whose bytes another library moves: an mpi4py communicator, a process group of ``torch.distributed``.

    from mpi4py import MPI
    group = netcl.distributed.init(netcl.distributed.from_mpi4py(MPI.COMM_WORLD))
"""

from __future__ import annotations

import importlib
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Communicator", "from_mpi4py", "from_torch"]


class Communicator(Protocol):
    """What ``init`` needs to make a group: any object with these three."""

    @property
    def rank(self) -> int:
        """The number of this rank, from 0."""
    @property
    def size(self) -> int:
        """How many ranks there are."""
    def exchange(self, call: str, parts: list[bytes]) -> tuple[list[str], list[Any]]:
        """Gives ``parts[k]`` to rank ``k``.

        Returns the ``call`` of every rank, and what every rank gave to this one, itself included, as ``bytes`` or arrays of
        ``uint8``; no parts if the calls differ, which all ranks see alike.
        """


class _Mpi4py:
    def __init__(self, comm: Any) -> None:
        # A communicator of our own: our messages never meet the program's.
        self._comm = comm.Dup()
        self.rank = int(comm.Get_rank())
        self.size = int(comm.Get_size())

    def exchange(self, call: str, parts: list[bytes]) -> tuple[list[str], list[Any]]:
        shapes = self._comm.allgather((call, [len(part) for part in parts]))
        calls = [text for text, _ in shapes]
        if any(text != call for text in calls):
            return calls, []
        received: list[Any] = [np.empty(lengths[self.rank], np.uint8) for _, lengths in shapes]
        received[self.rank] = parts[self.rank]
        others = [rank for rank in range(self.size) if rank != self.rank]
        requests = [self._comm.Irecv(received[rank], rank) for rank in others if len(received[rank])]
        requests += [self._comm.Isend(parts[rank], rank) for rank in others if parts[rank]]
        for request in requests:
            request.Wait()
        return calls, received

    def abort(self, reason: str) -> None:
        print(f"rank {self.rank} gave up: {reason}", flush=True)
        self._comm.Abort(1)


def from_mpi4py(comm: Any) -> Communicator:
    """Ranks of an mpi4py communicator, on any number of hosts. A rank that gives up ends the whole job, as is MPI's way."""
    return _Mpi4py(comm)


class _Torch:
    def __init__(self, process_group: Any) -> None:
        # By name: nothing of ours needs torch, neither at run time nor for checking types.
        self._torch: Any = importlib.import_module("torch")
        self._dist: Any = importlib.import_module("torch.distributed")
        self._group = process_group
        self.rank = int(self._dist.get_rank(process_group))
        self.size = int(self._dist.get_world_size(process_group))

    def _tensor(self, data: bytes | NDArray[np.uint8]) -> Any:
        # Torch warns of memory that must not be written; it is only sent.
        array = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
        return self._torch.from_numpy(array if array.flags.writeable else array.copy())

    def exchange(self, call: str, parts: list[bytes]) -> tuple[list[str], list[Any]]:
        dist, group = self._dist, self._group
        shapes: list[Any] = [None] * self.size
        dist.all_gather_object(shapes, (call, [len(part) for part in parts]), group=group)
        calls = [text for text, _ in shapes]
        if any(text != call for text in calls):
            return calls, []
        received: list[Any] = [np.empty(lengths[self.rank], np.uint8) for _, lengths in shapes]
        received[self.rank] = parts[self.rank]
        requests = []
        for rank in range(self.size):
            there = rank if group is None else dist.get_global_rank(group, rank)
            if rank == self.rank:
                continue
            if len(received[rank]):
                requests.append(dist.irecv(self._tensor(received[rank]), there, group=group))
            if parts[rank]:
                requests.append(dist.isend(self._tensor(parts[rank]), there, group=group))
        for request in requests:
            request.wait()
        return calls, received


def from_torch(process_group: Any = None) -> Communicator:
    """Ranks of a process group of ``torch.distributed`` with the gloo backend; the default group where none is given.

    ``torch.distributed.init_process_group("gloo")`` must have been called; its time limit holds.
    """
    return _Torch(process_group)
