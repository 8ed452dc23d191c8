"""The operations at the top level of the package: those of ``netcl.autograd``, which record, with ``netcl.ops``'s ``out=``.

Where PyTorch and NumPy give different answers under one name, the names of arguments decide here and in the methods of tensors:
``dim`` and positional arguments are PyTorch's, ``axis`` is NumPy's.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, overload

from netcl import ops
from netcl._netcl import Tensor
from netcl._netcl.autograd import elementwise, is_grad_enabled
from netcl._netcl.functions import ValuesAndIndices
from netcl.autograd import ops as _ops
from netcl.autograd.ops import bias_add, conv2d, matmul as _matmul, sum as reduce_sum
from netcl.ops.elementwise import SYMBOLS

__all__ = [
    "ValuesAndIndices", "add", "atleast_2d", "bias_add", "clamp_max", "clamp_min", "clip", "concat", "conv2d", "div",
    "elementwise_binary", "gather", "index_add", "index_select", "log_softmax", "matmul", "max", "min", "ravel",
    "reduce_sum", "relu", "repeat", "scatter_add", "select", "softmax", "sort", "split", "sub", "t", "take", "topk",
    "transpose", "where",
]


_Axis = int | Sequence[int] | None


def _check_out(op: str, *tensors: Any) -> None:
    """What is written into given memory cannot be recorded: an error where a gradient is wanted."""
    if is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in tensors):
        raise ValueError(
            f"{op}: out= cannot be recorded, and a tensor here requires a gradient; leave out= away, or call it under no_grad"
        )


def matmul(a: Tensor, b: Tensor, *, transpose_a: bool = False, transpose_b: bool = False, out: Tensor | None = None) -> Tensor:
    """The matrix product by NumPy's rules: the last two axes are multiplied, axes before them broadcast.

    Recorded. ``out`` is for tensors without a gradient, or ``no_grad``.
    """
    if out is None:
        return _matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    _check_out("matmul", a, b, out)
    return ops.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b, out=out)


def relu(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``max(x, 0)``; NaN stays NaN. Recorded. ``out`` is for tensors without a gradient, or ``no_grad``."""
    if out is None:
        return elementwise("relu", x)
    _check_out("relu", x, out)
    return ops.relu(x, out=out)


def elementwise_binary(a: Any, b: Any, op: str = "add", *, out: Tensor | None = None) -> Tensor:
    """A two-operand operation by its name (``"add"``, ``"mul"``, ...) or symbol (``"+"``, ``"*"``, ...).

    Recorded. ``out`` is for tensors without a gradient, or ``no_grad``.
    """
    if out is None:
        return elementwise(SYMBOLS.get(op, op), a, b)
    _check_out(op, a, b, out)
    return ops.elementwise_binary(a, b, op, out=out)


# ---- elementwise ---------------------------------------------------------------------------------------------------


def add(input: Any, other: Any, *, alpha: float = 1) -> Tensor:
    """``input + alpha * other``."""
    return elementwise("add", input, other if alpha == 1 else other * alpha)


def sub(input: Any, other: Any, *, alpha: float = 1) -> Tensor:
    """``input - alpha * other``."""
    return elementwise("sub", input, other if alpha == 1 else other * alpha)


def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    """``input / other``; rounded down with ``rounding_mode="floor"`` or towards 0 with ``"trunc"``, whole
    numbers staying whole."""
    quotient = elementwise("div", input, other)
    if rounding_mode is None:
        return quotient
    if rounding_mode not in ("floor", "trunc"):
        raise ValueError(f'div: rounding_mode is None, "floor" or "trunc", not {rounding_mode!r}')
    rounded = _ops.floor(quotient) if rounding_mode == "floor" else _ops.sign(quotient) * _ops.floor(_ops.abs(quotient))
    whole = all(isinstance(part, int) or (isinstance(part, Tensor) and part.dtype in _WHOLE) for part in (input, other))
    return rounded.to(dtype="int64") if whole else rounded


_WHOLE = ("int64", "int32", "bool")


def clip(input: Tensor, min: float | None = None, max: float | None = None) -> Tensor:
    """Every element limited to [min, max]; ``None`` is no limit."""
    return _ops.clamp(input, min, max)


def clamp_min(input: Tensor, min: float) -> Tensor:
    """Every element, at least ``min``."""
    return _ops.clamp(input, min=min)


def clamp_max(input: Tensor, max: float) -> Tensor:
    """Every element, at most ``max``."""
    return _ops.clamp(input, max=max)


