"""What every layer and model is: a function with named parameters."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from netcl import autograd as ag
from netcl._netcl import IndexTensor, Tensor
from netcl._surroundings import Table, raise_version
from netcl.nn import _scope, _state
from netcl.nn._arguments import WrongInput, resolve_queue
from netcl.nn._hooks import Hooks, RemovableHandle
from netcl.nn._state import IncompatibleKeys, StateDictError

# The list itself: a look at a global is all that a call costs which nobody watches.
_watching = _scope.watching

if TYPE_CHECKING:
    import numpy as np

__all__ = ["IncompatibleKeys", "Module", "Parameter", "RemovableHandle", "StateDictError"]

_M = TypeVar("_M", bound="Module")
_DTYPES = ("float16", "bfloat16", "float32", "float64", "half", "float", "double")


class _Leaf(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Tensor) and instance.is_leaf and instance.requires_grad


if TYPE_CHECKING:

    class Parameter(Tensor):
        """A tensor to be trained."""

        def __new__(
            cls, data: Any = None, requires_grad: bool = True, dtype: str | None = None, queue: Any = None
        ) -> Parameter: ...

else:

    class Parameter(metaclass=_Leaf):
        """A tensor to be trained: it shares the memory of a tensor, or holds a copy of an array's values.

        What it gives is a ``Tensor``; ``isinstance(x, Parameter)`` asks whether one is a leaf that requires a gradient."""

        def __new__(cls, data=None, requires_grad=True, dtype=None, queue=None):
            data = [] if data is None else data
            return ag.tensor(data, requires_grad=requires_grad, dtype=dtype, queue=queue)


class Parameters(list[Tensor]):
    """A list of parameters; ``next(model.parameters())`` is the first one, as of PyTorch's iterator."""

    _rest: Iterator[Tensor] | None = None

    def __next__(self) -> Tensor:
        if self._rest is None:
            self._rest = iter(self)
        return next(self._rest)


def _warn_of_hidden(owner: str, name: str, value: list[Any] | dict[Any, Any]) -> None:
    """Says that modules in an ordinary list or dictionary would not be trained, moved or saved."""
    if any(isinstance(part, Module) for part in (value.values() if isinstance(value, dict) else value)):
        kind = "ModuleDict" if isinstance(value, dict) else "ModuleList"
        warnings.warn(
            f"{owner}.{name} is a {type(value).__name__} of modules, whose parameters are not found there: use nn.{kind}, or a "
            "tuple to keep them apart on purpose",
            stacklevel=3,
        )


