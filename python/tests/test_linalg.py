"""``netcl.linalg`` against NumPy's, on every device."""

import numpy as np
import pytest
from conftest import find_device_selectors

import netcl.autograd as ag
from netcl import linalg
from netcl.core.device import manager
from netcl.core.tensor import Tensor

RNG = np.random.default_rng(0)
SQUARE = RNG.normal(size=(2, 4, 4)).astype(np.float32)
TALL = RNG.normal(size=(3, 5, 3)).astype(np.float32)
LOW_RANK = (TALL[:, :, :1] @ TALL[:, :1, :]).astype(np.float32)
POSITIVE = SQUARE @ SQUARE.swapaxes(-1, -2) + np.eye(4, dtype=np.float32)
SYMMETRIC = SQUARE + SQUARE.swapaxes(-1, -2)


def close(actual: Tensor, expected: np.ndarray) -> None:
    np.testing.assert_allclose(actual.to_host(), expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("selector", find_device_selectors())
def test_results_equal_numpy(selector):
    queue = manager.default(selector).queue

    def make(array):
        return Tensor.from_host(queue, np.ascontiguousarray(array))

    square = make(SQUARE)
    close(linalg.inv(square), np.linalg.inv(SQUARE))
    close(linalg.det(square), np.linalg.det(SQUARE))
    for found, expected in zip(linalg.slogdet(square), np.linalg.slogdet(SQUARE)):
        close(found, expected)
    close(linalg.solve(square, make(TALL[0, :4])), np.linalg.solve(SQUARE, TALL[0, :4]))
    close(linalg.solve(square, make(SQUARE[:, 0])), np.linalg.solve(SQUARE, SQUARE[:, 0, :, None])[..., 0])
    close(linalg.cholesky(make(POSITIVE)), np.linalg.cholesky(POSITIVE))
    close(linalg.eigvalsh(make(SYMMETRIC)), np.linalg.eigvalsh(SYMMETRIC))
    values, vectors = linalg.eigh(make(SYMMETRIC))
    close(vectors @ ag.permute(vectors, (0, 2, 1)), np.broadcast_to(np.eye(4), (2, 4, 4)))
    close(vectors * ag.unsqueeze(values, -2) @ ag.permute(vectors, (0, 2, 1)), SYMMETRIC)
    for array in (TALL, LOW_RANK, np.zeros_like(TALL), TALL.swapaxes(-1, -2), LOW_RANK.swapaxes(-1, -2)):
        matrix = make(array)
        close(linalg.svdvals(matrix), np.linalg.svd(array, compute_uv=False))
        close(linalg.pinv(matrix), np.linalg.pinv(array, rcond=1e-5))
        for full in (False, True):
            u, s, vt = linalg.svd(matrix, full_matrices=full)
            assert [u.shape, vt.shape] == [x.shape for x in np.linalg.svd(array, full_matrices=full)[::2]]
            u, s, vt = u.to_host(), s.to_host(), vt.to_host()
            k = s.shape[-1]
            np.testing.assert_allclose(u[..., :k] * s[:, None] @ vt[:, :k], array, atol=1e-4)
            for basis in (u.swapaxes(-1, -2) @ u, vt @ vt.swapaxes(-1, -2)):
                np.testing.assert_allclose(basis, np.broadcast_to(np.eye(basis.shape[-1]), basis.shape), atol=1e-5)
        for mode in ("reduced", "complete"):
            q, r = linalg.qr(matrix, mode)
            assert [q.shape, r.shape] == [x.shape for x in np.linalg.qr(array, mode)]
            close(q @ r, array)
            np.testing.assert_allclose(np.tril(r.to_host(), -1), 0.0)
        for order in ("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf):
            close(linalg.matrix_norm(matrix, order), np.linalg.norm(array, order, axis=(-2, -1)))
    close(linalg.norm(make(TALL)), np.linalg.norm(TALL))
    close(linalg.norm(make(TALL), 3, 1, True), np.linalg.norm(TALL, 3, axis=1, keepdims=True))
    for power in (-2, 0, 1, 5):
        close(linalg.matrix_power(square / 2.0, power), np.linalg.matrix_power(SQUARE / 2, power))
    close(linalg.multi_dot([square, square, square]), SQUARE @ SQUARE @ SQUARE)


def test_bad_matrices_are_named():
    def make(values):
        return Tensor.from_host(manager.default("cpu").queue, np.array(values, np.float32))

    for call, what in (
        (lambda: linalg.inv(make([[1, 2], [2, 4]])), "linalg_inv: the matrix is singular"),
        (lambda: linalg.solve(make([np.eye(2), np.zeros((2, 2))]), make(np.zeros((2, 2, 1)))), "matrix 1 of the batch is singular"),
        (lambda: linalg.inv(make(np.zeros((2, 3)))), "must be square"),
        (lambda: linalg.det(make([1.0])), "it takes matrices"),
        (lambda: linalg.cholesky(make([[1, 2], [2, 1]])), "not positive definite: its leading minor of order 2"),
        (lambda: linalg.svd(make([[np.nan, 1.0]])), "element 0 is NaN"),
        (lambda: linalg.matrix_norm(make(np.eye(2)), 3), "no matrix norm of order 3"),
        (lambda: linalg.qr(make(np.eye(2)), "raw"), "'reduced' and 'complete'"),
    ):
        with pytest.raises(ValueError, match=what):
            call()
