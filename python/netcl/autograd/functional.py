"""Derivatives of functions as a whole: ``netcl.autograd.functional``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from netcl import _factories as make
from netcl._netcl import Tensor
from netcl._netcl.autograd import grad as _grad, tensor as _leaf
from netcl.autograd import ops
from netcl.autograd.tape import enable_grad

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]


def _tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _like(value: Any, parts: tuple[Any, ...]) -> Any:
    return parts if isinstance(value, (tuple, list)) else parts[0]


def _watched(inputs: Any, create_graph: bool) -> tuple[Tensor, ...]:
    """The inputs as tensors to differentiate by; with a graph, parts of the caller's own."""
    return tuple(
        ops.reshape(x, x.shape) if create_graph and x.requires_grad else _leaf(x.detach(), requires_grad=True)
        for x in _tuple(inputs)
    )


def _grads(outputs: Any, inputs: Any, seeds: Any = None, **options: Any) -> tuple[Any, ...]:
    """The gradients of results; None for what no result depends on. A result that depends on nothing has none to give."""
    outputs = _tuple(outputs)
    given = [(one, by) for one, by in zip(outputs, seeds or (None,) * len(outputs)) if one.requires_grad]
    if not given:
        return (None,) * len(inputs)
    roots, by = zip(*given)
    return tuple(_grad(roots, inputs, None if seeds is None else by, allow_unused=True, **options))


def _or_zeros(found: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(make.zeros_like(x) if one is None else one for one, x in zip(found, inputs))


def jacobian(
    func: Callable[..., Any], inputs: Any, create_graph: bool = False, strict: bool = False, vectorize: bool = False
) -> Any:
    """The derivative of every element of the result by every element of the inputs: ``(*result.shape, *input.shape)``.

    A tuple of inputs gives a tuple, a tuple of results a tuple of those. A backward pass per element of the result.
    """
    with enable_grad():
        watched = _watched(inputs, create_graph)
        results = func(*watched)
        found = tuple(_like(inputs, _rows(result, watched, create_graph)) for result in _tuple(results))
    return _like(results, found)


def _rows(result: Tensor, watched: tuple[Tensor, ...], create_graph: bool) -> tuple[Tensor, ...]:
    flat = ops.reshape(result, (-1,))
    rows = []
    for i in range(flat.shape[0]):
        found = _grads(flat[i], watched, retain_graph=True, create_graph=create_graph)
        rows.append(_or_zeros(found, watched))
    return tuple(ops.reshape(ops.stack([row[at] for row in rows]), (*result.shape, *x.shape)) for at, x in enumerate(watched))


def hessian(
    func: Callable[..., Tensor], inputs: Any, create_graph: bool = False, strict: bool = False, vectorize: bool = False
) -> Any:
    """The second derivatives of a function whose result is one number; of a tuple of inputs a tuple of tuples."""

    def slope(*watched: Tensor) -> Any:
        value = func(*watched)
        found = _grads(ops.reshape(value, ()), watched, create_graph=True)
        # What no input changes has a second derivative of 0 all the same.
        return _like(inputs, tuple(_joined(one, x) for one, x in zip(found, watched)))

    return jacobian(slope, inputs, create_graph)


def _joined(found: Tensor | None, x: Tensor) -> Tensor:
    """A gradient that depends on the input, if only by 0."""
    gradient: Tensor = x * 0 if found is None else found if found.requires_grad else found + x * 0
    return gradient


def vjp(func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False) -> tuple[Any, Any]:
    """The result, and the gradients of the inputs for gradients ``v`` of the result."""
    with enable_grad():
        watched = _watched(inputs, create_graph)
        results = func(*watched)
        seeds = None if v is None else _tuple(v)
        found = _grads(results, watched, seeds, create_graph=create_graph)
    if not create_graph:
        results = _like(results, tuple(result.detach() for result in _tuple(results)))
    return results, _like(inputs, _or_zeros(found, watched))


def jvp(func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False) -> tuple[Any, Any]:
    """The result, and how fast it changes where the inputs move in the direction ``v``: two backward passes."""
    with enable_grad():
        watched = _watched(inputs, create_graph)
        results = func(*watched)
        direction = tuple(make.ones_like(x) for x in watched) if v is None else _tuple(v)
        # The gradients are linear in the gradients of the results, whose slope along v is asked for.
        seeds = tuple(_leaf(make.zeros_like(result), requires_grad=True) for result in _tuple(results))
        found = _grads(results, watched, seeds, create_graph=True)
        linear = [(one, by) for one, by in zip(found, direction) if one is not None and one.requires_grad]
        slopes: Any = [None] * len(seeds)
        if linear:
            outputs, by = zip(*linear)
            slopes = _grad(outputs, seeds, by, create_graph=create_graph, allow_unused=True)
    if not create_graph:
        results = _like(results, tuple(result.detach() for result in _tuple(results)))
    return results, _like(results, _or_zeros(slopes, seeds))


def hvp(func: Callable[..., Tensor], inputs: Any, v: Any = None, create_graph: bool = False) -> tuple[Tensor, Any]:
    """The value of a function of one number, and its second derivatives times ``v``."""
    with enable_grad():
        watched = _watched(inputs, create_graph)
        value = func(*watched)
        found = _grads(ops.reshape(value, ()), watched, create_graph=True)
        gradients = tuple(_joined(one, x) for one, x in zip(found, watched))
        direction = tuple(make.ones_like(x) for x in watched) if v is None else _tuple(v)
        second = _grad(gradients, watched, direction, create_graph=create_graph, allow_unused=True)
    return (value if create_graph else value.detach()), _like(inputs, _or_zeros(second, watched))


vhp = hvp
"""Another name of ``hvp``: second derivatives are symmetric."""
