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

import collections
import contextvars
import dis
import enum
import functools
import math
import os
import sys
import time
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from netcl._netcl import IndexTensor, Tensor

__all__ = ["Description", "Refused", "Surroundings", "Watch", "difference", "raise_version"]

# A walk this long is no function any more but a library: it runs as it is.
_MOST = 20_000
_PLAIN = frozenset({int, bool, str, bytes, complex, type(None), type(Ellipsis), type(NotImplemented), range})
_ABSENT = ("absent",)
_CONTAINERS = (list, tuple, set, frozenset, dict, collections.deque)
# Names in code through which attributes can be read whose names do not stand there.
_ANY_NAME = frozenset({"getattr", "setattr", "hasattr", "vars", "dir", "attrgetter", "__dict__", "__getattribute__"})
_ANY_GLOBAL = frozenset({"globals", "eval", "exec", "compile"})
_LIBRARIES = frozenset({*sys.stdlib_module_names, "netcl", "numpy"}) - {"__main__"}
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
    ["decimal.Decimal", "fractions.Fraction", "datetime.date", "datetime.datetime", "datetime.timedelta", "uuid.UUID", "re.Pattern"]
    + ["pathlib.PosixPath", "pathlib.WindowsPath", "pathlib.PurePosixPath", "pathlib._local.PosixPath", "numpy.ufunc"]
    + ["_collections._tuplegetter", "functools.cached_property", "logging.Logger", "logging.RootLogger", "_thread.lock", "_thread.RLock", "_io.TextIOWrapper", "typing.TypeVar", "types.GenericAlias"]
)


# Objects that give something else each time.
_SOURCES = frozenset(["random.Random", "random.SystemRandom", "numpy.random._generator.Generator", "numpy.random.mtrand.RandomState"])

_changes = 0


def raise_version(module: Any) -> None:
    """Notes that a setting, child, parameter or mode of a module has changed."""
    global _changes
    _changes += 1
    module.__dict__["_version"] = _changes


class Refused(Exception):
    """The surroundings cannot be described: the function runs as it is. ``where`` is a path, innermost name first."""

    def __init__(self, what: str, opaque: bool = False) -> None:
        super().__init__(what)
        self.what, self.opaque, self.where = what, opaque, []
        #: Whether it is an argument that nobody can look into, which the caller can do something about.
        self.is_argument = False

    def __str__(self) -> str:
        if self.is_argument:
            return (
                f"{path(reversed(self.where))} is {self.what}: neither a tensor nor a plain value nor an object of such; pass "
                "its tensors and numbers instead"
            )
        return f"it reads {path(reversed(self.where))}, {self.what}" if self.where else self.what


def path(labels: Iterable[Any]) -> str:
    """``model``, ``.layers``, ``[0]`` as one name."""
    text = ""
    for label in filter(None, labels):
        text += label if not text or label[0] in ".[(" else f".{label}"
    return text or "the function"


def is_library(name: Any) -> bool:
    """Whether a module is netcl's, NumPy's or Python's own, whose functions hold nothing of the user's."""
    return isinstance(name, str) and name.partition(".")[0] in _LIBRARIES


class _Code:
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


