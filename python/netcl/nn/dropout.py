"""Dropout."""

from __future__ import annotations

from netcl import autograd as ag
from netcl._netcl import Tensor
from netcl.nn.module import Module

__all__ = ["Dropout", "Dropout1d", "Dropout2d"]


class Dropout(Module):
    """In training, sets elements to zero with probability ``p`` and divides the others by ``1 - p``.

    The numbers come from netcl's generator (``netcl.manual_seed``). A ``seed`` makes this layer drop the same places in every
    call.
    """

    _settings = ("p", "seed")

    def __init__(self, p: float = 0.5, seed: int | None = None) -> None:
        if not hasattr(p, "__float__") or not 0 <= float(p) <= 1:
            raise ValueError(f"{type(self).__name__}: p is a probability from 0 to 1, not {p!r}")
        self.p, self.seed = p, seed

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        return ag.dropout(x, self.p, seed=self.seed)


class _ChannelDropout(Dropout):
    _rank: int

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != self._rank:
            axes = ", ".join(("N", "C", "H", "W") if self._rank == 4 else ("N", "C", "L"))
            raise ValueError(f"{type(self).__name__} takes ({axes}); the input has shape {tuple(x.shape)}")
        if not self.training or self.p == 0:
            return x
        ones = Tensor.from_shape(x.queue, (*x.shape[:2], *(1,) * (self._rank - 2)), x.dtype, 1.0)
        return x * ag.dropout(ones, self.p, seed=self.seed)


class Dropout1d(_ChannelDropout):
    """``Dropout`` of whole channels of sequences (N, C, L)."""

    _rank = 3


class Dropout2d(_ChannelDropout):
    """``Dropout`` of whole channels of images (N, C, H, W)."""

    _rank = 4
