"""Networks: described once, and again when a version was raised."""

from __future__ import annotations

import functools
import types
from typing import Any

from netcl._netcl import IndexTensor, Tensor
from netcl._surroundings.code import is_library, is_ours
from netcl._surroundings.words import PLAIN, Key, path

__all__ = ["BOOKKEEPING", "Facts", "Table", "is_fixed", "raise_version"]

# Attributes of modules that say how they are kept, or are described by themselves.
BOOKKEEPING = frozenset(
    "_parameters _buffers _modules _unsaved _version _facts _hooks _layer __dict__ __weakref__ __doc__ __module__ __qualname__ "
    "__annotations__ __orig_bases__ __parameters__ __firstlineno__ __static_attributes__ __abstractmethods__ _abc_impl "
    "__match_args__ __dataclass_fields__ __dataclass_params__ __slots__".split()
)
# Bases that have no settings of their own.
_COMPOSING = frozenset(["Module", "_Numbered", "Sequential", "ModuleList", "ModuleDict"])

_changes = 0


def _next_version() -> int:
    global _changes
    _changes += 1
    return _changes


def raise_version(module: Any) -> None:
    """Notes that a setting or the mode of a module has changed; its tables of members know by themselves."""
    module.__dict__["_version"] = _next_version()


def _changing(name: str) -> Any:
    """A method of dictionaries that raises the version."""
    change = getattr(dict, name)

    @functools.wraps(change)
    def method(self: Table, *args: Any, **kwargs: Any) -> Any:
        self.version = _next_version()
        return change(self, *args, **kwargs)

    return method


class Table(dict[str, Any]):
    """The parameters, buffers or children of a module: a dictionary whose version every change raises."""

    version = 0
    __setitem__, __delitem__, __ior__ = map(_changing, ("__setitem__", "__delitem__", "__ior__"))
    clear, pop, popitem, setdefault, update = map(_changing, ("clear", "pop", "popitem", "setdefault", "update"))


def _stamp(module: Any) -> tuple[int, int, int, int]:
    own = module.__dict__
    return own["_version"], own["_parameters"].version, own["_buffers"].version, own["_modules"].version


class Facts:
    """A module and everything inside of it, as it is until a version is raised."""

    __slots__ = ("changes", "key", "kinds", "labels", "live", "names", "tensors", "version", "versions")

    def __init__(self, root: Any) -> None:
        from netcl._surroundings.walk import Walk

        self.changes, self.version = _changes, _stamp(root)
        described: list[Any] = []
        tensors: list[Any] = []
        numbers: dict[int, int] = {}
        live: list[tuple[str, str | None, Any]] = []
        kinds: dict[Any, None] = {}
        self.versions: list[tuple[Any, tuple[int, ...]]] = []
        for name, module in root.named_modules():
            own = module.__dict__
            if module is not root:
                self.versions.append((module, _stamp(module)))
            kind = type(module)
            kinds[kind] = None
            if not is_library(kind.__module__):
                live.append((path([name, "its class"]), None, kind))
            # Settings of our own layers all count. Of a user's class count those that its code names.
            bases = [base.__name__ for base in kind.__mro__ if is_ours(base)]
            layer = is_library(kind.__module__) or any(name not in _COMPOSING for name in bases)
            settings = []
            for key, value in own.items():
                if key in BOOKKEEPING:
                    continue
                if layer and is_fixed(value):
                    walk = Walk({}, None)
                    settings.append((key, walk(value)))
                    kinds.update(dict.fromkeys(walk.held))
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
        self.key, self.tensors = Key(tuple(described)), tuple(tensors)
        #: What the key knows by identity.
        self.kinds = tuple(kinds)
        self.labels = tuple([label for label, _, _ in live])
        self.names = [name for _, name, _ in live]
        self.live = [value for _, _, value in live]

    def hold(self, root: Any) -> bool:
        """Whether nothing has changed since."""
        now = _changes
        if now == self.changes:
            return True
        if _stamp(root) != self.version or any([_stamp(part) != version for part, version in self.versions]):
            return False
        self.changes = now
        return True


def is_fixed(value: Any) -> bool:
    """Whether a value is what it is for good, with everything in it."""
    kind = type(value)
    if kind in PLAIN or kind is float or kind is types.BuiltinFunctionType:
        return True
    if kind is tuple:
        return all([is_fixed(part) for part in value])
    if kind is types.FunctionType:
        return is_library(value.__module__)
    if kind is type:
        return is_library(value.__module__)
    return is_ours(kind) and not isinstance(value, (Tensor, IndexTensor)) and not hasattr(value, "named_modules")
