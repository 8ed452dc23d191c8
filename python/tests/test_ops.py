"""Operations from Python on every device, held against NumPy."""

import inspect

import numpy as np
import pytest

import netcl as nc
from netcl import ops
from netcl.core.device import manager

rng = np.random.default_rng(3)


def selectors():
    return ["cpu", *range(len(manager.discover()))]


@pytest.fixture(params=selectors(), ids=str)
def q(request):
    return manager.default(request.param).queue


def tensor(q, array, dtype="float32"):
    return nc.Tensor.from_host(q, array, dtype=dtype)


def close(got, expected, tolerance=1e-5):
    np.testing.assert_allclose(np.asarray(got, dtype=np.float64), expected, rtol=tolerance, atol=tolerance)


def test_elementwise_functions(q):
    a, b = rng.normal(size=(4, 1, 5)), rng.uniform(0.5, 2, size=(3, 5))
    x, y = tensor(q, a, "float64"), tensor(q, b, "float64")
    for name, reference in [("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("div", np.divide),
                            ("maximum", np.maximum), ("minimum", np.minimum)]:
        close(getattr(ops, name)(x, y).to_host(), reference(a, b), 1e-12)
        close(getattr(ops, name)(x, 1.5).to_host(), reference(a, 1.5), 1e-12)
        close(getattr(ops, name)(2.0, y).to_host(), reference(2.0, b), 1e-12)
        close(nc.elementwise_binary(x, y, name).to_host(), reference(a, b), 1e-12)
    close(nc.elementwise_binary(x, y, "*").to_host(), a * b, 1e-12)
    assert (ops.lt(x, 0.0).to_host() == (a < 0)).all()
    close(ops.where(ops.gt(x, 0.0), x, -1.0).to_host(), np.where(a > 0, a, -1.0), 1e-12)
    close(ops.leaky_relu(x, negative_slope=0.2).to_host(), np.where(a > 0, a, 0.2 * a), 1e-12)
    close(ops.leaky_relu(x, 0.2).to_host(), np.where(a > 0, a, 0.2 * a), 1e-12)
    close(ops.clamp(x, -0.5, max=0.5).to_host(), np.clip(a, -0.5, 0.5), 1e-12)
    close(ops.gelu(x, approximate="tanh").to_host(), ops.gelu_tanh(x).to_host(), 1e-12)
    out = nc.Tensor.from_shape(q, (4, 3, 5), "float64")
    assert ops.mul(x, y, out=out) is out
    close(out.to_host(), a * b, 1e-12)


def test_mistakes_are_named(q):
    x = tensor(q, np.ones(3))
    with pytest.raises(TypeError, match="add is missing y"):
        ops.add(x)
    with pytest.raises(TypeError, match="unexpected or repeated argument 'z'"):
        ops.relu(x, z=1)
    with pytest.raises(TypeError, match="at most 3 arguments"):
        ops.clamp(x, 0, 1, 2)
    with pytest.raises(TypeError, match="tensors and numbers"):
        ops.relu("x")
    with pytest.raises(TypeError, match="mixes float32 and float64"):
        ops.add(x, tensor(q, np.ones(3), "float64"))
    with pytest.raises(ValueError, match="do not broadcast"):
        ops.add(x, tensor(q, np.ones(4)))
    with pytest.raises(ValueError, match="approximate"):
        ops.gelu(x, approximate="sigmoid")
    assert str(inspect.signature(ops.softplus)) == "(x, beta=1.0, threshold=20.0, *, out=None)"
    assert "log(1 + exp(beta * x)) / beta" in ops.softplus.__doc__


def test_reductions(q):
    a = rng.normal(size=(3, 4, 5))
    x = tensor(q, a)
    for axis in (None, 0, -1, (0, 2)):
        for keepdims in (False, True):
            for name in ("sum", "mean", "prod", "max", "min"):
                got = getattr(ops, name)(x, axis, keepdims)
                expected = getattr(np, name)(a, axis=axis, keepdims=keepdims)
                assert got.shape == expected.shape
                close(got.to_host(), expected, 1e-4)
            close(ops.var(x, axis, keepdims=keepdims).to_host(), a.var(axis=axis, ddof=1, keepdims=keepdims), 1e-4)
            close(ops.std(x, axis, 0.0, keepdims).to_host(), a.std(axis=axis, keepdims=keepdims), 1e-4)
    close(nc.reduce_sum(x).item(), a.sum(), 1e-4)
    close(ops.norm(x, 1.0, 1).to_host(), np.abs(a).sum(1), 1e-4)
    close(ops.logsumexp(x, -1).to_host(), np.log(np.exp(a).sum(-1)), 1e-4)
    assert (ops.argmax(x, 1).to_host() == a.argmax(1)).all() and int(ops.argmin(x).to_host()) == a.argmin()
    close(ops.cumsum(x, 1).to_host(), a.cumsum(1), 1e-4)
    assert ops.any(x).item() == 1 and ops.all(ops.gt(x, 100.0)).item() == 0
    with pytest.raises(ValueError, match="axis 3 is out of range"):
        ops.sum(x, 3)


def test_softmax(q):
    a = rng.normal(size=(6, 9)) * 10
    expected = np.exp(a - a.max(-1, keepdims=True))
    expected /= expected.sum(-1, keepdims=True)
    close(nc.softmax(tensor(q, a)).to_host(), expected)
    close(ops.log_softmax(tensor(q, a)).to_host(), np.log(expected), 1e-4)
    close(ops.softmax(tensor(q, a.T.copy()), axis=0).to_host(), expected.T)


def test_products(q):
    a, b = rng.normal(size=(2, 1, 7, 5)), rng.normal(size=(3, 5, 4))
    x, y = tensor(q, a), tensor(q, b)
    close(nc.matmul(x, y).to_host(), a @ b)
    close(ops.matmul(x, ops.transpose(y), transpose_b=True).to_host(), a @ b)
    w, bias = rng.normal(size=(6, 5)), rng.normal(size=6)
    close(ops.linear(x, tensor(q, w), tensor(q, bias)).to_host(), a @ w.T + bias)
    close(nc.bias_add(tensor(q, w.T), tensor(q, bias)).to_host(), w.T + bias)
    out = nc.Tensor.from_shape(q, (2, 3, 7, 4))
    assert ops.matmul(x, y, out=out) is out
    with pytest.raises(ValueError):
        nc.matmul(x, x)


def test_the_documented_kernel_can_be_built():
    if not manager.discover():
        pytest.skip("there is no OpenCL device")
    program = nc.build_matmul_kernel(manager.default("opencl").queue)
    assert program.kernel_names == ["matmul_tiled"]


def test_layout(q):
    a = np.arange(24.0).reshape(2, 3, 4)
    x = tensor(q, a)
    close(ops.permute(x, (2, 0, 1)).to_host(), a.transpose(2, 0, 1))
    close(ops.transpose(x).to_host(), a.swapaxes(-1, -2))
    close(ops.cat([x, x], 1).to_host(), np.concatenate([a, a], 1))
    close(ops.stack([x, x], -1).to_host(), np.stack([a, a], -1))
    assert [p.shape for p in ops.split(x, 3, 2)] == [(2, 3, 3), (2, 3, 1)]
    assert [p.shape for p in ops.split(x, [1, 3], 2)] == [(2, 3, 1), (2, 3, 3)]
    assert [p.shape for p in ops.chunk(x, 2, 1)] == [(2, 2, 4), (2, 1, 4)]
    close(ops.flip(x, (0, 2)).to_host(), a[::-1, :, ::-1])
    close(ops.tril(x).to_host(), np.tril(a))
    close(ops.triu(x, 1).to_host(), np.triu(a, 1))
    close(ops.repeat(x, (1, 2, 1)).to_host(), np.tile(a, (1, 2, 1)))
    assert ops.squeeze(ops.unsqueeze(x, 1)).shape == (2, 3, 4)
    close(ops.expand(tensor(q, np.ones((3, 1))), (2, 3, 4)).to_host(), np.ones((2, 3, 4)))
    close(ops.arange(5, queue=q).to_host(), np.arange(5))
    close(ops.arange(1, 2, 0.25, queue=q).to_host(), np.arange(1, 2, 0.25))
    assert ops.full((2,), 3, "float16", q).dtype == "float16"
    assert ops.cast(x, "float64").dtype == "float64" and ops.contiguous(x).shape == (2, 3, 4)


def test_random_numbers_are_the_same_everywhere(q):
    cpu = manager.default("cpu").queue
    for function in (ops.uniform, ops.bernoulli):
        arguments = ((1000,), 0.3) if function is ops.bernoulli else ((1000,), -1.0, 2.0)
        here, there = (function(*arguments, queue=queue, seed=9).to_host() for queue in (q, cpu))
        assert (here == there).all()
    z = ops.normal((20000,), 1.0, 2.0, queue=q, seed=1).to_host()
    assert abs(z.mean() - 1) < 0.1 and abs(z.std() - 2) < 0.1
    nc.manual_seed(5)
    first = ops.uniform((4,), queue=q).to_host().copy()
    nc.manual_seed(5)
    assert (ops.uniform((4,), queue=q).to_host() == first).all()
    assert sorted(ops.permutation(10, queue=q, seed=2).to_host()) == list(range(10))


def test_the_precision_of_products_can_be_set(q):
    before = nc.get_matmul_precision()
    a = tensor(q, rng.standard_normal((5, 7)))
    try:
        for precision in ("high", "medium", "highest"):
            nc.set_matmul_precision(precision)
            assert nc.get_matmul_precision() == precision
            # Small products are float32 products whatever the precision.
            close(ops.matmul(a, a, transpose_b=True).to_host(), a.to_host() @ a.to_host().T)
        with pytest.raises(ValueError, match="no precision"):
            nc.set_matmul_precision("exact")
    finally:
        nc.set_matmul_precision(before)
