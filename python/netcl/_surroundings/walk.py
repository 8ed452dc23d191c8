"""One look at the surroundings: how each kind of value is described."""

from __future__ import annotations

import builtins
import collections
import contextvars
import enum
import functools
import gc
import math
import operator
import sys
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from netcl._netcl import IndexTensor, Tensor
from netcl._structure import is_sequence
from netcl._surroundings import modules
from netcl._surroundings.code import Code, is_library, is_ours
from netcl._surroundings.modules import BOOKKEEPING, Facts, is_fixed
from netcl._surroundings.watch import SOURCES
from netcl._surroundings.words import PLAIN, Refused

__all__ = ["Walk"]

# A walk this long is no function any more but a library: it runs as it is.
_MOST = 20_000
_LIBRARY_MODULES: set[int] = set()
_ABSENT = ("absent",)
_CONTAINERS = (list, tuple, set, frozenset, dict, collections.deque)
# Values of their own, which never change.
_CONSTANTS = (
    types.BuiltinFunctionType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.CodeType,
    enum.Enum,
)
_CONSTANT_NAMES = frozenset(
    "decimal.Decimal fractions.Fraction datetime.date datetime.datetime datetime.timedelta uuid.UUID re.Pattern "
    "pathlib.PosixPath pathlib.WindowsPath pathlib.PurePosixPath pathlib._local.PosixPath numpy.ufunc "
    "_collections._tuplegetter logging.Logger logging.RootLogger _thread.lock _thread.RLock _io.TextIOWrapper "
    "typing.TypeVar types.GenericAlias".split()
)


# Methods that Python calls without naming them.
_OPERATORS = frozenset(
    [f"__{name}__" for name in "call len bool iter next getitem contains getattr hash eq ne lt le gt ge neg pos abs".split()]
    + [f"__{name}__" for name in "invert float int index enter exit get str repr format missing".split()]
    + [f"__{at}{name}__" for at in ("", "r", "i") for name in "add sub mul truediv floordiv mod pow matmul and or xor".split()]
)

_CONSTRUCTORS = _OPERATORS | {"__init__", "__new__", "__post_init__"}


