"""Models in files."""

from __future__ import annotations

from typing import Any

from netcl.nn.container import Sequential
from netcl.nn.factory import layer_to_config, to_config
from netcl.nn.module import Module

__all__ = ["describe"]


def describe(model: Module) -> dict[str, Any]:
    """What a file says of a model: its configuration, or only the name of a class that nobody can build from one."""
    try:
        if type(model) is Sequential:
            return {"type": "Sequential", "config": to_config(model)}
        return layer_to_config(model)
    except ValueError:
        return {"class": f"{type(model).__module__}.{type(model).__qualname__}"}
