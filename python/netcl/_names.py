"""PyTorch's other names of functions, and functions of its list that are a few lines of others and that few programs use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from netcl import _composed as composed, _factories as make, _functions as functions
from netcl._netcl import Tensor, num_threads
from netcl.autograd import ops as _ops

__all__ = [
    "absolute", "addr", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "atleast_3d",
    "broadcast_shapes", "can_cast", "cholesky", "cumulative_trapezoid", "det", "digamma", "divide", "erfinv", "fix",
    "float_power", "gcd", "ger", "get_num_threads", "greater", "greater_equal", "hsplit", "index_put", "inverse",
    "is_nonzero", "lcm", "ldexp", "less", "less_equal", "lgamma", "logaddexp2", "logdet", "matrix_power", "msort",
    "multiply", "negative", "not_equal", "pdist", "pinverse", "positive", "promote_types", "qr", "row_stack",
    "select_scatter", "set_printoptions", "sgn", "signbit", "slice_scatter", "slogdet", "split_with_sizes", "subtract",
    "svd", "unique_consecutive", "vander", "vsplit",
]  # fmt: skip

absolute, negative, not_equal, fix, sgn = _ops.abs, _ops.neg, _ops.ne, _ops.trunc, _ops.sign
greater, greater_equal, less, less_equal, multiply = _ops.gt, _ops.ge, _ops.lt, _ops.le, _ops.mul
arccos, arccosh, arcsin, arcsinh = _ops.acos, _ops.acosh, _ops.asin, _ops.asinh
arctan, arctan2, arctanh, ger, row_stack = _ops.atan, _ops.atan2, _ops.atanh, _ops.outer, _ops.vstack
subtract, divide, get_num_threads = functions.sub, functions.div, num_threads


_NARROW = "float16", "bfloat16"
"""What series are too coarse in, and overflow."""

# ---- elementwise ---------------------------------------------------------------------------------------------------


def positive(input: Tensor) -> Tensor:
    """The tensor itself."""
    return input


def signbit(input: Tensor) -> Tensor:
    """Where the sign is minus; also of minus zero."""
    if input.dtype in make.WHOLE:
        return input < 0
    return _ops.copysign(make.ones_like(input), input) < 0


def float_power(input: Any, exponent: Any) -> Tensor:
    """``input`` to the power of ``exponent`` in float64."""
    base, power = (x.to(dtype="float64") if isinstance(x, Tensor) else float(x) for x in (input, exponent))
    return _ops.pow(base, power)


def ldexp(input: Tensor, other: Tensor) -> Tensor:
    """``input`` times 2 to the power of ``other``."""
    return _ops.mul(input, _ops.exp2(other))


def logaddexp2(input: Tensor, other: Tensor) -> Tensor:
    """``log2(2 ** input + 2 ** other)``, stable."""
    return _ops.logaddexp(input * math.log(2), other * math.log(2)) / math.log(2)


def gcd(input: Tensor, other: Tensor) -> Tensor:
    """The greatest common divisors of whole numbers."""
    a: Any
    b: Any
    a, b = _ops.broadcast_tensors(_ops.abs(input), _ops.abs(other))
    while (b != 0).any():
        a, b = _ops.where(b != 0, b, a), _ops.where(b != 0, a % _ops.where(b != 0, b, 1), 0)
    found: Tensor = a
    return found


def lcm(input: Any, other: Any) -> Tensor:
    """The least common multiples of whole numbers."""
    divisor = gcd(input, other)
    found: Tensor = _ops.abs(input // _ops.where(divisor == 0, 1, divisor) * other)
    return found


def erfinv(input: Tensor) -> Tensor:
    """The number whose error function is ``input``."""
    if input.dtype in _NARROW:
        return erfinv(input.to(dtype="float32")).to(dtype=input.dtype)
    # Not abs, whose slope at 0 is 0.
    size = _ops.where(input < 0, -input, input)
    start = size.detach()
    # Winitzki's formula is within 0.002; each step of Newton's doubles the digits. Near 1 the distance to 1 is what is exact.
    # Its own slope at 0 and 1 is none; the last two steps have the first and the second derivative.
    log = _ops.log1p(-_ops.square(start))
    middle = 2 / (math.pi * 0.147) + log / 2
    y = _ops.sqrt(_ops.clamp(_ops.sqrt(_ops.square(middle) - log / 0.147) - middle, min=0))
    for aim in (start, size, size):
        away = _ops.where(start < 0.5, _ops.erf(y) - aim, (1 - aim) - _ops.erfc(y))
        slope = _ops.exp(-_ops.square(y)) * (2 / math.sqrt(math.pi))
        y = y - _ops.where(slope > 0, away / _ops.where(slope > 0, slope, 1.0), 0.0)
    # At 1 the result is infinite, beyond there is none.
    y = _ops.where(start == 1, math.inf, _ops.where(start > 1, math.nan, y))
    return _ops.where(input < 0, -y, y)


def lgamma(input: Tensor) -> Tensor:
    """The logarithm of the absolute value of the gamma function."""
    if input.dtype in _NARROW:
        return lgamma(input.to(dtype="float32")).to(dtype=input.dtype)
    low = input < 0.5
    x = _ops.where(low, 1 - input, input)
    small = x < 8
    # Stirling's series is exact from 8 on; below, the recurrence goes up to there.
    product, up = _ops.where(small, x, 1.0), _ops.where(small, x + 8, x)
    for k in range(1, 8):
        product = product * _ops.where(small, x + k, 1.0)
    inverse = 1 / up
    square = _ops.square(inverse)
    series = inverse * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square * (1 / 1680 - square / 1188))))
    found = (up - 0.5) * _ops.log(up) - up + 0.5 * math.log(2 * math.pi) + series - _ops.log(product)
    # sin(pi x) from the distance to the nearest whole number, which is exact.
    sine = _ops.abs(_ops.sin((input - _ops.round(input).detach()) * math.pi))
    reflected = math.log(math.pi) - _ops.log(_ops.where(low, sine, 1.0)) - found
    return _ops.where(_ops.isinf(input), math.inf, _ops.where(low, reflected, found))


def digamma(input: Tensor) -> Tensor:
    """The derivative of ``lgamma``."""
    if input.dtype in _NARROW:
        return digamma(input.to(dtype="float32")).to(dtype=input.dtype)
    low = input < 0.5
    x = _ops.where(low, 1 - input, input)
    total: Any = 0.0
    for _ in range(8):
        small = x < 8
        total = total - _ops.where(small, 1 / x, 0.0)
        x = _ops.where(small, x + 1, x)
    square = 1 / _ops.square(x)
    series = square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square * (1 / 240 - square / 132))))
    found = total + _ops.log(x) - 0.5 / x - series
    angle = _ops.where(low, (input - _ops.round(input).detach()) * math.pi, 1.0)
    return _ops.where(low, found - math.pi / _ops.tan(angle), found)


# ---- shapes and places -----------------------------------------------------------------------------------------------


def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """The shape of an operation on tensors of these shapes."""
    import numpy as np

    return np.broadcast_shapes(*shapes)


def atleast_3d(input: Tensor) -> Tensor:
    """A matrix with a third axis behind, a vector between two, a scalar with three; others as they are."""
    if input.ndim > 2:
        return input
    shape = {0: (1, 1, 1), 1: (1, -1, 1), 2: (*input.shape, 1)}[input.ndim]
    return _ops.reshape(input, shape)


def split_with_sizes(input: Tensor, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Views of consecutive parts of these lengths."""
    return functions.split(input, list(split_sizes), dim)


