"""Dropout."""

from __future__ import annotations

from netcl._netcl import Tensor
from netcl.nn._layer import Layer

__all__ = ["AlphaDropout", "Dropout", "Dropout1d", "Dropout2d", "FeatureAlphaDropout"]


class Dropout(Layer):
    """In training, sets elements to zero with probability ``p`` and divides the others by ``1 - p``.

    The numbers come from netcl's generator (``netcl.manual_seed``). A ``seed`` makes this layer drop the same places in every
    call.
    """

    _any_inplace = True

    p: float = 0.5
    seed: int | None = None

    def forward(self, x: Tensor) -> Tensor:
        # In inference it is not asked: half the time of a call.
        return self._layer.forward(self.__dict__, x) if self.training else x


class Dropout1d(Dropout):
    """``Dropout`` of whole channels of sequences (N, C, L)."""


class Dropout2d(Dropout):
    """``Dropout`` of whole channels of images (N, C, H, W)."""


class AlphaDropout(Dropout):
    """``Dropout`` for networks of ``SELU``: what is dropped gets its lowest value, and mean 0 and variance 1 stay."""


class FeatureAlphaDropout(Dropout):
    """``AlphaDropout`` of whole channels of (N, C, ...)."""
