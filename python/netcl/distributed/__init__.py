"""Several devices of a process, several processes of a host, several hosts."""

from __future__ import annotations

from netcl.distributed.adapters import Communicator, from_mpi4py, from_torch
from netcl.distributed.collectives import (
    DeviceManager,
    all_gather,
    all_reduce,
    all_reduce_p2p,
    all_to_all,
    barrier,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    scatter,
)
from netcl.distributed.group import Group, init, threads

__all__ = [
    "Communicator",
    "DeviceManager",
    "Group",
    "all_gather",
    "all_reduce",
    "all_reduce_p2p",
    "all_to_all",
    "barrier",
    "broadcast",
    "from_mpi4py",
    "from_torch",
    "gather",
    "init",
    "reduce",
    "reduce_scatter",
    "scatter",
    "threads",
]