class Module:
    """A layer or a model: write ``forward``, set parameters and other modules as attributes.

    A tensor with ``requires_grad`` that becomes an attribute is a parameter, a module is a child, ``register_buffer`` names
    tensors that are saved but not trained. Names are dotted paths: ``"0.weight"``. Everything else is an ordinary attribute;
    several modules belong into a ``ModuleList`` or ``ModuleDict``.

        class Residual(Module):
            def __init__(self, width):
                self.inner = Linear(width, width)

            def forward(self, x):
                return x + F.gelu(self.inner(x))
    """

    training: bool
    _parameters: dict[str, Tensor | None]
    _buffers: dict[str, Any]
    _modules: dict[str, Module | None]
    _unsaved: set[str]
    _hooks: Hooks | None
    # Attributes that are constructor arguments of the same name: what print-outs show and configurations hold.
    _settings: tuple[str, ...] = ()

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        # Here rather than in __init__, so that a subclass that does not call it works all the same.
        module = super().__new__(cls)
        for name, empty in (("_parameters", Table()), ("_buffers", Table()), ("_modules", Table()), ("_unsaved", set())):
            object.__setattr__(module, name, empty)
        object.__setattr__(module, "training", True)
        object.__setattr__(module, "_hooks", None)
        raise_version(module)
        return module

    def __init__(self) -> None:
        """Takes nothing: a module without settings refuses them."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The result; what a subclass writes."""
        raise NotImplementedError(f"{type(self).__name__} has no forward(...)")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            if _watching:
                return _scope.call(self, self._run, args, kwargs)
            if self._hooks is None:
                return self.forward(*args, **kwargs)
            return self._hooks.call(self, args, kwargs)
        except WrongInput as error:
            error.called_in(self)
            raise
        except (AttributeError, TypeError) as error:
            wrong = WrongInput.of(self, args, error)
            if wrong is None:
                raise
            raise wrong from None

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        if self._hooks is None:
            return self.forward(*args, **kwargs)
        return self._hooks.call(self, args, kwargs)

    # ---- attributes ------------------------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        raise_version(self)
        tables = (self._parameters, self._buffers, self._modules)
        if isinstance(value, Module):
            home: dict[str, Any] | None = self._modules
        elif isinstance(value, Tensor):
            # A result of a recorded operation has requires_grad, too, but is nothing to train. What replaces a parameter is
            # one, even if it is frozen.
            trained = value.is_leaf and (value.requires_grad or name in self._parameters)
            home = self._buffers if name in self._buffers else self._parameters if trained else None
        elif isinstance(value, IndexTensor) and name in self._buffers:
            home = self._buffers
        elif value is None:
            home = next((table for table in tables if name in table), None)
        else:
            home = None
            if isinstance(value, (list, dict)):
                _warn_of_hidden(type(self).__name__, name, value)
        for table in tables:
            if table is not home and name in table:
                del table[name]
        if home is None:
            object.__setattr__(self, name, value)
        else:
            self.__dict__.pop(name, None)
            home[name] = value

    def __getattr__(self, name: str) -> Any:
        # Every use of a weight comes through here: no loop, and nothing made on the way.
        own = self.__dict__
        if "_modules" in own:
            if name in (table := own["_parameters"]):
                return table[name]
            if name in (table := own["_modules"]):
                return table[name]
            if name in (table := own["_buffers"]):
                return table[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __delattr__(self, name: str) -> None:
        raise_version(self)
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

    def register_buffer(self, name: str, tensor: Tensor | IndexTensor | None, persistent: bool = True) -> None:
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

    def parameters(self, recurse: bool = True) -> Parameters:
        """All parameters: what an optimizer takes."""
        return Parameters(parameter for _, parameter in self.named_parameters(recurse=recurse))

    def trainable_parameters(self) -> list[Tensor]:
        """The parameters that are not frozen."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def named_buffers(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, Any]]:
        """All buffers with their dotted names."""
        return self._named_tensors("_buffers", prefix, recurse)

    def buffers(self, recurse: bool = True) -> Parameters:
        """All buffers."""
        return Parameters(buffer for _, buffer in self.named_buffers(recurse=recurse))

    def num_parameters(self) -> int:
        """The number of elements of all parameters."""
        return sum(parameter.size for parameter in self.parameters())

    def apply(self: _M, function: Callable[[Module], Any]) -> _M:
        """Calls a function with every module inside, and with this one last."""
        for child in self.children():
            child.apply(function)
        function(self)
        return self

    def get_submodule(self, path: str) -> Module:
        """The module under a dotted name; the empty name is this one."""
        module: Module = self
        for name in path.split(".") if path else ():
            found = module._modules.get(name)
            if found is None:
                known = ", ".join(child for child, _ in module.named_children()) or "none"
                raise AttributeError(f"{type(self).__name__} has no module {path!r}: {type(module).__name__} has {known}")
            module = found
        return module

    def get_parameter(self, path: str) -> Tensor:
        """The parameter under a dotted name."""
        return self._member(path, "_parameters", "parameter")

    def get_buffer(self, path: str) -> Tensor:
        """The buffer under a dotted name."""
        return self._member(path, "_buffers", "buffer")

    def _member(self, path: str, table: str, kind: str) -> Any:
        owner, _, name = path.rpartition(".")
        module = self.get_submodule(owner)
        found = getattr(module, table).get(name)
        if found is None:
            known = ", ".join(getattr(module, table)) or "none"
            raise AttributeError(f"{type(self).__name__} has no {kind} {path!r}: {type(module).__name__} has {known}")
        return found

    def set_submodule(self, path: str, module: Module) -> None:
        """Puts a module in the place of the one under a dotted name."""
        owner, _, name = path.rpartition(".")
        self.get_submodule(path)
        setattr(self.get_submodule(owner), name, module)

    # ---- hooks -----------------------------------------------------------------------------------------------------

    def _own_hooks(self) -> Hooks:
        if self._hooks is None:
            object.__setattr__(self, "_hooks", Hooks())
            raise_version(self)
        hooks = self._hooks
        assert hooks is not None
        return hooks

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """``hook(module, args)`` is called before ``forward``; what it returns, unless None, replaces the arguments.

        With ``with_kwargs`` it is ``hook(module, args, kwargs)``, which returns both or None. ``prepend`` puts it first.
        """
        return (hooks := self._own_hooks()).add(hooks.before, hook, prepend, with_kwargs)

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """``hook(module, args, output)`` is called after ``forward``; what it returns, unless None, replaces the output.

        With ``with_kwargs`` it is ``hook(module, args, kwargs, output)``. ``prepend`` puts it before others.
        """
        return (hooks := self._own_hooks()).add(hooks.after, hook, prepend, with_kwargs)

    def register_full_backward_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """``hook(module, grad_input, grad_output)`` is called when the gradients of a call's positional inputs are known.

        Both are tuples with None for what has no gradient. What the hook returns, unless None, replaces ``grad_input``; that
        is possible where one input has a gradient. Hooks see results that are tensors, or lists or tuples of them.
        """
        return (hooks := self._own_hooks()).add(hooks.backward, hook)

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

    def freeze(self: _M) -> _M:
        """Parameters get no gradients from now on and stay as they are."""
        return self.requires_grad_(False)

    def unfreeze(self: _M) -> _M:
        """Parameters are trained again."""
        return self.requires_grad_(True)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients of all parameters, or replaces them by zeros."""
        for parameter in self.parameters():
            if set_to_none or parameter.grad is None:
                parameter.grad = None
            else:
                parameter.grad = Tensor.from_shape(parameter.queue, parameter.shape, parameter.dtype)

    def to(self: _M, queue: Any = None, dtype: str | None = None, *, device: Any = None) -> _M:
        """Moves parameters, their gradients and buffers to a device, or into another dtype.

        The device is a queue, a handle or a selector: ``to("cpu")``, ``to(queue)``, ``to("float64")``, ``to("gpu",
        "float16")``. Parameters stay the same tensors: an optimizer or an average made before follows, with its state. Shared
        parameters stay shared.
        """
        if device is not None and queue is not None:
            raise TypeError("to: give one device, not two")
        queue = device if queue is None else queue
        if isinstance(queue, str) and queue in _DTYPES:
            if dtype is not None:
                raise TypeError("to: give one dtype, not two")
            queue, dtype = None, queue
        queue = resolve_queue(queue)
        tables = [table for module in self.modules() for table in (module._parameters, module._buffers)]
        # All new values first: where one fails, the module stays as it was.
        moved: dict[int, tuple[Any, Any]] = {}
        for tensor in (tensor for table in tables for tensor in table.values()):
            if tensor is not None and id(tensor) not in moved:
                whole = isinstance(tensor, IndexTensor)
                here = tensor if whole else tensor.detach()
                there = here.to(queue) if whole else here.to(queue, dtype)
                if there is not here:
                    moved[id(tensor)] = tensor, there
        for table in tables:
            for name, tensor in table.items():
                # Indices, and results of recorded operations, cannot move: their values do.
                if id(tensor) in moved and not (isinstance(tensor, Tensor) and tensor.is_leaf):
                    table[name] = moved[id(tensor)][1]
        for tensor, there in moved.values():
            if isinstance(tensor, Tensor) and tensor.is_leaf:
                tensor._move_to(there)
        return self

    def cpu(self: _M) -> _M:
        """``to("cpu")``."""
        return self.to("cpu")

    def gpu(self: _M) -> _M:
        """``to("gpu")``."""
        return self.to("gpu")

    def cuda(self: _M) -> _M:
        """``to("gpu")``."""
        return self.to("gpu")

    def half(self: _M) -> _M:
        """``to("float16")``: for inference in 16 bits; training keeps float32 and uses ``netcl.amp``."""
        return self.to("float16")

    def bfloat16(self: _M) -> _M:
        """``to("bfloat16")``."""
        return self.to("bfloat16")

    def float(self: _M) -> _M:
        """``to("float32")``."""
        return self.to("float32")

    def double(self: _M) -> _M:
        """``to("float64")``."""
        return self.to("float64")

    # ---- saving ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of all parameters and buffers under their dotted names, which are those of the same model in PyTorch.

        What occurs twice in the module has two names here.
        """
        return _state.save(self)

    def load_state_dict(
        self,
        state: Mapping[str, Any],
        strict: bool = True,
        *,
        rename: Mapping[str, str] | Sequence[tuple[str, str]] | None = None,
    ) -> IncompatibleKeys:
        """Overwrites parameters and buffers with the arrays (or tensors) of a ``state_dict``, in place.

        A ``StateDictError`` names every missing, unexpected and mis-shaped key at once; nothing has changed then. With
        ``strict=False`` keys without a partner are left alone and returned; a tensor of another shape is an error all the same.
        ``rename``, a dictionary or pairs, replaces patterns in the keys first:
        ``rename={r"^module\\.": "", r"layer(\\d+)": r"layers.\\1"}``; a key that becomes empty is left out. The values may be
        those of a model of PyTorch: ``model.load_state_dict(torch_model.state_dict())``.
        """
        return _state.load(self, state, strict, rename)

    def __deepcopy__(self: _M, memo: dict[int, Any]) -> _M:
        # Tensors stay on their devices, and shared ones stay shared.
        def twin(tensor: Any) -> Any:
            if tensor is None:
                return None
            if isinstance(tensor, IndexTensor):
                memo.setdefault(id(tensor), tensor.clone())
            elif id(tensor) not in memo:
                memo[id(tensor)] = ag.tensor(ag.clone(tensor.detach()), requires_grad=tensor.requires_grad)
            return memo[id(tensor)]

        other: _M = type(self).__new__(type(self))
        memo[id(self)] = other
        for name, value in self.__getstate__().items():
            if name in ("_parameters", "_buffers"):
                other.__dict__[name] = Table((key, twin(tensor)) for key, tensor in value.items())
            else:
                other.__dict__[name] = copy.deepcopy(value, memo)
        return other

    def __getstate__(self) -> dict[str, Any]:
        # What compiled functions know of the module is of no use to a copy.
        return {name: value for name, value in self.__dict__.items() if name != "_facts"}

    # ---- printing --------------------------------------------------------------------------------------------------

    def extra_repr(self) -> str:
        """What print-outs say between the parentheses."""
        return ", ".join(f"{name}={value!r}" for name, value in self.settings().items())

    def settings(self) -> dict[str, Any]:
        """The constructor arguments that make a layer like this one, apart from the queue; empty for modules of one's own."""
        found = {}
        for name in self._settings:
            value = getattr(self, name)
            # A bias that is there, or not, is a truth value to the constructor.
            found[name] = value is not None if name == "bias" and (value is None or isinstance(value, Tensor)) else value
        return found

    def __repr__(self) -> str:
        return self._tree()

    def _tree(self, name: str = "", indent: str = "") -> str:
        extra, children = self.extra_repr(), list(self.named_children())
        count = self.num_parameters()
        label = f"{indent}({name}): " if name else indent
        note = f"  # {count:,} parameter{'s' if count != 1 else ''}" if count else ""
        if not children:
            return f"{label}{type(self).__name__}({extra}){note}"
        inner = indent + "  "
        lines = [f"{label}{type(self).__name__}(", *([inner + extra] if extra else [])]
        lines += [child._tree(at, inner) for at, child in children]
        return "\n".join([*lines, f"{indent}){note}"])

    def summary(self, *inputs: Any) -> str:
        """A table of the modules inside: kind, parameters, and with an input (or its shape) what comes out of each.

        ``print(model.summary((1, 3, 32, 32)))``. The forward pass runs in inference mode, unrecorded.
        """
        from netcl.nn._summary import table

        return table(self, inputs)
