"""Models as data: lists of ``{"type": "Conv2d", "args": {...}}``."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from netcl.nn import container, layers as _layers
from netcl.nn.container import Residual, Sequential
from netcl.nn.module import Module

__all__ = [
    "big_cnn_config",
    "build_sequential",
    "build_sequential_from_json",
    "example_cnn_config",
    "example_mlp_config",
    "fast_bn_cnn_config",
    "fast_cnn_config",
    "get_registry",
    "layer_to_config",
    "register_layer",
    "tiny_cnn_config",
    "to_config",
]

Config = list[dict[str, Any]]


@dataclass(frozen=True)
class _Kind:
    """How layers of one type are made from a configuration, and back."""

    make: Callable[..., Module]
    to_config: Callable[[Module], Mapping[str, Any] | None] | None = None
    required: Sequence[str] = ()
    takes_queue: bool = False


_REGISTERED: dict[str, _Kind] = {}


def register_layer(
    name: str,
    ctor: Callable[..., Module],
    *,
    to_config: Callable[[Module], Mapping[str, Any] | None] | None = None,
    required_args: Sequence[str] | None = None,
    queue_required: bool = False,
) -> None:
    """Lets configurations name a layer of one's own.

    ``to_config(layer)`` returns the arguments that make such a layer, or None for a layer of another kind. ``queue_required``
    says that the constructor takes ``queue=``.
    """
    _REGISTERED[name] = _Kind(ctor, to_config, tuple(required_args or ()), queue_required)


def get_registry() -> dict[str, Callable[..., Module]]:
    """Every type that a configuration can name, and what makes it."""
    return {**_built_in(), **{name: kind.make for name, kind in _REGISTERED.items()}}


def _built_in() -> dict[str, Callable[..., Module]]:
    # These are made of modules or tensors, not of settings.
    stacks = ("TransformerDecoder", "TransformerEncoder")
    containers = ("Module", "Residual", "TiedLinear", *stacks, *container.__all__)
    found: dict[str, Callable[..., Module]] = {}
    for name in _layers.__all__:
        made = getattr(_layers, name)
        if isinstance(made, type) and issubclass(made, Module) and name not in containers:
            found[name] = made
    return found


# ---- from a configuration --------------------------------------------------------------------------------------------


def build_sequential(queue: Any = None, config: Any = None) -> Sequential:
    """A ``Sequential`` of a configuration: ``build_sequential(queue, [{"type": "Linear", "args": {...}}, {"type": "ReLU"}])``.

    ``args`` are the keyword arguments of the layer's constructor. ``{"type": "Sequential", "args": {"layers": [...]}}`` nests;
    ``{"type": "Residual", "args": {"inner": [...], "shortcut": [...], "activation": [...]}}`` goes around. The queue may be
    left out.
    """
    if config is None and isinstance(queue, (list, tuple)):
        queue, config = None, queue
    return Sequential(*_built(queue, config, "config"))


def build_sequential_from_json(queue: Any, path: str | os.PathLike[str] | None = None) -> Sequential:
    """``build_sequential`` of a JSON file."""
    if path is None:
        queue, path = None, queue
    # A number would be somebody's open file, which is closed in the end.
    with open(os.fspath(path), encoding="utf-8") as file:
        return build_sequential(queue, json.load(file))


def _built(queue: Any, config: Any, at: str) -> list[Module]:
    if not isinstance(config, (list, tuple)):
        raise ValueError(f"{at} is a list of layers, not {type(config).__name__}")
    return [build_layer(queue, entry, f"{at}[{i}]") for i, entry in enumerate(config)]


def build_layer(queue: Any, entry: Any, at: str = "config") -> Module:
    """A layer of ``{"type": ..., "args": {...}}``; errors name the place ``at`` which it stands."""
    if not isinstance(entry, Mapping) or not isinstance(entry.get("type"), str):
        raise ValueError(f'{at} is a dictionary with a "type", such as {{"type": "ReLU"}}; not {entry!r}')
    kind, args = entry["type"], entry.get("args")
    args = {} if args is None else args
    if not isinstance(args, Mapping):
        raise ValueError(f'{at} ({kind}): "args" is a dictionary of arguments, not {type(args).__name__}')
    strange = [key for key in entry if key not in ("type", "args")]
    if strange:
        raise ValueError(f'{at} ({kind}) has {", ".join(map(repr, strange))}; arguments of the layer belong into "args"')
    if kind == "Sequential":
        _bind(_nested, (), args, at, kind)
        return Sequential(*_built(queue, args["layers"], f"{at}.layers"))
    if kind == "Residual":
        _bind(Residual.__init__, (None,), args, at, kind)
        parts = {name: _one(_built(queue, part, f"{at}.{name}")) for name, part in args.items() if part is not None}
        return Residual(**parts)
    if kind in _REGISTERED:
        known = _REGISTERED[kind]
        missing = [name for name in known.required if name not in args]
        if missing:
            raise ValueError(f"{at} ({kind}) lacks {', '.join(map(repr, missing))}")
        return known.make(**({"queue": queue} if known.takes_queue else {}), **args)
    made = _built_in().get(kind)
    if made is None:
        names = ", ".join(sorted([*get_registry(), "Residual", "Sequential"]))
        raise ValueError(f"{at}: there is no layer type {kind!r}; there are {names}")
    takes_queue = "queue" in inspect.signature(made.__init__).parameters
    given = {"queue": queue, **args} if takes_queue else dict(args)
    _bind(made.__init__, (None,), given, at, kind)
    try:
        return made(**given)
    except (TypeError, ValueError) as problem:
        raise type(problem)(f"{at}: {problem}") from None


def _nested(layers: Any) -> None:
    """The signature of a nested Sequential."""


def _one(layers: list[Module]) -> Module:
    return layers[0] if len(layers) == 1 else Sequential(*layers)


def _bind(function: Callable[..., Any], first: tuple[Any, ...], args: Mapping[str, Any], at: str, kind: str) -> None:
    """Refuses arguments that a constructor does not take, or lacks, by name."""
    parameters = list(inspect.signature(function).parameters.values())[len(first) :]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    takes = [p.name for p in parameters if p.name != "queue"]
    unknown = [name for name in args if name not in takes and name != "queue"]
    missing = [p.name for p in parameters if p.default is p.empty and p.name not in args]
    if unknown or missing:
        parts = [f"does not take {', '.join(map(repr, unknown))}"] if unknown else []
        parts += [f"lacks {', '.join(map(repr, missing))}"] if missing else []
        raise ValueError(f"{at}: {kind} {' and '.join(parts)}; its arguments are {', '.join(takes) or 'none'}")


# ---- back ------------------------------------------------------------------------------------------------------------


def to_config(model: Sequential) -> Config:
    """The configuration of a ``Sequential``, which ``build_sequential`` turns into a model of the same structure.

    It holds numbers, texts, lists and dictionaries: ``json.dumps`` takes it. Weights are not part of it (``state_dict``).
    """
    if not isinstance(model, Sequential):
        raise TypeError(f"to_config describes a Sequential, not a {type(model).__name__}")
    return [layer_to_config(layer) for layer in model]


def layer_to_config(layer: Module) -> dict[str, Any]:
    """``{"type": ..., "args": {...}}`` of one layer."""
    for name, kind in _REGISTERED.items():
        found = None if kind.to_config is None else kind.to_config(layer)
        if found is not None:
            return {"type": name, "args": _plain(dict(found))}
    if type(layer) is Sequential:
        return {"type": "Sequential", "args": {"layers": to_config(layer)}}
    if type(layer) is Residual:
        parts = {name: _parts(child) for name, child in layer.named_children()}
        return {"type": "Residual", "args": parts}
    kind_name = type(layer).__name__
    if _built_in().get(kind_name) is not type(layer):
        raise ValueError(f"a {kind_name} cannot be described; make its type known with register_layer(..., to_config=...)")
    return {"type": kind_name, "args": _plain(layer.settings())}


def _parts(module: Module) -> Config:
    return to_config(module) if type(module) is Sequential else [layer_to_config(module)]


# Sizes of windows: one number stands for all axes.
_SIZES = ("kernel_size", "stride", "pad", "padding", "dilation", "output_padding", "output_size")


def _plain(args: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as JSON has them."""
    found: dict[str, Any] = {}
    for name, value in args.items():
        if isinstance(value, tuple):
            value = value[0] if name in _SIZES and len(set(value)) == 1 else list(value)
        found[name] = value
    return found


