"""Several devices of a process, several processes of a host, several hosts."""

from __future__ import annotations

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