class Walk:
    """One look at the surroundings."""

    __slots__ = ("alive", "around", "codes", "grown", "held", "inputs", "known", "names", "readings", "seen")

    def __init__(self, codes: dict[int, Code], names: set[str] | None, known: dict[type, Any] | None = None) -> None:
        self.codes, self.names, self.grown = codes, names, False
        # Names of a class's settings that count, for as long as no other names do.
        self.known = {} if known is None else known
        self.inputs: list[Any] = []
        self.around: list[Any] = []
        self.held: list[Any] = []
        self.alive: list[Any] = []
        self.seen: dict[int, int] = {}
        # Everything mutable that was read, for `Readings`; None: nobody wants it, or something that is not compared there
        # was read.
        self.readings: list[tuple[Any, ...]] | None = None

    # ---- arguments -------------------------------------------------------------------------------------------------

    def argument(self, value: Any, label: Any) -> Any:
        """An argument's part of the key: its tensors are inputs, everything else is described as it is."""
        kind = type(value)
        if kind is Tensor:
            self.inputs.append(value)
            return "tensor"
        if kind in PLAIN or kind is float:
            return self(value)
        try:
            return self._structure(value, kind)
        except Refused as refused:
            refused.where.append(f"argument {label}")
            refused.is_argument = refused.opaque
            raise

    def _structure(self, value: Any, kind: type) -> Any:
        if isinstance(value, (Tensor, IndexTensor)):
            self.inputs.append(value)
            return kind
        if is_sequence(value):
            return (kind, tuple([self._structure(part, type(part)) for part in value]))
        if kind is dict:
            return (kind, tuple([(self(name), self._structure(part, type(part))) for name, part in value.items()]))
        return self(value)

    # ---- values ----------------------------------------------------------------------------------------------------

    def __call__(self, value: Any) -> Any:
        kind = type(value)
        if kind in PLAIN:
            return (kind, value)
        if kind is float:
            # 0.0 and -0.0 are equal, and NaN is not even equal to itself.
            return (kind, value if value == value else "nan", math.copysign(1.0, value))
        mark = id(value)
        if mark in self.seen:
            return ("again", self.seen[mark])
        self.seen[mark] = len(self.seen)
        # What was seen stays alive for as long as its number counts.
        self.alive.append(value)
        if len(self.alive) > _MOST:
            raise Refused("it reaches more objects than can be looked at in every call")
        describe = _HOW.get(kind)
        if describe is None:
            describe = _HOW[kind] = _how(kind, value)
        if self.readings is not None and describe not in _COMPARED:
            self.readings = None
        return describe(self, value)

    def _read(self, *reading: Any) -> None:
        """Notes what was read, and from where."""
        if self.readings is not None:
            self.readings.append(reading)

    def _read_table(self, table: Any, keys: tuple[Any, ...], values: dict[Any, Any]) -> None:
        """Notes the keys of a dictionary, and the values of those that count."""
        if type(table) is types.MappingProxyType:
            # The dictionary of a class is only seen through a proxy, which refers to nothing else.
            table = gc.get_referents(table)[0]
        if isinstance(table, dict):
            self._read("table", table, keys, values)
        else:
            self.readings = None

    def _items(self, kind: str, tag: Any, labels: tuple[Any, ...], values: Iterable[Any]) -> Any:
        """A node of the key: ``labels`` say in words what the values are."""
        found = []
        for value in values:
            try:
                found.append(self(value))
            except Refused as refused:
                refused.where.append(labels[len(found)])
                raise
        return (kind, tag, labels, tuple(found))

    def same(self, value: Any) -> Any:
        self.held.append(value)
        return ("same", id(value))

    def tensor(self, value: Any) -> Any:
        self.around.append(value)
        if self.names is not None and "grad" not in self.names:
            return "tensor"
        return self._items("tensor", None, (".grad",), (getattr(value, "grad", None),))

    def sequence(self, value: Any) -> Any:
        kind = type(value)
        parts = tuple(value)
        if kind is list:
            self._read("items", value, parts)
        elif kind is not tuple:
            self.readings = None
        labels = tuple([f"[{i}]" for i in range(len(parts))])
        return self._items("sequence", id(kind), labels, parts)

    def mapping(self, value: Any) -> Any:
        parts = dict(value)
        if type(value) is dict:
            self._read("table", value, tuple(parts), parts)
        else:
            self.readings = None
        keys = tuple([self(key) for key in parts])
        labels = tuple([f"[{key!r}]" for key in parts])
        return (keys, self._items("mapping", id(type(value)), labels, parts.values()))

    def unordered(self, value: Any) -> Any:
        if type(value) is not frozenset:
            self.readings = None
        return ("set", id(type(value)), frozenset([self(part) for part in value]))

    def array(self, value: Any) -> Any:
        if value.dtype.hasobject:
            raise Refused("an array of objects, whose changes cannot be seen", opaque=True)
        return ("array", value.shape, value.dtype.str, value.tobytes())

    def bytes_of(self, value: Any) -> Any:
        return ("bytes", id(type(value)), bytes(value))

    def number(self, value: Any) -> Any:
        if value.dtype.kind not in "biufc":  # records can be written to
            self.readings = None
        return ("number", id(type(value)), value.dtype.str, value.tobytes())

    def slice(self, value: Any) -> Any:
        return (slice, self(value.start), self(value.stop), self(value.step))

    def equal(self, value: Any) -> Any:
        return (type(value), value)

    # ---- functions -------------------------------------------------------------------------------------------------

    def _new_code(self, code: types.CodeType, home: Any) -> Code:
        found = self.codes[id(code)] = Code(code, is_library(home))
        self.grown = True
        self._may_read(found.attributes)
        return found

    def _may_read(self, names: set[str] | None) -> None:
        """Attributes of these names count from now on; None: all."""
        if self.names is not None and (names is None or not names <= self.names):
            self.names = None if names is None else self.names | names
            self.grown = True

    def function(self, value: types.FunctionType) -> Any:
        around, made = value.__globals__, value.__code__
        code = self.codes.get(id(made)) or self._new_code(made, around.get("__name__"))
        if code.library:
            return self.same(value)
        defaults, named, own = value.__defaults__, value.__kwdefaults__, value.__dict__
        for name, part in (("__code__", made), ("__defaults__", defaults), ("__kwdefaults__", named), ("__dict__", own)):
            self._read("attribute", value, name, part)
        found = [self._entry(around, name, _ABSENT) for name in code.globals]
        labels = code.labels
        if code.imported:
            found += [self._entry(sys.modules, name, None) for name in code.imported]
        if value.__closure__ is not None:
            labels += made.co_freevars
            for cell in value.__closure__:
                try:
                    found.append(cell.cell_contents)
                    self._read("attribute", cell, "cell_contents", found[-1])
                except ValueError:  # a cell that is not filled yet
                    found.append(_ABSENT)
                    self.readings = None
        if defaults:
            labels += tuple([f"default {i}" for i in range(len(defaults))])
            found += defaults
        if named:
            parts = dict(named)
            self._read("table", named, tuple(parts), parts)
            labels += tuple([f"default {name}" for name in parts])
            found += parts.values()
        more, values = self._named(own)
        return self._items("function", id(made), labels + more, found + values)

    def _entry(self, table: dict[str, Any], name: str, absent: Any) -> Any:
        """An entry of a dictionary that may not be there."""
        found = table.get(name, _ABSENT)
        if found is _ABSENT:
            self._read("missing", table, name)
            return absent
        self._read("entry", table, name, found)
        return found

    def method(self, value: types.MethodType) -> Any:
        return self._items("method", None, ("self", "the method"), (value.__self__, value.__func__))

    def builtin(self, value: Any) -> Any:
        owner = getattr(value, "__self__", None)
        if owner is None or isinstance(owner, (types.ModuleType, type)):
            return self.same(value)
        return self._items("method", value.__name__, ("self",), (owner,))

    def partial(self, value: functools.partial[Any]) -> Any:
        labels = ("the function", "arguments", "keywords")
        return self._items("partial", None, labels, self._attributes(value, "func", "args", "keywords"))

    def _attributes(self, value: Any, *names: str) -> list[Any]:
        found = [getattr(value, name) for name in names]
        for name, part in zip(names, found):
            self._read("attribute", value, name, part)
        return found

    def compiled(self, value: Any) -> Any:
        return self._items("compiled", None, ("the function",), self._attributes(value, "__wrapped__"))

    def getter(self, value: Any) -> Any:
        """One of ``operator``'s functions: what it was made with; names of attributes among them."""
        made = value.__reduce__()[1]
        self._may_read({part for name in made if isinstance(name, str) for part in name.split(".")})
        return self._items("getter", id(type(value)), tuple(["an argument"] * len(made)), made)

    def cached(self, value: functools.cached_property[Any]) -> Any:
        return self._items("property", None, ("get",), self._attributes(value, "func"))

    def reference(self, value: Any) -> Any:
        return self._items("reference", None, ("()",), (value(),))

    def variable(self, value: contextvars.ContextVar[Any]) -> Any:
        return self._items("variable", value.name, (value.name,), (value.get(_ABSENT),))

    # ---- classes, objects, modules ---------------------------------------------------------------------------------

    def _named(
        self, table: Any, everything: bool = False, also: frozenset[str] = frozenset()
    ) -> tuple[tuple[str, ...], list[Any]]:
        """Entries of a table of attributes whose names occur in the code."""
        names, keys = self.names, tuple(table)
        if names is None or everything:
            wanted = [name for name in keys if type(name) is str and name not in BOOKKEEPING]
        else:
            wanted = [name for name in keys if name in names or name in also]
        found = [table[name] for name in wanted]
        if self.readings is not None:
            self._read_table(table, keys, dict(zip(wanted, found)))
        return tuple([f".{name}" for name in wanted]), found

    def pymodule(self, value: types.ModuleType) -> Any:
        self.held.append(value)
        if id(value) in _LIBRARY_MODULES:
            return ("same", id(value))
        if is_library(value.__name__) and sys.modules.get(value.__name__) is value:
            _LIBRARY_MODULES.add(id(value))  # it stays: nobody unloads Python's own
            return ("same", id(value))
        labels, found = self._named(vars(value))
        return self._items("pymodule", id(value), labels, found)

    def type(self, value: builtins.type) -> Any:
        """A class of a library is the same each time; one of the user's is looked into."""
        return self.same(value) if is_library(value.__module__) else self._class(value, _CONSTRUCTORS)

    def _class(self, value: builtins.type, also: frozenset[str]) -> Any:
        """What a class of the user's defines, in all of its bases; ``also`` are names that occur in no code."""
        labels: tuple[str, ...] = ()
        found: list[Any] = []
        for base in self._attributes(value, "__mro__")[0]:
            if is_library(base.__module__):
                continue
            # What netcl calls by itself (forward, backward, hooks) occurs in no code of the user's.
            own, more = self._named(base.__dict__, everything=any(is_ours(parent) for parent in base.__mro__), also=also)
            labels, found = labels + own, found + more
        self.held.append(value)
        return self._items("class", id(value), labels, found)

    def wrapped(self, value: Any) -> Any:
        return self._items("wrapped", id(type(value)), ("the function",), (value.__func__,))

    def property(self, value: property) -> Any:
        return self._items("property", None, ("get", "set"), (value.fget, value.fset))

    def object(self, value: Any) -> Any:
        kind = type(value)
        self._read("kind", value, kind)
        labels: tuple[str, ...] = ()
        found: list[Any] = []
        table = getattr(value, "__dict__", None)
        if table is not None:
            self._read("attribute", value, "__dict__", table)
            labels, found = self._named(table)
        for base in kind.__mro__:
            slots = base.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if name in ("__dict__", "__weakref__") or not (self.names is None or name in self.names):
                    continue
                labels += (f".{name}",)
                found.append(getattr(value, name, _ABSENT))
                self.readings = None
        if isinstance(value, _CONTAINERS):
            self.readings = None
            labels += ("its contents",)
            found.append(dict(value) if isinstance(value, dict) else list(value))
        # Once for all objects of the class. Its constructor has run already.
        mark = -id(kind)
        if mark in self.seen:
            own: Any = ("again", self.seen[mark])
        else:
            self.seen[mark] = len(self.seen)
            try:
                own = self._class(kind, _OPERATORS)
            except Refused as refused:
                refused.where.append("its class")
                raise
        return (own, self._items("object", None, labels, found))

    def module(self, value: Any) -> Any:
        facts = value.__dict__.get("_facts")
        if facts is None or not facts.hold(value):
            facts = Facts(value)
            object.__setattr__(value, "_facts", facts)
        self.held.append(facts.kinds)
        # Facts hold for as long as no module anywhere has changed; whether one that has is a part of this one is looked up
        # then.
        self._read("entry", vars(modules), "_changes", facts.changes)
        labels, found, names = facts.labels, facts.live, self.names
        if facts.tensors:
            self.around.append(facts.tensors)
            if names is None or "grad" in names:
                grads = [getattr(tensor, "grad", None) for tensor in facts.tensors]
                labels, found = (*labels, "a parameter.grad"), [*found, grads]
        if not found:
            return facts.key
        if names is not None:
            kept = [i for i, name in enumerate(facts.names) if name is None or name in names]
            kept += range(len(facts.names), len(found))
            labels, found = tuple([labels[i] for i in kept]), [found[i] for i in kept]
        return (facts.key, self._items("module", None, labels, found))

    def ours(self, value: Any) -> Any:
        """An object of netcl's: the same one, with the settings that the code names (``opt.lr``)."""
        self.held.append(value)
        kind: Any = type(value)
        names = self.known.get(kind)
        if names is None:
            names = [name for name in _settings(kind) if self.names is None or name in self.names]
            self.known[kind] = names
        if not names:
            return ("same", id(value))
        labels, found = [], []
        for name in names:
            try:
                setting = getattr(value, name)
            except Exception:
                self.readings = None
                continue
            if is_fixed(setting):
                self._read("attribute", value, name, setting)
                labels.append(f".{name}")
                found.append(setting)
            else:
                self.readings = None
        return self._items("ours", id(value), tuple(labels), found)

    def derived(self, value: Any) -> Any:
        """A number or text of a class of its own."""
        base = next(kind for kind in (int, float, complex, str, bytes) if isinstance(value, kind))
        return (self(base(value)) if base is not str else (str, str.__str__(value)), self.object(value))

    def refuse(self, value: Any) -> Any:
        raise Refused(f"a {type(value).__qualname__}, whose changes cannot be seen", opaque=True)


