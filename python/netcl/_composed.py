"""Functions of PyTorch's and NumPy's lists that are a line or two of others, and recorded as these are."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from netcl import _factories as make
from netcl._netcl import Tensor
from netcl.autograd import ops as _ops

__all__ = [
    "addmv", "argwhere", "array_split", "atleast_1d", "bitwise_and", "bitwise_left_shift", "bitwise_not", "bitwise_or",
    "bitwise_right_shift", "bitwise_xor",
    "block_diag", "cartesian_prod", "column_stack", "combinations", "compile", "concatenate", "corrcoef", "cov", "deg2rad",
    "diagflat", "dist", "finfo", "fliplr", "flipud", "iinfo", "is_complex", "isin", "isneginf", "isposinf", "rad2deg",
    "result_type", "round", "scalar_tensor", "sinc", "tensor_split", "trapezoid", "trapz", "tril_indices", "triu_indices",
    "true_divide", "unravel_index", "vdot",
]  # fmt: skip


# ---- elementwise ---------------------------------------------------------------------------------------------------


def round(input: Tensor, *, decimals: int = 0) -> Tensor:
    """The nearest whole numbers, halves to the even one; with ``decimals`` the nearest of so many places."""
    if decimals == 0:
        return _ops.round(input)
    scale = 10.0 ** abs(decimals)
    return _ops.round(input * scale) / scale if decimals > 0 else _ops.round(input / scale) * scale


def true_divide(input: Any, other: Any) -> Tensor:
    """``input / other``."""
    return _ops.div(input, other)


def deg2rad(input: Tensor) -> Tensor:
    """Degrees as radians."""
    return input * (math.pi / 180)


def rad2deg(input: Tensor) -> Tensor:
    """Radians as degrees."""
    return input * (180 / math.pi)


def sinc(input: Tensor) -> Tensor:
    """``sin(pi x) / (pi x)``, 1 at 0."""
    angle = input * math.pi
    zero = angle == 0
    # The quotient is finite at 0 too, so that its gradient there is 0 and not NaN.
    safe = _ops.where(zero, 1.0, angle)
    return _ops.where(zero, 1.0, _ops.sin(safe) / safe)


def isposinf(input: Tensor) -> Tensor:
    """Where the elements are plus infinity."""
    return input == math.inf


def isneginf(input: Tensor) -> Tensor:
    """Where the elements are minus infinity."""
    return input == -math.inf


def bitwise_and(input: Any, other: Any) -> Tensor:
    """``input & other`` of whole numbers, bit by bit, or of truth values."""
    found: Tensor = input & other
    return found


def bitwise_or(input: Any, other: Any) -> Tensor:
    """``input | other`` of whole numbers, bit by bit, or of truth values."""
    found: Tensor = input | other
    return found


def bitwise_xor(input: Any, other: Any) -> Tensor:
    """``input ^ other`` of whole numbers, bit by bit, or of truth values."""
    found: Tensor = input ^ other
    return found


def bitwise_not(input: Tensor) -> Tensor:
    """``~input`` of whole numbers, bit by bit, or of truth values."""
    return ~input


def bitwise_left_shift(input: Any, other: Any) -> Tensor:
    """``input << other`` of whole numbers."""
    found: Tensor = input << other
    return found


def bitwise_right_shift(input: Any, other: Any) -> Tensor:
    """``input >> other`` of whole numbers; the sign stays."""
    found: Tensor = input >> other
    return found


# ---- joining and cutting -------------------------------------------------------------------------------------------


def concatenate(tensors: Sequence[Tensor], dim: int = 0, *, axis: int | None = None) -> Tensor:
    """``cat``."""
    return _ops.cat(tensors, dim if axis is None else axis)


def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors side by side; vectors are columns."""
    return _ops.cat([_ops.reshape(t, (-1, 1)) if t.ndim < 2 else t for t in tensors], 1)


def block_diag(*tensors: Tensor) -> Tensor:
    """Matrices along the diagonal of a larger one, zeros beside them; a vector is a row."""
    matrices = [_ops.reshape(t, (1, -1)) if t.ndim < 2 else t for t in tensors]
    width = sum(t.shape[1] for t in matrices)
    rows, left = [], 0
    for t in matrices:
        rows.append(_ops.pad(t, [(0, 0), (left, width - left - t.shape[1])]))
        left += t.shape[1]
    return _ops.cat(rows, 0)


# More empty parts than anybody needs: making them one by one would seem to hang.
_MOST_PARTS = 1 << 16


