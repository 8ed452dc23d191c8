"""Modules made of modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from netcl._netcl import Tensor
from netcl.nn.module import Module, Parameter

__all__ = ["ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Residual", "Sequential"]


class _Collection(Module):
    """Members of one kind, whose names are no attributes of the class's own."""

    @property
    def _members(self) -> dict[str, Any]:
        return self._modules

    def _taken(self, value: Any) -> Any:
        """What is kept of a member that is given."""
        if not isinstance(value, Module):
            raise TypeError(f"{type(self).__name__} takes modules, not {type(value).__name__}")
        return value

    def __len__(self) -> int:
        return len(self._members)


class _Numbered(_Collection):
    """Members whose names are their numbers."""

    def append(self, value: Any) -> Any:
        """Adds a member at the end."""
        value, name = self._taken(value), str(len(self))
        self._check_name(name)
        self._members[name] = value
        return self

    def extend(self, values: Iterable[Any]) -> Any:
        """Adds members at the end."""
        if isinstance(values, Tensor):
            raise TypeError(f"{type(self).__name__} takes a list, not one tensor: its rows would become the members")
        for value in values:
            self.append(value)
        return self

    def insert(self, index: int, value: Any) -> None:
        """Puts a member before the one of an index; those after it move on by one."""
        members = list(self)
        members.insert(index, self._taken(value))
        self._renumber(members)

    def _renumber(self, members: list[Any]) -> None:
        self._members.clear()
        self._members.update({str(i): member for i, member in enumerate(members)})

    def __iter__(self) -> Iterator[Any]:
        return (member for member in list(self._members.values()) if member is not None)

    def __getitem__(self, index: int | slice) -> Any:
        members = list(self)
        made: Any = type(self)
        return made(members[index]) if isinstance(index, slice) else members[index]

    def __setitem__(self, index: int, value: Any) -> None:
        self._members[list(self._members)[index]] = self._taken(value)

    def __delitem__(self, index: int | slice) -> None:
        members = list(self)
        del members[index]
        self._renumber(members)


class _Named(_Collection):
    """Members by name; a name may be that of a method (``"items"``), since it is no attribute."""

    _kind: str

    def update(self, members: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        """Adds members, or replaces those of the same names."""
        for name, member in members.items() if isinstance(members, Mapping) else members:
            self[name] = member

    def __setitem__(self, name: str, value: Any) -> None:
        value = self._taken(value)
        if not isinstance(name, str) or not name or "." in name:
            raise KeyError(f"{name!r} cannot name a {self._kind}: a name is a text without dots")
        self._members[name] = value

    def __getitem__(self, name: str) -> Any:
        member = self._members.get(name)
        if member is None:
            raise KeyError(f"there is no {self._kind} {name!r}; there are {', '.join(map(repr, self._members)) or 'none'}")
        return member

    def __delitem__(self, name: str) -> None:
        del self._members[name]

    def __contains__(self, name: object) -> bool:
        return name in self._members

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._members))

    def get(self, name: str, default: Any = None) -> Any:
        """The member of a name, or something else where there is none."""
        return self[name] if name in self else default  # noqa: SIM401 - this is `get`

    def pop(self, name: str) -> Any:
        """Takes out the member of a name."""
        member = self[name]
        del self[name]
        return member

    def clear(self) -> None:
        """Takes out all members."""
        self._members.clear()

    def keys(self) -> list[str]:
        """The names."""
        return list(self._members)

    def values(self) -> list[Any]:
        """The members."""
        return [member for member in self._members.values() if member is not None]

    def items(self) -> list[tuple[str, Any]]:
        """The names and members."""
        return [(name, member) for name, member in self._members.items() if member is not None]


class Sequential(_Numbered):
    """Modules that are applied one after the other: ``Sequential(Linear(2, 32), ReLU(), Linear(32, 2))``.

    Their names are their numbers, or the keys of a dictionary: ``Sequential({"body": ..., "head": ...})``.
    """

    def __init__(self, *layers: Any) -> None:
        if len(layers) == 1 and isinstance(layers[0], Mapping):
            for name, layer in layers[0].items():
                if not isinstance(layer, Module):
                    raise TypeError(f"Sequential takes modules, not {type(layer).__name__}")
                self.add_module(name, layer)
        else:
            self.extend(layers)

    def forward(self, x: Any) -> Any:
        for layer in self._modules.values():
            if layer is not None:
                x = layer(x)
        return x

    def __getitem__(self, index: int | slice) -> Any:
        layers = list(self)
        return Sequential(*layers[index]) if isinstance(index, slice) else layers[index]


class ModuleList(_Numbered):
    """Modules in a list, whose parameters are the module's own; how they are applied is up to ``forward``."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        self.extend(modules)


class ModuleDict(_Named):
    """Modules by name, whose parameters are the module's own; how they are applied is up to ``forward``."""

    _kind = "module"

    def __init__(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] = ()) -> None:
        self.update(modules)


class _Parameters(_Collection):
    """Parameters; a tensor or array that is none becomes one."""

    @property
    def _members(self) -> dict[str, Any]:
        return self._parameters

    def _taken(self, value: Any) -> Tensor:
        return value if isinstance(value, Tensor) and value.is_leaf and value.requires_grad else Parameter(value)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}: {tensor.dtype}{tuple(tensor.shape)}" for name, tensor in self.named_parameters())


class ParameterList(_Parameters, _Numbered):
    """Parameters in a list: ``self.scales = ParameterList([a, b])``, then ``self.scales[0]``."""

    def __init__(self, values: Iterable[Any] = ()) -> None:
        self.extend(values)

    def __iadd__(self, values: Iterable[Any]) -> ParameterList:
        self.extend(values)
        return self


class ParameterDict(_Parameters, _Named):
    """Parameters by name: ``self.tables = ParameterDict({"left": a})``, then ``self.tables["left"]``."""

    _kind = "parameter"

    def __init__(self, parameters: Mapping[str, Any] | Iterable[tuple[str, Any]] = ()) -> None:
        self.update(parameters)


class Residual(Module):
    """``activation(inner(x) + shortcut(x))``: the shortcut is ``x`` itself unless given, and so is the activation.

        Residual(Linear(64, 64))
        Residual(Conv2d(16, 32, 3, stride=2, pad=1), shortcut=Conv2d(16, 32, 1, stride=2), activation=ReLU())
    """

    def __init__(self, inner: Module, shortcut: Module | None = None, activation: Module | None = None) -> None:
        for part in (inner, shortcut, activation):
            if part is not None and not isinstance(part, Module):
                raise TypeError(f"Residual takes modules, not {type(part).__name__}")
        if inner is None:
            raise TypeError("Residual needs a module to go around")
        self.inner = inner
        self.add_module("shortcut", shortcut)
        self.add_module("activation", activation)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        around = x if self.shortcut is None else self.shortcut(x)
        if tuple(y.shape) != tuple(around.shape):
            raise ValueError(
                f"Residual: the inner module gives shape {tuple(y.shape)}, the shortcut {tuple(around.shape)}; "
                "give a shortcut=... that brings the input to the same shape"
            )
        total = y + around
        return total if self.activation is None else self.activation(total)
