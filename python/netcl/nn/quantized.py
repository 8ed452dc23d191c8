"""Models with linear layers of 8 or 4 bits, for inference."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from netcl.nn.linear import Linear, QuantizedLinear
from netcl.nn.module import Module

__all__ = ["quantize"]


def quantize(model: Module, bits: int = 8, group: int = 64, skip: Iterable[str] = ()) -> Any:
    """Puts a ``QuantizedLinear`` in the place of every ``Linear`` of a model, and returns the model.

    ``skip`` holds dotted names of layers that stay as they are, or of modules around them. Subclasses of ``Linear`` stay, and
    weights that are no ``Linear``'s: convolutions, embeddings, a head tied to one, ``MultiheadAttention``'s
    ``in_proj_weight``.
    """
    skip = (skip,) if isinstance(skip, str) else tuple(skip)
    linears = [(name, part) for name, part in model.named_modules() if type(part) is Linear]
    for outer in skip:
        if not any(_inside(name, outer) for name, _ in linears):
            known = ", ".join(name for name, _ in linears) or "none"
            raise ValueError(f"quantize: skip names {outer!r}, where there is no Linear; there are {known}")
    made: dict[int, Module] = {}
    for name, linear in linears:
        if not any(_inside(name, outer) for outer in skip):
            try:
                layer = QuantizedLinear.from_linear(linear, bits, group)
            except ValueError as problem:
                raise ValueError(f"{name}: {problem}" if name else str(problem)) from None
            object.__setattr__(layer, "_hooks", linear._hooks)
            made[id(linear)] = layer
    for part in list(model.modules()):
        for name, child in list(part._modules.items()):
            if id(child) in made:
                setattr(part, name, made[id(child)])
    return made.get(id(model), model)


def _inside(name: str, outer: str) -> bool:
    return name == outer or name.startswith(f"{outer}.")
