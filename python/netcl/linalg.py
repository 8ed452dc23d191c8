"""Linear algebra of batches of matrices (the last two axes), recorded: factorisations run in float64 on the host."""

from __future__ import annotations

from typing import NamedTuple

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

__all__ = [
    "cholesky", "det", "eigh", "eigvalsh", "inv", "matrix_norm", "matrix_power", "multi_dot", "norm", "pinv", "qr", "slogdet",
    "solve", "svd", "svdvals", "vector_norm",
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