# ---- small networks for 32x32 images -----------------------------------------------------------------------------------


def _conv(inputs: int, outputs: int, batchnorm: bool) -> Config:
    args = {"in_channels": inputs, "out_channels": outputs, "kernel_size": 3, "stride": 1, "pad": 1}
    norm = [{"type": "BatchNorm2d", "args": {"num_features": outputs}}] if batchnorm else []
    return [{"type": "Conv2d", "args": args}, *norm, {"type": "ReLU"}]


def _cnn(channels: Sequence[Sequence[int]], num_classes: int, batchnorm: bool = False, p: float | None = None) -> Config:
    """Stages of convolutions of these channels, halved after each stage, and a linear layer; the images are 32x32."""
    config: Config = []
    inputs = channels[0][0]
    for stage in [channels[0][1:], *channels[1:]]:
        for outputs in stage:
            config += _conv(inputs, outputs, batchnorm)
            inputs = outputs
        config.append({"type": "MaxPool2d", "args": {"kernel_size": 2, "stride": 2}})
    side = 32 // 2 ** len(channels)
    config.append({"type": "Flatten"})
    if p is not None:
        config.append({"type": "Dropout", "args": {"p": p}})
    return [*config, {"type": "Linear", "args": {"in_features": inputs * side * side, "out_features": num_classes}}]


