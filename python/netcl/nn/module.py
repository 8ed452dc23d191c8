"""What every layer and model is: a function with named parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from netcl import autograd as ag
from netcl._netcl import Tensor
from netcl._netcl.nn import assign

if TYPE_CHECKING:
    import numpy as np

__all__ = ["IncompatibleKeys", "Module", "Parameter"]

_M = TypeVar("_M", bound="Module")


class IncompatibleKeys(NamedTuple):
    """What ``load_state_dict(..., strict=False)`` could not match."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def Parameter(data: Any, requires_grad: bool = True, dtype: str | None = None, queue: Any = None) -> Tensor:
    """A tensor to be trained: it shares the memory of a tensor, or holds a copy of an array's values."""
    return ag.tensor(data, requires_grad=requires_grad, dtype=dtype, queue=queue)


class Module:
    """A layer or a model: write ``forward``, set parameters and other modules as attributes.

    A tensor with ``requires_grad`` that becomes an attribute is a parameter, a module is a child, ``register_buffer`` names
    tensors that are saved but not trained. Names are dotted paths: ``"0.weight"``. Everything else is an ordinary attribute.

        class Residual(Module):
            def __init__(self, width):
                self.inner = Linear(width, width)

            def forward(self, x):
                return x + F.gelu(self.inner(x))
    """

    training: bool
    _parameters: dict[str, Tensor | None]
    _buffers: dict[str, Tensor | None]
    _modules: dict[str, Module | None]
    _unsaved: set[str]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        # Here rather than in __init__, so that a subclass that does not call it works all the same.
        module = super().__new__(cls)
        for name, empty in (("_parameters", {}), ("_buffers", {}), ("_modules", {}), ("_unsaved", set())):
            object.__setattr__(module, name, empty)
        object.__setattr__(module, "training", True)
        return module

    def __init__(self) -> None:
        """Takes nothing: a module without settings refuses them."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The result; what a subclass writes."""
        raise NotImplementedError(f"{type(self).__name__} has no forward(...)")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    # ---- attributes ------------------------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        tables = (self._parameters, self._buffers, self._modules)
        if isinstance(value, Module):
            home: dict[str, Any] | None = self._modules
        elif isinstance(value, Tensor):
            # A result of a recorded operation has requires_grad, too, but is nothing to train.
            trainable = value.requires_grad and value.is_leaf
            home = self._buffers if name in self._buffers else self._parameters if trainable else None
        elif value is None:
            home = next((table for table in tables if name in table), None)
        else:
            home = None
        for table in tables:
            if table is not home:
                table.pop(name, None)
        if home is None:
            object.__setattr__(self, name, value)
        else:
            self.__dict__.pop(name, None)
            home[name] = value

    def __getattr__(self, name: str) -> Any:
        for table in ("_parameters", "_buffers", "_modules"):
            found = self.__dict__.get(table, {})
            if name in found:
                return found[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __delattr__(self, name: str) -> None:
        for table in (self._parameters, self._buffers, self._modules):
            if name in table:
                del table[name]
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._parameters, *self._buffers, *self._modules]

    def register_parameter(self, name: str, parameter: Tensor | None) -> None:
        """Adds a parameter under a name; None keeps the name for a parameter that is left out."""
        self._check_name(name)
        self._parameters[name] = parameter

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Adds a tensor that is moved and (unless not ``persistent``) saved with the module, but not trained."""
        self._check_name(name)
        self._buffers[name] = tensor
        if not persistent:
            self._unsaved.add(name)

    def add_module(self, name: str, module: Module | None) -> None:
        """Adds a child under a name."""
        self._check_name(name)
        self._modules[name] = module

    register_module = add_module

    def _check_name(self, name: str) -> None:
        if not name or "." in name:
            raise KeyError(f"{name!r} cannot name a member: it must not be empty or contain a dot")
        if hasattr(self, name):
            raise KeyError(f"{type(self).__name__} has an attribute {name!r} already")

    # ---- walking ---------------------------------------------------------------------------------------------------

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module (under the prefix) and all modules inside it, each once."""
        seen: set[int] = set()

        def walk(path: str, module: Module) -> Iterator[tuple[str, Module]]:
            if id(module) in seen:
                return
            seen.add(id(module))
            yield path, module
            for name, child in module._modules.items():
                if child is not None:
                    yield from walk(f"{path}.{name}" if path else name, child)

        yield from walk(prefix, self)

    def modules(self) -> Iterator[Module]:
        """This module and all modules inside it, each once."""
        return (module for _, module in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules directly inside."""
        return ((name, child) for name, child in self._modules.items() if child is not None)

    def children(self) -> Iterator[Module]:
        """The modules directly inside."""
        return (child for _, child in self.named_children())

    def _named_tensors(self, table: str, prefix: str, recurse: bool) -> Iterator[tuple[str, Tensor]]:
        seen: set[int] = set()
        for path, module in self.named_modules(prefix) if recurse else [(prefix, self)]:
            for name, tensor in getattr(module, table).items():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield (f"{path}.{name}" if path else name), tensor

    def named_parameters(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
        """All parameters with their dotted names; one that occurs twice comes under its first name."""
        return self._named_tensors("_parameters", prefix, recurse)

    def parameters(self, recurse: bool = True) -> list[Tensor]:
        """All parameters: what an optimizer takes."""
        return [parameter for _, parameter in self.named_parameters(recurse=recurse)]

    def named_buffers(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
        """All buffers with their dotted names."""
        return self._named_tensors("_buffers", prefix, recurse)

    def buffers(self, recurse: bool = True) -> list[Tensor]:
        """All buffers."""
        return [buffer for _, buffer in self.named_buffers(recurse=recurse)]

    def num_parameters(self) -> int:
        """The number of elements of all parameters."""
        return sum(parameter.size for parameter in self.parameters())

    def apply(self: _M, function: Callable[[Module], Any]) -> _M:
        """Calls a function with every module inside, and with this one last."""
        for child in self.children():
            child.apply(function)
        function(self)
        return self

    # ---- modes, gradients, devices ---------------------------------------------------------------------------------

    def train(self: _M, mode: bool = True) -> _M:
        """Switches to training (or to inference): dropout drops, normalisation uses the batch."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self: _M) -> _M:
        """Switches to inference."""
        return self.train(False)

    def requires_grad_(self: _M, requires_grad: bool = True) -> _M:
        """Freezes all parameters, or makes them trainable again."""
        for parameter in self.parameters():
            parameter.requires_grad = requires_grad
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients of all parameters, or replaces them by zeros."""
        for parameter in self.parameters():
            if set_to_none or parameter.grad is None:
                parameter.grad = None
            else:
                parameter.grad = Tensor.from_shape(parameter.queue, parameter.shape, parameter.dtype)

    def to(self: _M, queue: Any = None, dtype: str | None = None) -> _M:
        """Moves parameters, their gradients and buffers to a queue's device, or into another dtype.

        What moves is a new tensor: make the optimizer afterwards. Shared parameters stay shared.
        """
        moved: dict[int, Tensor] = {}

        def change(tensor: Tensor) -> Tensor:
            here = tensor.detach()
            there = here.to(queue, dtype)
            if there is here:
                return tensor
            made = ag.tensor(there, requires_grad=tensor.requires_grad)
            made.grad = None if tensor.grad is None else tensor.grad.detach().to(queue, dtype)
            return made

        for module in list(self.modules()):
            for table in (module._parameters, module._buffers):
                for name, tensor in table.items():
                    if tensor is not None:
                        if id(tensor) not in moved:
                            moved[id(tensor)] = change(tensor)
                        table[name] = moved[id(tensor)]
        return self

    # ---- saving ----------------------------------------------------------------------------------------------------

    def _saved(self) -> Iterator[tuple[str, Tensor]]:
        for path, module in self.named_modules():
            for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
                if tensor is not None and name not in module._unsaved:
                    yield (f"{path}.{name}" if path else name), tensor

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of all parameters and buffers under their dotted names."""
        # NumPy is imported where it is needed: a program that never saves need not wait for it.
        import numpy as np

        return {name: np.array(tensor.to_host()) for name, tensor in self._saved()}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> IncompatibleKeys:
        """Overwrites parameters and buffers with the arrays (or tensors) of a ``state_dict``.

        A KeyError names every missing and unexpected key, a ValueError every array of the wrong shape; nothing has changed then.
        With ``strict=False`` keys without a partner are left alone and returned.
        """
        import numpy as np

        targets = dict(self._saved())
        keys = IncompatibleKeys([k for k in targets if k not in state], [k for k in state if k not in targets])
        if strict and (keys.missing_keys or keys.unexpected_keys):
            parts = [f"{what} {', '.join(map(repr, names))}" for what, names in zip(("missing", "unexpected"), keys) if names]
            raise KeyError(f"state_dict of {type(self).__name__}: {'; '.join(parts)}")
        sources = {name: np.asarray(state[name]) for name in targets if name in state}
        wrong = [
            f"{name!r} has shape {tuple(array.shape)}, the module's has {tuple(targets[name].shape)}"
            for name, array in sources.items()
            if tuple(array.shape) != tuple(targets[name].shape)
        ]
        if wrong:
            raise ValueError(f"state_dict of {type(self).__name__}: {'; '.join(wrong)}")
        for name, array in sources.items():
            target = targets[name]
            assign(target, Tensor.from_host(target.queue, array, dtype=target.dtype))
        return keys

    def __deepcopy__(self: _M, memo: dict[int, Any]) -> _M:
        # Tensors stay on their devices, and shared ones stay shared.
        def twin(tensor: Tensor | None) -> Tensor | None:
            if tensor is None:
                return None
            if id(tensor) not in memo:
                memo[id(tensor)] = ag.tensor(ag.clone(tensor.detach()), requires_grad=tensor.requires_grad)
            made: Tensor = memo[id(tensor)]
            return made

        other = type(self).__new__(type(self))
        memo[id(self)] = other
        for name, value in self.__dict__.items():
            if name in ("_parameters", "_buffers"):
                other.__dict__[name] = {key: twin(tensor) for key, tensor in value.items()}
            else:
                other.__dict__[name] = copy.deepcopy(value, memo)
        return other

    # ---- printing --------------------------------------------------------------------------------------------------

    def extra_repr(self) -> str:
        """What print-outs say between the parentheses."""
        return ""

    def __repr__(self) -> str:
        lines = [f"  ({name}): " + repr(child).replace("\n", "\n  ") for name, child in self.named_children()]
        extra = self.extra_repr()
        if not lines:
            return f"{type(self).__name__}({extra})"
        return "\n".join([f"{type(self).__name__}(", *([f"  {extra}"] if extra else []), *lines, ")"])
