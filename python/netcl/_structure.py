"""Tensors in tuples, lists and dicts: taken apart and put together again, for functions that are compiled or captured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from netcl._netcl import IndexTensor, Tensor

__all__ = ["is_sequence", "map_leaves", "put_together", "replace", "take_apart"]


def is_sequence(value: Any) -> bool:
    """Whether a value is looked into: tuples, named or not, and lists; no classes derived from them otherwise."""
    kind = type(value)
    return kind is tuple or kind is list or (isinstance(value, tuple) and hasattr(value, "_fields"))


def _build(kind: Any, parts: list[Any]) -> Any:
    return kind(*parts) if hasattr(kind, "_fields") else kind(parts)


def map_leaves(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """The value with every leaf changed: every part that is neither looked into nor a dict."""
    if is_sequence(value):
        return _build(type(value), [map_leaves(part, leaf) for part in value])
    if type(value) is dict:
        return {key: map_leaves(part, leaf) for key, part in value.items()}
    return leaf(value)


def replace(value: Any, tensors: Iterator[Any]) -> Any:
    """The value with other tensors, in order."""
    return map_leaves(value, lambda leaf: next(tensors) if isinstance(leaf, (Tensor, IndexTensor)) else leaf)


def take_apart(value: Any, tensors: list[Any], name: str) -> tuple[Any, ...]:
    """The structure of a result; its tensors go to the list. ``name`` is what errors call it."""
    if isinstance(value, (Tensor, IndexTensor)):
        tensors.append(value)
        return ("tensor", None, None)
    if is_sequence(value):
        return ("sequence", type(value), [take_apart(part, tensors, f"{name}[{i}]") for i, part in enumerate(value)])
    if type(value) is dict:
        return ("dict", tuple(value), [take_apart(part, tensors, f"{name}[{key!r}]") for key, part in value.items()])
    if hasattr(value, "__next__") or hasattr(value, "__await__"):
        raise TypeError(f"{name} is a {type(value).__name__}, whose values are made after the call; use a list or a tuple")
    return ("value", value, None)


def put_together(structure: tuple[Any, ...], tensors: Iterator[Any]) -> Any:
    """The result again, with the tensors that an iterator gives."""
    what, kind, parts = structure
    if what == "tensor":
        return next(tensors)
    if what == "value":
        return kind
    found = [put_together(part, tensors) for part in parts]
    return dict(zip(kind, found)) if what == "dict" else _build(kind, found)
