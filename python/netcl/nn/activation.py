"""Activations: elementwise functions as modules, and softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from netcl import autograd as ag
from netcl._netcl import Tensor
from netcl.nn._arguments import parameter, positive, queue_first
from netcl.nn.module import Module

__all__ = [
    "ELU",
    "GELU",
    "HardSigmoid",
    "HardSwish",
    "HardTanh",
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
    "SELU",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Softsign",
    "Swish",
    "Tanh",
]


class Activation(Module):
    """A function of one tensor as a module."""

    _function: Callable[..., Tensor]

    def forward(self, x: Tensor) -> Tensor:
        return type(self)._function(x)


class ReLU(Activation):
    """``max(x, 0)``."""

    _function = staticmethod(ag.relu)


class ReLU6(Activation):
    """``min(max(x, 0), 6)``."""

    _function = staticmethod(ag.relu6)


class LeakyReLU(Activation):
    """``x`` above 0, a multiple of it below."""

    _settings = ("negative_slope",)

    def __init__(self, negative_slope: float = 0.01) -> None:
        self.negative_slope = negative_slope

    def forward(self, x: Tensor) -> Tensor:
        return ag.leaky_relu(x, self.negative_slope)


class ELU(Activation):
    """``x`` above 0, ``alpha * (exp(x) - 1)`` below."""

    _settings = ("alpha",)

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        return ag.elu(x, self.alpha)


class SELU(Activation):
    """ELU with the two constants that keep mean 0 and variance 1."""

    _function = staticmethod(ag.selu)


class GELU(Activation):
    """``x * normcdf(x)``: exactly, or with ``approximate="tanh"`` in its tanh approximation."""

    _settings = ("approximate",)

    def __init__(self, approximate: str | bool = "none") -> None:
        if isinstance(approximate, bool):
            approximate = "tanh" if approximate else "none"
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        return ag.gelu(x, self.approximate)


class SiLU(Activation):
    """``x * sigmoid(x)``."""

    _function = staticmethod(ag.silu)


class Mish(Activation):
    """``x * tanh(softplus(x))``."""

    _function = staticmethod(ag.mish)


class Tanh(Activation):
    """Hyperbolic tangent."""

    _function = staticmethod(ag.tanh)


class Sigmoid(Activation):
    """``1 / (1 + exp(-x))``."""

    _function = staticmethod(ag.sigmoid)


class LogSigmoid(Activation):
    """``log(sigmoid(x))``."""

    _function = staticmethod(ag.logsigmoid)


class Softplus(Activation):
    """``log(1 + exp(beta * x)) / beta``; linear where ``beta * x`` exceeds the threshold."""

    _settings = ("beta", "threshold")

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        self.beta, self.threshold = beta, threshold

    def forward(self, x: Tensor) -> Tensor:
        return ag.softplus(x, self.beta, self.threshold)


class Softsign(Activation):
    """``x / (1 + |x|)``."""

    _function = staticmethod(ag.softsign)


class HardTanh(Activation):
    """``x`` between two bounds, constant outside."""

    _settings = ("min_val", "max_val")

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0) -> None:
        if min_val > max_val:
            raise ValueError(f"HardTanh: min_val={min_val} is above max_val={max_val}; exchange them")
        self.min_val, self.max_val = min_val, max_val

    def forward(self, x: Tensor) -> Tensor:
        return ag.hardtanh(x, self.min_val, self.max_val)


class HardSigmoid(Activation):
    """0 below -3, 1 above 3, a line between."""

    _function = staticmethod(ag.hardsigmoid)


class HardSwish(Activation):
    """``x * hardsigmoid(x)``."""

    _function = staticmethod(ag.hardswish)


class Softmax(Activation):
    """``exp(x) / sum(exp(x))`` along an axis (``dim`` is another name of ``axis``)."""

    _settings = ("axis",)

    def __init__(self, axis: int = -1, *, dim: int | None = None) -> None:
        self.axis = axis if dim is None else dim

    def forward(self, x: Tensor) -> Tensor:
        return ag.softmax(x, self.axis)


class LogSoftmax(Activation):
    """``log(softmax(x))`` along an axis (``dim`` is another name of ``axis``)."""

    _settings = ("axis",)

    def __init__(self, axis: int = -1, *, dim: int | None = None) -> None:
        self.axis = axis if dim is None else dim

    def forward(self, x: Tensor) -> Tensor:
        return ag.log_softmax(x, self.axis)


class PReLU(Module):
    """``x`` above 0, a learned multiple of it below: one slope for all, or one for each channel (axis 1)."""

    weight: Tensor

    @queue_first
    def __init__(self, queue: Any = None, num_parameters: int = 1, init: float = 0.25, dtype: str | None = None) -> None:
        positive("PReLU", num_parameters=num_parameters)
        self.init = init
        self.weight = parameter(queue, (num_parameters,), init, dtype)

    def settings(self) -> dict[str, Any]:
        return {"num_parameters": self.weight.size, "init": self.init}

    def forward(self, x: Tensor) -> Tensor:
        slope, count, rank = self.weight, self.weight.size, x.ndim
        if count > 1:
            if rank < 2 or x.shape[1] != count:
                raise ValueError(f"PReLU has {count} slopes, one for each channel; the input has shape {tuple(x.shape)}")
            slope = ag.reshape(slope, (count, *(1,) * (rank - 2)))
        return ag.prelu(x, slope)


Swish = SiLU
"""Another name of ``SiLU``."""
Hardtanh, Hardsigmoid, Hardswish = HardTanh, HardSigmoid, HardSwish
