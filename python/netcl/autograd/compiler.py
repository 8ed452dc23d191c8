"""The compiler: ``jit`` traces a function once for each kind of arguments, fuses what it did, and runs the result from then on.

    @ag.jit
    def chain(x, y):
        return ag.tanh(x * y + 1) * ag.sigmoid(x) + ag.relu(y)

    chain(x, y)                 # one kernel; one more for all gradients
    print(chain.explain(x, y))  # what fused, and what did not
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, overload

from netcl._netcl import IndexTensor, Tensor
from netcl._netcl.autograd import JitCache

__all__ = ["Compiled", "jit", "jit_compile"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None), slice, range, type(Ellipsis))


def _is_plain(value: Any) -> bool:
    """Whether a value is what its text says."""
    # Nothing is NumPy's before somebody has imported it, and netcl does not for this.
    numpy = sys.modules.get("numpy")
    return isinstance(value, _PLAIN) or (numpy is not None and isinstance(value, (numpy.generic, numpy.dtype)))


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _is_module(value: Any) -> bool:
    return hasattr(value, "named_modules") and hasattr(value, "parameters")


def _flatten(value: Any, leaves: list[Any], where: str) -> tuple[Any, ...]:
    """A description of ``value`` in which tensors are numbered; the tensors go to ``leaves``."""
    if isinstance(value, (Tensor, IndexTensor)):
        leaves.append(value)
        return ("tensor", type(value) is IndexTensor)
    if isinstance(value, tuple):
        parts = tuple(_flatten(part, leaves, f"{where}[{i}]") for i, part in enumerate(value))
        return ("tuple", type(value) if hasattr(value, "_fields") else None, parts)
    if isinstance(value, list):
        return ("list", None, tuple(_flatten(part, leaves, f"{where}[{i}]") for i, part in enumerate(value)))
    if isinstance(value, dict):
        keys = tuple(value)
        return ("dict", keys, tuple(_flatten(part, leaves, f"{where}[{key!r}]") for key, part in value.items()))
    return ("value", value, where)


def _unflatten(spec: tuple[Any, ...], leaves: Iterator[Any]) -> Any:
    kind = spec[0]
    if kind == "tensor":
        return next(leaves)
    if kind == "value":
        return spec[1]
    parts = [_unflatten(part, leaves) for part in spec[2]]
    if kind == "tuple":
        return spec[1](*parts) if spec[1] is not None else tuple(parts)
    return parts if kind == "list" else dict(zip(spec[1], parts))


def _key(spec: tuple[Any, ...]) -> Any:
    """The description as values that compare: what a plan depends on beside its tensors."""
    kind = spec[0]
    if kind == "tensor":
        return spec
    if kind == "value":
        return _value_key(spec[1], spec[2])
    name = spec[1].__qualname__ if isinstance(spec[1], type) else spec[1]
    return (kind, name, tuple(_key(part) for part in spec[2]))


def _value_key(value: Any, where: str) -> Any:
    if _is_plain(value):
        return (type(value).__name__, repr(value))
    if _is_array(value):
        return ("ndarray", value.shape, value.dtype.str, value.tobytes())
    if _is_module(value):
        return _module_key(value)
    if isinstance(value, type) or callable(value):
        return ("named", getattr(value, "__module__", ""), getattr(value, "__qualname__", repr(type(value))))
    if isinstance(value, (set, frozenset)):
        return (type(value).__name__, sorted(map(repr, value)))
    raise TypeError(
        f"jit: {where} is a {type(value).__qualname__}, which is neither a tensor nor a plain value, so that a change of it "
        "could not be noticed; pass its tensors and numbers instead"
    )


def _module_key(module: Any) -> Any:
    return ("module", tuple((name, type(part).__qualname__, part.training) for name, part in module.named_modules()))


class _Surroundings:
    """What a function uses beside its arguments, as it is at this moment: tensors, and values that choose its path."""

    def __init__(self, function: Any) -> None:
        self.tensors: list[Any] = []
        self.values: list[Any] = []
        self._seen: set[int] = set()
        self._visit(function, 0)

    def _visit(self, value: Any, depth: int) -> None:
        if _is_plain(value):
            self.values.append((type(value).__name__, repr(value)))
            return
        if id(value) in self._seen or depth > 6:
            return
        self._seen.add(id(value))
        if isinstance(value, (Tensor, IndexTensor)):
            self.tensors.append(value)
        elif _is_module(value):
            self.values.append(_module_key(value))
            for tensor in [*value.parameters(), *value.buffers()]:
                self._visit(tensor, depth + 1)
        elif isinstance(value, types.MethodType):
            self._visit(value.__self__, depth + 1)
            self._visit(value.__func__, depth + 1)
        elif isinstance(value, types.FunctionType):
            self._visit_function(value, depth)
        elif isinstance(value, Compiled):
            self._visit(value.function, depth + 1)
        elif isinstance(value, functools.partial):
            for part in (value.func, *value.args, *value.keywords.values()):
                self._visit(part, depth + 1)
        elif isinstance(value, (list, tuple)):
            for part in value:
                self._visit(part, depth + 1)
        elif isinstance(value, dict):
            for part in value.values():
                self._visit(part, depth + 1)

    def _visit_function(self, function: types.FunctionType, depth: int) -> None:
        if function.__module__ is not None and function.__module__.partition(".")[0] == "netcl":
            return  # the library's own functions hold nothing of the user's
        for cell in function.__closure__ or ():
            try:
                self._visit(cell.cell_contents, depth + 1)
            except ValueError:  # a cell that is not filled yet
                continue
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._visit(default, depth + 1)
        for name in function.__code__.co_names:
            if name in function.__globals__ and not isinstance(function.__globals__[name], types.ModuleType):
                self._visit(function.__globals__[name], depth + 1)


class Compiled:
    """A function or module that is compiled when it is called. Made by :func:`jit`.

    Arguments may be tensors, plain values, and tuples, lists and dicts of such; so may results. A plan is kept for every kind
    of arguments: their structure, dtypes, shapes, strides, devices, what needs a gradient, and plain values.
    """

    def __init__(self, function: Callable[..., Any], fast_math: bool = False) -> None:
        functools.update_wrapper(self, function, updated=())
        self.function = function
        self._cache = JitCache(getattr(function, "__qualname__", type(function).__name__), fast_math)
        self._results: dict[bytes, tuple[Any, ...]] = {}

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def _prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        inputs: list[Any] = []
        spec = _flatten((args, kwargs), inputs, "the argument")
        around = _Surroundings(self.function)
        arguments = _key(spec)
        for value in _modules_in(spec):
            around._visit(value, 0)
        statics = repr((arguments, around.values)).encode()
        key = self._cache.key(statics, inputs, around.tensors)

        def body(tensors: list[Any]) -> list[Any]:
            given, named = _unflatten(spec, iter(tensors))
            leaves: list[Any] = []
            result = _flatten(self.function(*given, **named), leaves, "the result")
            self._results[key] = result
            return leaves

        return key, statics, inputs, around.tensors, body

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        key, *call = self._prepare(args, kwargs)
        leaves = self._cache.call(*call)
        return _unflatten(self._results[key], iter(leaves))

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """What fused and what did not, one paragraph per kernel, for arguments like these."""
        return self._cache.describe("explain", *self._prepare(args, kwargs)[1:])

    def source(self, *args: Any, **kwargs: Any) -> str:
        """The OpenCL C that was written for arguments like these."""
        return self._cache.describe("source", *self._prepare(args, kwargs)[1:])

    def graph(self, *args: Any, style: str = "dot", **kwargs: Any) -> str:
        """The traced operations, boxed by kernel, as a drawing: ``style`` is ``"dot"`` or ``"mermaid"``."""
        return self._cache.describe(style, *self._prepare(args, kwargs)[1:])

    def counters(self) -> dict[str, int]:
        """How often the function was traced, how often a call found its plan, and how many plans there are."""
        return dict(zip(("traces", "hits", "plans"), self._cache.counters()))


def _modules_in(spec: tuple[Any, ...]) -> Iterator[Any]:
    if spec[0] == "value":
        if _is_module(spec[1]):
            yield spec[1]
    elif spec[0] != "tensor":
        for part in spec[2]:
            yield from _modules_in(part)


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