def tensor_split(input: Tensor, indices_or_sections: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Views of so many parts, the first of them one longer where lengths differ; or of parts that begin at given places."""
    length = input.shape[dim]
    if isinstance(indices_or_sections, int):
        parts = indices_or_sections
        if not 1 <= parts <= max(length, _MOST_PARTS):
            raise ValueError(f"tensor_split: 1 to {max(length, _MOST_PARTS)} parts, not {parts}")
        ends = [i * (length // parts) + min(i, length % parts) for i in range(parts + 1)]
    else:
        ends = [0, *(slice(None, place).indices(length)[1] for place in indices_or_sections), length]
    starts = [min(start, length) for start in ends[:-1]]
    return tuple(_ops.narrow(input, dim, a, max(b - a, 0)) for a, b in zip(starts, ends[1:]))


def array_split(input: Tensor, indices_or_sections: int | Sequence[int], axis: int = 0) -> tuple[Tensor, ...]:
    """``tensor_split``."""
    return tensor_split(input, indices_or_sections, axis)


def fliplr(input: Tensor) -> Tensor:
    """The columns in reverse order, as a view."""
    return _ops.flip(input, 1)


def flipud(input: Tensor) -> Tensor:
    """The rows in reverse order, as a view."""
    return _ops.flip(input, 0)


def atleast_1d(input: Tensor) -> Tensor:
    """A scalar as a vector of one element; others as they are."""
    return input if input.ndim else _ops.reshape(input, (1,))


def scalar_tensor(value: Any, *, dtype: str | None = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """One number as a tensor without axes."""
    return make.tensor(value, dtype=dtype or "float32", device=device, requires_grad=requires_grad)


def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """A matrix with all elements on one of its diagonals."""
    return _ops.diag(_ops.reshape(input, (-1,)), offset)


# ---- places --------------------------------------------------------------------------------------------------------


def argwhere(input: Tensor) -> Tensor:
    """The places of the elements that are not 0, a row each."""
    places: Tensor = _ops.nonzero(input)
    return places


def unravel_index(indices: Tensor, shape: Sequence[int]) -> tuple[Tensor, ...]:
    """Numbers of elements in a tensor of this shape, as indices of each axis."""
    found: list[Tensor] = []
    left: Any = indices
    for length in reversed(tuple(shape)):
        above = left // length
        found.append(left - above * length)
        left = above
    return tuple(reversed(found))


def _triangle(row: int, col: int, keep: Any, device: Any) -> Tensor:
    import numpy as np

    rows, cols = np.nonzero(keep(np.ones((row, col), bool)))
    return make.tensor(np.stack([rows, cols]).astype(np.int64), device=device)


def tril_indices(row: int, col: int, offset: int = 0, *, device: Any = None) -> Tensor:
    """The places on and below a diagonal of a matrix: rows, then columns."""
    import numpy as np

    return _triangle(row, col, lambda whole: np.tril(whole, offset), device)


def triu_indices(row: int, col: int, offset: int = 0, *, device: Any = None) -> Tensor:
    """The places on and above a diagonal of a matrix: rows, then columns."""
    import numpy as np

    return _triangle(row, col, lambda whole: np.triu(whole, offset), device)


def isin(elements: Tensor, test_elements: Any, *, invert: bool = False) -> Tensor:
    """Where the elements are among others."""
    among = make.as_tensor(test_elements, device=elements.queue)
    found: Any = (_ops.unsqueeze(elements, -1) == _ops.reshape(among, (-1,))).any(-1)
    among_them: Tensor = ~found if invert else found
    return among_them


def cartesian_prod(*tensors: Tensor) -> Tensor:
    """All choices of one element of each vector, a row each."""
    if len(tensors) == 1:
        return tensors[0]
    return _ops.stack([_ops.reshape(t, (-1,)) for t in _ops.meshgrid(*tensors, indexing="ij")], 1)


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All choices of ``r`` elements of a vector in their order, a row each."""
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    chosen = list(choose(range(input.shape[0]), r))
    return input[make.tensor(chosen, dtype="int64", device=input.queue)] if chosen else _ops.reshape(input[:0], (0, r))


# ---- products, sums, statistics --------------------------------------------------------------------------------------


def vdot(input: Tensor, other: Tensor) -> Tensor:
    """The scalar product of two vectors."""
    return _ops.dot(input, other)


def addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """``beta * input + alpha * (mat @ vec)``."""
    return input * beta + _ops.mv(mat, vec) * alpha


def dist(input: Tensor, other: Tensor, p: float = 2) -> Tensor:
    """The ``p``-norm of the difference."""
    return _ops.norm(_ops.reshape(input - other, (-1,)), p)


def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float = 1, dim: int = -1) -> Tensor:
    """The integral along an axis by the trapezoidal rule, over places ``x`` or with a distance ``dx``."""
    length = y.shape[dim]
    middle = (_ops.narrow(y, dim, 1, length - 1) + _ops.narrow(y, dim, 0, length - 1)) * 0.5
    if x is None:
        return middle.sum(dim) * dx
    if x.ndim == 1 and y.ndim > 1:
        x = _ops.reshape(x, [-1 if axis == dim % y.ndim else 1 for axis in range(y.ndim)])
    return (middle * _ops.diff(x, dim=dim)).sum(dim)


