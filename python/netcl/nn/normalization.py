"""Normalisation."""

from __future__ import annotations

from typing import Any

from netcl import autograd as ag
from netcl._netcl import IndexTensor, Tensor
from netcl._netcl.nn import assign
from netcl.nn._layer import KW_ONLY, Parametric, given
from netcl.nn.module import Module

__all__ = [
    "BatchNorm1d", "BatchNorm2d", "GroupNorm", "InstanceNorm1d", "InstanceNorm2d", "LayerNorm", "LocalResponseNorm", "RMSNorm",
]  # fmt: skip


class _Averaging(Parametric):
    """Normalisation of channels (axis 1) that keeps averages."""

    num_features: int = given()
    _: KW_ONLY
    eps: float = 1e-5
    momentum: float | None = 0.1
    affine: bool = True
    track_running_stats: bool = True
    weight: Tensor | None
    bias: Tensor | None
    running_mean: Tensor | None
    running_var: Tensor | None
    # On the device, where every replay of a captured or compiled step counts as well.
    num_batches_tracked: IndexTensor | None

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
            self.num_batches_tracked = 0  # type: ignore[assignment]


class BatchNorm2d(_Averaging):
    """Normalises each channel of images (N, C, H, W) by the batch, and in inference by what the batches have shown.

    ``new = (1 - momentum) * old + momentum * batch`` moves the running averages in training; ``momentum=None`` averages all
    batches alike. ``weight`` and ``bias`` (unless ``affine=False``) start as 1 and 0.
    """


class BatchNorm1d(_Averaging):
    """``BatchNorm2d`` for rows (N, C) and sequences (N, C, L)."""


class _InstanceNorm(_Averaging):
    """Normalisation of each channel of each sample."""

    _: KW_ONLY
    affine: bool = False
    track_running_stats: bool = False


class InstanceNorm2d(_InstanceNorm):
    """Normalises every channel of each image of (N, C, H, W), or of one (C, H, W), by its own mean and variance.

    With ``track_running_stats`` averages are kept, which normalise in inference.
    """


class InstanceNorm1d(_InstanceNorm):
    """``InstanceNorm2d`` for sequences (N, C, L) or (C, L)."""


class LayerNorm(Parametric):
    """Normalises the last axes of each sample: ``LayerNorm(queue, 64)`` or ``LayerNorm(queue, (8, 8))``."""

    normalized_shape: tuple[int, ...] = given()
    eps: float = 1e-5
    elementwise_affine: bool = True
    bias: Tensor | None = given(True)
    weight: Tensor | None


class RMSNorm(Parametric):
    """Divides the last axes of each sample by their root mean square: no mean is subtracted, nothing is added.

    ``eps=None`` is the distance from 1 to the next number of the input's dtype.
    """

    normalized_shape: tuple[int, ...] = given()
    eps: float | None = 1e-6
    elementwise_affine: bool = True
    weight: Tensor | None


class GroupNorm(Parametric):
    """Normalises groups of channels (axis 1) of each sample: ``GroupNorm(queue, 4, 64)``."""

    num_groups: int = given()
    num_channels: int = given()
    eps: float = 1e-5
    affine: bool = True
    weight: Tensor | None
    bias: Tensor | None


class LocalResponseNorm(Module):
    """Divides each channel of (N, C, ...) by what ``size`` channels around it add up to (Krizhevsky et al., 2012)."""

    _settings = ("size", "alpha", "beta", "k")

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, x: Tensor) -> Tensor:
        return ag.local_response_norm(x, self.size, self.alpha, self.beta, self.k)
