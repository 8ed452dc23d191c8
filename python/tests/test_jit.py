"""Compiled functions: structures, captured tensors, gradients, errors, and what a plan says about itself."""

import numpy as np
import pytest
from conftest import find_device_selectors

import netcl.autograd as ag
from netcl import nn
from netcl.core.device import manager
from netcl.core.index import IndexTensor
from netcl.core.tensor import Tensor

GLOBAL = 2.0


@pytest.fixture(params=find_device_selectors())
def any_queue(request):
    return manager.default(request.param).queue


@pytest.fixture
def queue():
    return manager.default("cpu").queue


def make(queue, *shape, seed=0, grad=False):
    data = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    tensor = Tensor.from_host(queue, data)
    tensor.requires_grad = grad
    return tensor


def chain(x, y):
    return ag.tanh(x * y + 1) * ag.sigmoid(x) + ag.relu(y)


def test_values_and_gradients_are_those_of_the_function(any_queue):
    x, y = make(any_queue, 5, 7, grad=True), make(any_queue, 5, 7, seed=1, grad=True)
    a, b = make(any_queue, 5, 7, grad=True), make(any_queue, 5, 7, seed=1, grad=True)
    compiled = ag.jit(chain)
    for _ in range(2):
        for tensor in (x, y, a, b):
            tensor.grad = None
        got, expected = compiled(x, y), chain(a, b)
        np.testing.assert_allclose(got.to_host(), expected.to_host(), rtol=1e-6)
        ag.sum(got).backward()
        ag.sum(expected).backward()
        np.testing.assert_allclose(x.grad.to_host(), a.grad.to_host(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(y.grad.to_host(), b.grad.to_host(), rtol=1e-5, atol=1e-6)
    assert compiled.counters() == {"traces": 1, "hits": 1, "plans": 1}


def test_structures_keywords_and_plain_values(queue):
    @ag.jit
    def f(pair, scale=1.0, *, parts):
        x, y = pair
        return {"sum": x + y, "scaled": [x * scale, parts["z"]], "number": 3}

    x, y, z = (make(queue, 3, seed=i) for i in range(3))
    out = f((x, y), 2.0, parts={"z": z})
    assert out["number"] == 3
    np.testing.assert_allclose(out["scaled"][0].to_host(), 2 * x.to_host())
    np.testing.assert_allclose(out["scaled"][1].to_host(), z.to_host())
    f((x, y), 2.0, parts={"z": make(queue, 3, seed=4)})
    assert f.counters()["traces"] == 1
    np.testing.assert_allclose(f((x, y), 3.0, parts={"z": z})["scaled"][0].to_host(), 3 * x.to_host(), rtol=1e-6)
    assert f.counters()["traces"] == 2
    with pytest.raises(TypeError, match="neither a tensor nor a plain value"):
        f((x, y), object(), parts={"z": z})


def test_captured_tensors_may_be_exchanged(queue):
    global GLOBAL
    weight = make(queue, 4, grad=True)

    @ag.jit
    def f(x):
        return x * weight + GLOBAL

    x = make(queue, 4, seed=5)
    np.testing.assert_allclose(f(x).to_host(), x.to_host() * weight.to_host() + 2, rtol=1e-6)
    weight = make(queue, 4, seed=9, grad=True)
    out = f(x)
    np.testing.assert_allclose(out.to_host(), x.to_host() * weight.to_host() + 2, rtol=1e-6)
    ag.sum(out).backward()
    np.testing.assert_allclose(weight.grad.to_host(), x.to_host())
    assert f.counters()["traces"] == 1
    GLOBAL = 5.0
    np.testing.assert_allclose(f(x).to_host(), x.to_host() * weight.to_host() + 5, rtol=1e-6)
    GLOBAL = 2.0


def test_a_module_and_its_parameters(any_queue):
    model = nn.Sequential(
        nn.Linear(6, 8, queue=any_queue),
        nn.GELU(),
        nn.LayerNorm(8, queue=any_queue),
        nn.Linear(8, 3, queue=any_queue),
    )
    compiled = ag.jit(model)
    x = make(any_queue, 10, 6)
    labels = IndexTensor.from_host(any_queue, np.arange(10) % 3)
    expected = model(x)
    loss = ag.cross_entropy(expected, labels)
    loss.backward()
    gradients = [p.grad.to_host().copy() for p in model.parameters()]
    for p in model.parameters():
        p.grad = None
    step = ag.jit(lambda x, labels: ag.cross_entropy(model(x), labels))
    np.testing.assert_allclose(compiled(x).to_host(), expected.to_host(), rtol=1e-5, atol=1e-6)
    got = step(x, labels)
    np.testing.assert_allclose(got.item(), loss.item(), rtol=1e-5)
    got.backward()
    for p, gradient in zip(model.parameters(), gradients):
        np.testing.assert_allclose(p.grad.to_host(), gradient, rtol=1e-4, atol=1e-6)


def test_values_cannot_be_read_inside(queue):
    f = ag.jit(lambda x: x * ag.max(x).item())
    with pytest.raises(RuntimeError, match="where\\(\\)"):
        f(make(queue, 3))


def test_an_exception_of_the_function_arrives_as_it_is(queue):
    def fails(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        ag.jit(fails)(make(queue, 3))


def test_turned_off_by_the_environment(queue, monkeypatch):
    f = ag.jit(ag.exp, fast_math=True)
    x = make(queue, 3)
    first, _ = f(x).to_host(), f(x)
    assert f.counters() == {"traces": 1, "hits": 1, "plans": 1}
    monkeypatch.setenv("NETCL_JIT", "0")
    np.testing.assert_allclose(f(x).to_host(), first, rtol=1e-5)
    assert f.counters() == {"traces": 1, "hits": 1, "plans": 1}


def test_a_plan_explains_itself(queue):
    f = ag.jit_compile(chain)
    x, y = make(queue, 64, 33, grad=True), make(queue, 64, 33, seed=1)
    assert "fuses mul, add, tanh" in f.explain(x, y)
    assert "kernel void" in f.source(x, y)
    assert f.graph(x, y).startswith("digraph")
    assert f.graph(x, y, style="mermaid").startswith("flowchart")
