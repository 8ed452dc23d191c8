"""Modules that move after an optimizer, an average or a schedule was made for them."""

import numpy as np
import pytest
from conftest import find_device_selectors

from netcl import Tensor, autograd as ag, manual_seed, optim
from netcl.core.device import manager
from netcl.nn import BatchNorm1d, Linear, Sequential, Tanh
from netcl.runtime import capture

CPU = manager.default("cpu").queue
TARGETS = [("float64", CPU), *(("float32", manager.default(s).queue) for s in find_device_selectors()[1:])]
OPTIMIZERS = {
    "SGD": lambda params: optim.SGD(params, lr=0.1, momentum=0.9),
    "Adam": lambda params: optim.Adam(params, lr=0.05),
    "AdamW": lambda params: optim.AdamW(params, lr=0.05),
    "RMSProp": lambda params: optim.RMSProp(params, lr=0.01),
    "Adagrad": lambda params: optim.Adagrad(params, lr=0.1),
}


def network():
    manual_seed(3)
    return Sequential(Linear(CPU, 4, 5), BatchNorm1d(CPU, 5), Tanh(), Linear(CPU, 5, 2))


def move(model, target):
    dtype, queue = target
    return model.to(dtype) if queue is CPU else model.to(queue)


def train(model, optimizer, target, steps, after=lambda: None, seed=0):
    dtype, queue = target
    data = np.random.default_rng(seed).normal(size=(steps, 6, 4))
    for values in data:
        loss = (model(Tensor.from_host(queue, values, dtype)) ** 2).mean()
        loss.backward()
        optim.clip_grad_norm(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        after()
    return [np.array(p.to_host()) for p in [*model.parameters(), *model.buffers()]]


@pytest.mark.parametrize(
    ("name", "target"), [(n, t) for n in OPTIMIZERS for t in TARGETS if t[1] is CPU or n == "Adam"], ids=str
)
def test_an_optimizer_made_before_the_move_trains_like_one_made_after(name, target):
    results = []
    for early in (True, False):
        model = network()
        optimizer = OPTIMIZERS[name](model.parameters()) if early else None
        move(model, target)
        optimizer = optimizer or OPTIMIZERS[name](model.parameters())
        schedule = optim.StepLR(optimizer, 2, 0.5)
        average = optim.ModelEMA(model, decay=0.5)
        before = [np.array(p.to_host()) for p in model.parameters()]
        results.append(train(model, optimizer, target, 4, after=lambda s=schedule, a=average: (s.step(), a.update())))
        results[-1] += [np.array(a.to_host()) for a in average.averages]
        assert any((a != b).any() for a, b in zip(before, results[-1], strict=False))
        assert all(p["params"][0].dtype == target[0] for p in optimizer.param_groups)
    for early, late in zip(*results, strict=True):
        assert early.dtype == late.dtype
        np.testing.assert_array_equal(early, late)


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_state_goes_along(target):
    """Training, moving, training: the same as a fresh optimizer that takes over the state of the old one."""
    results = []
    for fresh in (False, True):
        model = network()
        optimizer = optim.Adam(model.parameters(), lr=0.05)
        average = optim.ModelEMA(model, decay=0.5)
        train(model, optimizer, ("float32", CPU), 2, after=average.update)
        state, averaged = optimizer.state_dict(), average.state_dict()
        move(model, target)
        np.testing.assert_equal(dict(optimizer.state_dict()), dict(state))
        if fresh:
            optimizer = optim.Adam(model.parameters(), lr=0.05)
            optimizer.load_state_dict(state)
            average = optim.ModelEMA(model, decay=0.5)
            average.load_state_dict(averaged)
        results.append(train(model, optimizer, target, 3, after=average.update, seed=1))
        results[-1] += [np.array(a.to_host()) for a in average.averages]
        with average.averaged():
            results[-1] += [np.array(p.to_host()) for p in model.parameters()]
        assert optimizer.state_dict()["0.step"] == 5
    for moved, expected in zip(*results, strict=True):
        np.testing.assert_array_equal(moved, expected)


def floats(buffers):
    """Counters are replaced by those of the other device."""
    return [buffer for buffer in buffers if isinstance(buffer, Tensor)]


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_parameters_stay_the_same_objects(target):
    model = network()
    loss = model(Tensor.from_host(CPU, np.ones((3, 4)))).mean()
    loss.backward()
    tensors = [*model.parameters(), *floats(model.buffers())]
    kept = [(id(t), np.array(t.to_host()), None if t.grad is None else np.array(t.grad.to_host())) for t in tensors]
    assert model[0].weight.array is None or model[0].weight.array is model[0].weight.to_host()
    move(model, target)
    assert all(a is b for a, b in zip(tensors, [*model.parameters(), *floats(model.buffers())], strict=True))
    for tensor, (identity, values, grad) in zip(tensors, kept, strict=True):
        # A count of batches stays one of whole numbers.
        assert id(tensor) == identity and tensor.dtype == (target[0] if tensor.is_floating_point() else "int64") and tensor.is_leaf
        assert tensor.queue == target[1]
        np.testing.assert_array_equal(tensor.to_host(), values)
        if grad is not None:
            assert tensor.grad.dtype == target[0] and tensor.grad.queue == target[1]
            np.testing.assert_array_equal(tensor.grad.to_host(), grad)
    weight = model[0].weight
    assert weight.requires_grad and (weight.array is None) == (target[1] is not CPU)
    if target[1] is CPU:
        assert weight.array is weight.to_host() and weight.array.dtype == np.float64


def test_shared_parameters_hooks_and_recorded_graphs_survive():
    first, second = Linear(CPU, 3, 3), Linear(CPU, 3, 3)
    second.weight = first.weight
    model = Sequential(first, second)
    seen = []
    first.weight.register_hook(lambda grad: seen.append(grad.dtype))
    recorded = (first.weight * first.weight).sum()
    model.to("float64")
    assert first.weight is second.weight and first.weight.dtype == "float64"
    # The graph is that of the old values; the gradient arrives where the parameter is now.
    recorded.backward()
    assert first.weight.grad.dtype == "float64" and seen == ["float32"]
    np.testing.assert_array_equal(first.weight.grad.to_host(), 2 * np.array(first.weight.to_host()))


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_a_captured_step_is_recorded_anew_after_a_move(target):
    results = []
    for wrap in (lambda step: step, capture):
        model = network()
        optimizer = optim.Adam(model.parameters(), lr=0.05)

        def step(x, model=model, optimizer=optimizer):
            loss = (model(x) ** 2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        run = wrap(step)
        x = np.random.default_rng(5).normal(size=(6, 4))
        for _ in range(3):
            run(Tensor.from_host(CPU, x))
        move(model, target)
        for _ in range(3):
            run(Tensor.from_host(target[1], x, target[0]))
        results.append([np.array(p.to_host()) for p in model.parameters()])
    for eager, captured in zip(*results, strict=True):
        np.testing.assert_array_equal(eager, captured)


def test_a_captured_step_without_arguments_notices_a_move():
    layer = Linear(CPU, 3, 1)
    step = capture(lambda: (layer.weight * 2.0).sum())
    first = float(step())
    layer.to("float64")
    with ag.no_grad():
        layer.weight += 1.0
    assert abs(float(step()) - (first + 6.0)) < 1e-5


def test_a_move_frees_what_was_there():
    import gc
    import weakref

    layer = Linear(CPU, 8, 8)
    array = layer.weight.array
    gone = weakref.ref(array)
    layer.to("float16")
    del array
    gc.collect()
    assert gone() is None and layer.weight._base is None


def test_a_parameter_that_was_a_view_is_none_after_a_move():
    data = Tensor.from_host(CPU, np.ones(3))
    layer = Linear(CPU, 3, 1)
    layer.weight = ag.tensor(data)
    assert layer.weight._base is data
    layer.to("float64")
    assert layer.weight._base is None
    with ag.no_grad():
        layer.weight.zero_()
    assert np.array(data.to_host()).all()


def test_a_failed_move_changes_nothing():
    model = network()
    before = [p.dtype for p in model.parameters()]
    with pytest.raises((ValueError, TypeError)):
        model.to("float31")
    assert [p.dtype for p in model.parameters()] == before
