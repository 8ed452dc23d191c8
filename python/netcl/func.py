"""Functions of functions: ``netcl.func`` has what programs use most of ``torch.func``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from netcl._netcl import Tensor
from netcl._netcl.autograd import tensor as _leaf
from netcl._structure import map_leaves, replace
from netcl.autograd import functional, ops
from netcl.autograd.tape import enable_grad

__all__ = ["functional_call", "grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "vjp", "vmap"]

# How many transforms are being computed: results inside another one stay parts of its graph.
_depth = [0]


def _watched(leaf: Any, into: list[Tensor]) -> Any:
    """A tensor to differentiate by, which is noted; part of the caller's graph where it has one."""
    if not isinstance(leaf, Tensor):
        return leaf
    into.append(ops.reshape(leaf, leaf.shape) if leaf.requires_grad else _leaf(leaf.detach(), requires_grad=True))
    return into[-1]


def _trained(value: Any) -> bool:
    """Whether there is a tensor in it that requires a gradient."""
    found: list[bool] = []
    map_leaves(value, lambda leaf: found.append(isinstance(leaf, Tensor) and leaf.requires_grad))
    return any(found)


def grad_and_value(func: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """A function that gives the gradients of ``func``, whose result is one number, and that result."""
    places = argnums if isinstance(argnums, tuple) else (argnums,)

    @functools.wraps(func)
    def both(*args: Any, **kwargs: Any) -> Any:
        given, wanted = list(args), list[Tensor]()
        for at in places:
            given[at] = map_leaves(args[at], lambda leaf: _watched(leaf, wanted))
        _depth[0] += 1
        try:
            with enable_grad():
                result = func(*given, **kwargs)
                value = result[0] if has_aux else result
                if value.numel() != 1:
                    raise ValueError(f"grad: the function gives one number, not a tensor of shape {tuple(value.shape)}")
                kept = _depth[0] > 1 or _trained((args, kwargs))
                found = functional._grads(ops.reshape(value, ()), wanted, create_graph=kept, retain_graph=True)
        finally:
            _depth[0] -= 1
        gradients = tuple(x * 0 if one is None else one for one, x in zip(found, wanted))
        if not kept:
            gradients, value = tuple(one.detach() for one in gradients), value.detach()
        rest = iter(gradients)
        parts = tuple(replace(given[at], rest) for at in places)
        shown = parts if isinstance(argnums, tuple) else parts[0]
        return shown, ((value, result[1]) if has_aux else value)

    return both


def grad(func: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """A function that gives the gradients of ``func``, whose result is one number: ``grad(f)(x)``; can be applied again.

    With ``has_aux`` ``func`` returns something beside that number, which is given beside the gradients.
    """
    both = grad_and_value(func, argnums, has_aux)

    @functools.wraps(func)
    def alone(*args: Any, **kwargs: Any) -> Any:
        gradients, value = both(*args, **kwargs)
        return (gradients, value[1]) if has_aux else gradients

    return alone


def jacrev(func: Callable[..., Any], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """A function that gives the derivative of every element of the result by every element of an argument, or of several."""
    places = argnums if isinstance(argnums, tuple) else (argnums,)

    @functools.wraps(func)
    def derivative(*args: Any, **kwargs: Any) -> Any:
        def of_some(*watched: Tensor) -> Any:
            given = list(args)
            for at, x in zip(places, watched):
                given[at] = x
            return func(*given, **kwargs)

        inputs = tuple(args[at] for at in places)
        _depth[0] += 1
        try:
            kept = _depth[0] > 1 or _trained((args, kwargs))
            return functional.jacobian(of_some, inputs if isinstance(argnums, tuple) else inputs[0], kept)
        finally:
            _depth[0] -= 1

    return derivative


jacfwd = jacrev
"""Another name of ``jacrev``: the numbers are the same, and gradients are computed backwards here."""


def hessian(func: Callable[..., Any], argnums: int = 0) -> Callable[..., Any]:
    """A function that gives the second derivatives of ``func``, whose result is one number."""
    return jacrev(jacrev(func, argnums), argnums)


def vjp(func: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """The result, and a function from its gradients (a tuple where there are several results) to those of the arguments."""
    kept, watched = _depth[0] > 0 or _trained(primals), list[Tensor]()
    for x in primals:
        _watched(x, watched)
    with enable_grad():
        result = func(*watched)
    roots = result if isinstance(result, tuple) else (result,)

    def back(gradients: Any) -> tuple[Any, ...]:
        seeds = tuple(gradients) if isinstance(result, tuple) else (gradients,)
        found = functional._grads(roots, watched, seeds, retain_graph=True, create_graph=kept)
        return tuple(x.detach() * 0 if one is None else one for one, x in zip(found, watched))

    shown = result if kept else map_leaves(result, lambda part: part.detach())
    return shown, back


def jvp(func: Callable[..., Any], primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """The result, and how fast it changes where the arguments move in the direction of the tangents."""
    return functional.jvp(func, primals, tangents, _depth[0] > 0 or _trained(primals))


def vmap(
    func: Callable[..., Any], in_dims: Any = 0, out_dims: Any = 0, randomness: str = "error", *, chunk_size: int | None = None
) -> Callable[..., Any]:
    """A function of whole batches: ``func`` is called for each sample, and the results are stacked along ``out_dims``.

    A loop, for convenience: it costs a call per sample, where operations of whole batches cost one. ``in_dims`` says which axis
    of each argument is the batch, None that all samples share it; arguments may be tuples and dictionaries of tensors.
    PyTorch's ``randomness`` and ``chunk_size`` change nothing.
    """

    @functools.wraps(func)
    def batched(*args: Any, **kwargs: Any) -> Any:
        dims = in_dims if isinstance(in_dims, (tuple, list)) else (in_dims,) * len(args)
        if len(dims) != len(args):
            raise ValueError(f"vmap: in_dims has {len(dims)} entries for {len(args)} arguments")
        sizes = {size for arg, dim in zip(args, dims) for size in _sizes(arg, dim)}
        sizes |= {size for arg in kwargs.values() for size in _sizes(arg, 0)}
        if len(sizes) != 1:
            raise ValueError(f"vmap: the batches of all arguments have one length, not {sorted(sizes) or 'none'}")
        results = [
            func(
                *(_sample(arg, dim, i) for arg, dim in zip(args, dims)),
                **{name: _sample(arg, 0, i) for name, arg in kwargs.items()},
            )
            for i in range(sizes.pop())
        ]
        return _stacked(results, out_dims)

    return batched


def _parts(value: Any, dim: Any) -> list[tuple[Any, Any]]:
    """The members of a tuple or dictionary, with the axis of each."""
    if isinstance(value, Mapping):
        return [(part, dim[name] if isinstance(dim, Mapping) else dim) for name, part in value.items()]
    return [(part, dim[i] if isinstance(dim, (tuple, list)) else dim) for i, part in enumerate(value)]


def _sizes(value: Any, dim: Any) -> list[int]:
    if isinstance(value, Tensor):
        return [] if dim is None else [value.shape[dim]]
    if isinstance(value, (tuple, list, Mapping)):
        return [size for part, at in _parts(value, dim) for size in _sizes(part, at)]
    return []


def _sample(value: Any, dim: Any, i: int) -> Any:
    if isinstance(value, Tensor):
        return value if dim is None else value[(slice(None),) * (dim % value.ndim) + (i,)]
    if isinstance(value, Mapping):
        return {name: _sample(part, at, i) for name, (part, at) in zip(value, _parts(value, dim))}
    if isinstance(value, (tuple, list)):
        return type(value)(_sample(part, at, i) for part, at in _parts(value, dim))
    return value


def _stacked(results: list[Any], dim: Any) -> Any:
    first = results[0]
    if isinstance(first, Mapping):
        return {name: _stacked([result[name] for result in results], dim) for name in first}
    if isinstance(first, (tuple, list)):
        dims = dim if isinstance(dim, (tuple, list)) else (dim,) * len(first)
        return type(first)(_stacked(list(part), at) for part, at in zip(zip(*results), dims))
    if dim is None:
        return first
    return ops.stack(results, dim)


def functional_call(
    module: Any, parameters_and_buffers: Any, args: Any = (), kwargs: Any = None, *, strict: bool = False
) -> Any:
    """The result of a module with other tensors in the place of its parameters and buffers, by their dotted names."""
    replaced: dict[str, Any] = {}
    for part in parameters_and_buffers if isinstance(parameters_and_buffers, (tuple, list)) else [parameters_and_buffers]:
        replaced |= part
    tables = {}
    for path, owner in module.named_modules():
        for table in (owner._parameters, owner._buffers):
            tables.update({(f"{path}.{name}" if path else name): (table, name) for name in table})
    if unknown := [name for name in replaced if name not in tables]:
        raise KeyError(f"functional_call: {type(module).__name__} has no {', '.join(map(repr, unknown))}")
    if strict and (missing := [name for name in tables if name not in replaced]):
        raise KeyError(f"functional_call: strict=True, and {', '.join(map(repr, missing))} are not given")
    # What occurs under several names is replaced under all of them.
    # What is None is nothing that could be shared.
    slots = {path: (id(table[name]) if table[name] is not None else path) for path, (table, name) in tables.items()}
    given = {slots[path]: tensor for path, tensor in replaced.items()}
    before = [(*tables[path], tables[path][0][tables[path][1]], given[slot]) for path, slot in slots.items() if slot in given]
    try:
        for table, name, _, tensor in before:
            table[name] = tensor
        return module(*(args if isinstance(args, tuple) else (args,)), **(kwargs or {}))
    finally:
        for table, name, tensor, _ in before:
            table[name] = tensor