def trapz(y: Tensor, x: Tensor | None = None, *, dx: float = 1, dim: int = -1) -> Tensor:
    """``trapezoid``."""
    return trapezoid(y, x, dx=dx, dim=dim)


def cov(input: Tensor, *, correction: int = 1) -> Tensor:
    """The covariances of variables, which are rows, over observations, which are columns."""
    # A view of more elements than there is memory for is refused here, not summed up for years.
    rows = (input if input.ndim > 1 else _ops.reshape(input, (1, -1))).contiguous()
    centred = rows - rows.mean(1, keepdim=True)
    found = centred @ centred.mT / (rows.shape[1] - int(correction))
    return found if input.ndim > 1 else _ops.reshape(found, ())


def corrcoef(input: Tensor) -> Tensor:
    """The correlations of variables, which are rows, over observations, which are columns."""
    found = cov(input)
    if not found.ndim:
        return found / found
    scale = _ops.sqrt(_ops.diagonal(found))
    return _ops.clamp(found / _ops.unsqueeze(scale, 1) / _ops.unsqueeze(scale, 0), -1, 1)


# ---- dtypes --------------------------------------------------------------------------------------------------------


def is_complex(input: Tensor) -> bool:
    """Whether the elements are complex numbers: never."""
    return False


def result_type(tensor1: Any, tensor2: Any) -> str:
    """The dtype of an operation on both."""
    one = [t if isinstance(t, (bool, int, float)) else make.zeros(1, dtype=t.dtype, device="cpu") for t in (tensor1, tensor2)]
    return make.as_tensor(one[0] + one[1]).dtype


class finfo:
    """The limits of a floating-point dtype: ``finfo("float16").max``."""

    def __init__(self, dtype: str = "float32") -> None:
        import numpy as np

        if dtype not in _MANTISSA:
            raise TypeError(f"finfo: a floating-point dtype is needed ({', '.join(_MANTISSA)}), not {dtype!r}; see iinfo")
        self.dtype = dtype
        if dtype == "bfloat16":
            # The exponents of float32 with 7 bits behind the point.
            self.bits, self.max = 16, (2 - 2.0**-7) * 2.0**127
            self.smallest_normal = float(np.finfo("float32").tiny)
        else:
            known = np.finfo(dtype)
            self.bits, self.max, self.smallest_normal = known.bits, float(known.max), float(known.tiny)
        self.eps, self.min, self.tiny = 2.0 ** -_MANTISSA[dtype], -self.max, self.smallest_normal

    def __repr__(self) -> str:
        return f"finfo(dtype={self.dtype!r}, min={self.min:g}, max={self.max:g}, eps={self.eps:g}, tiny={self.tiny:g})"


_MANTISSA = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}


class iinfo:
    """The limits of a dtype of whole numbers: ``iinfo("int32").max``."""

    def __init__(self, dtype: str) -> None:
        if dtype not in ("int32", "int64"):
            raise TypeError(f"iinfo: a dtype of whole numbers is needed (int32, int64), not {dtype!r}; see finfo")
        self.dtype, self.bits = dtype, int(dtype[3:])
        self.min, self.max = -(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1

    def __repr__(self) -> str:
        return f"iinfo(dtype={self.dtype!r}, min={self.min}, max={self.max})"


# ---- compiling -----------------------------------------------------------------------------------------------------


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: Any = None,
    mode: str | None = None,
    options: Any = None,
    disable: bool = False,
) -> Any:
    """``netcl.autograd.jit`` of a function or module, also as a decorator. PyTorch's other options change nothing."""
    from netcl.autograd.compiler import jit

    return model if disable and model is not None else jit(model)