@overload
def where(condition: Any) -> tuple[Tensor, ...]: ...
@overload
def where(condition: Any, input: Any, other: Any) -> Tensor: ...
def where(condition: Any, input: Any = None, other: Any = None) -> Any:
    """``input`` where the condition is not 0, else ``other``; of a condition alone the places where it is not 0, as indices of
    each axis."""
    if input is None and other is None:
        return _ops.nonzero(condition, as_tuple=True)
    return _ops.where(condition, input, other)


def softmax(x: Tensor, axis: int = -1, *, dim: int | None = None, dtype: str | None = None) -> Tensor:
    """``exp(x) / sum(exp(x))`` along an axis, of values cast to ``dtype`` first where one is given."""
    if dtype is not None:
        x = x.to(dtype=dtype)
    return _ops.softmax(x, axis if dim is None else dim)


def log_softmax(x: Tensor, axis: int = -1, *, dim: int | None = None, dtype: str | None = None) -> Tensor:
    """``log(softmax(x))`` along an axis, of values cast to ``dtype`` first where one is given."""
    if dtype is not None:
        x = x.to(dtype=dtype)
    return _ops.log_softmax(x, axis if dim is None else dim)


# ---- reductions ----------------------------------------------------------------------------------------------------


@overload
def max(
    input: Tensor, dim: None = None, keepdim: bool = False, *, axis: _Axis = None, keepdims: bool = False, out: None = None
) -> Tensor: ...
@overload
def max(input: Tensor, dim: Tensor) -> Tensor: ...
@overload
def max(input: Tensor, dim: int, keepdim: bool = False, *, keepdims: bool = False) -> ValuesAndIndices: ...
def max(
    input: Tensor, dim: Any = None, keepdim: bool = False, *, axis: Any = None, keepdims: bool = False, out: None = None
) -> Any:
    """The largest value of all, or along an axis.

    ``max(x, dim=1)`` and ``max(x, 1)`` give ``(values, indices)`` as in PyTorch; the gradient goes to the first of equals.
    ``max(x, axis=1)`` gives the values as in NumPy. ``max(x, y)`` is ``maximum``.
    """
    if isinstance(dim, Tensor):
        return _ops.maximum(input, dim)
    if dim is None:
        return _ops.max(input, axis, keepdims or keepdim)
    return _ops.max_along(input, dim, keepdim or keepdims)


@overload
def min(
    input: Tensor, dim: None = None, keepdim: bool = False, *, axis: _Axis = None, keepdims: bool = False, out: None = None
) -> Tensor: ...
@overload
def min(input: Tensor, dim: Tensor) -> Tensor: ...
@overload
def min(input: Tensor, dim: int, keepdim: bool = False, *, keepdims: bool = False) -> ValuesAndIndices: ...
def min(
    input: Tensor, dim: Any = None, keepdim: bool = False, *, axis: Any = None, keepdims: bool = False, out: None = None
) -> Any:
    """The smallest value of all, or along an axis; see ``max``."""
    if isinstance(dim, Tensor):
        return _ops.minimum(input, dim)
    if dim is None:
        return _ops.min(input, axis, keepdims or keepdim)
    return _ops.min_along(input, dim, keepdim or keepdims)


def _one(op: str, dim: int | None, axis: int | None) -> int | None:
    if dim is not None and axis is not None:
        raise TypeError(f"{op}: dim and axis are two names of one argument; give one of them")
    return axis if dim is None else dim


def topk(
    input: Tensor, k: int, dim: int | None = None, largest: bool = True, sorted: bool = True, *, axis: int | None = None
) -> ValuesAndIndices:
    """The ``k`` largest (or smallest) elements along an axis, the best first, and where they were."""
    return ValuesAndIndices(*_ops.topk(input, k, largest=largest, dim=_one("topk", dim, axis)))


def sort(
    input: Tensor, dim: int | None = None, descending: bool = False, stable: bool = True, *, axis: int | None = None
) -> ValuesAndIndices:
    """The elements in order along an axis, and where they were. Stable; NaN comes last."""
    return ValuesAndIndices(*_ops.sort(input, descending=descending, dim=_one("sort", dim, axis)))


# ---- elements by index ---------------------------------------------------------------------------------------------


def gather(input: Tensor, dim: int, index: Any) -> Tensor:
    """``out[i][j] = input[index[i][j]][j]`` for axis 0, and likewise for others."""
    return _ops.gather(input, dim, index)


def scatter_add(input: Tensor, dim: int, index: Any, src: Tensor) -> Tensor:
    """``input`` with ``out[index[i][j]][j] += src[i][j]`` for axis 0, and likewise for others. Sums have a fixed order."""
    return _ops.scatter_add(input, dim, index, src)


