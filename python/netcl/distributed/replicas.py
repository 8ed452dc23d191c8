"""The published functions: replicas of parameters, each with an optimizer of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from netcl import autograd as ag
from netcl._netcl import Tensor
from netcl._netcl.distributed import (
    broadcast_params as _broadcast_params,
    replicate_params as _replicate_params,
    shard_lengths,
    sync_replicas,
)
from netcl.nn._arguments import resolve_queue
from netcl.nn.module import Module

__all__ = ["broadcast_params", "data_parallel_step", "prepare_replicas", "replicate_params", "shard_batch", "sync_grads"]

Parameters = Sequence[Tensor] | Module


def _tensors(replica: Parameters) -> list[Tensor]:
    if isinstance(replica, Tensor):
        raise TypeError("parameters are a model or a list of tensors, not one tensor: write [tensor]")
    return replica.parameters() if isinstance(replica, Module) else list(replica)


def shard_batch(x: Any, num_shards: int, weights: Sequence[float] | None = None) -> list[Any]:
    """The parts of a batch along its first axis, as equal as possible or by weights: arrays of an array, tensors of a tensor.

    ``shard_batch(x, 3)`` of 10 samples gives 4, 3 and 3; ``shard_batch(x, 2, weights=[3, 1])`` of 8 gives 6 and 2.
    """
    x = x if isinstance(x, Tensor) else np.asarray(x)
    if x.ndim == 0:
        raise ValueError("shard_batch: a batch has a first axis; this has none")
    lengths = shard_lengths(x.shape[0], num_shards, weights)
    if isinstance(x, Tensor):
        return ag.split(x, lengths, 0)
    return np.split(x, np.cumsum(lengths)[:-1], axis=0)


def replicate_params(params: Parameters, queues: Sequence[Any]) -> list[list[Tensor]]:
    """Copies of parameters on each queue: one list of parameters per device."""
    return _replicate_params(_tensors(params), [resolve_queue(queue) for queue in queues])


def prepare_replicas(params: Parameters, queues: Sequence[Any]) -> list[list[Tensor]]:
    """``replicate_params`` under its other name."""
    return replicate_params(params, queues)


def broadcast_params(src_params: Parameters | None, dst_param_groups: Sequence[Parameters], root: int = 0) -> None:
    """Overwrites the parameters of all groups with ``src_params``, or without them with those of group ``root``."""
    groups = [_tensors(group) for group in dst_param_groups]
    if src_params is None and not 0 <= root < len(groups):
        raise ValueError(f"broadcast_params: there is no group {root}: there are {len(groups)}")
    _broadcast_params(groups[root] if src_params is None else _tensors(src_params), groups)


def sync_grads(replicas: Sequence[Parameters]) -> None:
    """Makes the gradients of replicas (lists of parameters, or models) the mean over the replicas.

    A parameter without a gradient on some replica counts as zeros there; one without on all stays so. Sums are formed in the
    order of the list, so that the result is the same from run to run.
    """
    sync_replicas([_tensors(replica) for replica in replicas])


def data_parallel_step(
    forward_fn: Callable[[Any, Any, Any, Any], Any],
    params_replicas: Sequence[Parameters],
    optimizers: Sequence[Any],
    batch: tuple[Any, Any] | None = None,
    *,
    pre_shard_hook: Callable[[Any, Any], Any] | None = None,
    post_sync_hook: Callable[[Any], Any] | None = None,
    post_step_hook: Callable[[int], Any] | None = None,
    weights: Sequence[float] | None = None,
    loader: Iterable[tuple[Any, Any]] | None = None,
    checkpoint: str | os.PathLike[str] | Callable[[Any], Any] | None = None,
) -> Any:
    """One training step on several devices: forward and backward of shards, mean of the gradients, a step of each optimizer.

    ``forward_fn(queue, x, y, params)`` returns the loss, or the loss and the tape that recorded it; the loss is the mean over
    the samples of the shard, and returned is the mean over the batch. Shards are equal or follow ``weights``; gradients count
    by the number of samples, so that the step is that of one device with the whole batch.

    Instead of a batch give a ``loader``, which makes one step per batch and returns their losses. After the last step
    ``checkpoint``, a path, gets the first replica (a model by ``netcl.io.save_model``, parameters by ``save_tensors``); a
    function is called with it.
    """
    if not params_replicas or len(optimizers) != len(params_replicas):
        raise ValueError(
            f"data_parallel_step: {len(params_replicas)} replicas and {len(optimizers)} optimizers: give each replica its own"
        )
    if (batch is None) == (loader is None):
        raise TypeError("data_parallel_step: give a batch (x, y), or a loader of such batches, and not both")
    queues = []
    for place, replica in enumerate(params_replicas):
        tensors = _tensors(replica)
        if not tensors:
            raise ValueError(f"data_parallel_step: replica {place} has no parameters")
        queues.append(tensors[0].queue)

    def step(x: Any, y: Any) -> float:
        if pre_shard_hook:
            pre_shard_hook(x, y)
        shards = list(zip(shard_batch(x, len(queues), weights), shard_batch(y, len(queues), weights)))
        total, losses = sum(len(part) for part, _ in shards), []
        for place, (part, target) in enumerate(shards):
            if len(part) == 0 and total > 0:
                continue
            made = forward_fn(queues[place], part, target, params_replicas[place])
            loss, tape = made if isinstance(made, tuple) else (made, None)
            # The mean over replicas divides by their number: a shard counts by its samples.
            factor = len(part) * len(queues) / total if total > 0 else 1.0
            seed = None if factor == 1.0 else Tensor.from_host(loss.queue, np.full(loss.shape, factor), dtype=loss.dtype)
            if tape is None:
                ag.backward(loss, seed)
            else:
                tape.backward(loss, seed)
            losses.append((loss, factor / len(queues)))
        sync_grads(params_replicas)
        if post_sync_hook:
            post_sync_hook(params_replicas)
        for place, optimizer in enumerate(optimizers):
            optimizer.step()
            optimizer.zero_grad()
            if post_step_hook:
                post_step_hook(place)
        return float(sum(float(loss.to_host()) * share for loss, share in losses))

    result: Any = step(*batch) if batch is not None else [step(x, y) for x, y in loader or ()]
    if checkpoint is not None:
        _save(checkpoint, params_replicas[0])
    return result


def _save(checkpoint: Any, replica: Parameters) -> None:
    from netcl.io import save_model, save_tensors

    if callable(checkpoint):
        checkpoint(replica)
    elif isinstance(replica, Module):
        save_model(replica, checkpoint)
    else:
        save_tensors({str(at): tensor for at, tensor in enumerate(replica)}, checkpoint)