class Surroundings:
    """What a function can read, found anew at each call of :meth:`describe`; what is known of its code is kept."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._codes: dict[int, _Code] = {}
        # Names of attributes that occur in the code that was met so far; None: any.
        self._names: set[str] | None = set()

    def describe(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Description:
        """The key of a call."""
        while True:
            walk = _Walk(self._codes, self._names)
            parts = [walk.argument(value, i) for i, value in enumerate(args)]
            names = tuple(kwargs)
            if kwargs:
                parts += [walk.argument(value, name) for name, value in kwargs.items()]
            parts.append(walk(self._function))
            if not walk.grown:
                return Description(("call", names, _labels(len(args), names), tuple(parts)), walk)
            self._names = walk.names

    def knows(self, code: types.CodeType) -> bool:
        """Whether a piece of code was met, or is a part of one that was."""
        return id(code) in self._codes or any(_contains(known.code, code) for known in self._codes.values())


@functools.lru_cache(maxsize=1000)
def _labels(count: int, names: tuple[str, ...]) -> tuple[str, ...]:
    return (*(f"argument {i}" for i in range(count)), *(f"argument {name}" for name in names), "")


def _contains(outer: types.CodeType, code: types.CodeType) -> bool:
    nested = [constant for constant in outer.co_consts if isinstance(constant, types.CodeType)]
    return any(constant is code or _contains(constant, code) for constant in nested)


class Description:
    """The surroundings of one call: a key that compares, the tensors of the arguments, and the tensors around."""

    __slots__ = ("around", "held", "inputs", "key")

    def __init__(self, key: Any, walk: _Walk) -> None:
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


class _Walk:
    """One look at the surroundings."""

    __slots__ = ("alive", "around", "codes", "grown", "held", "inputs", "names", "seen")

    def __init__(self, codes: dict[int, _Code], names: set[str] | None) -> None:
        self.codes, self.names, self.grown = codes, names, False
        self.inputs: list[Any] = []
        self.around: list[Any] = []
        self.held: list[Any] = []
        self.alive: list[Any] = []
        self.seen: dict[int, int] = {}

    # ---- arguments -------------------------------------------------------------------------------------------------

    def argument(self, value: Any, label: Any) -> Any:
        """An argument's part of the key: its tensors are inputs, everything else is described as it is."""
        kind = type(value)
        if kind is Tensor:
            self.inputs.append(value)
            return "tensor"
        if kind in _PLAIN or kind is float:
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
        if kind is tuple or kind is list or (isinstance(value, tuple) and hasattr(value, "_fields")):
            return (kind, tuple([self._structure(part, type(part)) for part in value]))
        if kind is dict:
            return (kind, tuple([(self(name), self._structure(part, type(part))) for name, part in value.items()]))
        return self(value)

    # ---- values ----------------------------------------------------------------------------------------------------

    def __call__(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN:
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
        return describe(self, value)

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
        return "tensor"

    def sequence(self, value: Any) -> Any:
        kind = type(value)
        labels = tuple([f"[{i}]" for i in range(len(value))])
        return self._items("sequence", id(kind), labels, value)

    def mapping(self, value: Any) -> Any:
        keys = tuple([self(key) for key in value])
        labels = tuple([f"[{key!r}]" for key in value])
        return (keys, self._items("mapping", id(type(value)), labels, value.values()))

    def unordered(self, value: Any) -> Any:
        return ("set", id(type(value)), frozenset([self(part) for part in value]))

    def array(self, value: Any) -> Any:
        if value.dtype.hasobject:
            raise Refused("an array of objects, whose changes cannot be seen", opaque=True)
        return ("array", value.shape, value.dtype.str, value.tobytes())

    def bytes_of(self, value: Any) -> Any:
        return ("bytes", id(type(value)), bytes(value))

    def number(self, value: Any) -> Any:
        return ("number", id(type(value)), value.dtype.str, value.tobytes())

    def slice(self, value: Any) -> Any:
        return (slice, self(value.start), self(value.stop), self(value.step))

    def equal(self, value: Any) -> Any:
        return (type(value), value)

    # ---- functions -------------------------------------------------------------------------------------------------

    def code(self, code: types.CodeType, library: Callable[[], bool]) -> _Code:
        found = self.codes.get(id(code))
        if found is None:
            found = self.codes[id(code)] = _Code(code, library())
            self.grown = True
            if found.attributes is None:
                self.names = None
            elif self.names is not None and not found.attributes <= self.names:
                self.names = self.names | found.attributes
        return found

    def function(self, value: types.FunctionType) -> Any:
        around = value.__globals__
        code = self.code(value.__code__, lambda: is_library(around.get("__name__")))
        if code.library:
            return self.same(value)
        found: list[Any] = [around.get(name, _ABSENT) for name in code.globals]
        labels = code.labels
        if code.imported:
            found += [sys.modules.get(name) for name in code.imported]
        if value.__closure__ is not None:
            labels += value.__code__.co_freevars
            for cell in value.__closure__:
                try:
                    found.append(cell.cell_contents)
                except ValueError:  # a cell that is not filled yet
                    found.append(_ABSENT)
        if value.__defaults__:
            labels += tuple([f"default {i}" for i in range(len(value.__defaults__))])
            found += value.__defaults__
        if value.__kwdefaults__:
            labels += tuple([f"default {name}" for name in value.__kwdefaults__])
            found += value.__kwdefaults__.values()
        if value.__dict__:
            own, more = self._named(value.__dict__)
            labels, found = labels + own, found + more
        return self._items("function", id(value.__code__), labels, found)

    def method(self, value: types.MethodType) -> Any:
        return self._items("method", None, ("self", "the method"), (value.__self__, value.__func__))

    def builtin(self, value: Any) -> Any:
        owner = getattr(value, "__self__", None)
        if owner is None or isinstance(owner, (types.ModuleType, type)):
            return self.same(value)
        return self._items("method", value.__name__, ("self",), (owner,))

    def partial(self, value: functools.partial[Any]) -> Any:
        labels = ("the function", "arguments", "keywords")
        return self._items("partial", None, labels, (value.func, value.args, value.keywords))

    def compiled(self, value: Any) -> Any:
        return self._items("compiled", None, ("the function",), (value.__wrapped__,))

    def reference(self, value: Any) -> Any:
        return self._items("reference", None, ("()",), (value(),))

    def variable(self, value: contextvars.ContextVar[Any]) -> Any:
        return self._items("variable", value.name, (value.name,), (value.get(_ABSENT),))

    # ---- classes, objects, modules ---------------------------------------------------------------------------------

    def _named(
        self, table: Any, everything: bool = False, also: frozenset[str] = frozenset()
    ) -> tuple[tuple[str, ...], list[Any]]:
        """Entries of a table of attributes whose names occur in the code."""
        names = self.names
        if names is None or everything:
            wanted = [name for name in table if type(name) is str and name not in _BOOKKEEPING]
        else:
            wanted = [name for name in table if name in names or name in also]
        return tuple([f".{name}" for name in wanted]), [table[name] for name in wanted]

    def pymodule(self, value: types.ModuleType) -> Any:
        self.held.append(value)
        if is_library(value.__name__):
            return ("same", id(value))
        labels, found = self._named(vars(value))
        return self._items("pymodule", id(value), labels, found)

    def type(self, value: type) -> Any:
        return self._class(value, _CONSTRUCTORS)

    def _class(self, value: type, also: frozenset[str]) -> Any:
        """What a class of the user's defines, in all of its bases; ``also`` are names that occur in no code."""
        labels: tuple[str, ...] = ()
        found: list[Any] = []
        for base in value.__mro__:
            if is_library(base.__module__):
                continue
            # What netcl calls by itself (forward, backward, hooks) occurs in no code of the user's.
            own, more = self._named(base.__dict__, everything=any(_is_ours(parent) for parent in base.__mro__), also=also)
            labels, found = labels + own, found + more
        self.held.append(value)
        return self._items("class", id(value), labels, found)

    def wrapped(self, value: Any) -> Any:
        return self._items("wrapped", id(type(value)), ("the function",), (value.__func__,))

    def property(self, value: property) -> Any:
        return self._items("property", None, ("get", "set"), (value.fget, value.fset))

    def object(self, value: Any) -> Any:
        kind = type(value)
        labels, found = self._named(getattr(value, "__dict__", ()))
        for base in kind.__mro__:
            slots = base.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if name in ("__dict__", "__weakref__") or not (self.names is None or name in self.names):
                    continue
                labels += (f".{name}",)
                found.append(getattr(value, name, _ABSENT))
        if isinstance(value, _CONTAINERS):
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
            facts = _Facts(value)
            object.__setattr__(value, "_facts", facts)
        self.held.append(facts.kinds)
        if facts.tensors:
            self.around.append(facts.tensors)
        if not facts.live:
            return facts.key
        labels, found = facts.labels, facts.live
        if self.names is not None:
            # The last label of a path is the attribute's name.
            kept = [i for i, name in enumerate(facts.names) if name is None or name in self.names]
            labels, found = tuple([labels[i] for i in kept]), [found[i] for i in kept]
        return (facts.key, self._items("module", None, labels, found))

    def refuse(self, value: Any) -> Any:
        raise Refused(f"a {type(value).__qualname__}, whose changes cannot be seen", opaque=True)


class _Key:
    """A value that is compared often and hashed once."""

    __slots__ = ("_hash", "value")

    def __init__(self, value: Any) -> None:
        self.value, self._hash = value, hash(value)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _Key) and self._hash == other._hash and self.value == other.value)

    def __repr__(self) -> str:
        return repr(self.value)


