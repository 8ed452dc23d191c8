"""Which module runs, by its dotted path: for whoever profiles."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from netcl._netcl import _call_in_module, _module_path

if TYPE_CHECKING:
    from netcl.nn.module import Module

#: As long as there is something in it, modules say that they run: profiles and recordings put something in.
watching: list[None] = []


class _Names(threading.local):
    """The paths of the modules inside the outermost one that this thread is in."""

    paths: dict[int, str] | None = None


_names = _Names()


def call(module: Module, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a module's function under the module's path."""
    outermost = _names.paths is None
    if _names.paths is None:
        root = _module_path() or type(module).__name__
        _names.paths = {id(part): f"{root}.{name}" if name else root for name, part in module.named_modules()}
    path = _names.paths.get(id(module)) or f"{_module_path()}.{type(module).__name__}"
    try:
        return _call_in_module(path, function, args, kwargs)
    finally:
        if outermost:
            _names.paths = None