def index_add(input: Tensor, dim: int, index: Any, source: Tensor, *, alpha: float = 1) -> Tensor:
    """``input`` with the slices of ``source`` added at indices of an axis. Sums have a fixed order."""
    return _ops.index_add(input, dim, index, source if alpha == 1 else source * alpha)


def index_select(input: Tensor, dim: int, index: Any) -> Tensor:
    """The slices of an axis with the given indices, in their order."""
    return _ops.index_select(input, dim, index)


def take(input: Tensor, index: Any) -> Tensor:
    """The elements at places of the flattened tensor, in the shape of the indices."""
    return _ops.reshape(input, (-1,))[index]


def atleast_2d(input: Tensor) -> Tensor:
    """A vector or a scalar as a row; others as they are."""
    return input if input.ndim > 1 else _ops.reshape(input, (1, -1))


def select(input: Tensor, dim: int, index: int) -> Tensor:
    """The slice of an axis at one index, as a view."""
    place = (slice(None),) * (dim % input.ndim if input.ndim else dim)
    return input[(*place, index)]


# ---- shapes --------------------------------------------------------------------------------------------------------


def _several(given: tuple[Any, ...]) -> Any:
    """Numbers given one by one or as one sequence."""
    return given[0] if len(given) == 1 and not isinstance(given[0], int) else given


def permute(input: Tensor, *dims: Any) -> Tensor:
    """The axes in another order, as a view: ``x.permute(2, 0, 1)``, ``permute(x, (2, 0, 1))``."""
    return _ops.permute(input, _several(dims))


def expand(input: Tensor, *sizes: Any) -> Tensor:
    """The elements repeated along new or length-1 axes, as a view; -1 is the axis's own length."""
    return _ops.expand(input, _several(sizes))


def broadcast_to(input: Tensor, *shape: Any) -> Tensor:
    """``expand``."""
    return _ops.expand(input, _several(shape))


def ravel(input: Tensor) -> Tensor:
    """All elements along one axis."""
    return _ops.reshape(input, (-1,)) if input.size else _ops.reshape(input, (0,))


def transpose(input: Tensor, *dims: Any, dim0: int | None = None, dim1: int | None = None, axes: Any = None) -> Tensor:
    """Two axes exchanged as in PyTorch: ``x.transpose(1, 2)``; or all in the order of ``axes``, or reversed where
    none is given, as in NumPy: ``x.transpose(axes=(2, 0, 1))``, ``x.transpose()``. A view."""
    return Tensor.transpose(input, *dims, dim0=dim0, dim1=dim1, axes=axes)


def t(input: Tensor) -> Tensor:
    """A matrix transposed, as a view; a vector as it is."""
    if input.ndim > 2:
        raise ValueError(f"t: a matrix or a vector is needed, not shape {input.shape}; mT exchanges the last two axes")
    return input if input.ndim < 2 else _ops.transpose(input, 0, 1)


def split(input: Tensor, split_size_or_sections: Any, dim: int | None = None, *, axis: int | None = None) -> tuple[Tensor, ...]:
    """Views of consecutive parts. ``split(x, 2, dim=1)`` and ``split(x, 2)``: of length 2 (or a list of lengths), as in
    PyTorch; ``split(x, 2, axis=1)``: two parts (or parts that begin at a list of places), as in NumPy."""
    if axis is None:
        return tuple(_ops.split(input, split_size_or_sections, 0 if dim is None else dim))
    length = input.shape[axis]
    if isinstance(split_size_or_sections, int):
        if split_size_or_sections < 1 or length % split_size_or_sections:
            raise ValueError(f"split: {length} elements along axis {axis} do not make {split_size_or_sections} equal parts")
        return tuple(_ops.split(input, length // split_size_or_sections, axis))
    places = [0, *split_size_or_sections, length]
    return tuple(_ops.split(input, [after - before for before, after in pairwise(places)], axis))


def repeat(input: Tensor, *sizes: Any, axis: int | None = None) -> Tensor:
    """The whole tensor so many times along each axis, as in PyTorch: ``x.repeat(2, 1)``; with ``axis`` each element so many
    times along it, as in NumPy: ``x.repeat(2, axis=0)`` (PyTorch's ``repeat_interleave``)."""
    if axis is None:
        return _ops.repeat(input, _several(sizes))
    return _ops.repeat_interleave(input, _several(sizes) if len(sizes) > 1 else sizes[0], axis)


def concat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """``cat``."""
    return _ops.cat(tensors, dim)
