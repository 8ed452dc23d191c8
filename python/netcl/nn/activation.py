"""Activations: elementwise functions as modules, and softmax."""

from __future__ import annotations

from typing import Any

from netcl._netcl import Tensor
from netcl.nn._layer import Layer, constructor

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


class ReLU(Activation):
    """``max(x, 0)``."""


class ReLU6(Activation):
    """``min(max(x, 0), 6)``."""


class LeakyReLU(Activation):
    """``x`` above 0, a multiple of it below."""

    negative_slope: float

    @constructor
    def __init__(self, negative_slope: float = 0.01) -> None: ...


class ELU(Activation):
    """``x`` above 0, ``alpha * (exp(x) - 1)`` below."""

    alpha: float

    @constructor
    def __init__(self, alpha: float = 1.0) -> None: ...


class CELU(Activation):
    """``x`` above 0, ``alpha * (exp(x / alpha) - 1)`` below: smooth at 0 for every ``alpha``."""

    alpha: float

    @constructor
    def __init__(self, alpha: float = 1.0) -> None: ...


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

    beta: float
    threshold: float

    @constructor
    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None: ...


class Softsign(Activation):
    """``x / (1 + |x|)``."""


class HardTanh(Activation, kind="Hardtanh"):
    """``x`` between two bounds, constant outside."""

    min_val: float
    max_val: float

    @constructor
    def __init__(self, min_val: float = -1.0, max_val: float = 1.0) -> None: ...


class HardSigmoid(Activation, kind="Hardsigmoid"):
    """0 below -3, 1 above 3, a line between."""


class HardSwish(Activation, kind="Hardswish"):
    """``x * hardsigmoid(x)``."""


class Hardshrink(Activation):
    """``x``, and 0 where ``|x|`` is at most ``lambd``."""

    lambd: float

    @constructor
    def __init__(self, lambd: float = 0.5) -> None: ...


class Softshrink(Activation):
    """``x`` moved towards 0 by ``lambd``, and 0 where ``|x|`` is at most ``lambd``."""

    lambd: float

    @constructor
    def __init__(self, lambd: float = 0.5) -> None: ...


class Tanhshrink(Activation):
    """``x - tanh(x)``."""


class Threshold(Activation):
    """``x`` above the threshold, ``value`` elsewhere."""

    threshold: float
    value: float

    @constructor
    def __init__(self, threshold: float, value: float) -> None: ...


class Softmax(Activation):
    """``exp(x) / sum(exp(x))`` along an axis (``dim`` is another name of ``axis``)."""

    axis: int

    @constructor
    def __init__(self, axis: int = -1, *, dim: int | None = None) -> None: ...


class LogSoftmax(Activation):
    """``log(softmax(x))`` along an axis (``dim`` is another name of ``axis``)."""

    axis: int

    @constructor
    def __init__(self, axis: int = -1, *, dim: int | None = None) -> None: ...


class Softmin(Activation):
    """``softmax(-x)`` along an axis (``dim`` is another name of ``axis``)."""

    axis: int

    @constructor
    def __init__(self, axis: int = -1, *, dim: int | None = None) -> None: ...


class Softmax2d(Activation):
    """``Softmax`` over the channels of images (N, C, H, W) or (C, H, W)."""


class GLU(Activation):
    """``a * sigmoid(b)`` of the two halves ``a`` and ``b`` of an axis (``dim`` is another name of ``axis``)."""

    axis: int

    @constructor
    def __init__(self, axis: int = -1, *, dim: int | None = None) -> None: ...


class PReLU(Layer):
    """``x`` above 0, a learned multiple of it below: one slope for all, or one for each channel (axis 1)."""

    init: float
    weight: Tensor

    @constructor
    def __init__(self, queue: Any = None, num_parameters: int = 1, init: float = 0.25, dtype: str | None = None) -> None: ...


Swish = SiLU
"""Another name of ``SiLU``."""
Hardtanh, Hardsigmoid, Hardswish = HardTanh, HardSigmoid, HardSwish
