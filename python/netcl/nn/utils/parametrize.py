"""Parameters that are computed from others in every call: ``netcl.nn.utils.parametrize``.

    class Symmetric(nn.Module):
        def forward(self, x):
            return x.triu() + x.triu(1).mT

    parametrize.register_parametrization(layer, "weight", Symmetric())

``layer.weight`` is then what the module makes of ``layer.parametrizations.weight.original``, which is what trains.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from netcl._netcl import Tensor
from netcl.autograd.tape import no_grad
from netcl.nn.container import ModuleDict, ModuleList
from netcl.nn.module import Module, Parameter

__all__ = ["ParametrizationList", "is_parametrized", "register_parametrization", "remove_parametrizations"]


class ParametrizationList(ModuleList):
    """The modules that a parameter passes through, and what they start from: ``original``, or ``original0`` and so on."""

    def __init__(self, original: Tensor) -> None:
        super().__init__()
        self._originals = 0
        self._store(original)

    def _store(self, original: Any) -> None:
        # The parameter itself, so that an optimizer that knows it goes on, and what shares it goes on sharing it. Not as an
        # attribute: a frozen one would be none of the parameters.
        if isinstance(original, Tensor):
            known = self._parameters.get("original")
            if known is None:
                self._parameters["original"] = original
            elif known is not original:
                with no_grad():
                    known._move_to(original.detach())
            return
        known = self._parameters.pop("original")
        trained = known is not None and known.requires_grad
        self._originals = len(original)
        for i, part in enumerate(original):
            self.register_parameter(f"original{i}", Parameter(part.detach().clone(), trained))

    def add(self, module: Module) -> None:
        """Puts a module after the others; the first one, if it has ``right_inverse``, says what they start from."""
        if not len(self) and hasattr(module, "right_inverse"):
            with no_grad():
                self._store(module.right_inverse(self.original))
        self.append(module)

    def forward(self) -> Any:
        """The parameter."""
        modules: list[Any] = list(self)
        first, *others = modules or [None]
        if self._originals:
            x = first(*(getattr(self, f"original{i}") for i in range(self._originals)))
        else:
            x = self.original if first is None else first(self.original)
        for module in others:
            x = module(x)
        return x


def register_parametrization(module: Module, tensor_name: str, parametrization: Module, *, unsafe: bool = False) -> Module:
    """Computes a parameter of a module by another module from now on; several apply in order. Gives the module back.

    ``unsafe`` is PyTorch's: shapes are not checked here, but by the layer that uses the parameter.
    """
    lists: Any = module._modules.get("parametrizations")
    if lists is None or tensor_name not in lists:
        found = module._parameters.get(tensor_name)
        if found is None:
            known = ", ".join(module._parameters) or "none"
            name = type(module).__name__
            raise ValueError(f"register_parametrization: {name} has no parameter {tensor_name!r}; it has {known}")
        added = ParametrizationList(found)
        added.add(parametrization)
        if lists is None:
            lists = ModuleDict()
            module.add_module("parametrizations", lists)
        lists[tensor_name] = added
        del module._parameters[tensor_name]
        derive(module, tensor_name, functools.partial(_of_list, tensor_name))
    else:
        lists[tensor_name].add(parametrization)
    return module


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Whether a parameter of a module, or any, is computed by others."""
    lists: Any = module._modules.get("parametrizations")
    return lists is not None and (len(lists) > 0 if tensor_name is None else tensor_name in lists)


def remove_parametrizations(module: Module, tensor_name: str, leave_parametrized: bool = True) -> Module:
    """Makes a parameter an ordinary one again, with its present values, or with those that it was computed from."""
    if not is_parametrized(module, tensor_name):
        raise ValueError(f"remove_parametrizations: {tensor_name!r} of {type(module).__name__} has no parametrization")
    lists: Any = module._modules["parametrizations"]
    if not leave_parametrized and lists[tensor_name]._originals:
        raise ValueError("remove_parametrizations: leave_parametrized=False needs one original tensor, and here are several")
    originals = list(lists[tensor_name]._parameters.values())
    now = getattr(module, tensor_name) if leave_parametrized else originals[0]
    underive(module, tensor_name)
    del lists[tensor_name]
    if not len(lists):
        del module.parametrizations
    trained = any(original.requires_grad for original in originals)
    module.register_parameter(tensor_name, Parameter(now.detach().clone(), trained))
    return module


def _of_list(name: str, owner: Any) -> Tensor:
    found: Tensor = owner._modules["parametrizations"][name]()
    return found


# ---- how a tensor of a module is computed whenever it is looked at -------------------------------------------------------


def derive(module: Module, name: str, compute: Callable[[Any], Tensor]) -> None:
    """Lets an attribute of a module be what a function makes of the module: by a class of the module's own, derived from its
    class, which also computes it before every call, since a layer of Rust reads the module's ``__dict__``."""
    kind = type(module)
    before: dict[str, Callable[[Any], Tensor]] = getattr(kind, "_derived", {})
    base = kind.__mro__[1] if before else kind
    _set_class(module, base, {**before, name: compute})


def underive(module: Module, name: str) -> None:
    """Undoes ``derive``."""
    kind: Any = type(module)
    left = {other: compute for other, compute in kind._derived.items() if other != name}
    _set_class(module, kind.__mro__[1], left)
    module.__dict__.pop(name, None)


def _remade(base: Any, derived: dict[str, Callable[[Any], Tensor]]) -> Any:
    module: Any = base.__new__(base)
    _set_class(module, base, derived)
    return module


def _set_class(module: Module, base: type, derived: dict[str, Callable[[Any], Tensor]]) -> None:
    if not derived:
        object.__setattr__(module, "__class__", base)
        return

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        own = self.__dict__
        try:
            for name, compute in derived.items():
                own[name] = compute(self)
            return base.forward(self, *args, **kwargs)  # type: ignore[attr-defined]
        finally:
            for name in derived:
                own.pop(name, None)

    members: dict[str, Any] = {name: property(compute) for name, compute in derived.items()}

    def reduce(self: Any, protocol: Any) -> Any:
        # The class is found under no name.
        return _remade, (base, derived), self.__getstate__()

    members |= {
        "forward": forward,
        "_derived": derived,
        "__reduce_ex__": reduce,
        "__module__": __name__,
        "__doc__": base.__doc__,
    }
    object.__setattr__(module, "__class__", type(f"Parametrized{base.__name__}", (base,), members))
