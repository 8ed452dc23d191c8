"""The compiler: ``jit`` traces a function once for each kind of arguments, fuses what it did, and runs the result from then on.

    @ag.jit
    def chain(x, y):
        return ag.tanh(x * y + 1) * ag.sigmoid(x) + ag.relu(y)

    chain(x, y)                 # one kernel; one more for all gradients
    print(chain.explain(x, y))  # what fused, and what did not
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, overload

from netcl._netcl.autograd import Captures, JitCache, runs_op_by_op
from netcl._netcl.runtime import SameCall
from netcl._structure import put_together, replace, take_apart
from netcl._surroundings import Description, Refused, Surroundings, Watch, difference

__all__ = ["Compiled", "jit", "jit_compile"]

# Kinds of surroundings whose plans are kept; the one that was not used for the longest time goes first.
_MOST = 256
# Reasons for tracing again that are kept, and traces in a row after which one is told of them.
_REASONS, _PATIENCE = 100, 8
# A function may change what it reads a few times in a row: what is made at the first call, and kept.
_CHANGES = 3


class Compiled:
    """A function or module that is compiled when it is called. Made by :func:`jit`.

    Arguments may be tensors, plain values, modules, objects, and tuples, lists and dicts of such; results tensors and plain
    values in such structures. A plan is kept for every kind of call: structure, dtypes, shapes, strides and devices of tensors,
    what needs a gradient, and everything else that the function reads, wherever it finds it.
    """

    def __init__(self, function: Callable[..., Any], fast_math: bool = False) -> None:
        if not callable(function):
            raise TypeError(f"jit: a function or a module is needed, not {type(function).__name__}")
        functools.update_wrapper(self, function, updated=())
        self.function = function
        self.__wrapped__ = function
        self._name = getattr(function, "__qualname__", type(function).__qualname__)
        self._cache = JitCache(self._name, fast_math)
        self._surroundings = Surroundings(function)
        self._kinds: OrderedDict[Any, _Kind] = OrderedDict()
        # The last call, its description, its kind and the tensors around it, for calls that are like it.
        self._hot: tuple[SameCall, Description, _Kind, Captures] | None = None
        self._results: dict[int, Any] = {}
        self._lock = threading.Lock()
        self._reasons: list[str] = []
        self._misses = self._changes = 0
        #: Why the function runs as it is, if it does.
        self._refused: str | None = None

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._refused is not None or runs_op_by_op():
            return self.function(*args, **kwargs)
        hot, inputs = self._hot, None
        if hot is not None:
            same, found, kind, captures = hot
            inputs = same.inputs(args, kwargs)
        if inputs is None:
            try:
                found, inputs = self._surroundings.describe(args, kwargs)
            except Refused as refused:
                if refused.is_argument:
                    raise TypeError(f"jit: {refused}") from None
                self._refuse(str(refused))
                return self.function(*args, **kwargs)
            kind = self._kind(found)
            known, captures = found.recognise(args, kwargs), kind.captures(found)
            self._hot = None if known is None else (known, found, kind, captures)
        elif not captures.are_current():
            captures = kind.captures(found)
            self._hot = (same, found, kind, captures)
        call = _Call()
        call.function, call.args, call.kwargs = self.function, args, kwargs
        plan, leaves = self._cache.call(kind.statics, inputs, captures, call)
        if call.result is None:
            self._misses = self._changes = 0
            result = self._results[plan]
            if len(self._results) > _MOST:
                # The least recently used goes first, as it does among the plans: what a plan needs outlives it.
                self._results[plan] = self._results.pop(plan)
            return leaves[0] if result[0] == "tensor" else put_together(result, iter(leaves))
        if plan not in self._results:
            return self._traced(plan, call, found, leaves)
        return put_together(call.result, iter(leaves))

    def _traced(self, plan: int, call: _Call, found: Description, leaves: list[Any]) -> Any:
        """A call that was traced: looks whether the plan may be used again."""
        result = put_together(call.result, iter(leaves))
        self._results[plan] = call.result
        while len(self._results) > 2 * _MOST:
            self._results.pop(next(iter(self._results)), None)
        self._misses += 1
        strange = call.watch.unknown(self._surroundings) if call.watch is not None else None
        changed, left = None, False
        try:
            after, _ = self._surroundings.describe(call.args, call.kwargs)
            left = not after.has_tensors_of(found.around) and _identity(after) != _identity(found)
            if left or after.key != found.key:
                changed = f"it changes what it reads while it runs: {difference(found.key, after.key)}"
        except Refused as refused:
            strange = str(refused)
        if changed is not None:
            self._changes += 1
            self._kinds.pop(found.key, None)
            self._hot = None
        if strange is not None or self._changes >= _CHANGES:
            self._refuse(strange or changed or "")
        elif self._misses == _PATIENCE:
            why = self._reasons[-1] if self._reasons else "the tensors are of another kind each time"
            self._warn(f"was traced {self._misses} times in a row: {why}")
        return self._once_more(call) if left else result

    def _once_more(self, call: _Call) -> Any:
        """The function run op by op: a tensor that its trace has left somewhere has no values."""
        try:
            return self.function(*call.args, **call.kwargs)
        except Exception as error:
            raise RuntimeError(
                f"jit: {self._name} keeps a tensor that it has made while it was traced, which has no values; make it before "
                "the first call, or return it"
            ) from error

    def _kind(self, found: Description) -> _Kind:
        kind = self._kinds.get(found.key)
        if kind is not None:
            if len(self._kinds) == _MOST:
                self._kinds.move_to_end(found.key)
            return kind
        with self._lock:
            kind = self._kinds.get(found.key)
            if kind is None:
                if self._kinds:
                    self._reasons.append(difference(next(reversed(self._kinds)), found.key))
                    del self._reasons[:-_REASONS]
                kind = self._kinds[found.key] = _Kind(found)
                while len(self._kinds) > _MOST:
                    self._kinds.popitem(last=False)
            return kind

    def _refuse(self, why: str) -> None:
        self._refused = why
        self._warn(f"runs op by op, uncompiled: {why}")

    def _warn(self, what: str) -> None:
        warnings.warn(f"jit: {self._name} {what}", RuntimeWarning, stacklevel=4)

    def _describe(self, what: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        if self._refused is None:
            try:
                found, inputs = self._surroundings.describe(args, kwargs)
            except Refused as refused:
                if refused.is_argument:
                    raise TypeError(f"jit: {refused}") from None
                self._refused = str(refused)
            else:
                kind = self._kind(found)
                call = _Call()
                call.function, call.args, call.kwargs = self.function, args, kwargs
                return self._cache.describe(what, kind.statics, inputs, kind.captures(found), call)
        return f"runs as it is: {self._refused}\n" if what == "explain" else ""

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """What fused and what did not, one paragraph per kernel, for arguments like these."""
        return self._describe("explain", args, kwargs)

    def source(self, *args: Any, **kwargs: Any) -> str:
        """The OpenCL C that was written for arguments like these."""
        return self._describe("source", args, kwargs)

    def graph(self, *args: Any, style: str = "dot", **kwargs: Any) -> str:
        """The traced operations, boxed by kernel, as a drawing: ``style`` is ``"dot"`` or ``"mermaid"``."""
        return self._describe(style, args, kwargs)

    def counters(self) -> dict[str, int]:
        """How often the function was traced, how often a call found its plan, and how many plans there are."""
        return dict(zip(("traces", "hits", "plans"), self._cache.counters()))

    def recompiles(self) -> list[str]:
        """Why the function was traced again, the last hundred times: what it read, and how that had changed.

        Other shapes, dtypes or devices of tensors are not listed: ``counters()`` counts them.
        """
        return [*self._reasons, *([f"not compiled any more: {self._refused}"] if self._refused else [])]


def _identity(found: Description) -> bytes:
    return Captures(found.tensors()).identity()


class _Kind:
    """Calls that differ in their tensors only."""

    _numbers = iter(range(1 << 62))

    def __init__(self, found: Description) -> None:
        self.statics = next(_Kind._numbers).to_bytes(8, "little")
        self.held = found.held
        self._around, self._captures = found.around, Captures(found.tensors())

    def captures(self, found: Description) -> Captures:
        """The tensors around, looked at again only if they are others or have changed."""
        if not (self._captures.are_current() and found.has_tensors_of(self._around)):
            self._around, self._captures = found.around, Captures(found.tensors())
        return self._captures


class _Call:
    """The function with the arguments of one call, as the compiler runs it: on a list of tensors in place of theirs."""

    # Set by whoever makes it: `__init__` would take another 0.1 us of every call.
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    # Of the class for as long as the call has not run: most never do, and each attribute takes its time.
    result: Any = None
    watch: Watch | None = None

    def __call__(self, tensors: list[Any]) -> list[Any]:
        given = iter(tensors)
        args = [replace(value, given) for value in self.args]
        kwargs = {name: replace(value, given) for name, value in self.kwargs.items()}
        leaves: list[Any] = []
        self.result = take_apart(self._run(args, kwargs), leaves, "jit: the result")
        return leaves

    def _run(self, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if not runs_op_by_op():  # no trace, but a function that is not compiled
            return self.function(*args, **kwargs)
        self.watch = Watch()
        return self.watch.run(self.function, args, kwargs)


@overload
def jit(function: Callable[..., Any], *, fast_math: bool = False) -> Compiled: ...
@overload
def jit(function: None = None, *, fast_math: bool = False) -> Callable[[Callable[..., Any]], Compiled]: ...
def jit(function: Callable[..., Any] | None = None, *, fast_math: bool = False) -> Any:
    """Compiles a function of tensors, or a module, when it is called; also as a decorator.

    ``fast_math=True`` lets pointwise kernels on OpenCL devices trade exactness for speed. ``NETCL_JIT=0`` in the environment
    runs every function as it is.
    """
    if function is None:
        return functools.partial(Compiled, fast_math=fast_math)
    return Compiled(function, fast_math)


jit_compile = jit
