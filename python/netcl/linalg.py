"""Linear algebra of batches of matrices (the last two axes), recorded: factorisations run in float64 on the host."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from netcl._factories import zeros
from netcl._names import broadcast_shapes
from netcl._netcl import Tensor, linalg as _linalg
from netcl._netcl.linalg import (
    cholesky,
    det,
    eigvalsh,
    inv,
    matrix_norm,
    matrix_power,
    multi_dot,
    norm,
    pinv,
    solve,
    svdvals,
    vector_norm,
)
from netcl.autograd import ops as _ops
from netcl.autograd.ops import cross

__all__ = [
    "LinAlgError",
    "LstSq",
    "cholesky",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eigh",
    "eigvalsh",
    "inv",
    "lstsq",
    "matmul",
    "matrix_exp",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "multi_dot",
    "norm",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
    "svdvals",
    "vecdot",
    "vector_norm",
]


class Slogdet(NamedTuple):
    """What ``slogdet`` gives."""

    sign: Tensor
    logabsdet: Tensor


class QR(NamedTuple):
    """What ``qr`` gives."""

    Q: Tensor
    R: Tensor


class Eigh(NamedTuple):
    """What ``eigh`` gives."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class SVD(NamedTuple):
    """What ``svd`` gives."""

    U: Tensor
    S: Tensor
    Vh: Tensor


def slogdet(A: Tensor) -> Slogdet:
    """The signs of determinants, and the logarithms of their magnitudes."""
    return Slogdet(*_linalg.slogdet(A))


def qr(A: Tensor, mode: str = "reduced") -> QR:
    """``Q`` with orthonormal columns and the upper triangular ``R`` with ``Q R = A``; ``mode`` may be ``"complete"``."""
    return QR(*_linalg.qr(A, mode))


def eigh(A: Tensor) -> Eigh:
    """The ascending eigenvalues and the eigenvectors (columns) of symmetric matrices, whose lower triangle is read."""
    return Eigh(*_linalg.eigh(A))


def svd(A: Tensor, full_matrices: bool = True) -> SVD:
    """``U``, the descending singular values ``S`` and ``Vh`` with ``U diag(S) Vh = A``."""
    return SVD(*_linalg.svd(A, full_matrices))


LinAlgError = ValueError
"""What singular matrices raise, under PyTorch's name."""


class LstSq(NamedTuple):
    """What ``lstsq`` gives."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


def lstsq(A: Tensor, B: Tensor, rcond: float | None = None) -> LstSq:
    """The ``X`` that makes ``A @ X - B`` smallest; of several the shortest."""
    solution: Tensor = pinv(A) @ B if rcond is None else pinv(A, rtol=rcond) @ B
    away: Tensor = A @ solution - B
    vectors = B.ndim == 1 or tuple(B.shape) == tuple(A.shape[:-1])
    return LstSq(solution, _ops.sum(_ops.square(away), -1 if vectors else -2), matrix_rank(A, rtol=rcond), svdvals(A))


def matrix_rank(A: Tensor, *, atol: float | None = None, rtol: float | None = None, tol: float | None = None) -> Tensor:
    """The number of singular values above ``max(atol, rtol * largest)``."""
    if not A.size:
        return zeros(A.shape[:-2], dtype="int64", device=A.queue)
    values = svdvals(A)
    atol = tol if tol is not None else atol
    if rtol is None:
        eps = 2.0**-52 if A.dtype == "float64" else 2.0**-23
        rtol = 0.0 if atol else max(A.shape[-2:]) * eps
    largest = _ops.amax(values, -1, True) * rtol
    return (values > _ops.clamp(largest, min=atol or 0.0)).sum(dim=-1)


def cond(A: Tensor, p: Any = None) -> Tensor:
    """The condition numbers of matrices: the largest singular value over the smallest, or norm ``p`` of the matrix times that
    of its inverse."""
    if p not in (None, 2, -2):
        return matrix_norm(A, p) * matrix_norm(inv(A), p)
    values = svdvals(A)
    found: Tensor = values[..., 0] / values[..., -1]
    return 1 / found if p == -2 else found


def matrix_exp(A: Tensor) -> Tensor:
    """The exponential of matrices: Taylor's series of a small part of each, squared again and again."""
    largest = float(_ops.amax(_ops.sum(_ops.abs(A.detach()), -1)).item()) if A.size else 0.0
    halvings = max(0, math.ceil(math.log2(largest)) + 2) if 0 < largest < math.inf else 0
    small = A * 2.0**-halvings
    term = result = _ops.expand(_eye(A), A.shape)
    for k in range(1, 15):
        term = term @ small / k
        result = result + term
    for _ in range(halvings):
        result = result @ result
    return result


def _eye(A: Tensor) -> Tensor:
    from netcl._factories import eye

    return eye(A.shape[-1], dtype=A.dtype, device=A.queue)


def solve_triangular(A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """``solve`` with one triangle of matrices; the other one is not looked at."""
    away = 1 if unitriangular else 0
    part = _ops.triu(A, away) if upper else _ops.tril(A, -away)
    if unitriangular:
        part = part + _eye(A)
    # With all axes of the batch, or solve would take matrices for a batch of vectors.
    B = _ops.expand(B, (*broadcast_shapes(A.shape[:-2], B.shape[:-2]), *B.shape[-2:]))
    return solve(part, B) if left else solve(part.mT, B.mT).mT


def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """The scalar products of vectors along an axis."""
    return _ops.sum(x * y, dim)


def matmul(input: Tensor, other: Tensor) -> Tensor:
    """``input @ other``."""
    found: Tensor = input @ other
    return found


def diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """The diagonals of matrices, as a view."""
    return _ops.diagonal(A, offset, dim1, dim2)
