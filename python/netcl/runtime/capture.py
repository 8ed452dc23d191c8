"""Functions whose launches are recorded once and replayed, and launches that are kept as they run.

``netcl.runtime.capture`` is the function; everything else of this module is reachable through it as well.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any, Generic, ParamSpec, TypeVar

from netcl._netcl import IndexTensor, Tensor
from netcl._netcl.runtime import Captured
from netcl.runtime.kernel_capture import CapturedKernelLaunch, KernelCapture, capture_disabled, get_capture

__all__ = ["CapturedFunction", "CapturedKernelLaunch", "KernelCapture", "capture", "capture_disabled", "get_capture"]

P = ParamSpec("P")
R = TypeVar("R")


class _Leaf:
    """The place of a tensor in a structure."""

    def __repr__(self) -> str:
        return "<tensor>"


_LEAF = _Leaf()


def _take_apart(value: Any, tensors: list[Any]) -> Any:
    """The structure of a value, hashable; its tensors go to the list."""
    if isinstance(value, (Tensor, IndexTensor)):
        tensors.append(value)
        return _LEAF
    if isinstance(value, (list, tuple)):
        return (type(value), tuple(_take_apart(item, tensors) for item in value))
    if isinstance(value, dict):
        return (dict, tuple((key, _take_apart(item, tensors)) for key, item in value.items()))
    return (None, value)


def _put_together(structure: Any, tensors: Any) -> Any:
    """The value again, with the tensors that an iterator gives."""
    if structure is _LEAF:
        return next(tensors)
    kind, content = structure
    if kind is None:
        return content
    if kind is dict:
        return {key: _put_together(item, tensors) for key, item in content}
    items = [_put_together(item, tensors) for item in content]
    return kind(*items) if hasattr(kind, "_fields") else kind(items)


class _Variant:
    """A captured function for one structure of its arguments."""

    def __init__(self, function: Callable[..., Any], structure: Any) -> None:
        self.results: Any = None

        def run(*tensors: Any) -> list[Any]:
            args, kwargs = _put_together(structure, iter(tensors))
            found: list[Any] = []
            self.results = _take_apart(function(*args, **kwargs), found)
            return found

        self.captured = Captured(run)


class CapturedFunction(Generic[P, R]):
    """What ``capture`` makes of a function; call it like the function.

    Tensors among the arguments (also in lists, tuples and dicts) are the inputs. Everything else is part of what was recorded:
    other values record another program, and must be hashable. The tensors that come back are overwritten by the next call.
    """

    def __init__(self, function: Callable[P, R]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._variants: dict[Hashable, _Variant] = {}
        self._last: _Variant | None = None

    def _variant(self, args: Any, kwargs: Any) -> tuple[_Variant, list[Any]]:
        tensors: list[Any] = []
        structure = _take_apart((args, kwargs), tensors)
        try:
            variant = self._variants.get(structure)
        except TypeError as error:
            text = "arguments of a captured function are tensors, or hashable: others cannot be told apart"
            raise TypeError(text) from error
        if variant is None:
            variant = self._variants[structure] = _Variant(self._function, structure)
        self._last = variant
        return variant, tensors

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """One step: records where there is no recording for such inputs, and replays."""
        variant, tensors = self._variant(args, kwargs)
        results = variant.captured(*tensors)
        return _put_together(variant.results, iter(results))

    def verify(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """One step, made by the function and by a replay from the same state; raises where a bit differs."""
        variant, tensors = self._variant(args, kwargs)
        results = variant.captured.verify(*tensors)
        return _put_together(variant.results, iter(results))

    def replay(self) -> R:
        """The step of the last call once more, with the same inputs."""
        if self._last is None:
            raise RuntimeError("replay: nothing has been recorded yet; call it with inputs first")
        return _put_together(self._last.results, iter(self._last.captured.replay()))

    def stats(self) -> dict[str, Any] | None:
        """Launches of a step, their names, and the bytes it takes with and without a plan; ``None`` before the first call."""
        return None if self._last is None else self._last.captured.stats()

    @property
    def recordings(self) -> int:
        """How often the function was recorded."""
        return sum(variant.captured.recordings for variant in self._variants.values())

    def clear(self) -> None:
        """Forgets all programs and gives their memory back; the next call records."""
        self._variants.clear()
        self._last = None


def capture(step_fn: Callable[P, R]) -> CapturedFunction[P, R]:
    """Makes a function of tensors replayable: ``step = capture(step_fn)``, or as a decorator.

    The function itself runs only while it is recorded: reading values there (``item()``, ``to_host()``) is an error, branches
    are taken once, and numbers are baked in. Optimizers, schedules, averages of weights and the process-wide random generator
    move on at every replay.
    """
    return CapturedFunction(step_fn)


# The package's attribute `capture` is the function, which hides this module: `import netcl.runtime.capture as c` finds the function.
for _name in __all__:
    setattr(capture, _name, globals()[_name])
