"""Linear layers."""

from __future__ import annotations

from netcl._netcl import IndexTensor, Tensor, nn as _nn
from netcl.nn._layer import Parametric, given

__all__ = ["Bilinear", "Linear", "QuantizedLinear"]


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


class QuantizedLinear(Parametric):
    """``x @ weight.T + bias`` with a weight of 8 or 4 bits, for inference: ``QuantizedLinear.from_linear(layer, bits=4)``.

    ``weight`` holds packed values as int32 and ``scale`` what they are multiples of: one number for each output with 8 bits,
    one for each ``group`` of 32, 64 or 128 inputs with 4. All are buffers: saved and moved, but not trained. A new layer
    holds zeros.
    """

    in_features: int = given()
    out_features: int = given()
    bits: int = 8
    group: int = 64
    bias: Tensor | None = given(True)
    weight: IndexTensor
    scale: Tensor

    @classmethod
    def from_linear(cls, linear: Linear, bits: int = 8, group: int = 64) -> QuantizedLinear:
        """The layer with its weight rounded."""
        layer = cls.__new__(cls)
        layer._hold(_nn.quantized_linear(linear.weight, linear.bias, bits, group))
        layer.training = linear.training
        return layer
