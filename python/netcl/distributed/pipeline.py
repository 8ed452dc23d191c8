"""A model whose layers lie on several devices."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import Any

from netcl import autograd as ag
from netcl._netcl import Tensor
from netcl._netcl.distributed import shard_lengths
from netcl.distributed._wrapper import Wrapper
from netcl.nn._arguments import resolve_queue
from netcl.nn.container import Sequential
from netcl.nn.module import Module

__all__ = ["Pipeline"]


class Pipeline(Wrapper):
    """A ``Sequential`` in stages, one per device, for a model that one device has no room for.

        model = Pipeline(nn.Sequential(...), devices=[0, 1], micro_batches=4)

    A batch goes through in micro-batches, so that all devices work at the same time: while one runs the first stage of a
    micro-batch, the next one runs the second stage of that before. The result, on the last device, and the gradients equal
    those of the unsplit model, unless a layer sees the whole batch (batch norm sees a micro-batch).

    Stages are contiguous, with about as many parameters each, or begin at the layers that ``splits`` names: ``splits=[2, 5]``
    makes three. Names are the model's own, and files load with and without it.
    """

    def __init__(
        self, model: Module, devices: Sequence[Any], micro_batches: int | None = None, splits: Sequence[int] | None = None
    ) -> None:
        if not isinstance(model, Sequential):
            raise TypeError(f"Pipeline: the model is a netcl.nn.Sequential, not a {type(model).__name__}")
        if isinstance(devices, str) or not isinstance(devices, Sequence) or not devices:
            raise TypeError(f"Pipeline: devices is a list of devices such as [0, 1], not {devices!r}")
        layers, queues = list(model.children()), [resolve_queue(device) for device in devices]
        count = len(queues) if micro_batches is None else micro_batches
        shard_lengths(1, count)
        splits = _balanced(layers, len(queues)) if splits is None else list(splits)
        bounds = [0, *splits, len(layers)]
        if len(splits) != len(queues) - 1 or bounds != sorted(bounds):
            raise ValueError(
                f"Pipeline: splits {splits} do not make {len(queues)} stages of {len(layers)} layers: give the first layer of "
                "every stage but the first, in order"
            )
        stages = [layers[start:end] for start, end in itertools.pairwise(bounds)]
        owners: dict[int, int] = {}
        for place, stage in enumerate(stages):
            for parameter in (parameter for layer in stage for parameter in layer.parameters()):
                if owners.setdefault(id(parameter), place) != place:
                    raise ValueError(f"Pipeline: stages {owners[id(parameter)]} and {place} share a parameter; keep it in one")
        for stage, queue in zip(stages, queues):
            for layer in stage:
                layer.to(queue)
        self._wrap(model, queues=queues, micro_batches=count, splits=splits, _stages=stages)

    def __deepcopy__(self, memo: dict[int, Any]) -> Pipeline:
        return Pipeline(copy.deepcopy(self.module, memo), self.queues, self.micro_batches, self.splits)

    def extra_repr(self) -> str:
        return f"devices={len(self.queues)}, micro_batches={self.micro_batches}, splits={self.splits}"

    def forward(self, x: Tensor) -> Tensor:
        """The model's result, on the last device."""
        lengths = [length for length in shard_lengths(x.shape[0], self.micro_batches) if length > 0] or [x.shape[0]]
        values = ag.split(x, lengths, 0)
        # In one round every stage works on another micro-batch. A copy waits for the round before only: until then all devices
        # have work in their queues. Backward goes through the rounds the other way.
        for tick in range(len(values) + len(self._stages) - 1):
            for place in reversed(range(len(self._stages))):
                at = tick - place
                if 0 <= at < len(values):
                    value = values[at].to(self.queues[place])
                    for layer in self._stages[place]:
                        value = layer(value)
                    values[at] = value
        return values[0] if len(values) == 1 else ag.cat(values, 0)


def _balanced(layers: list[Module], stages: int) -> list[int]:
    """Where stages begin that have about as many parameters each."""
    sizes = [1 + layer.num_parameters() for layer in layers]
    total, begun, found = sum(sizes), 0, list[int]()
    for at, size in enumerate(sizes):
        # A stage begins where the middle of a layer lies past the stage's share.
        while len(found) < stages - 1 and at > 0 and begun + size / 2 > total * (len(found) + 1) / stages:
            found.append(at)
        begun += size
    return found + [len(layers)] * (stages - 1 - len(found))