# Attributes of modules that say how they are kept, or are described by themselves.
_BOOKKEEPING = frozenset(
    ["_parameters", "_buffers", "_modules", "_unsaved", "_version", "_facts", "_hooks", "__dict__", "__weakref__", "__doc__"]
    + ["__module__", "__qualname__", "__annotations__", "__orig_bases__", "__parameters__", "__firstlineno__", "__static_attributes__"]
    + ["__abstractmethods__", "_abc_impl", "__match_args__", "__dataclass_fields__", "__dataclass_params__", "__slots__"]
)
# Bases that have no settings of their own.
_COMPOSING = frozenset(["Module", "_Numbered", "Sequential", "ModuleList", "ModuleDict"])
# Methods that Python calls without naming them.
_OPERATORS = frozenset(
    [f"__{name}__" for name in "call len bool iter next getitem contains getattr hash eq ne lt le gt ge neg pos abs invert".split()]
    + [f"__{name}__" for name in "float int index enter exit get str repr format missing".split()]
    + [f"__{at}{name}__" for at in ("", "r", "i") for name in "add sub mul truediv floordiv mod pow matmul and or xor".split()]
)

_CONSTRUCTORS = _OPERATORS | {"__init__", "__new__", "__post_init__"}


class _Facts:
    """A module and everything inside of it, as it is until a version is raised."""

    __slots__ = ("changes", "key", "kinds", "labels", "live", "names", "tensors", "version", "versions")

    def __init__(self, root: Any) -> None:
        self.changes, self.version = _changes, root.__dict__["_version"]
        described: list[Any] = []
        tensors: list[Any] = []
        numbers: dict[int, int] = {}
        live: list[tuple[str, str | None, Any]] = []
        fixed = _Walk({}, None)
        self.versions: list[tuple[Any, int]] = []
        for name, module in root.named_modules():
            own = module.__dict__
            if module is not root:
                self.versions.append((module, own["_version"]))
            kind = type(module)
            if not is_library(kind.__module__):
                live.append((path([name, "its class"]), None, kind))
            # Settings of our own layers all count. Of a user's class count those that its code names.
            layer = is_library(kind.__module__) or any(_is_ours(base) and base.__name__ not in _COMPOSING for base in kind.__mro__)
            settings = []
            for key, value in own.items():
                if key in _BOOKKEEPING or key in module._saved_numbers:
                    continue
                if layer and _is_fixed(value):
                    settings.append((key, fixed(value)))
                else:
                    live.append((path([name, key]), None if layer else key, value))
            if own["_hooks"] is not None:
                hooks = own["_hooks"]
                live += [(path([name, "its hooks"]), None, table) for table in (hooks.before, hooks.after, hooks.backward)]
            slots = []
            for table in (own["_parameters"], own["_buffers"]):
                for key, tensor in table.items():
                    slots.append((key, None if tensor is None else numbers.setdefault(id(tensor), len(numbers))))
                    if tensor is not None and numbers[id(tensor)] == len(tensors):
                        tensors.append(tensor)
            children = tuple([(key, None if child is None else id(type(child))) for key, child in own["_modules"].items()])
            described.append((name, id(kind), own["training"], tuple(settings), tuple(slots), children))
        self.key, self.tensors = _Key(tuple(described)), tuple(tensors)
        self.kinds = (*{type(module) for module in root.modules()}, *fixed.held)
        self.labels = tuple([label for label, _, _ in live])
        self.names = [name for _, name, _ in live]
        self.live = [value for _, _, value in live]

    def hold(self, root: Any) -> bool:
        """Whether nothing has changed since."""
        now = _changes
        if now == self.changes:
            return True
        if root.__dict__["_version"] != self.version or any([part.__dict__["_version"] != v for part, v in self.versions]):
            return False
        self.changes = now
        return True


