"""Layers and containers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar, overload

from netcl import autograd as ag
from netcl._netcl import Tensor
from netcl._netcl.nn import linear_parameters
from netcl.nn.module import Module, Parameter

_I = TypeVar("_I", bound=Callable[..., None])

__all__ = [
    "ELU",
    "Flatten",
    "GELU",
    "HardSigmoid",
    "HardSwish",
    "HardTanh",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "Identity",
    "LeakyReLU",
    "Linear",
    "LogSigmoid",
    "LogSoftmax",
    "Mish",
    "Module",
    "ModuleList",
    "Parameter",
    "ReLU",
    "ReLU6",
    "SELU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Softsign",
    "Swish",
    "Tanh",
]


def queue_first(init: _I) -> _I:
    """Lets a constructor be called with or without the queue that its first parameter names."""

    @functools.wraps(init)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
        # Sizes are numbers or sequences of them, queues are neither.
        if (args and (isinstance(args[0], (list, tuple)) or hasattr(args[0], "__index__"))) or not (args or "queue" in kwargs):
            args = (kwargs.pop("queue", None), *args)
        init(self, *args, **kwargs)

    return wrapper  # type: ignore[return-value]


class Linear(Module):
    """``x @ weight.T + bias`` over the last axis: ``Linear(queue, 2, 32)``, or ``Linear(2, 32)`` on the active device.

    The weight has shape ``(out_features, in_features)``; both start uniform within ``1 / sqrt(in_features)``.
    """

    weight: Tensor
    bias: Tensor | None

    @queue_first
    def __init__(self, queue: Any, in_features: int, out_features: int, bias: bool = True, dtype: str | None = None) -> None:
        self.in_features, self.out_features = in_features, out_features
        self.weight, made = linear_parameters(queue, in_features, out_features, bias, dtype)
        self.register_parameter("bias", made)

    def forward(self, x: Tensor) -> Tensor:
        return ag.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Flatten(Module):
    """Joins the axes from ``start_dim`` to ``end_dim``, both included, into one."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, x: Tensor) -> Tensor:
        return ag.flatten(x, self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Identity(Module):
    """The input itself."""

    def forward(self, x: Tensor) -> Tensor:
        return x


class Sequential(Module):
    """Modules that are applied one after the other; their names are their numbers."""

    def __init__(self, *layers: Module) -> None:
        for layer in layers:
            self.append(layer)

    def forward(self, x: Any) -> Any:
        for layer in self._modules.values():
            if layer is not None:
                x = layer(x)
        return x

    def append(self, layer: Module) -> Sequential:
        """Adds a module at the end."""
        if not isinstance(layer, Module):
            raise TypeError(f"Sequential takes modules, not {type(layer).__name__}")
        self.add_module(str(len(self)), layer)
        return self

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return self.children()

    @overload
    def __getitem__(self, index: int) -> Module: ...
    @overload
    def __getitem__(self, index: slice) -> Sequential: ...
    def __getitem__(self, index: int | slice) -> Module | Sequential:
        layers = list(self)
        return Sequential(*layers[index]) if isinstance(index, slice) else layers[index]


class ModuleList(Module):
    """Modules in a list, whose parameters are the module's own; how they are applied is up to ``forward``."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        for module in modules:
            self.append(module)

    def append(self, module: Module) -> ModuleList:
        """Adds a module at the end."""
        if not isinstance(module, Module):
            raise TypeError(f"ModuleList takes modules, not {type(module).__name__}")
        self.add_module(str(len(self)), module)
        return self

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return self.children()

    def __getitem__(self, index: int) -> Module:
        return list(self)[index]


class _Activation(Module):
    """An elementwise function as a module."""

    _function: Callable[..., Tensor]
    # The function's keyword arguments; a subclass with settings has its own.
    _settings: Mapping[str, Any] = {}

    def forward(self, x: Tensor) -> Tensor:
        return type(self)._function(x, **self._settings)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self._settings.items())


class ReLU(_Activation):
    """``max(x, 0)``."""

    _function = staticmethod(ag.relu)


class ReLU6(_Activation):
    """``min(max(x, 0), 6)``."""

    _function = staticmethod(ag.relu6)


class LeakyReLU(_Activation):
    """``x`` above 0, a multiple of it below."""

    _function = staticmethod(ag.leaky_relu)

    def __init__(self, negative_slope: float = 0.01) -> None:
        self._settings = {"negative_slope": negative_slope}


class ELU(_Activation):
    """``x`` above 0, ``alpha * (exp(x) - 1)`` below."""

    _function = staticmethod(ag.elu)

    def __init__(self, alpha: float = 1.0) -> None:
        self._settings = {"alpha": alpha}


class SELU(_Activation):
    """ELU with the two constants that keep mean 0 and variance 1."""

    _function = staticmethod(ag.selu)


class GELU(_Activation):
    """``x * normcdf(x)``: exactly, or with ``approximate="tanh"`` in its tanh approximation."""

    _function = staticmethod(ag.gelu)

    def __init__(self, approximate: str | bool = "none") -> None:
        if isinstance(approximate, bool):
            approximate = "tanh" if approximate else "none"
        self._settings = {"approximate": approximate}


class SiLU(_Activation):
    """``x * sigmoid(x)``."""

    _function = staticmethod(ag.silu)


class Mish(_Activation):
    """``x * tanh(softplus(x))``."""

    _function = staticmethod(ag.mish)


class Tanh(_Activation):
    """Hyperbolic tangent."""

    _function = staticmethod(ag.tanh)


class Sigmoid(_Activation):
    """``1 / (1 + exp(-x))``."""

    _function = staticmethod(ag.sigmoid)


class LogSigmoid(_Activation):
    """``log(sigmoid(x))``."""

    _function = staticmethod(ag.logsigmoid)


class Softplus(_Activation):
    """``log(1 + exp(beta * x)) / beta``; linear where ``beta * x`` exceeds the threshold."""

    _function = staticmethod(ag.softplus)

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        self._settings = {"beta": beta, "threshold": threshold}


class Softsign(_Activation):
    """``x / (1 + |x|)``."""

    _function = staticmethod(ag.softsign)


class HardTanh(_Activation):
    """``x`` between two bounds, constant outside."""

    _function = staticmethod(ag.hardtanh)

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0) -> None:
        self._settings = {"min_val": min_val, "max_val": max_val}


class HardSigmoid(_Activation):
    """0 below -3, 1 above 3, a line between."""

    _function = staticmethod(ag.hardsigmoid)


class HardSwish(_Activation):
    """``x * hardsigmoid(x)``."""

    _function = staticmethod(ag.hardswish)


class Softmax(_Activation):
    """``exp(x) / sum(exp(x))`` along an axis."""

    _function = staticmethod(ag.softmax)

    def __init__(self, axis: int = -1) -> None:
        self._settings = {"axis": axis}


class LogSoftmax(_Activation):
    """``log(softmax(x))`` along an axis."""

    _function = staticmethod(ag.log_softmax)

    def __init__(self, axis: int = -1) -> None:
        self._settings = {"axis": axis}


Swish = SiLU
"""Another name of ``SiLU``."""
Hardtanh, Hardsigmoid, Hardswish = HardTanh, HardSigmoid, HardSwish
