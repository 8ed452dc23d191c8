"""Layers that Rust computes: what Python adds is a signature, a docstring and a module that users can compose and change."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from netcl._netcl import Tensor, nn as _nn
from netcl._surroundings import raise_version
from netcl.nn._arguments import with_queue
from netcl.nn.module import Module

__all__ = ["KW_ONLY", "Layer", "Parametric", "given"]

_Parameter = inspect.Parameter
_SELF, _QUEUE = (_Parameter(name, _Parameter.POSITIONAL_OR_KEYWORD) for name in ("self", "queue"))
_DEVICE = _Parameter("device", _Parameter.KEYWORD_ONLY, default=None)
_DTYPE = _Parameter("dtype", _Parameter.KEYWORD_ONLY, default=None, annotation="str | None")


class _Given:
    """The default of an argument that becomes something else: ``bias=True`` a tensor, ``stride=1`` one number per axis."""

    def __init__(self, default: Any) -> None:
        self.default = default


def given(default: Any = _Parameter.empty) -> Any:
    """An argument of a layer's constructor, which has to be given unless there is a default."""
    return _Given(default)


def _arguments(cls: type[Layer], also: tuple[str, ...]) -> dict[str, _Parameter]:
    """The arguments that a class declares, which are then no attributes of the class itself."""
    positional = True
    # A property in the place of an inherited argument replaces it.
    found = {name: argument for name, argument in cls._arguments.items() if name not in vars(cls)}
    for name, kind in inspect.get_annotations(cls).items():
        value = vars(cls).get(name, _Parameter.empty)
        if kind == "KW_ONLY":
            positional = False
        elif value is not _Parameter.empty:
            plain = not isinstance(value, _Given)
            default, shown = (value, kind) if plain else (value.default, _Parameter.empty)
            place = _Parameter.POSITIONAL_OR_KEYWORD if positional else _Parameter.KEYWORD_ONLY
            found[name] = _Parameter(name, place, default=default, annotation=shown)
            delattr(cls, name)
    return found | {name: _Parameter(name, _Parameter.KEYWORD_ONLY, default=None) for name in also}


def _constructor(cls: type[Layer]) -> Callable[..., None]:
    """The constructor of a class. What is not given is Rust's default."""
    arguments = cls._arguments.values()
    positional = [argument for argument in arguments if argument.kind is _Parameter.POSITIONAL_OR_KEYWORD]
    named = [argument for argument in arguments if argument.kind is _Parameter.KEYWORD_ONLY]
    if cls._on_device:
        positional, named = [_QUEUE, *positional], [*named, _DTYPE]
    signature = inspect.Signature([_SELF, *positional, *named], return_annotation=None)
    # What an error shows: as a user writes a call, without self, types and the queue that may be left out.
    users = [*arguments, _DEVICE, _DTYPE] if cls._on_device else list(arguments)
    users.sort(key=lambda argument: argument.kind)
    shown = inspect.Signature([argument.replace(annotation=_Parameter.empty) for argument in users])

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if cls._on_device:
            args = with_queue(type(self).__name__, args, kwargs)
        if cls._any_inplace:
            kwargs.pop("inplace", None)
        try:
            given = signature.bind(self, *args, **kwargs).arguments
        except TypeError as problem:
            raise TypeError(f"{type(self).__name__}: {problem}; its arguments are {shown}") from None
        del given["self"]
        defaults = signature.parameters
        self._make(**{name: value for name, value in given.items() if value is not defaults[name].default})

    __init__.__signature__ = signature  # type: ignore[attr-defined]
    return __init__


class Layer(Module):
    """A layer that Rust computes.

    A subclass declares its attributes. Those with a value are the arguments of its constructor, in order, which Rust checks and
    completes; the others are tensors and layers inside:

        class Scale(Parametric):
            channels: int = given()
            factor: float = 1.0
            bias: Tensor | None = given(True)
            weight: Tensor

    is ``Scale(queue, channels, factor=1.0, bias=True, *, dtype=None)``. Arguments of the class that it derives from come first;
    what is declared again moves to its new place. After ``_: KW_ONLY`` they are given by name, and so are other names of
    settings: ``class Softmax(Layer, also=("dim",))``.

    The settings that came of the arguments are plain attributes, parameters and buffers are in the module's tables. Users may
    change all of them: before it computes, the Rust layer takes over what is another object than the last time. A layer inside
    is shown as a module, whose tensors, settings and mode are taken over as well; its hooks are not called.
    """

    _kind = ""
    _layer: _nn.Layer
    _on_device = False
    _any_inplace = False
    """Whether ``inplace=`` is taken as PyTorch's programs give it. It changes nothing: memory is reused without being told."""
    _arguments: Mapping[str, _Parameter] = MappingProxyType({})

    def __init_subclass__(cls, kind: str | None = None, also: tuple[str, ...] = (), **more: Any) -> None:
        super().__init_subclass__(**more)
        # A user's subclass is computed by the layer that it derives from, as is a layer with a parametrised weight.
        if not cls.__module__.startswith("netcl.nn.") or "_derived" in vars(cls):
            return
        cls._kind = kind or cls.__name__
        cls._arguments = _arguments(cls, also)
        if "__init__" not in vars(cls):
            cls.__init__ = _constructor(cls)  # type: ignore[method-assign]

    if TYPE_CHECKING:
        # What a subclass takes and gives is its own.
        def __init__(self, *args: Any, **kwargs: Any) -> None: ...
        def forward(self, *args: Any, **kwargs: Any) -> Any: ...

    else:

        def forward(self, x: Tensor) -> Tensor:
            """The result for a tensor."""
            return self._layer.forward(self.__dict__, x)

    def _make(self, queue: Any = None, dtype: Any = None, **settings: Any) -> None:
        """Makes the Rust layer with these arguments of its constructor."""
        self._hold(_nn.Layer(self._kind, settings, queue, dtype))

    def _hold(self, layer: _nn.Layer) -> None:
        """Shows the members and settings of a Rust layer as the module's own."""
        own = self.__dict__
        own["_layer"] = layer
        self._parameters.update(layer.tensors())
        self._buffers.update(layer.tensors(buffers=True))
        for name, value in layer.settings.items():
            # A setting that has the name of a method (PReLU's num_parameters) is no attribute.
            if name not in self._parameters and name not in self._buffers and not hasattr(type(self), name):
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
        tensors, own = {**self._parameters, **self._buffers}, self.__dict__
        return {
            name: tensors[name] is not None if name in tensors else own.get(name, value) for name, value in settings.items()
        }


class Parametric(Layer):
    """A layer with parameters or buffers: its constructor takes a queue first, which may be left out, and a dtype as well."""

    _on_device = True


def _inside(layer: _nn.Layer) -> Layer:
    """The module of a layer that is a part of another one."""
    from netcl.nn import layers

    kind = getattr(layers, layer.kind)
    child: Layer = kind.__new__(kind)
    child._hold(layer)
    return child
