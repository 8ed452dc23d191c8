"""Linear layers."""

from __future__ import annotations

from netcl._netcl import Tensor, nn as _nn
from netcl.nn._layer import Parametric, given

__all__ = ["Bilinear", "Linear"]


class Linear(Parametric):
    """``x @ weight.T + bias`` over the last axis: ``Linear(queue, 2, 32)``, or ``Linear(2, 32)`` on the active device.

    The weight has shape ``(out_features, in_features)``; both start uniform within ``1 / sqrt(in_features)``.
    """

    in_features: int = given()
    out_features: int = given()
    bias: Tensor | None = given(True)
    weight: Tensor


class Bilinear(Parametric):
    """``x1 @ weight[i] @ x2 + bias[i]`` for every output ``i``, over the last axes of two inputs.

    The weight has shape ``(out_features, in1_features, in2_features)``; both start uniform within ``1 / sqrt(in1_features)``.
    """

    in1_features: int = given()
    in2_features: int = given()
    out_features: int = given()
    bias: Tensor | None = given(True)
    weight: Tensor

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return _nn.bilinear(self._layer, self.__dict__, x1, x2)