def _how(kind: type, value: Any) -> Callable[[Walk, Any], Any]:
    """How values of a type are described."""
    from netcl.autograd.compiler import Compiled
    from netcl.nn.module import Module
    from netcl.runtime.capture import CapturedFunction

    if issubclass(kind, (Tensor, IndexTensor)):
        return Walk.tensor
    if issubclass(kind, Module):
        return Walk.module
    if issubclass(kind, (Compiled, CapturedFunction)):
        return Walk.compiled
    if issubclass(kind, type):
        return Walk.type
    for known, describe in _KNOWN:
        if kind is known or (issubclass(kind, known) and known in _SUBCLASSED):
            return describe
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        if kind is numpy.ndarray:
            return Walk.array
        if issubclass(kind, numpy.generic):
            return Walk.number
        if issubclass(kind, numpy.dtype):
            return Walk.equal
    if issubclass(kind, _CONSTANTS):
        return Walk.same
    if is_ours(kind):
        return Walk.ours
    if issubclass(kind, (int, float, complex, str, bytes)):
        return Walk.derived
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name in _CONSTANT_NAMES:
        return Walk.equal if kind.__hash__ is not object.__hash__ else Walk.same
    if hasattr(kind, "__next__") or name in SOURCES:
        return Walk.refuse
    if issubclass(kind, _CONTAINERS) or _is_python(kind):
        return Walk.object
    return Walk.refuse


