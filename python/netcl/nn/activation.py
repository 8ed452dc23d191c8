"""Activations: elementwise functions as modules, and softmax."""

from __future__ import annotations

from netcl._netcl import Tensor
from netcl.nn._layer import Layer, Parametric, given

__all__ = [
    "CELU",
    "ELU",
    "GELU",
    "GLU",
    "SELU",
    "HardSigmoid",
    "HardSwish",
    "HardTanh",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "LeakyReLU",
    "LogSigmoid",
    "LogSoftmax",
    "Mish",
    "PReLU",
    "RReLU",
    "ReLU",
    "ReLU6",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softmax2d",
    "Softmin",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Swish",
    "Tanh",
    "Tanhshrink",
    "Threshold",
]


class Activation(Layer):
    """A function of one tensor as a module."""

    _any_inplace = True


class ReLU(Activation):
    """``max(x, 0)``. ``inplace`` changes nothing."""

    def __init__(self, inplace: bool = False) -> None:
        self._make()


class ReLU6(Activation):
    """``min(max(x, 0), 6)``."""


class LeakyReLU(Activation):
    """``x`` above 0, a multiple of it below."""

    negative_slope: float = 0.01


class RReLU(Activation):
    """``x`` above 0, elsewhere a multiple of it: in training a random one for each element, else the mean of the bounds."""

    lower: float = 1 / 8
    upper: float = 1 / 3


class ELU(Activation):
    """``x`` above 0, ``alpha * (exp(x) - 1)`` below."""

    alpha: float = 1.0


class CELU(Activation):
    """``x`` above 0, ``alpha * (exp(x / alpha) - 1)`` below: smooth at 0 for every ``alpha``."""

    alpha: float = 1.0


class SELU(Activation):
    """ELU with the two constants that keep mean 0 and variance 1."""


class GELU(Activation):
    """``x * normcdf(x)``: exactly, or with ``approximate="tanh"`` in its tanh approximation."""

    approximate: str

    def __init__(self, approximate: str | bool = "none") -> None:
        if isinstance(approximate, bool):
            approximate = "tanh" if approximate else "none"
        self._make(approximate=approximate)


class SiLU(Activation):
    """``x * sigmoid(x)``."""


class Mish(Activation):
    """``x * tanh(softplus(x))``."""


class Tanh(Activation):
    """Hyperbolic tangent."""


class Sigmoid(Activation):
    """``1 / (1 + exp(-x))``."""


class LogSigmoid(Activation):
    """``log(sigmoid(x))``."""


class Softplus(Activation):
    """``log(1 + exp(beta * x)) / beta``; linear where ``beta * x`` exceeds the threshold."""

    beta: float = 1.0
    threshold: float = 20.0


class Softsign(Activation):
    """``x / (1 + |x|)``."""


class HardTanh(Activation, kind="Hardtanh"):
    """``x`` between two bounds, constant outside."""

    min_val: float = -1.0
    max_val: float = 1.0


class HardSigmoid(Activation, kind="Hardsigmoid"):
    """0 below -3, 1 above 3, a line between."""


class HardSwish(Activation, kind="Hardswish"):
    """``x * hardsigmoid(x)``."""


class Hardshrink(Activation):
    """``x``, and 0 where ``|x|`` is at most ``lambd``."""

    lambd: float = 0.5


class Softshrink(Activation):
    """``x`` moved towards 0 by ``lambd``, and 0 where ``|x|`` is at most ``lambd``."""

    lambd: float = 0.5


class Tanhshrink(Activation):
    """``x - tanh(x)``."""


class Threshold(Activation):
    """``x`` above the threshold, ``value`` elsewhere."""

    threshold: float = given()
    value: float = given()


class _AlongAxis(Activation, also=("dim",)):
    """A function along an axis; ``dim`` is another name of ``axis``."""

    axis: int = -1


class Softmax(_AlongAxis):
    """``exp(x) / sum(exp(x))`` along an axis."""


class LogSoftmax(_AlongAxis):
    """``log(softmax(x))`` along an axis."""


class Softmin(_AlongAxis):
    """``softmax(-x)`` along an axis."""


class Softmax2d(Activation):
    """``Softmax`` over the channels of images (N, C, H, W) or (C, H, W)."""


class GLU(_AlongAxis):
    """``a * sigmoid(b)`` of the two halves ``a`` and ``b`` of an axis."""


class PReLU(Parametric):
    """``x`` above 0, a learned multiple of it below: one slope for all, or one for each channel (axis 1)."""

    num_parameters: int = given(1)  # type: ignore[assignment]
    init: float = 0.25
    weight: Tensor


Swish = SiLU
"""Another name of ``SiLU``."""
Hardtanh, Hardsigmoid, Hardswish = HardTanh, HardSigmoid, HardSwish
