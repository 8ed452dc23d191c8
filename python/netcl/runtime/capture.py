"""Functions whose launches are recorded once and replayed, and launches that are kept as they run.

``netcl.runtime.capture`` is the function; everything else of this module is reachable through it as well.
"""

from __future__ import annotations

import functools
import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

from netcl._netcl.autograd import Captures
from netcl._netcl.runtime import Captured, SameCall
from netcl._structure import put_together, replace, take_apart
from netcl._surroundings import Description, Refused, Surroundings, Watch, difference
from netcl.runtime.kernel_capture import CapturedKernelLaunch, KernelCapture, capture_disabled, get_capture

__all__ = ["CapturedFunction", "CapturedKernelLaunch", "KernelCapture", "capture", "capture_disabled", "get_capture"]

# Recordings that are kept for as many surroundings; each holds the memory of a step.
_MOST = 16

P = ParamSpec("P")
R = TypeVar("R")


class _Variant:
    """A captured function in one kind of surroundings."""

    def __init__(self, function: Callable[..., Any], args: Any, kwargs: Any, found: Description) -> None:
        #: Whether the function has run since somebody looked.
        self.recorded = False
        self._made: tuple[Any, ...] = ()
        self._results: dict[int, tuple[Any, ...]] = {}
        self.watch = Watch()
        self.held, self.around, self.captures = found.held, found.around, Captures(found.tensors())

        def run(*tensors: Any) -> list[Any]:
            given, named = replace((args, kwargs), iter(tensors))
            found: list[Any] = []
            self.recorded = True
            self._made = take_apart(self.watch.run(function, given, named), found, "capture: the result")
            return found

        self.captured = Captured(run)

    def result(self, tensors: list[Any]) -> Any:
        """The tensors in the structure that the function gave when it was recorded."""
        if len(self._results) == 1 and self._results.get(1) is self._made:
            structure = self._made  # the only recording so far
        else:
            # The least recently used goes first, as it does among the recordings, of which there are fewer.
            current = self.captured.current
            structure = self._results[current] = self._results.pop(current, self._made)
            while len(self._results) > _MOST:
                del self._results[next(iter(self._results))]
        return put_together(structure, iter(tensors))

    def holds(self, found: Description) -> bool:
        """Whether the tensors around are those that were recorded, in memory and flags."""
        if self.captures.are_current() and found.has_tensors_of(self.around):
            return True
        now = Captures(found.tensors())
        if now.identity() != self.captures.identity():
            return False
        self.around, self.captures = found.around, now
        return True


class CapturedFunction(Generic[P, R]):
    """What ``capture`` makes of a function; call it like the function.

    Tensors among the arguments (also in lists, tuples and dicts) are the inputs. Everything else that the function reads, as an
    argument, in closures, globals, modules or objects, is part of what was recorded: where it changes, another program is
    recorded. The tensors that come back are overwritten by the next call.
    """

    def __init__(self, function: Callable[P, R]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._surroundings = Surroundings(function)
        self._variants: OrderedDict[Any, _Variant] = OrderedDict()
        self._last: _Variant | None = None
        # The last call, its description and its variant, for calls that are like it.
        self._hot: tuple[SameCall, Description, _Variant] | None = None
        self._forgotten = 0
        self._warned = False

    def _variant(self, args: Any, kwargs: Any) -> tuple[_Variant, Description, tuple[Any, ...]]:
        try:
            found, inputs = self._surroundings.describe(args, kwargs)
        except Refused as refused:
            name = getattr(self._function, "__qualname__", type(self._function).__qualname__)
            raise TypeError(f"capture: {name} cannot be recorded: {refused}; pass what changes as an argument") from None
        variant = self._variants.get(found.key)
        if variant is not None and not variant.holds(found):
            self._forget(found.key)
            variant = None
        if variant is None:
            variant = self._variants[found.key] = _Variant(self._function, args, kwargs, found)
            while len(self._variants) > _MOST:
                self._forget(next(iter(self._variants)))
        elif len(self._variants) == _MOST:
            self._variants.move_to_end(found.key)
        self._last = variant
        same = found.recognise(args, kwargs)
        self._hot = None if same is None else (same, found, variant)
        return variant, found, inputs

    def _forget(self, key: Any) -> None:
        self._hot = None
        self._forgotten += self._variants.pop(key).captured.recordings

    def _check(self, variant: _Variant, found: Description, args: Any, kwargs: Any) -> None:
        """After a recording: a function that changes what it reads is recorded in every call."""
        try:
            after, _ = self._surroundings.describe(args, kwargs)
        except Refused:
            return
        strange = variant.watch.unknown(self._surroundings)
        if after.key == found.key and variant.holds(after) and strange is None:
            return
        self._forget(found.key)
        if not self._warned:
            self._warned = True
            name = getattr(self._function, "__qualname__", type(self._function).__qualname__)
            warnings.warn(
                f"capture: {name} is recorded in every call: "
                f"{strange or 'it changes what it reads: ' + difference(found.key, after.key)}. Move that out of the function",
                RuntimeWarning,
                stacklevel=3,
            )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """One step: records where there is no recording for such inputs and surroundings, and replays."""
        hot, inputs = self._hot, None
        if hot is not None:
            same, found, variant = hot
            inputs = same.inputs(args, kwargs) if variant.captures.are_current() else None
        if inputs is None:
            variant, found, inputs = self._variant(args, kwargs)
        results = variant.captured(*inputs)
        if variant.recorded:
            variant.recorded = False
            self._check(variant, found, args, kwargs)
        result: R = variant.result(results)
        return result

    def verify(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """One step, made by the function and by a replay from the same state. Prints the verdict; raises where bits differ."""
        variant, _, inputs = self._variant(args, kwargs)
        result: R = variant.result(variant.captured.verify(*inputs))
        launches = (variant.captured.stats() or {}).get("launches")
        name = getattr(self, "__name__", "capture")
        print(f"{name}: the replay of {launches} launches has the bits of the function")
        return result

    def replay(self) -> R:
        """The step of the last call once more, with the same inputs."""
        if self._last is None:
            raise RuntimeError("replay: nothing has been recorded yet; call it with inputs first")
        result: R = self._last.result(self._last.captured.replay())
        return result

    def stats(self) -> dict[str, Any] | None:
        """Launches of a step, their names, and the bytes it takes with and without a plan; ``None`` before the first call."""
        return None if self._last is None else self._last.captured.stats()

    @property
    def recordings(self) -> int:
        """How often the function was recorded."""
        return self._forgotten + sum(variant.captured.recordings for variant in self._variants.values())

    def clear(self) -> None:
        """Forgets all programs and gives their memory back; the next call records."""
        for key in list(self._variants):
            self._forget(key)
        self._last = None


def capture(step_fn: Callable[P, R]) -> CapturedFunction[P, R]:
    """Makes a function of tensors replayable: ``step = capture(step_fn)``, or as a decorator.

    The function itself runs only while it is recorded: reading values there (``item()``, ``to_host()``) is an error, branches
    are taken once, and numbers are baked in until one of them changes, which records anew. Optimizers, schedules, averages of
    weights and the process-wide random generator move on at every replay.
    """
    if not callable(step_fn):
        raise TypeError(f"capture: a function is needed, not {type(step_fn).__name__}")
    return CapturedFunction(step_fn)


# The package's attribute `capture` is the function, and hides this module: `import netcl.runtime.capture as c` finds the
# function.
for _name in __all__:
    setattr(capture, _name, globals()[_name])
