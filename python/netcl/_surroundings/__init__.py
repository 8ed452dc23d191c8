"""What a function reads beside the tensors it is given: the key under which a compiled or captured program is kept.

A program is right as long as everything that chose its path is as it was: arguments that are no tensors, closures, globals,
defaults, settings of modules, attributes of objects, and whatever the functions that it calls find in the same way. All of that
is described as a value that compares: no identity where a value will do, so that equal surroundings share a program.

Which globals and attributes a function may read is known from its code; names that occur nowhere are not looked at. Modules
(``nn.Module``) carry a version that every change of a setting, child, parameter or mode raises, so that a network is
described once and not in every call.

Describing a function takes microseconds. Most calls find everything as the call before has left it: what a description has read
(entries of dictionaries, closure cells, attributes, items of lists) is kept with it and compared by identity, in Rust. Where a
value's changes cannot be seen that way (arrays, sets, gradients), the function is described in every call.
"""

from __future__ import annotations

import functools
import types
from typing import Any

from netcl._netcl.runtime import Readings, SameCall
from netcl._surroundings.code import Code, contains
from netcl._surroundings.modules import Table, raise_version
from netcl._surroundings.walk import Walk
from netcl._surroundings.watch import Watch
from netcl._surroundings.words import Key, Refused, difference

__all__ = ["Description", "Refused", "Surroundings", "Table", "Watch", "difference", "raise_version"]


class Surroundings:
    """What a function can read; what is known of its code is kept, and the last description for as long as it holds."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._codes: dict[int, Code] = {}
        # Names of attributes that occur in the code that was met so far; None: any.
        self._names: set[str] | None = set()
        self._known: dict[type, Any] = {}
        self._last: _Kept | None = None
        # Calls in a row that could not use the description before.
        self._vain = 0

    def describe(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Description, tuple[Any, ...]]:
        """The surroundings of a call, and the tensors among its arguments."""
        while True:
            walk = Walk(self._codes, self._names, self._known)
            parts = [walk.argument(value, i) for i, value in enumerate(args)]
            names = tuple(kwargs)
            if kwargs:
                parts += [walk.argument(value, name) for name, value in kwargs.items()]
            # An object among the arguments may be one of the surroundings, which are then described in terms of it.
            alone = not walk.seen
            kept = self._kept() if alone else None
            if kept is None:
                # What changes between any two calls is not worth being kept: tried less and less often.
                if alone and self._vain & (self._vain - 1) == 0:
                    walk.readings = []
                function = Key(walk(self._function))
                if walk.grown:
                    self._names, self._known, self._last = walk.names, {}, None
                    continue
                reads_grad = walk.names is None or "grad" in walk.names
                if reads_grad and any(getattr(t, "grad", None) is not None for t in walk.inputs):
                    raise Refused("it may read the gradient of an argument")
                kept = _Kept(function, walk)
                if alone:
                    self._last = kept
            parts.append(kept.key)
            return Description(("call", names, _labels(len(args), names), tuple(parts)), kept), tuple(walk.inputs)

    def _kept(self) -> _Kept | None:
        """The last description, if everything is as it was."""
        kept = self._last
        if kept is None:
            return None
        if kept.readings is not None and kept.readings.hold():
            self._vain = 0
            return kept
        self._vain += 1
        return None

    def knows(self, code: types.CodeType) -> bool:
        """Whether a piece of code was met, or is a part of one that was."""
        return id(code) in self._codes or any(contains(known.code, code) for known in self._codes.values())


@functools.lru_cache(maxsize=1000)
def _labels(count: int, names: tuple[str, ...]) -> tuple[str, ...]:
    return (*(f"argument {i}" for i in range(count)), *(f"argument {name}" for name in names), "")


class _Kept:
    """The description of a function, with everything that it refers to."""

    __slots__ = ("around", "held", "key", "readings")

    def __init__(self, key: Key, walk: Walk) -> None:
        self.key, self.around, self.held = key, walk.around, walk.held
        # A gradient is another object each time, and those of arguments are looked for in every call.
        reads_gradients = walk.names is None or "grad" in walk.names
        self.readings = None if walk.readings is None or reads_gradients else Readings(walk.readings)


class Description:
    """The surroundings of one call: a key that compares, and the tensors around."""

    __slots__ = ("_readings", "around", "held", "key")

    def __init__(self, key: Any, kept: _Kept) -> None:
        self.key = key
        #: Tensors, and tuples of them that modules keep.
        self.around: list[Any] = kept.around
        #: Objects that the key knows by their identity: whoever keeps the key keeps them.
        self.held: list[Any] = kept.held
        self._readings = kept.readings

    def recognise(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SameCall | None:
        """Recognises further calls like the one that was described, where that is possible without describing them."""
        return None if self._readings is None else self._readings.with_arguments(args, kwargs)

    def tensors(self) -> list[Any]:
        """The tensors around, one by one."""
        found: list[Any] = []
        for part in self.around:
            found.extend(part) if type(part) is tuple else found.append(part)
        return found

    def has_tensors_of(self, around: list[Any]) -> bool:
        """Whether the tensors around are these very ones."""
        own = self.around
        return own is around or (len(own) == len(around) and all([a is b for a, b in zip(own, around)]))
