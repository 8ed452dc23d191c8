"""Modules made of modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, overload

from netcl._netcl import Tensor
from netcl.nn.module import Module

__all__ = ["ModuleDict", "ModuleList", "Residual", "Sequential"]


class _Numbered(Module):
    """Modules whose names are their numbers."""

    def append(self, module: Module) -> Any:
        """Adds a module at the end."""
        if not isinstance(module, Module):
            raise TypeError(f"{type(self).__name__} takes modules, not {type(module).__name__}")
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> Any:
        """Adds modules at the end."""
        for module in modules:
            self.append(module)
        return self

    def insert(self, index: int, module: Module) -> None:
        """Puts a module before the one of an index; those behind it move on by one."""
        if not isinstance(module, Module):
            raise TypeError(f"{type(self).__name__} takes modules, not {type(module).__name__}")
        modules = list(self)
        modules.insert(index, module)
        self._renumber(modules)

    def _renumber(self, modules: list[Module]) -> None:
        self._modules.clear()
        self._modules.update({str(i): module for i, module in enumerate(modules)})

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return self.children()

    def __setitem__(self, index: int, module: Module) -> None:
        if not isinstance(module, Module):
            raise TypeError(f"{type(self).__name__} takes modules, not {type(module).__name__}")
        self._modules[list(self._modules)[index]] = module

    def __delitem__(self, index: int | slice) -> None:
        modules = list(self)
        del modules[index]
        self._renumber(modules)


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

    @overload
    def __getitem__(self, index: int) -> Module: ...
    @overload
    def __getitem__(self, index: slice) -> Sequential: ...
    def __getitem__(self, index: int | slice) -> Module | Sequential:
        layers = list(self)
        return Sequential(*layers[index]) if isinstance(index, slice) else layers[index]


class ModuleList(_Numbered):
    """Modules in a list, whose parameters are the module's own; how they are applied is up to ``forward``."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        self.extend(modules)

    @overload
    def __getitem__(self, index: int) -> Module: ...
    @overload
    def __getitem__(self, index: slice) -> ModuleList: ...
    def __getitem__(self, index: int | slice) -> Module | ModuleList:
        modules = list(self)
        return ModuleList(modules[index]) if isinstance(index, slice) else modules[index]


class ModuleDict(Module):
    """Modules by name, whose parameters are the module's own; how they are applied is up to ``forward``."""

    def __init__(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] = ()) -> None:
        self.update(modules)

    def update(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]]) -> None:
        """Adds modules, or replaces those of the same names."""
        for name, module in modules.items() if isinstance(modules, Mapping) else modules:
            self[name] = module

    def __setitem__(self, name: str, module: Module) -> None:
        if not isinstance(module, Module):
            raise TypeError(f"ModuleDict takes modules, not {type(module).__name__}")
        if not isinstance(name, str) or not name or "." in name:
            raise KeyError(f"{name!r} cannot name a module: a name is a text without dots")
        # Unlike add_module: a name here may be that of a method ("items"), since it is no attribute.
        self._modules[name] = module

    def __getitem__(self, name: str) -> Module:
        module = self._modules.get(name)
        if module is None:
            raise KeyError(f"there is no module {name!r}; there are {', '.join(map(repr, self._modules)) or 'none'}")
        return module

    def __delitem__(self, name: str) -> None:
        del self._modules[name]

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._modules))

    def keys(self) -> list[str]:
        """The names."""
        return list(self._modules)

    def values(self) -> list[Module]:
        """The modules."""
        return list(self.children())

    def items(self) -> list[tuple[str, Module]]:
        """The names and modules."""
        return list(self.named_children())


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