@functools.lru_cache(maxsize=1000)
def _settings(kind: type) -> tuple[str, ...]:
    """Names of the attributes of a class that are no methods."""
    kinds = (property, types.GetSetDescriptorType, types.MemberDescriptorType)
    return tuple([name for name in dir(kind) if name[0] != "_" and isinstance(getattr(kind, name, None), kinds)])


def _is_python(kind: type) -> bool:
    """Whether all state of a class's objects is in attributes: no base was written in C."""
    written = (types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType)
    for base in kind.__mro__:
        if base in (object, int, float, complex, str, bytes, *_CONTAINERS):
            continue
        for name, value in base.__dict__.items():
            if isinstance(value, written) and value.__objclass__ is base and name not in ("__dict__", "__weakref__"):
                return False
            if name == "__new__" and isinstance(value, types.BuiltinFunctionType):
                return False
    return kind is not object


_KNOWN: list[tuple[type, Callable[[Walk, Any], Any]]] = [
    (types.FunctionType, Walk.function),
    (types.MethodType, Walk.method),
    (types.BuiltinMethodType, Walk.builtin),
    (functools.partial, Walk.partial),
    (functools._lru_cache_wrapper, Walk.compiled),
    (operator.itemgetter, Walk.getter),
    (operator.attrgetter, Walk.getter),
    (operator.methodcaller, Walk.getter),
    (types.ModuleType, Walk.pymodule),
    (list, Walk.sequence),
    (tuple, Walk.sequence),
    (collections.deque, Walk.sequence),
    (dict, Walk.mapping),
    (collections.OrderedDict, Walk.mapping),
    (collections.defaultdict, Walk.mapping),
    (collections.Counter, Walk.mapping),
    (types.MappingProxyType, Walk.mapping),
    (set, Walk.unordered),
    (frozenset, Walk.unordered),
    (bytearray, Walk.bytes_of),
    (memoryview, Walk.bytes_of),
    (slice, Walk.slice),
    (staticmethod, Walk.wrapped),
    (classmethod, Walk.wrapped),
    (property, Walk.property),
    (types.SimpleNamespace, Walk.object),
    (functools.cached_property, Walk.cached),
    (weakref.ref, Walk.reference),
    (contextvars.ContextVar, Walk.variable),
]
_SUBCLASSED = frozenset({types.ModuleType, property, staticmethod, classmethod, functools.partial, weakref.ref})
_HOW: dict[type, Callable[[Walk, Any], Any]] = {}
# Descriptions that note all that they read of mutable values (`Walk.readings`).
_COMPARED = frozenset(
    (
        *(Walk.same, Walk.equal, Walk.tensor, Walk.sequence, Walk.mapping, Walk.unordered, Walk.number, Walk.slice),
        *(Walk.function, Walk.method, Walk.builtin, Walk.partial, Walk.compiled, Walk.getter, Walk.cached, Walk.pymodule),
        *(Walk.type, Walk.wrapped, Walk.property, Walk.object, Walk.module, Walk.ours, Walk.derived),
    )
)
