"""Batch normalisation over the samples of all ranks."""

from __future__ import annotations

from typing import Any, TypeVar

from netcl import autograd as ag
from netcl._netcl import Tensor
from netcl._netcl.distributed import sync_batch_norm
from netcl._surroundings import raise_version
from netcl.distributed._meeting import Meeting
from netcl.nn.module import Module
from netcl.nn.normalization import BatchNorm1d, BatchNorm2d

__all__ = ["SyncBatchNorm", "convert_sync_batchnorm"]

_M = TypeVar("_M", bound=Module)


class SyncBatchNorm(BatchNorm2d):
    """``BatchNorm2d`` or ``BatchNorm1d`` whose statistics in training are those of all ranks' samples: (N, C, ...).

    ``SyncBatchNorm(64, group=group)``, or ``convert_sync_batchnorm(model, group)`` for all inside a model. Ranks run it
    together, as often, forwards and backwards. Without a group it is batch norm of one rank.
    """

    group: Any = None

    def __init__(self, *args: Any, group: Any = None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        """The result for a tensor."""
        meets = isinstance(self.group, Meeting)
        if self.group is None or not self.training or (meets and not self.group.is_on):
            return super().forward(x) if x.ndim == 4 else _as_images(super().forward, x)
        running = None
        if self.track_running_stats and self.running_mean is not None and self.running_var is not None:
            running = (self.running_mean, self.running_var, self.num_batches_tracked, self.momentum)
        if meets:
            return self.group.normalise(x, self.weight, self.bias, running, self.eps)  # type: ignore[no-any-return]
        return sync_batch_norm(self.group, x, self.weight, self.bias, running, self.eps)

    def extra_repr(self) -> str:
        if self.group is None:
            return super().extra_repr()
        return super().extra_repr() + f", {'devices' if isinstance(self.group, Meeting) else 'ranks'}={self.group.size}"


def _as_images(forward: Any, x: Tensor) -> Tensor:
    """What a layer of images gives for rows or sequences."""
    shape = x.shape
    result: Tensor = forward(ag.reshape(x, (*shape, *[1] * (4 - len(shape)))))
    return ag.reshape(result, shape)


def convert_sync_batchnorm(model: _M, group: Any) -> _M:
    """Makes every ``BatchNorm1d`` and ``BatchNorm2d`` inside a model a ``SyncBatchNorm`` of these ranks; returns the model.

    Parameters and buffers stay the same tensors under the same names: an optimizer that was made before goes on.
    """
    if isinstance(model, (BatchNorm1d, BatchNorm2d)):
        return _converted(model, group)  # type: ignore[return-value]
    for module in list(model.modules()):
        for name, child in module._modules.items():
            if isinstance(child, (BatchNorm1d, BatchNorm2d)):
                module._modules[name] = _converted(child, group)
                raise_version(module)
    return model


def _converted(layer: Any, group: Any) -> SyncBatchNorm:
    names = ("eps", "momentum", "affine", "track_running_stats")
    queue = next(iter([*layer.parameters(), *layer.buffers()])).queue if layer.parameters() or layer.buffers() else None
    made = SyncBatchNorm(queue, layer.num_features, group=group, **{name: getattr(layer, name) for name in names})
    made._parameters.update(layer._parameters)
    made._buffers.update(layer._buffers)
    made.training = layer.training
    return made
