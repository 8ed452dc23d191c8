"""What a function reads beside the tensors it is given: the key under which a compiled or captured program is kept.

A program is right as long as everything that chose its path is as it was: arguments that are no tensors, closures, globals,
defaults, settings of modules, attributes of objects, and whatever the functions that it calls find in the same way. All of that
is described anew in every call, as a value that compares: no identity where a value will do, so that equal surroundings share
a program.

Which globals and attributes a function may read is known from its code; names that occur nowhere are not looked at. Modules
(``nn.Module``) carry a version that every change of a setting, child, parameter or mode raises, so that a network is
described once and not in every call.
"""

from __future__ import annotations

import functools
import types
from typing import Any

from netcl._surroundings.code import Code, contains
from netcl._surroundings.modules import Table, raise_version
from netcl._surroundings.walk import Walk
from netcl._surroundings.watch import Watch
from netcl._surroundings.words import Refused, difference

__all__ = ["Description", "Refused", "Surroundings", "Table", "Watch", "difference", "raise_version"]


class Surroundings:
    """What a function can read, found anew at each call of :meth:`describe`; what is known of its code is kept."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._codes: dict[int, Code] = {}
        # Names of attributes that occur in the code that was met so far; None: any.
        self._names: set[str] | None = set()
        self._known: dict[type, Any] = {}

    def describe(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Description:
        """The key of a call."""
        while True:
            walk = Walk(self._codes, self._names, self._known)
            parts = [walk.argument(value, i) for i, value in enumerate(args)]
            names = tuple(kwargs)
            if kwargs:
                parts += [walk.argument(value, name) for name, value in kwargs.items()]
            parts.append(walk(self._function))
            if not walk.grown:
                if (walk.names is None or "grad" in walk.names) and any(getattr(t, "grad", None) is not None for t in walk.inputs):
                    raise Refused("it may read the gradient of an argument")
                return Description(("call", names, _labels(len(args), names), tuple(parts)), walk)
            self._names, self._known = walk.names, {}

    def knows(self, code: types.CodeType) -> bool:
        """Whether a piece of code was met, or is a part of one that was."""
        return id(code) in self._codes or any(contains(known.code, code) for known in self._codes.values())


@functools.lru_cache(maxsize=1000)
def _labels(count: int, names: tuple[str, ...]) -> tuple[str, ...]:
    return (*(f"argument {i}" for i in range(count)), *(f"argument {name}" for name in names), "")


class Description:
    """The surroundings of one call: a key that compares, the tensors of the arguments, and the tensors around."""

    __slots__ = ("around", "held", "inputs", "key")

    def __init__(self, key: Any, walk: Walk) -> None:
        self.key, self.inputs = key, walk.inputs
        #: Tensors, and tuples of them that modules keep.
        self.around: list[Any] = walk.around
        #: Objects that the key knows by their identity: whoever keeps the key keeps them.
        self.held: list[Any] = walk.held

    def tensors(self) -> list[Any]:
        """The tensors around, one by one."""
        found: list[Any] = []
        for part in self.around:
            found.extend(part) if type(part) is tuple else found.append(part)
        return found

    def has_tensors_of(self, around: list[Any]) -> bool:
        """Whether the tensors around are these very ones."""
        own = self.around
        return len(own) == len(around) and all([a is b for a, b in zip(own, around)])