def _is_fixed(value: Any) -> bool:
    """Whether a value is what it is for good, with everything in it."""
    kind = type(value)
    if kind in _PLAIN or kind is float or kind is types.BuiltinFunctionType:
        return True
    if kind is tuple:
        return all([_is_fixed(part) for part in value])
    if kind is types.FunctionType:
        return is_library(value.__module__)
    return (kind is type and is_library(value.__module__)) or (_is_ours(kind) and not isinstance(value, (Tensor, IndexTensor)) and not hasattr(value, "named_modules"))


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "netcl"


def _how(kind: type, value: Any) -> Callable[[_Walk, Any], Any]:
    """How values of a type are described."""
    from netcl.autograd.compiler import Compiled
    from netcl.nn.module import Module
    from netcl.runtime.capture import CapturedFunction

    if issubclass(kind, (Tensor, IndexTensor)):
        return _Walk.tensor
    if issubclass(kind, Module):
        return _Walk.module
    if issubclass(kind, (Compiled, CapturedFunction)):
        return _Walk.compiled
    if issubclass(kind, type):
        # A class of a library is the same each time; one of the user's is looked into.
        return lambda walk, value: walk.same(value) if is_library(value.__module__) else walk.type(value)
    for known, describe in _KNOWN:
        if kind is known or (issubclass(kind, known) and known in _SUBCLASSED):
            return describe
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        if kind is numpy.ndarray:
            return _Walk.array
        if issubclass(kind, numpy.generic):
            return _Walk.number
        if issubclass(kind, numpy.dtype):
            return _Walk.equal
    if _is_ours(kind) or issubclass(kind, _CONSTANTS):
        return _Walk.same
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name in _CONSTANT_NAMES:
        return _Walk.equal if kind.__hash__ is not object.__hash__ else _Walk.same
    if hasattr(kind, "__next__") or name in _SOURCES:
        return _Walk.refuse
    if issubclass(kind, _CONTAINERS) or _is_python(kind):
        return _Walk.object
    return _Walk.refuse


