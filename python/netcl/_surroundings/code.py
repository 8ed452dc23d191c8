"""What a piece of code may read, and whose it is."""

from __future__ import annotations

import dis
import sys
import types
from typing import Any

from netcl._surroundings.words import Refused

__all__ = ["Code", "contains", "is_library", "is_ours"]

# Names in code through which attributes can be read whose names do not stand there.
_ANY_NAME = frozenset({"getattr", "setattr", "hasattr", "vars", "dir", "attrgetter", "__dict__", "__getattribute__"})
_ANY_GLOBAL = frozenset({"globals", "eval", "exec", "compile"})
_LIBRARIES = frozenset({*sys.stdlib_module_names, "netcl", "numpy"}) - {"__main__"}


def is_library(name: Any) -> bool:
    """Whether a module is netcl's, NumPy's or Python's own, whose functions hold nothing of the user's."""
    # Constructors of named tuples are made by Python, in modules of their own.
    return isinstance(name, str) and (name.partition(".")[0] in _LIBRARIES or name.startswith("namedtuple_"))


def is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "netcl"


class Code:
    """What a piece of code may read: names of globals, names of attributes, modules that it imports."""

    def __init__(self, code: types.CodeType, library: bool) -> None:
        self.code, self.library = code, library
        names: dict[str, None] = {}
        attributes: set[str] = set()
        imported: dict[str, None] = {}
        if not library:
            _read(code, names, attributes, imported)
        self.globals, self.imported = tuple(names), tuple(imported)
        self.labels = (*(f"global {name}" for name in names), *(f"import {name}" for name in imported))
        self.attributes: set[str] | None = attributes
        if any(name in _ANY_GLOBAL for name in names):
            raise Refused(f"{code.co_qualname if hasattr(code, 'co_qualname') else code.co_name} calls eval, exec or globals")
        if any(name in _ANY_NAME for name in (*names, *attributes)):
            self.attributes = None


def _read(code: types.CodeType, names: dict[str, None], attributes: set[str], imported: dict[str, None]) -> None:
    for instruction in dis.get_instructions(code):
        op, name = instruction.opname, instruction.argval
        if op in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"):
            names[name] = None
        elif op == "IMPORT_NAME":
            imported[name] = None
        elif op.endswith(("_ATTR", "_METHOD")) or op == "IMPORT_FROM":
            attributes.add(name)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _read(constant, names, attributes, imported)
        elif isinstance(constant, str) and constant.isidentifier():
            attributes.add(constant)


def contains(outer: types.CodeType, code: types.CodeType) -> bool:
    nested = [constant for constant in outer.co_consts if isinstance(constant, types.CodeType)]
    return any(constant is code or contains(constant, code) for constant in nested)
