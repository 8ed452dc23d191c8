"""Optimizers whose state is divided among ranks (ZeRO stage 1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from netcl._netcl.distributed import Group, shard_optimizer
from netcl._netcl.optim import Optimizer
from netcl.distributed.group import init

__all__ = ["ShardedOptimizer", "ZeroRedundancyOptimizer"]

_O = TypeVar("_O", bound=Optimizer)


def ShardedOptimizer(optimizer: Callable[..., _O], params: Iterable[Any], group: Group | None = None, **settings: Any) -> _O:
    """An optimizer of which each rank keeps the state of a part of the parameters, and updates that part for all.

        optimizer = ShardedOptimizer(optim.Adam, model.parameters(), group, lr=1e-3)
        loss.backward()
        group.sync_grads(model.parameters())
        optimizer.step()       # the bits of optim.Adam(model.parameters(), lr=1e-3)

    ``optimizer`` is a class of ``netcl.optim`` or a function that makes one from ``params`` and ``settings``; what it made is
    returned. Without a ``group`` the ranks are those of ``init()``. All ranks must have the same gradients and step together.
    Parameters are divided by whole tensors, so that ranks have about as many elements each. ``Trainer`` takes it as any other,
    and its checkpoints load on another number of ranks. ``optimizer.state_dict(gather=True)``, called by all ranks, is the
    state of all; each takes its part of it in ``load_state_dict``.
    """
    if not callable(optimizer):
        raise TypeError(
            f"ShardedOptimizer: the first argument is a class such as netcl.optim.Adam, not a {type(optimizer).__name__}"
        )
    if group is not None and not isinstance(group, Group):
        raise TypeError(f"ShardedOptimizer: group is a {type(group).__name__}; one of netcl.distributed is needed")
    made = optimizer(params, **settings)
    if not isinstance(made, Optimizer):
        raise TypeError(f"ShardedOptimizer: {optimizer!r} made a {type(made).__name__}; an optimizer of netcl.optim is needed")
    shard_optimizer(made, init() if group is None else group)
    return made


def ZeroRedundancyOptimizer(
    params: Iterable[Any], optimizer_class: Callable[..., _O], process_group: Group | None = None, **defaults: Any
) -> _O:
    """:func:`ShardedOptimizer` with the arguments of ``torch.distributed.optim.ZeroRedundancyOptimizer``."""
    return ShardedOptimizer(optimizer_class, params, process_group, **defaults)
