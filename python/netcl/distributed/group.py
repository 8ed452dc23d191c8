"""Collectives over ranks: each rank has its own tensors, and all ranks make the same calls.

    group = init()                      # in every process that ``netcl launch -n 4`` or ``mpirun -n 4`` started
    with group:
        group.broadcast(x)              # x of rank 0
        group.all_reduce(x, "mean")
"""

from netcl._netcl.distributed import Group, init, threads

__all__ = ["Group", "init", "threads"]
