"""Attributes of packages that are imported when they are first asked for."""

import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

__all__ = ["attributes"]


def attributes(
    package: str, modules: Iterable[str] = (), **names: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package: its ``modules``, and ``names`` with the modules that define them."""
    modules = frozenset(modules)

    def get(name: str) -> Any:
        if name in modules:
            return import_module(f"{package}.{name}")
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])
        value = getattr(import_module(names[name]), name)
        # The next time it is found without this function.
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules, *names})

    return get, list_names
