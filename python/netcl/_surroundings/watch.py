"""What a function calls while it is traced: sources of something else each time, and code that nobody has met."""

from __future__ import annotations

import os
import sys
import time
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from netcl._surroundings.code import is_library

if TYPE_CHECKING:
    from netcl._surroundings import Surroundings

__all__ = ["SOURCES", "Watch"]

# Objects that give something else each time.
SOURCES = frozenset(
    ["random.Random", "random.SystemRandom", "numpy.random._generator.Generator", "numpy.random.mtrand.RandomState"]
)

# Functions of Python's library that give something else each time: clocks, files, the environment, random numbers.
_SOURCE_CODES = frozenset({type(os.environ).__getitem__.__code__})
_SOURCE_FUNCTIONS = frozenset(
    {getattr(time, name) for name in dir(time) if name.endswith(("time", "_ns", "counter"))} | {open, input, os.urandom}
)


def _numpy_state() -> Any:
    """Where NumPy's process-wide generator stands; calls of it cannot be seen."""
    numpy = sys.modules.get("numpy.random")
    if numpy is None:
        return None
    name, words, place, *rest = numpy.get_state()
    return (name, words.tobytes(), place, *rest)


def _is_source(function: Any) -> bool:
    owner = getattr(function, "__self__", None)
    if f"{type(owner).__module__}.{type(owner).__qualname__}" in SOURCES or type(owner).__module__ == "_random":
        return True
    if isinstance(owner, type):
        return getattr(function, "__name__", "") in ("now", "today", "utcnow")
    return (owner is None or isinstance(owner, types.ModuleType)) and function in _SOURCE_FUNCTIONS


class Watch:
    """Sees what a function calls while it runs, for :meth:`unknown`."""

    __slots__ = ("_codes", "_sources")

    def __init__(self) -> None:
        self._codes: set[Any] = set()
        self._sources: dict[str, None] = {}

    def run(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The function's result."""
        before, drawn = sys.getprofile(), _numpy_state()
        sys.setprofile(self._see)
        try:
            return function(*args, **kwargs)
        finally:
            sys.setprofile(before)
            if _numpy_state() != drawn:
                self._sources["numpy.random"] = None

    def _see(self, frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            code = frame.f_code
            if code in _SOURCE_CODES:
                self._sources[f"{frame.f_globals.get('__name__')}.{code.co_name}"] = None
            elif not is_library(frame.f_globals.get("__name__")):
                self._codes.add(code)
        elif event == "c_call" and _is_source(argument):
            self._sources[getattr(argument, "__qualname__", repr(argument))] = None

    def unknown(self, surroundings: Surroundings) -> str | None:
        """What the function calls that may give something else the next time, in words."""
        names = [*self._sources, *sorted({code.co_name for code in self._codes if not surroundings.knows(code)})]
        return f"it calls {', '.join(names)}, which may give something else each time" if names else None
