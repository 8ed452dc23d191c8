"""Elementwise operations one after the other are one launch of a captured step, with the bits of the plain function."""

import numpy as np
import pytest
from conftest import find_device_selectors

import netcl as nc
from netcl.core.device import manager
from netcl.nn import BatchNorm2d, functional as F
from netcl.runtime import capture


@pytest.fixture(params=find_device_selectors())
def queue(request):
    return manager.default(request.param).queue


def tensor(queue, *shape, dtype="float32", seed=0):
    values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return nc.Tensor.from_host(queue, values).to(dtype=dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_chain_is_one_launch(queue, dtype):
    x, y = tensor(queue, 5, 33, dtype=dtype), tensor(queue, 33, dtype=dtype, seed=1)

    def plain(x, y):
        return nc.relu(x * y + x) * 0.3 - y

    step = capture(plain)
    found = step(x, y)
    assert step.stats()["names"] == ["mul_add_relu_mul_sub"]
    np.testing.assert_array_equal(found.to(dtype="float32").numpy(), plain(x, y).to(dtype="float32").numpy())


def test_values_that_somebody_else_reads_are_written(queue):
    x = tensor(queue, 40)

    def plain(x):
        once = x * 2.0
        kept = once + 1.0
        return kept, nc.relu(once) + nc.exp(once)

    step = capture(plain)
    for found, expected in zip(step(x), plain(x), strict=True):
        np.testing.assert_array_equal(found.numpy(), expected.numpy())
    # `once` has three readers: nobody can take it along.
    assert step.stats()["names"].count("mul") == 1


def test_a_chain_waits_for_what_is_overwritten_after_its_head(queue):
    x, state = tensor(queue, 40), tensor(queue, 40, seed=1)

    def plain(x):
        head = x * state
        state.copy_(x + 1.0)
        return head + state

    before = state.numpy().copy()
    found = capture(plain)(x)
    np.testing.assert_allclose(found.numpy(), x.numpy() * before + (x.numpy() + 1.0), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_batch_norm_relu_and_residual(queue, dtype):
    x, residual = tensor(queue, 4, 8, 6, 6, dtype=dtype), tensor(queue, 4, 8, 6, 6, dtype=dtype, seed=1)
    norm = BatchNorm2d(queue, 8)

    def plain(x, residual):
        return nc.relu(norm(x) + residual)

    expected = plain(x, residual).to(dtype="float32").numpy()
    step = capture(plain)
    np.testing.assert_array_equal(step(x, residual).to(dtype="float32").numpy(), expected)
    if queue.backend == "cl":
        assert step.stats()["names"][-1] == "batch_norm_add_relu"


@pytest.mark.parametrize("rows", [4, 300])
def test_heavy_arithmetic_is_an_epilogue_of_small_products_only(queue, rows):
    """On OpenCL devices the instructions of GELU hold up the tiles of a large product."""
    x, weight = tensor(queue, rows, 8), tensor(queue, 8, 256, seed=1)

    def plain(x):
        return F.gelu(x @ weight)

    step = capture(plain)
    np.testing.assert_array_equal(step(x).numpy(), plain(x).numpy())
    fused = rows * 256 <= 2**16 or queue.backend == "cpu"
    assert (step.stats()["launches"] == 1) == fused, step.stats()["names"]
