"""Layers that move elements and change none of them, and resampling."""

from __future__ import annotations

import operator
from typing import Any

from netcl import autograd as ag
from netcl._netcl import Tensor
from netcl.nn.module import Module

__all__ = ["Concat", "Flatten", "Identity", "Unflatten", "Upsample"]


class Flatten(Module):
    """Joins the axes from ``start_dim`` to ``end_dim``, both included, into one."""

    _settings = ("start_dim", "end_dim")

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, x: Tensor) -> Tensor:
        return ag.flatten(x, self.start_dim, self.end_dim)


class Unflatten(Module):
    """Splits an axis into several: ``Unflatten(1, (16, 4, 4))``. One of the lengths may be -1."""

    _settings = ("dim", "unflattened_size")

    def __init__(self, dim: int, unflattened_size: Any) -> None:
        if not isinstance(unflattened_size, (list, tuple)) or not all(hasattr(n, "__index__") for n in unflattened_size):
            raise TypeError(f"Unflatten: unflattened_size is a sequence of whole numbers, not {type(unflattened_size)}")
        self.dim, self.unflattened_size = operator.index(dim), tuple(map(operator.index, unflattened_size))

    def forward(self, x: Tensor) -> Tensor:
        shape = tuple(x.shape)
        if not -len(shape) <= self.dim < len(shape):
            raise ValueError(f"Unflatten(dim={self.dim}): the input of shape {shape} has no such axis")
        dim = self.dim % len(shape)
        known = 1
        for length in self.unflattened_size:
            known *= length if length != -1 else 1
        free = self.unflattened_size.count(-1)
        if free > 1 or known == 0 or (shape[dim] % known if free else shape[dim] != known):
            raise ValueError(f"Unflatten: an axis of length {shape[dim]} cannot be split into {self.unflattened_size}")
        sizes = tuple(shape[dim] // known if length == -1 else length for length in self.unflattened_size)
        return ag.reshape(x, (*shape[:dim], *sizes, *shape[dim + 1 :]))


class Identity(Module):
    """The input itself."""

    def forward(self, x: Any) -> Any:
        return x


class Concat(Module):
    """Several tensors along an axis: ``Concat(1)(a, b)``, or of a list."""

    _settings = ("axis",)

    def __init__(self, axis: int = 1) -> None:
        self.axis = axis

    def forward(self, *inputs: Any) -> Tensor:
        if len(inputs) == 1 and isinstance(inputs[0], (list, tuple)):
            inputs = tuple(inputs[0])
        return ag.cat(inputs, self.axis)


class Upsample(Module):
    """Images (N, C, H, W) or sequences (N, C, L) of another size.

    ``Upsample(scale_factor=2)``, ``Upsample(size=(32, 32), mode="bilinear")``, ``Upsample(size=100, mode="linear")``.
    """

    _settings = ("size", "scale_factor", "mode", "align_corners")

    def __init__(
        self,
        size: Any = None,
        scale_factor: Any = None,
        mode: str = "nearest",
        align_corners: bool | None = False,
    ) -> None:
        if (size is None) == (scale_factor is None):
            raise ValueError(f"Upsample: give either size or scale_factor, not {'both' if size is not None else 'neither'}")
        if mode not in ("nearest", "linear", "bilinear"):
            raise ValueError(f'Upsample: mode is "nearest", "linear" or "bilinear", not {mode!r}')
        self.size, self.scale_factor = (tuple(x) if isinstance(x, (list, tuple)) else x for x in (size, scale_factor))
        self.mode, self.align_corners = mode, align_corners

    def forward(self, x: Tensor) -> Tensor:
        return ag.interpolate(x, self.size, self.scale_factor, self.mode, self.align_corners)
