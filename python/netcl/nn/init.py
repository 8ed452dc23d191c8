"""First values of parameters: each function overwrites a tensor in place, unrecorded, and returns it.

Random numbers come from netcl's own generator (``netcl.manual_seed``, or ``seed=`` for one call): uniform ones are the same bits
on every device. The fans of a shape ``(out, in, k...)`` are ``in * k...`` and ``out * k...``. Names that end in an underscore are
PyTorch's, with its defaults.
"""

from __future__ import annotations

import math

from typing import TYPE_CHECKING, Any

from netcl._netcl import CPUQueue, Tensor
from netcl._netcl.nn import (
    assign,
    calculate_gain,
    constant_,
    kaiming_normal_,
    kaiming_uniform_,
    normal_,
    uniform_,
    xavier_normal_,
    xavier_uniform_,
)

__all__ = [
    "calculate_gain",
    "constant",
    "constant_",
    "kaiming_normal_",
    "kaiming_uniform",
    "kaiming_uniform_",
    "normal",
    "normal_",
    "ones_",
    "orthogonal_",
    "trunc_normal_",
    "uniform_",
    "xavier_normal_",
    "xavier_uniform",
    "xavier_uniform_",
    "zeros_",
]

if TYPE_CHECKING:
    import numpy as np


def zeros_(tensor: Tensor) -> Tensor:
    """Fills a tensor with zeros."""
    return constant_(tensor, 0.0)


def ones_(tensor: Tensor) -> Tensor:
    """Fills a tensor with ones."""
    return constant_(tensor, 1.0)


def orthogonal_(tensor: Tensor, gain: float = 1.0, seed: int | None = None) -> Tensor:
    """Rows that are perpendicular and of length ``gain``, or columns where there are fewer of these (Saxe et al., 2013).

    Axes behind the first count as one: filters are rows.
    """
    import numpy as np

    if tensor.ndim < 2:
        raise ValueError(f"orthogonal_ fills a tensor of at least two axes; this one has shape {tuple(tensor.shape)}")
    rows = tensor.shape[0]
    columns = tensor.size // max(rows, 1)
    if tensor.size == 0:
        return tensor
    drawn = _drawn(normal_, (max(rows, columns), min(rows, columns)), seed, 0.0, 1.0)
    q, r = np.linalg.qr(drawn)
    # The signs make the result the same whichever decomposition was found.
    q = q * np.where(np.diagonal(r) < 0, -1.0, 1.0)
    return _filled(tensor, gain * (q.T if rows < columns else q))


def trunc_normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0, seed: int | None = None
) -> Tensor:
    """Normal numbers between ``a`` and ``b``; what would lie outside is drawn again."""
    import numpy as np

    if not (std > 0 and a < b):
        raise ValueError(f"trunc_normal_: std={std} must be above 0, and a={a} below b={b}")
    low, high = ((bound - mean) / std for bound in (a, b))
    # Far in the upper tail the probabilities are too close to 1 to be told apart: the lower tail is its mirror image.
    sign = -1.0 if low > 0 else 1.0
    low, high = (low, high) if sign > 0 else (-high, -low)
    first, last = (0.5 * math.erfc(-bound / math.sqrt(2)) for bound in (low, high))
    if not first < last:
        raise ValueError(f"trunc_normal_: the numbers from {a} to {b} are too far from mean={mean} with std={std}")
    drawn = _drawn(uniform_, tuple(tensor.shape), seed, first, last)
    values = mean + std * sign * _normal_quantile(np.clip(drawn, first, last))
    return _filled(tensor, np.clip(values, a, b))


def _drawn(draw: Any, shape: tuple[int, ...], seed: int | None, low: float, high: float) -> np.ndarray:
    """Numbers of netcl's generator in float64 on the host, so that every device starts with the same ones."""
    return draw(Tensor.from_shape(CPUQueue(), shape, "float64"), low, high, seed).to_host()


def _filled(tensor: Tensor, values: np.ndarray) -> Tensor:
    assign(tensor, Tensor.from_host(tensor.queue, values.reshape(tensor.shape), tensor.dtype))
    return tensor


# Wichura's rational approximations of the normal quantile (algorithm AS 241, 16 digits): numerators and denominators for the
# middle, the tails and the far tails, highest power last.
_MIDDLE = (
    (3.387132872796366608, 133.14166789178437745, 1971.5909503065514427, 13731.693765509461125, 45921.953931549871457,
     67265.770927008700853, 33430.575583588128105, 2509.0809287301226727),
    (1.0, 42.313330701600911252, 687.1870074920579083, 5394.1960214247511077, 21213.794301586595867,
     39307.89580009271061, 28729.085735721942674, 5226.495278852854561),
)  # fmt: skip
_TAIL = (
    (1.42343711074968357734, 4.6303378461565452959, 5.7694972214606914055, 3.64784832476320460504, 1.27045825245236838258,
     0.24178072517745061177, 0.0227238449892691845833, 7.7454501427834140764e-4),
    (1.0, 2.05319162663775882187, 1.6763848301838038494, 0.68976733498510000455, 0.14810397642748007459,
     0.0151986665636164571966, 5.475938084995344946e-4, 1.05075007164441684324e-9),
)  # fmt: skip
_FAR = (
    (6.6579046435011037772, 5.4637849111641143699, 1.7848265399172913358, 0.29656057182850489123, 0.026532189526576123093,
     0.0012426609473880784386, 2.71155556874348757815e-5, 2.01033439929228813265e-7),
    (1.0, 0.59983220655588793769, 0.13692988092273580531, 0.0148753612908506148525, 7.868691311456132591e-4,
     1.8463183175100546818e-5, 1.4215117583164458887e-7, 2.04426310338993978564e-15),
)  # fmt: skip


def _normal_quantile(p: np.ndarray) -> np.ndarray:
    """The numbers below which a standard normal one lies with these probabilities."""
    import numpy as np

    def ratio(table: tuple[tuple[float, ...], tuple[float, ...]], x: np.ndarray) -> np.ndarray:
        numerator, denominator = (np.polyval(part[::-1], x) for part in table)
        return numerator / denominator

    centred = p - 0.5
    with np.errstate(divide="ignore"):
        root = np.sqrt(-np.log(np.minimum(p, 1.0 - p)))
    middle = centred * ratio(_MIDDLE, 0.180625 - centred * centred)
    tail = np.where(root <= 5.0, ratio(_TAIL, root - 1.6), ratio(_FAR, root - 5.0))
    return np.where(np.abs(centred) <= 0.425, middle, np.copysign(tail, centred))


def constant(tensor: Tensor, val: float) -> None:
    """Fills a tensor with a value."""
    constant_(tensor, val)


def normal(tensor: Tensor, mean: float = 0.0, std: float = 0.02) -> None:
    """Fills a tensor with normal numbers, of the small deviation that transformers start with."""
    normal_(tensor, mean, std)


def xavier_uniform(tensor: Tensor) -> None:
    """``xavier_uniform_`` with gain 1."""
    xavier_uniform_(tensor)


def kaiming_uniform(tensor: Tensor, a: float = math.sqrt(5)) -> None:
    """``kaiming_uniform_`` with the slope that gives linear layers and convolutions their bound, ``1 / sqrt(fan_in)``."""
    kaiming_uniform_(tensor, a)
