"""Normalisation."""

from __future__ import annotations

from typing import Any

from netcl import autograd as ag
from netcl._netcl import IndexTensor, Tensor
from netcl._netcl.nn import assign
from netcl.nn._arguments import parameter, positive, queue_first
from netcl.nn._layer import Layer, constructor
from netcl.nn.module import Module

__all__ = ["BatchNorm1d", "BatchNorm2d", "GroupNorm", "LayerNorm", "RMSNorm"]


class _BatchNorm(Module):
    """Normalisation over everything but the channels (axis 1)."""

    _settings = ("num_features", "eps", "momentum", "affine", "track_running_stats")
    _ranks: tuple[int, ...]
    _layout: str
    weight: Tensor | None
    bias: Tensor | None
    running_mean: Tensor | None
    running_var: Tensor | None
    # On the device, where every replay of a captured or compiled step counts as well.
    num_batches_tracked: IndexTensor | None

    @queue_first
    def __init__(
        self,
        queue: Any,
        num_features: int,
        *,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        dtype: str | None = None,
    ) -> None:
        positive(type(self).__name__, num_features=num_features)
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        shape = (num_features,)
        self.register_parameter("weight", parameter(queue, shape, 1.0, dtype) if affine else None)
        self.register_parameter("bias", parameter(queue, shape, 0.0, dtype) if affine else None)
        self.register_buffer("running_mean", Tensor.from_shape(queue, shape, dtype) if track_running_stats else None)
        self.register_buffer("running_var", Tensor.from_shape(queue, shape, dtype, 1.0) if track_running_stats else None)
        self.register_buffer("num_batches_tracked", IndexTensor.from_host(queue, 0) if track_running_stats else None)

    def __setattr__(self, name: str, value: Any) -> None:
        counter = self._buffers.get(name)
        if isinstance(counter, IndexTensor) and isinstance(value, int):
            assign(counter, IndexTensor.from_host(counter.queue, value))
        else:
            super().__setattr__(name, value)

    def reset_running_stats(self) -> None:
        """Forgets the batches seen so far: mean 0, variance 1."""
        from netcl.nn.init import ones_, zeros_

        if self.running_mean is not None and self.running_var is not None:
            zeros_(self.running_mean)
            ones_(self.running_var)
            self.num_batches_tracked = 0

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        if len(shape) not in self._ranks or shape[1] != self.num_features:
            raise ValueError(
                f"{type(self).__name__}({self.num_features}) takes {self._layout.format(self.num_features)}; "
                f"the input has shape {shape}"
            )
        batch = self.training or not self.track_running_stats
        return ag.batch_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            batch,
            self.momentum,
            self.eps,
            self.num_batches_tracked,
        )


class BatchNorm2d(_BatchNorm):
    """Normalises each channel of images (N, C, H, W) by the batch, and in inference by what the batches have shown.

    ``new = (1 - momentum) * old + momentum * batch`` moves the running averages in training; ``momentum=None`` averages all
    batches alike. ``weight`` and ``bias`` (unless ``affine=False``) start as 1 and 0.
    """

    _ranks, _layout = (4,), "(N, {}, H, W)"


class BatchNorm1d(_BatchNorm):
    """``BatchNorm2d`` for rows (N, C) and sequences (N, C, L)."""

    _ranks, _layout = (2, 3), "(N, {0}) or (N, {0}, L)"


class LayerNorm(Module):
    """Normalises the last axes of each sample: ``LayerNorm(queue, 64)`` or ``LayerNorm(queue, (8, 8))``."""

    _settings = ("normalized_shape", "eps", "elementwise_affine", "bias")
    weight: Tensor | None
    bias: Tensor | None

    @queue_first
    def __init__(
        self,
        queue: Any,
        normalized_shape: Any,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        dtype: str | None = None,
    ) -> None:
        self.normalized_shape = _shape("LayerNorm", normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        for name, fill, wanted in (("weight", 1.0, elementwise_affine), ("bias", 0.0, elementwise_affine and bias)):
            self.register_parameter(name, parameter(queue, self.normalized_shape, fill, dtype) if wanted else None)

    def forward(self, x: Tensor) -> Tensor:
        return ag.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


class RMSNorm(Layer):
    """Divides the last axes of each sample by their root mean square: no mean is subtracted, nothing is added."""

    normalized_shape: tuple[int, ...]
    eps: float
    elementwise_affine: bool
    weight: Tensor | None

    @constructor
    def __init__(
        self,
        queue: Any,
        normalized_shape: Any,
        eps: float = 1e-6,
        elementwise_affine: bool = True,
        dtype: str | None = None,
    ) -> None: ...


class GroupNorm(Module):
    """Normalises groups of channels (axis 1) of each sample: ``GroupNorm(queue, 4, 64)``."""

    _settings = ("num_groups", "num_channels", "eps", "affine")
    weight: Tensor | None
    bias: Tensor | None

    @queue_first
    def __init__(
        self,
        queue: Any,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        dtype: str | None = None,
    ) -> None:
        positive("GroupNorm", num_groups=num_groups, num_channels=num_channels)
        if num_channels % num_groups:
            raise ValueError(f"GroupNorm: num_groups={num_groups} must divide num_channels={num_channels}")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        self.register_parameter("weight", parameter(queue, (num_channels,), 1.0, dtype) if affine else None)
        self.register_parameter("bias", parameter(queue, (num_channels,), 0.0, dtype) if affine else None)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim < 2 or x.shape[1] != self.num_channels:
            raise ValueError(
                f"GroupNorm(num_channels={self.num_channels}) takes (N, {self.num_channels}, ...); "
                f"the input has shape {tuple(x.shape)}"
            )
        return ag.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


def _shape(kind: str, given: Any) -> tuple[int, ...]:
    shape = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    positive(kind, **{"normalized_shape" if len(shape) == 1 else f"normalized_shape[{i}]": size for i, size in enumerate(shape)})
    if not shape:
        raise ValueError(f"{kind}: normalized_shape names no axis; give the lengths of the last ones")
    return shape