def example_cnn_config(in_ch: int = 3, num_classes: int = 10) -> Config:
    """Two stages of one convolution, of 32 and 64 channels."""
    return _cnn([[in_ch, 32], [64]], num_classes)


def fast_cnn_config(in_ch: int = 3, num_classes: int = 10, c1: int = 16, c2: int = 32) -> Config:
    """Two stages, of two and one convolutions."""
    return _cnn([[in_ch, c1, c1], [c2]], num_classes)


def fast_bn_cnn_config(in_ch: int = 3, num_classes: int = 10, c1: int = 32, c2: int = 64, p: float = 0.3) -> Config:
    """``fast_cnn_config`` with batch norms and dropout."""
    return _cnn([[in_ch, c1, c1], [c2]], num_classes, batchnorm=True, p=p)


def tiny_cnn_config(in_ch: int = 3, num_classes: int = 10, c1: int = 8, c2: int = 16) -> Config:
    """Two stages of one convolution, of few channels."""
    return _cnn([[in_ch, c1], [c2]], num_classes)


def big_cnn_config(
    in_ch: int = 3, num_classes: int = 10, c1: int = 64, c2: int = 128, c3: int = 256, p: float = 0.5
) -> Config:
    """Three stages, of two, two and one convolutions, with batch norms and dropout."""
    return _cnn([[in_ch, c1, c1], [c2, c2], [c3]], num_classes, batchnorm=True, p=p)


def example_mlp_config(input_dim: int, hidden: int = 128, num_classes: int = 10) -> Config:
    """A linear layer, a ReLU and another linear layer."""
    sizes = [(input_dim, hidden), (hidden, num_classes)]
    first, second = ({"type": "Linear", "args": {"in_features": i, "out_features": o}} for i, o in sizes)
    return [first, {"type": "ReLU"}, second]