def hsplit(input: Tensor, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]:
    """``tensor_split`` along the columns, of a vector along its only axis."""
    return composed.tensor_split(input, indices_or_sections, 1 if input.ndim > 1 else 0)


def vsplit(input: Tensor, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]:
    """``tensor_split`` along the rows."""
    return composed.tensor_split(input, indices_or_sections, 0)


def index_put(input: Tensor, indices: tuple[Tensor, ...], values: Tensor, accumulate: bool = False) -> Tensor:
    """``input`` with ``values`` at places, given by indices of each axis; added there with ``accumulate``."""
    return input.clone().index_put_(indices, values, accumulate)


def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """``input`` with ``src`` in the place of one slice of an axis."""
    length = input.shape[dim]
    if not -length <= index < length:
        raise IndexError(f"select_scatter: index {index} is out of range for an axis of {length}")
    return slice_scatter(input, _ops.unsqueeze(src, dim), dim, index % length, index % length + 1)


def slice_scatter(
    input: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """``input`` with ``src`` in the place of a slice of an axis."""
    places = range(input.shape[dim])[slice(start, end, step)]
    expected = tuple(len(places) if axis == dim % input.ndim else length for axis, length in enumerate(input.shape))
    if tuple(src.shape) != expected:
        raise ValueError(f"slice_scatter: the slice has the shape {expected}, src has {tuple(src.shape)}")
    result = input.clone()
    if len(places):
        result[(slice(None),) * (dim % input.ndim) + (slice(start, end, step),)] = src
    return result


def msort(input: Tensor) -> Tensor:
    """The elements in order along the first axis."""
    return functions.sort(input, 0).values


def unique_consecutive(input: Tensor, return_inverse: bool = False, return_counts: bool = False) -> Any:
    """The elements of a flattened tensor without those that equal the one before."""
    flat = _ops.reshape(input, (-1,))
    count = flat.shape[0]
    new = _ops.cat([make.ones(min(count, 1), dtype="bool", device=flat.queue), flat[1:] != flat[:-1]], 0)
    starts = _ops.nonzero(new)[:, 0]
    results: list[Tensor] = [flat[starts]]
    if return_inverse:
        results.append(_ops.reshape(_ops.cumsum(new.long(), 0) - 1, input.shape))
    if return_counts:
        results.append(_ops.diff(_ops.cat([starts, make.tensor([count], device=flat.queue)], 0)))
    return results[0] if len(results) == 1 else tuple(results)


# ---- matrices ------------------------------------------------------------------------------------------------------


def _linalg() -> Any:
    from netcl import linalg

    return linalg


def det(input: Tensor) -> Tensor:
    """The determinant of matrices; see ``netcl.linalg``."""
    found: Tensor = _linalg().det(input)
    return found


def slogdet(input: Tensor) -> Any:
    """The sign and the logarithm of the absolute value of determinants; see ``netcl.linalg``."""
    return _linalg().slogdet(input)


def logdet(input: Tensor) -> Tensor:
    """The logarithm of determinants: NaN of negative ones."""
    sign, log = _linalg().slogdet(input)
    return _ops.where(sign < 0, math.nan, log)


def inverse(input: Tensor) -> Tensor:
    """The inverse of matrices; see ``netcl.linalg``."""
    found: Tensor = _linalg().inv(input)
    return found


def pinverse(input: Tensor) -> Tensor:
    """The pseudo-inverse of matrices; see ``netcl.linalg``."""
    found: Tensor = _linalg().pinv(input)
    return found


def cholesky(input: Tensor) -> Tensor:
    """The Cholesky factor of matrices; see ``netcl.linalg``."""
    found: Tensor = _linalg().cholesky(input)
    return found


def qr(input: Tensor) -> Any:
    """An orthogonal and a triangular factor of matrices; see ``netcl.linalg``."""
    return _linalg().qr(input)


def svd(input: Tensor, some: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """``U``, ``S`` and ``V`` with ``input = U @ diag(S) @ V.mT``; ``netcl.linalg.svd`` gives ``V.mT``."""
    u, s, vh = _linalg().svd(input, full_matrices=not some)
    return u, s, vh.mT


def matrix_power(input: Tensor, n: int) -> Tensor:
    """A matrix times itself; see ``netcl.linalg``."""
    found: Tensor = _linalg().matrix_power(input, n)
    return found


def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """``beta * input + alpha * outer(vec1, vec2)``."""
    return input * beta + _ops.outer(vec1, vec2) * alpha


def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """The distances between all pairs of rows, each once."""
    rows, columns = composed.triu_indices(input.shape[0], input.shape[0], 1, device=input.queue)
    return _ops.norm(_ops.index_select(input, 0, rows) - _ops.index_select(input, 0, columns), p, 1)


def vander(x: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:
    """The powers of the elements of a vector, a row each."""
    count = x.shape[0] if N is None else N
    powers = make.arange(count, device=x.queue)
    return _ops.pow(_ops.unsqueeze(x, -1), powers if increasing else _ops.flip(powers, 0))


def cumulative_trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float = 1, dim: int = -1) -> Tensor:
    """The integrals along an axis up to each place by the trapezoidal rule."""
    length = y.shape[dim]
    middle = (_ops.narrow(y, dim, 1, length - 1) + _ops.narrow(y, dim, 0, length - 1)) * 0.5
    if x is not None and x.ndim == 1 and y.ndim > 1:
        x = _ops.reshape(x, [-1 if axis == dim % y.ndim else 1 for axis in range(y.ndim)])
    return _ops.cumsum(middle * (dx if x is None else _ops.diff(x, dim=dim)), dim)


# ---- dtypes and settings -----------------------------------------------------------------------------------------------


def promote_types(type1: str, type2: str) -> str:
    """The dtype of an operation on tensors of both."""
    return composed.result_type(make.zeros(1, dtype=type1, device="cpu"), make.zeros(1, dtype=type2, device="cpu"))


def can_cast(from_: str, to: str) -> bool:
    """Whether results of one dtype may be written to another: not floats to whole numbers, nor these to truth values."""
    kinds = ["bool", "int", "float"]
    kind = [next(i for i, start in enumerate(kinds) if name.startswith(start) or start == "float") for name in (from_, to)]
    return kind[0] <= kind[1]


def is_nonzero(input: Tensor) -> bool:
    """Whether the only element is not 0."""
    return bool(input.item())


def set_printoptions(**options: Any) -> None:
    """Accepts PyTorch's options. They change nothing: tensors are printed with as many digits as tell their values apart."""
