"""A model on several devices of one process, and gradients over ranks."""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from netcl import autograd as ag
from netcl._netcl import IndexTensor, Tensor
from netcl._netcl.distributed import (
    OverlappedGradients,
    Replicas,
    broadcast_over_ranks,
    gather,
    refuse_recording,
    shard_lengths,
)
from netcl._structure import is_sequence
from netcl.core.device import manager
from netcl.distributed._meeting import Meeting
from netcl.distributed._wrapper import Wrapper
from netcl.distributed.sync_batch_norm import SyncBatchNorm, convert_sync_batchnorm
from netcl.nn._arguments import resolve_queue
from netcl.nn.module import Module

__all__ = ["DataParallel"]

_ARRAYS = Tensor, IndexTensor, np.ndarray


class DataParallel(Wrapper):
    """A model whose batches are divided over devices: each runs its part, the results come together on the first.

        model = DataParallel(Net(), devices=["cpu", 0])
        loss = F.cross_entropy(model(x), y)
        loss.backward()        # the gradients of all devices, summed at the model's own parameters
        optimizer.step()

    Parameters, buffers, modules and their names are the model's own: optimizers, AMP, clipping, averages, checkpoints and the
    trainer work as without it, and files load on any number of devices. ``devices`` are selectors, handles or queues; the
    model moves to the first. Without them it runs on every GPU and accelerator, or where it is.

    Arrays and tensors among the arguments whose first axis is as long as that of the first one are divided, everything else
    goes to all devices as it is; results are joined along their first axis. Batches are divided equally, by ``weights=[2,
    1]``, or with ``weights="measured"`` by the speed that the devices show at the first batch; ``model.weights`` has them
    from then on, and checkpoints of the trainer keep them. Batch norm counts over the samples of each device, and the averages
    that it keeps are those of the first; with ``sync_batch_norm=True`` it counts over the whole batch, as on one device.

    A step with such a model may be captured, with two exceptions that say what to do: training with ``sync_batch_norm=True``,
    and a first batch with ``weights="measured"``.

    With a ``group`` every rank has such a model: it starts with the values of rank 0, and ``model.sync_grads()`` before
    ``optimizer.step()`` makes the gradients sums over the ranks, of which ``model.share`` times its own (1 / size) is this
    rank's part. Most of it happens during backward, unless ``overlap=False`` or a ``SyncBatchNorm`` uses the group there. All
    backward passes of a step but the last belong inside ``with model.no_sync():``.
    """

    def __init__(
        self,
        model: Module,
        devices: Sequence[Any] | None = None,
        weights: Sequence[float] | str | None = None,
        group: Any = None,
        *,
        overlap: bool = True,
        sync_batch_norm: bool = False,
    ) -> None:
        if not isinstance(model, Module):
            raise TypeError(f"DataParallel: the model is a netcl.nn.Module, not a {type(model).__name__}")
        if isinstance(weights, str) and weights != "measured":
            raise ValueError(f'DataParallel: weights={weights!r}; give one number per device, "measured", or None')
        if isinstance(devices, str) or (devices is not None and not isinstance(devices, Sequence)):
            raise TypeError(f'DataParallel: devices is a list of devices such as ["cpu", 0], not {devices!r}')
        queues = _own_queues(model) if devices is None else [resolve_queue(device) for device in devices]
        if weights is not None and not isinstance(weights, str):
            weights = [float(weight) for weight in weights]
            shard_lengths(1, len(queues), weights)
        replicas = Replicas(queues)
        model.to(queues[0])
        meeting = Meeting(len(queues)) if sync_batch_norm else None
        if sync_batch_norm:
            if group is not None:
                raise ValueError(
                    "DataParallel: sync_batch_norm=True counts over the devices of one process; with a group use "
                    "convert_sync_batchnorm(model, group) and one device for each rank"
                )
            model = convert_sync_batchnorm(model, meeting)
        self._wrap(
            model, queues=queues, weights=weights, group=group, overlap=overlap, _replicas=replicas, _lock=threading.Lock(),
            _meeting=meeting, _sync=None, _watched=[], _paused=False, _share=1.0 if group is None else 1.0 / group.size,
        )
        if group is not None:
            broadcast_over_ranks(group, [*model.parameters(), *model.buffers()])

    def __deepcopy__(self, memo: dict[int, Any]) -> DataParallel:
        # A copy is another model: it belongs to no group until it is wrapped again.
        synchronised = self._meeting is not None
        return DataParallel(copy.deepcopy(self.module, memo), self.queues, self.weights, sync_batch_norm=synchronised)

    def extra_repr(self) -> str:
        shown = [f"devices={len(self.queues)}"]
        shown += [f"weights={self.weights!r}"] if self.weights is not None else []
        shown += [f"rank={self.group.rank} of {self.group.size}"] if self.group is not None else []
        return ", ".join(shown)

    def to(self, queue: Any = None, dtype: str | None = None, *, device: Any = None) -> DataParallel:
        """Changes the dtype; the devices are those that the model was wrapped with."""
        before = self.queues[0]
        self.module.to(queue, dtype, device=device)
        if any(parameter.queue != before for parameter in self.module.parameters()[:1]):
            self.module.to(before)
            raise ValueError("DataParallel: the model stays on its devices: wrap model.module with others")
        return self

    # ---- forward ---------------------------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's result for a batch."""
        self._watch()
        rows = _rows((args, kwargs))
        if len(self.queues) == 1 or rows is None:
            inputs, named = _part((args, kwargs), None, slice(None), self.queues[0])
            return self.module(*inputs, **named)
        # The model's tables hold the copies of one device at a time.
        with self._lock:
            if self.weights == "measured":
                refuse_recording(measures=True)
                self.__dict__["weights"] = self._measured(args, kwargs)
            lengths = shard_lengths(rows, len(self.queues), self.weights)
            copies = self._replicas.copy(self.module.parameters())
            runs: list[Any] = []
            start = 0
            for place, length in enumerate(lengths):
                # A batch may have fewer samples than there are devices; one without any still has a result.
                if length > 0 or (rows == 0 and place == 0):
                    inputs, named = _part((args, kwargs), rows, slice(start, start + length), self.queues[place])
                    on_device = functools.partial(self._on, place, copies[place])
                    runs.append((on_device, functools.partial(self.module, *inputs, **named)))
                start += length
            if self._meeting is not None and self.module.training and len(runs) > 1:
                results = self._meeting.run(runs)
            else:
                results = []
                for on_device, run in runs:
                    with on_device():
                        results.append(run())
        return _joined(results, self.queues[0], "forward(...)")

    @contextlib.contextmanager
    def _on(self, place: int, parameters: list[Tensor], own_buffers: bool = True) -> Iterator[None]:
        """Puts one device's copies into the model's tables."""
        queue = self.queues[place]
        twins: dict[int, Any] = dict(zip(map(id, self.module.parameters()), parameters))
        if place > 0 or not own_buffers:
            for buffer in self.module.buffers():
                twins[id(buffer)] = buffer.detach().clone().to(queue)
        tables = [table for module in self.module.modules() for table in (module._parameters, module._buffers)]
        before = [dict(table) for table in tables]
        try:
            for table, kept in zip(tables, before):
                table.update({name: twins[id(tensor)] for name, tensor in kept.items() if id(tensor) in twins})
            yield
        finally:
            for table, kept in zip(tables, before):
                table.update(kept)

    def _measured(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[float]:
        """How fast the devices are at a batch, as parts of 1."""
        modes = [(module, module.training) for module in self.module.modules()]
        speeds = []
        try:
            self.module.eval()
            with ag.no_grad():
                copies = self._replicas.copy(self.module.parameters())
                for place, queue in enumerate(self.queues):
                    inputs, named = _part((args, kwargs), None, slice(None), queue)
                    with self._on(place, copies[place], own_buffers=False):
                        # The first run compiles.
                        self.module(*inputs, **named)
                        queue.finish()
                        start = time.perf_counter()
                        self.module(*inputs, **named)
                        queue.finish()
                    speeds.append(1.0 / max(time.perf_counter() - start, 1e-9))
        finally:
            for module, mode in modes:
                module.training = mode
        return [round(speed / sum(speeds), 3) for speed in speeds]

    # ---- ranks -----------------------------------------------------------------------------------------------------

    @property
    def share(self) -> float:
        """This rank's part of the global batch, by which its gradients count: set it before backward."""
        return float(self.__dict__["_share"])

    @share.setter
    def share(self, share: float) -> None:
        if self._sync is not None:
            self._sync.set_share(share)
        self.__dict__["_share"] = float(share)

    def _watch(self) -> None:
        """Lets gradients be exchanged during backward: those of the parameters that are trained now."""
        if self.group is None or not self.overlap or not ag.is_grad_enabled():
            return
        trained = self.module.trainable_parameters()
        if [id(one) for one in trained] != [id(one) for one in self._watched]:
            self.__dict__.update(_sync=None, _watched=[])
            if not any(isinstance(module, SyncBatchNorm) for module in self.module.modules()):
                sync = OverlappedGradients(self.group, trained, self.share)
                sync.set_paused(self._paused)
                self.__dict__.update(_sync=sync, _watched=trained)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside accumulate gradients without exchanging them: all of a step but the last."""
        self._pause(True)
        try:
            yield
        finally:
            self._pause(False)

    def _pause(self, paused: bool) -> None:
        self.__dict__["_paused"] = paused
        if self._sync is not None:
            self._sync.set_paused(paused)

    def sync_grads(self) -> None:
        """Makes gradients the sums over all ranks; without a group they are complete already."""
        if self._sync is not None:
            self._sync.sync_grads()
        elif self.group is not None:
            self.group.sync_grads(self.module.parameters(), self.share)


def _own_queues(model: Module) -> list[Any]:
    """Every GPU and accelerator, or where the model is."""
    handles = [manager.default(index) for index in range(len(manager.discover()))]
    fast = [handle.queue for handle in handles if handle is not None and handle.device_type.upper() not in ("CPU", "CUSTOM")]
    return fast or [next((parameter.queue for parameter in model.parameters()), manager.default().queue)]


def _parts_of(value: Any) -> list[Any] | None:
    """What a value is looked into for."""
    return list(value) if is_sequence(value) else list(value.values()) if type(value) is dict else None


def _rows(value: Any) -> int | None:
    """The length of the first axis of the first array or tensor."""
    if isinstance(value, _ARRAYS):
        return value.shape[0] if len(value.shape) > 0 else None
    return next((rows for part in _parts_of(value) or () if (rows := _rows(part)) is not None), None)


def _rebuilt(value: Any, parts: list[Any]) -> Any:
    """A tuple, list or dictionary like another one."""
    if type(value) is dict:
        return dict(zip(value, parts))
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)


def _part(value: Any, rows: int | None, part: slice, queue: Any) -> Any:
    """A device's part of arguments, on the device."""
    inside = _parts_of(value)
    if inside is not None:
        return _rebuilt(value, [_part(one, rows, part, queue) for one in inside])
    if not isinstance(value, _ARRAYS):
        return value
    divided = rows is not None and len(value.shape) > 0 and value.shape[0] == rows
    value = value[part] if divided else value
    return value if isinstance(value, np.ndarray) else value.to(queue)


def _joined(results: list[Any], queue: Any, name: str) -> Any:
    """One result of those of all devices, on the first."""
    first = results[0]
    if isinstance(first, Tensor):
        home = [result.to(queue) for result in results]
        return home[0] if len(home) == 1 else ag.stack(home) if first.ndim == 0 else ag.cat(home, 0)
    if isinstance(first, IndexTensor):
        return gather(results, queue)
    if isinstance(first, np.ndarray):
        return np.concatenate(results)
    inside = [_parts_of(result) for result in results]
    if inside[0] is not None:
        columns = zip(*(parts or [] for parts in inside))
        return _rebuilt(first, [_joined(list(column), queue, f"{name}[{i}]") for i, column in enumerate(columns)])
    if all(result is first or result == first for result in results):
        return first
    raise TypeError(
        f"DataParallel: {name} gave a {type(first).__name__} that differs between devices: return tensors, arrays, or tuples, "
        "lists and dictionaries of them"
    )
