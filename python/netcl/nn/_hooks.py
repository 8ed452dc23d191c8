"""Functions that see what goes into a module, what comes out, and the gradients on the way back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from netcl import autograd as ag
from netcl._netcl import Tensor

if TYPE_CHECKING:
    from netcl.nn.module import Module

__all__ = ["Hooks", "RemovableHandle"]


class RemovableHandle:
    """What registering a hook returns: ``remove()`` takes the hook away, as does the end of a ``with`` block."""

    def __init__(self, table: dict[int, Callable[..., Any]], key: int) -> None:
        self._table, self._key = table, key

    def remove(self) -> None:
        """Takes the hook away; a second call does nothing."""
        self._table.pop(self._key, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()


class Hooks:
    """The hooks of one module, in the order in which they were registered."""

    def __init__(self) -> None:
        self.before: dict[int, Callable[..., Any]] = {}
        self.after: dict[int, Callable[..., Any]] = {}
        self.backward: dict[int, Callable[..., Any]] = {}
        self._next = 0
        # Those that see keyword arguments, too.
        self.with_kwargs: set[int] = set()

    def add(
        self, table: dict[int, Callable[..., Any]], hook: Callable[..., Any], prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Puts a hook after the others of a table, or before them."""
        if not callable(hook):
            raise TypeError(f"a hook is a function, not {type(hook).__name__}")
        key, self._next = self._next, self._next + 1
        others = dict(table) if prepend else {}
        if prepend:
            table.clear()
        table[key] = hook
        table.update(others)
        if with_kwargs:
            self.with_kwargs.add(key)
        return RemovableHandle(table, key)

    def call(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The module's result, with the hooks around it."""
        for key, hook in list(self.before.items()):
            if key in self.with_kwargs:
                both = hook(module, args, kwargs)
                args, kwargs = (args, kwargs) if both is None else both
                continue
            changed = hook(module, args)
            if changed is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
        watch = _Watch(module, list(self.backward.values())) if self.backward and ag.is_grad_enabled() else None
        if watch is not None:
            args = watch.inputs(args)
        result = module.forward(*args, **kwargs)
        for key, hook in list(self.after.items()):
            changed = hook(module, args, kwargs, result) if key in self.with_kwargs else hook(module, args, result)
            if changed is not None:
                result = changed
        return result if watch is None else watch.outputs(result)


class _Watch:
    """Collects the gradients of one call of a module until the hooks can be called."""

    def __init__(self, module: Module, hooks: list[Callable[..., Any]]) -> None:
        self._module, self._hooks = module, hooks
        self._inputs: list[Tensor | None] = []
        self._outputs: list[Tensor | None] = []
        self._wanted: set[int] = set()

    def inputs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The inputs, as tensors whose gradient is this module's share of it alone."""
        self._inputs = [None] * len(args)
        passed = list(args)
        for i, x in enumerate(args):
            if isinstance(x, Tensor) and x.requires_grad:
                passed[i] = ag.reshape(x, x.shape)
                passed[i].register_hook(self._input_hook(i))
                self._wanted.add(i)
        return tuple(passed)

    def outputs(self, result: Any) -> Any:
        """The result, watched."""
        alone = isinstance(result, Tensor)
        parts = [result] if alone else list(result) if isinstance(result, (list, tuple)) else []
        self._outputs = [None] * len(parts)
        for i, y in enumerate(parts):
            if isinstance(y, Tensor) and y.requires_grad:
                parts[i] = ag.reshape(y, y.shape)
                parts[i].register_hook(self._output_hook(i))
        if alone:
            return parts[0]
        return type(result)(parts) if type(result) in (list, tuple) else result

    def _output_hook(self, i: int) -> Callable[[Tensor], None]:
        def seen(gradient: Tensor) -> None:
            self._outputs[i] = gradient
            if not self._wanted:
                # No input has a gradient: what arrives at the outputs is all there is to see.
                self._run()

        return seen

    def _input_hook(self, i: int) -> Callable[[Tensor], Tensor | None]:
        def seen(gradient: Tensor) -> Tensor | None:
            self._inputs[i] = gradient
            if any(self._inputs[j] is None for j in self._wanted):
                return None
            return self._run(i)

        return seen

    def _run(self, last: int | None = None) -> Tensor | None:
        for hook in self._hooks:
            changed = hook(self._module, tuple(self._inputs), tuple(self._outputs))
            if changed is None:
                continue
            changed = changed if isinstance(changed, tuple) else (changed,)
            if len(self._wanted) != 1 or len(changed) != len(self._inputs):
                raise ValueError(
                    f"a backward hook of {type(self._module).__name__} returned {len(changed)} gradients for "
                    f"{len(self._inputs)} inputs, of which {len(self._wanted)} have one; gradients can be replaced where "
                    "exactly one input has one"
                )
            self._inputs = list(changed)
        result = None if last is None else self._inputs[last]
        # A graph that is walked again fills these again.
        self._inputs = [None] * len(self._inputs)
        self._outputs = [None] * len(self._outputs)
        return result