def _is_python(kind: type) -> bool:
    """Whether all state of a class's objects is in attributes: nothing that only C code sees."""
    if not (hasattr(kind, "__dict__") and kind.__dictoffset__ or any("__slots__" in base.__dict__ for base in kind.__mro__)):
        return kind.__basicsize__ == object.__basicsize__ and kind is not object
    slots = 2
    for base in kind.__mro__:
        names = base.__dict__.get("__slots__", ())
        slots += 1 if isinstance(names, str) else len(names)
    return kind.__basicsize__ <= object.__basicsize__ + 8 * slots


_KNOWN: list[tuple[type, Callable[[_Walk, Any], Any]]] = [
    (types.FunctionType, _Walk.function),
    (types.MethodType, _Walk.method),
    (types.BuiltinMethodType, _Walk.builtin),
    (functools.partial, _Walk.partial),
    (functools._lru_cache_wrapper, _Walk.compiled),
    (types.ModuleType, _Walk.pymodule),
    (list, _Walk.sequence),
    (tuple, _Walk.sequence),
    (collections.deque, _Walk.sequence),
    (dict, _Walk.mapping),
    (collections.OrderedDict, _Walk.mapping),
    (collections.defaultdict, _Walk.mapping),
    (collections.Counter, _Walk.mapping),
    (types.MappingProxyType, _Walk.mapping),
    (set, _Walk.unordered),
    (frozenset, _Walk.unordered),
    (bytearray, _Walk.bytes_of),
    (memoryview, _Walk.bytes_of),
    (slice, _Walk.slice),
    (staticmethod, _Walk.wrapped),
    (classmethod, _Walk.wrapped),
    (property, _Walk.property),
    (weakref.ref, _Walk.reference),
    (contextvars.ContextVar, _Walk.variable),
]
_SUBCLASSED = frozenset({types.ModuleType, property, staticmethod, classmethod, functools.partial, weakref.ref})
_HOW: dict[type, Callable[[_Walk, Any], Any]] = {}


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
    if f"{type(owner).__module__}.{type(owner).__qualname__}" in _SOURCES or type(owner).__module__ == "_random":
        return True
    if isinstance(owner, type):
        return getattr(function, "__name__", "") in ("now", "today", "utcnow")
    return (owner is None or isinstance(owner, types.ModuleType)) and function in _SOURCE_FUNCTIONS


def difference(old: Any, new: Any) -> str:
    """In words, the first place in which two keys differ."""
    return _difference(old, new, []) or "other arguments"


def _difference(old: Any, new: Any, where: list[Any]) -> str | None:
    if old == new:
        return None
    old, new = (part.value if isinstance(part, _Key) else part for part in (old, new))
    if isinstance(old, tuple) and isinstance(new, tuple):
        if len(old) == len(new) == 4 and old[:3] == new[:3] and isinstance(old[2], tuple) and isinstance(old[0], str):
            pairs = zip(old[2], old[3], new[3])
            return next((found for label, a, b in pairs if (found := _difference(a, b, [*where, label]))), None)
        if len(old) == len(new) and not (old and isinstance(old[0], type)):
            return next((found for a, b in zip(old, new) if (found := _difference(a, b, where))), None)
        if len(old) == len(new) and old[0] in _PLAIN | {float} and old[0] is new[0]:
            return f"{path(where)} was {old[1]!r} and is {new[1]!r}"
    return f"{path(where)} is something else" if where else "other arguments"
