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
from netcl.distributed.data_parallel import DataParallel
from netcl.distributed.group import Group, init, threads
from netcl.distributed.pipeline import Pipeline
from netcl.distributed.replicas import (
    broadcast_params,
    data_parallel_step,
    prepare_replicas,
    replicate_params,
    shard_batch,
    sync_grads,
)
from netcl.distributed.sharded import ShardedOptimizer, ZeroRedundancyOptimizer
from netcl.distributed.sync_batch_norm import SyncBatchNorm, convert_sync_batchnorm

__all__ = [
    "Communicator",
    "DataParallel",
    "DeviceManager",
    "Group",
    "Pipeline",
    "ShardedOptimizer",
    "SyncBatchNorm",
    "ZeroRedundancyOptimizer",
    "all_gather",
    "all_reduce",
    "all_reduce_p2p",
    "all_to_all",
    "barrier",
    "broadcast",
    "broadcast_params",
    "convert_sync_batchnorm",
    "data_parallel_step",
    "from_mpi4py",
    "from_torch",
    "gather",
    "init",
    "prepare_replicas",
    "reduce",
    "reduce_scatter",
    "replicate_params",
    "scatter",
    "shard_batch",
    "sync_grads",
    "threads",
]
