"""Layers that Rust computes: what Python adds is a signature, a docstring and a module that users can compose and change."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from netcl._netcl import Tensor
from netcl._netcl import nn as _nn
from netcl._surroundings import raise_version
from netcl.nn._arguments import with_queue
from netcl.nn.module import Module

__all__ = ["Layer", "constructor"]


class Layer(Module):
    """A layer that Rust computes.

    A subclass declares the constructor's arguments, which Rust checks and completes:

        class LeakyReLU(Layer):
            negative_slope: float

            @constructor
            def __init__(self, negative_slope: float = 0.01) -> None: ...

    The settings that came of the arguments are plain attributes, parameters and buffers are in the module's tables. Users may
    change all of them: before it computes, the Rust layer takes over what is another object than the last time. A layer inside
    is shown as a module, whose tensors, settings and mode are taken over as well; its hooks are not called.
    """

    _kind = ""
    _layer: _nn.Layer

    def __init_subclass__(cls, kind: str | None = None, **more: Any) -> None:
        super().__init_subclass__(**more)
        # A user's subclass is computed by the layer that it derives from.
        if cls.__module__.startswith("netcl.nn."):
            cls._kind = kind or cls.__name__

    def __init__(self) -> None:
        self._make()

    def _make(self, queue: Any = None, dtype: Any = None, **settings: Any) -> None:
        """Makes the Rust layer with these arguments of its constructor."""
        self._hold(_nn.Layer(self._kind, settings, queue, dtype))

    if TYPE_CHECKING:
        # What a subclass takes and gives is its own.
        def forward(self, *args: Any, **kwargs: Any) -> Any: ...

    else:

        def forward(self, x: Tensor) -> Tensor:
            """The result for a tensor."""
            return self._layer.forward(self.__dict__, x)

    def _hold(self, layer: _nn.Layer) -> None:
        """Shows the members and settings of a Rust layer as the module's own."""
        own = self.__dict__
        own["_layer"] = layer
        self._parameters.update(layer.tensors())
        self._buffers.update(layer.tensors(buffers=True))
        for name, value in layer.settings.items():
            # A setting that has the name of a method (PReLU's num_parameters) is no attribute.
            if name not in self._parameters and not hasattr(type(self), name):
                own[name] = value
        for name, inner in layer.children():
            self._modules[name] = _inside(inner)
        raise_version(self)

    def settings(self) -> dict[str, Any]:
        # Without a layer while it is being made, which an error may print.
        return self._now(self._layer.settings) if "_layer" in self.__dict__ else {}

    def extra_repr(self) -> str:
        try:
            shown = self._now(self._layer.shown(self.__dict__))
        except (AttributeError, TypeError, ValueError):  # a setting that no call would take: shown as it is
            shown = self.settings()
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())

    def _now(self, settings: dict[str, Any]) -> dict[str, Any]:
        """The settings as they are by now; a bias that is there, or not, is a truth value to the constructor."""
        tensors, own = self._parameters, self.__dict__
        return {
            name: tensors[name] is not None if name in tensors else own.get(name, value) for name, value in settings.items()
        }


def constructor(init: Callable[..., None]) -> Callable[..., None]:
    """Makes the declaration of a constructor the constructor: its arguments are the settings of the Rust layer.

    A first parameter ``queue`` may be left out, given by name, or as ``device="cpu"``. ``dtype`` is that of the parameters.
    What is not given is Rust's default.
    """
    signature = inspect.signature(init)
    defaults = {name: parameter.default for name, parameter in signature.parameters.items()}
    takes_queue = "queue" in defaults

    @functools.wraps(init)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
        if takes_queue:
            args = with_queue(type(self).__name__, args, kwargs)
        try:
            given = signature.bind(self, *args, **kwargs).arguments
        except TypeError as problem:
            raise TypeError(f"{type(self).__name__}: {problem}; its arguments are {signature}") from None
        del given[next(iter(given))]
        self._make(**{name: value for name, value in given.items() if value is not defaults[name]})

    return wrapper


def _inside(layer: _nn.Layer) -> Layer:
    """The module of a layer that is a part of another one."""
    from netcl.nn import layers

    kind = getattr(layers, layer.kind)
    child: Layer = kind.__new__(kind)
    child._hold(layer)
    return child
