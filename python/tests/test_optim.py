"""Optimizers, schedules, clipping and averages from Python: signatures, values, state, errors."""

import math

import numpy as np
import pytest
from conftest import find_device_selectors

from netcl import optim
from netcl.core.device import manager
from netcl.core.tensor import Tensor
from netcl.nn import Linear


@pytest.fixture(params=find_device_selectors())
def queue(request):
    return manager.default(request.param).queue


def parameter(queue, values, dtype="float32"):
    tensor = Tensor.from_host(queue, np.asarray(values, dtype=dtype))
    tensor.requires_grad = True
    return tensor


def gradient(tensor, values):
    tensor.grad = Tensor.from_host(tensor.queue, np.asarray(values, dtype=str(tensor.dtype)))


def adam_reference(p, grads, lr, betas=(0.9, 0.999), eps=1e-8, decay=0.0):
    m = v = np.zeros_like(p)
    for t, g in enumerate(grads, 1):
        p = p * (1 - lr * decay)
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g * g
        p = p - lr / (1 - betas[0] ** t) * m / (np.sqrt(v) / math.sqrt(1 - betas[1] ** t) + eps)
    return p


GRADS = [np.array([0.5, -1.0, 0.25]), np.array([-0.25, 0.125, 2.0]), np.array([1.0, 1.0, -1.0])]


@pytest.mark.parametrize("make", [optim.Adam, optim.AdamW])
def test_adam_follows_its_formula(queue, make):
    p = parameter(queue, [1.0, 2.0, 3.0])
    opt = make([p], lr=0.1, betas=(0.8, 0.9), eps=1e-6)
    for grad in GRADS:
        gradient(p, grad)
        assert opt.step() is None
    decay = 0.01 if make is optim.AdamW else 0.0
    expected = adam_reference(np.array([1.0, 2.0, 3.0]), GRADS, 0.1, (0.8, 0.9), 1e-6, decay)
    np.testing.assert_allclose(p.to_host(), expected, rtol=1e-5)
    assert opt.betas == (0.8, 0.9)
    assert repr(opt).startswith(f"{make.__name__}(lr=0.1, beta1=0.8, beta2=0.9, eps=0.000001, weight_decay=")


def test_every_optimizer_takes_pytorchs_keywords():
    queue = manager.default("cpu").queue
    for make, settings in [
        (optim.SGD, dict(momentum=0.9, dampening=0.0, weight_decay=0.1, nesterov=True, maximize=False)),
        (optim.Momentum, dict(momentum=0.9, nesterov=True, weight_decay=0.1)),
        (optim.Adam, dict(betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1, amsgrad=True, maximize=True)),
        (optim.AdamW, dict(betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1, amsgrad=True, maximize=True)),
        (optim.RMSProp, dict(alpha=0.9, eps=1e-8, weight_decay=0.1, momentum=0.5, centered=True, maximize=True)),
        (optim.Adagrad, dict(lr_decay=0.1, weight_decay=0.1, initial_accumulator_value=0.1, eps=1e-9, maximize=True)),
        (optim.NAdam, dict(betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1, momentum_decay=0.1, decoupled_weight_decay=True)),
        (optim.RAdam, dict(betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1, decoupled_weight_decay=True, maximize=True)),
        (optim.Adamax, dict(betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1, maximize=True)),
        (optim.Adadelta, dict(rho=0.8, eps=1e-6, weight_decay=0.1, maximize=True)),
        (optim.Lion, dict(betas=(0.9, 0.99), weight_decay=0.1, maximize=True)),
        (optim.Rprop, dict(etas=(0.4, 1.3), step_sizes=(1e-5, 10.0), maximize=True)),
        (optim.ASGD, dict(lambd=1e-3, alpha=0.5, t0=0.0, weight_decay=0.1, maximize=True)),
    ]:
        p = parameter(queue, [1.0, -1.0])
        group = {"params": [p]} if make is optim.Rprop else {"params": [p], "weight_decay": 0.25}
        opt = make([group], lr=0.5, **settings)
        gradient(p, [0.5, 0.5])
        opt.step()
        assert opt.lr == 0.5
        assert opt.param_groups[0]["weight_decay"] == (0.25 if make is not optim.Rprop else 0.0)
        assert not np.allclose(p.to_host(), [1.0, -1.0])
        assert repr(opt).startswith(f"{make.__name__}(lr=0.5")


def test_a_step_unscales_clips_and_skips_on_the_device(queue):
    p = parameter(queue, [0.0, 0.0])
    opt = optim.SGD([p], lr=1.0)
    gradient(p, [48.0, 64.0])
    norm = opt.step(1.0, grad_scale=16.0)
    assert norm.shape == () and norm.item() == pytest.approx(5.0)
    np.testing.assert_allclose(p.to_host(), [-0.6, -0.8], rtol=1e-5)
    scale = Tensor.from_host(queue, np.float32([16.0]))
    opt.step(grad_scale=scale)
    np.testing.assert_allclose(p.to_host(), [-3.6, -4.8], rtol=1e-5)
    before = p.to_host().copy()
    opt.step(found_inf=Tensor.from_host(queue, np.float32([1.0])))
    gradient(p, [np.inf, 1.0])
    opt.step(skip_non_finite=True)
    np.testing.assert_array_equal(p.to_host(), before)


def test_skipped_steps_do_not_count(queue):
    p = parameter(queue, [1.0, 2.0, 3.0])
    opt = optim.Adam([p], lr=0.1)
    for grad in [GRADS[0], GRADS[0] * np.nan, GRADS[1], GRADS[1] * np.inf, GRADS[2]]:
        gradient(p, grad)
        opt.step(skip_non_finite=True)
    np.testing.assert_allclose(p.to_host(), adam_reference(np.array([1.0, 2.0, 3.0]), GRADS, 0.1), rtol=1e-5)
    assert opt.state_dict()["0.step"] == 3


def test_clipping(queue):
    p, q = parameter(queue, [0.0, 0.0]), parameter(queue, 0.0)
    gradient(p, [3.0, 0.0])
    gradient(q, 4.0)
    assert optim.clip_grad_norm([p, q], 10.0) == pytest.approx(5.0)
    np.testing.assert_array_equal(p.grad.to_host(), [3.0, 0.0])
    norm = optim.clip_grad_norm_device((t for t in [p, q]), 1.0)
    assert norm.shape == () and norm.item() == pytest.approx(5.0)
    np.testing.assert_allclose(q.grad.to_host(), 0.8, rtol=1e-5)
    optim.clip_grad_value([p, q], 0.25)
    np.testing.assert_array_equal(p.grad.to_host(), [0.25, 0.0])
    q.grad = None
    p.grad = None
    assert optim.clip_grad_norm([p, q], 1.0) == 0.0
    assert optim.clip_grad_norm_device([p, q], 1.0) == 0.0
    with pytest.raises(ValueError, match="max_norm is -1"):
        optim.clip_grad_norm([p], -1.0)


def test_clipping_leaves_tensors_that_somebody_else_holds_alone():
    queue = manager.default("cpu").queue
    p = parameter(queue, [0.0, 0.0])
    shared = Tensor.from_host(queue, np.float32([3.0, 4.0]))
    p.grad = shared
    optim.clip_grad_norm([p], 1.0)
    np.testing.assert_array_equal(shared.to_host(), [3.0, 4.0])
    np.testing.assert_allclose(p.grad.to_host(), [0.6, 0.8], rtol=1e-5)


def test_state_survives_a_round_trip(queue):
    def run(p, opt, grads):
        for grad in grads:
            gradient(p, grad)
            opt.step()
        return p.to_host().copy()

    whole = parameter(queue, [1.0, 2.0, 3.0])
    expected = run(whole, optim.Adam([whole], lr=0.1, amsgrad=True), GRADS)
    first = parameter(queue, [1.0, 2.0, 3.0])
    opt = optim.Adam([first], lr=0.1, amsgrad=True)
    run(first, opt, GRADS[:1])
    state = opt.state_dict()
    assert set(state) == {
        "groups.0.lr", "groups.0.weight_decay", "groups.0.momentum",
        "0.step", "0.exp_avg", "0.exp_avg_sq", "0.max_exp_avg_sq",
    }  # fmt: skip
    second = parameter(queue, first.to_host())
    resumed = optim.Adam([second], lr=0.9, amsgrad=True)
    resumed.load_state_dict(state)
    np.testing.assert_array_equal(run(second, resumed, GRADS[1:]), expected)

    wrong = {**state, "0.exp_avg": np.zeros(2, np.float32), "1.step": 3.0, "0.other": np.zeros(3, np.float32)}
    del wrong["groups.0.lr"]
    with pytest.raises(ValueError) as error:
        resumed.load_state_dict(wrong)
    for part in ['"groups.0.lr"', '"0.exp_avg", which has shape (2,)', '"1.step"', '"0.other"']:
        assert part in str(error.value)


@pytest.mark.parametrize("name", ["NAdam", "RAdam", "Adamax", "Adadelta", "Lion", "Rprop", "ASGD"])
def test_states_of_all_optimizers_go_on(name):
    queue = manager.default("cpu").queue
    whole, first = parameter(queue, [1.0, 2.0, 3.0], "float64"), parameter(queue, [1.0, 2.0, 3.0], "float64")
    runs = [(whole, getattr(optim, name)([whole], lr=0.1)), (first, getattr(optim, name)([first], lr=0.1))]
    for p, opt in runs:
        for grad in GRADS:
            gradient(p, grad)
            opt.step()
    second = parameter(queue, first.to_host(), "float64")
    resumed = getattr(optim, name)([second], lr=0.9)
    resumed.load_state_dict(runs[1][1].state_dict())
    for p, opt in [runs[0], (second, resumed)]:
        for grad in GRADS:
            gradient(p, grad)
            opt.step()
    np.testing.assert_array_equal(second.to_host(), whole.to_host())
    with pytest.raises(ValueError):
        getattr(optim, name)([whole], lr=-1.0)


def test_lbfgs_calls_its_closure_and_muon_takes_matrices(queue):
    p = parameter(queue, [3.0, -2.0])
    opt = optim.LBFGS([p], line_search_fn="strong_wolfe", max_iter=5)

    def closure():
        opt.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    assert opt.step(closure).item() == 13.0
    np.testing.assert_allclose(p.to_host(), 0.0, atol=1e-5)
    again = optim.LBFGS([p])
    again.load_state_dict(opt.state_dict())
    assert again.state_dict()["func_evals"] == opt.state_dict()["func_evals"] > 1
    with pytest.raises(TypeError, match="closure"):
        opt.step(3)
    with pytest.raises(ZeroDivisionError):
        opt.step(lambda: 1 / 0)
    with pytest.raises(ValueError, match="strong_wolfe"):
        optim.LBFGS([p], line_search_fn="armijo")
    with pytest.raises(ValueError, match="one group"):
        optim.LBFGS([{"params": [p]}, {"params": [parameter(queue, [1.0])]}])
    w = parameter(queue, [[1.0, 0.0], [0.0, 1.0]])
    muon = optim.Muon([w], lr=0.1, adjust_lr_fn="match_rms_adamw")
    gradient(w, [[1.0, 0.0], [0.0, 3.0]])
    muon.step()
    assert 0.9 < w.to_host()[0, 0] < 1.0 and set(muon.state_dict()) >= {"0.momentum_buffer", "groups.0.momentum"}
    with pytest.raises(ValueError, match="only matrices"):
        optim.Muon([p])
    with pytest.raises(ValueError, match="adjust_lr_fn"):
        optim.Muon([w], adjust_lr_fn="none")


def test_schedules_drive_the_optimizer():
    p = parameter(manager.default("cpu").queue, [1.0])

    def rates(make, steps=6, **settings):
        opt = optim.SGD([{"params": [p]}], lr=1.0, **settings)
        schedule = make(opt)
        seen = []
        for _ in range(steps):
            seen.append(opt.param_groups[0]["lr"])
            schedule.step()
        assert schedule.optimizer is opt and schedule.last_epoch == steps
        assert schedule.get_last_lr() == [opt.lr]
        return seen

    assert rates(lambda o: optim.StepLR(o, 2, gamma=0.5)) == [1, 1, 0.5, 0.5, 0.25, 0.25]
    assert rates(lambda o: optim.MultiStepLR(o, [1, 3], 0.5)) == [1, 0.5, 0.5, 0.25, 0.25, 0.25]
    assert rates(lambda o: optim.ExponentialLR(o, 0.5))[:3] == [1, 0.5, 0.25]
    assert rates(lambda o: optim.LambdaLR(o, lambda epoch: 1 / (1 + epoch)))[:3] == [1, 0.5, 1 / 3]
    cosine = rates(lambda o: optim.CosineAnnealingLR(o, T_max=4, eta_min=0.5))
    np.testing.assert_allclose(cosine, [1, 0.5 + 0.25 * (1 + 0.5**0.5), 0.75, 0.5 + 0.25 * (1 - 0.5**0.5), 0.5, 0.5])
    warm = rates(lambda o: optim.WarmupCosine(o, warmup_steps=3, total_steps=5))
    np.testing.assert_allclose(warm, [0.25, 0.5, 0.75, 1, 0.5, 0], atol=1e-12)
    chained = rates(lambda o: optim.ChainedScheduler([optim.StepLR(o, 2, 0.5), optim.ExponentialLR(o, 0.5)]), 3)
    assert chained == [1, 0.5, 0.125]

    def sequential(opt):
        parts = [optim.LambdaLR(opt, lambda epoch: 0.1), optim.ExponentialLR(opt, 0.5)]
        return optim.SequentialLR(opt, parts, [2])

    assert rates(sequential, 4) == [0.1, 0.1, 1, 0.5]
    assert rates(lambda o: optim.ConstantLR(o, factor=0.5, total_iters=2), 4) == [0.5, 0.5, 1, 1]
    np.testing.assert_allclose(rates(lambda o: optim.LinearLR(o, total_iters=2), 4), [1 / 3, 2 / 3, 1, 1])
    np.testing.assert_allclose(rates(lambda o: optim.PolynomialLR(o, total_iters=4, power=2.0), 4), [1, 9 / 16, 1 / 4, 1 / 16])
    restarts = rates(lambda o: optim.lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=2, T_mult=2))
    np.testing.assert_allclose(restarts, [1, 0.5, 1, 0.5 + 0.125**0.5, 0.5, 0.5 - 0.125**0.5])
    assert rates(lambda o: optim.MultiplicativeLR(o, lambda epoch: 0.5), 3) == [1, 0.5, 0.25]
    up_and_down = dict(base_lr=1.0, max_lr=3.0, step_size_up=2)
    np.testing.assert_allclose(rates(lambda o: optim.CyclicLR(o, **up_and_down), 6, momentum=0.9), [1, 2, 3, 2, 1, 2])
    scaled = rates(lambda o: optim.CyclicLR(o, **up_and_down, scale_fn=lambda cycle: 1 / cycle, cycle_momentum=False))
    np.testing.assert_allclose(scaled, [1, 2, 3, 2, 1, 1.5])
    cycle = rates(lambda o: optim.OneCycleLR(o, 2.0, epochs=2, steps_per_epoch=3), 6, momentum=0.9)
    assert cycle[0] == pytest.approx(0.08) and max(cycle) <= 2.0 and cycle[-1] < 1e-5


def test_a_plateau_lowers_the_learning_rate():
    p = parameter(manager.default("cpu").queue, [1.0])
    opt = optim.Adam([p], lr=1.0)
    schedule = optim.ReduceLROnPlateau(opt, factor=0.5, patience=1)
    assert [schedule.step(loss) for loss in [3.0, 2.0, 2.0, 2.0, 1.0]] == [1, 1, 1, 0.5, 0.5]
    assert schedule.best == 1.0 and opt.lr == 0.5
    again = optim.ReduceLROnPlateau(opt, factor=0.5, patience=1)
    again.load_state_dict(schedule.state_dict())
    assert again.best == 1.0 and again.last_epoch == 5
    schedule.step(Tensor.from_host(p.queue, np.float32([0.5])))
    assert schedule.best == 0.5
    with pytest.raises(ValueError, match="use \"min\" or \"max\""):
        optim.ReduceLROnPlateau(opt, mode="best")


def test_schedules_without_an_optimizer_are_only_asked():
    schedule = optim.WarmupCosine(0.1, 90, warmup_epochs=4, min_lr=0.001)
    assert schedule.optimizer is None
    assert schedule.lr(0) == pytest.approx(0.02) and schedule.lr(4) == pytest.approx(0.1)
    assert schedule.lr(90) == pytest.approx(0.001) and schedule.lr(200) == pytest.approx(0.001)
    assert schedule.step() == pytest.approx(0.04)
    assert optim.ReduceLROnPlateau(0.1, patience=0, factor=0.5).step(1.0) == 0.1


def test_a_schedule_goes_on_from_its_state():
    p = parameter(manager.default("cpu").queue, [1.0])
    opt = optim.SGD([p], lr=1.0)
    schedule = optim.CosineAnnealingLR(opt, 8)
    for _ in range(3):
        schedule.step()
    other = optim.SGD([p], lr=1.0)
    resumed = optim.CosineAnnealingLR(other, 8)
    other.load_state_dict(opt.state_dict())
    resumed.load_state_dict(schedule.state_dict())
    assert resumed.last_epoch == 3
    assert [resumed.step() for _ in range(4)] == [schedule.step() for _ in range(4)]
    with pytest.raises(ValueError, match="unknown number \"other\""):
        resumed.load_state_dict({**schedule.state_dict(), "other": 1.0})


def test_mistakes_are_named():
    p = parameter(manager.default("cpu").queue, [1.0])
    opt = optim.SGD([p], lr=1.0)
    with pytest.raises(ValueError, match="beta2 is 1"):
        optim.Adam([p], betas=(0.9, 1.0))
    with pytest.raises(ValueError, match="no momentum to cycle"):
        optim.OneCycleLR(opt, 1.0, 10)
    with pytest.raises(TypeError, match="total_steps"):
        optim.OneCycleLR(opt, 1.0)
    with pytest.raises(TypeError, match="max_epochs"):
        optim.WarmupCosine(opt)
    with pytest.raises(ZeroDivisionError):
        optim.LambdaLR(opt, lambda epoch: 1 / epoch)
    with pytest.raises(ValueError, match="start_factor is 0"):
        optim.LinearLR(opt, start_factor=0.0)
    with pytest.raises(ValueError, match="factor is 2"):
        optim.ConstantLR(opt, factor=2.0)
    with pytest.raises(ValueError, match="T_0 is 0"):
        optim.CosineAnnealingWarmRestarts(opt, 0)
    with pytest.raises(ValueError, match="mode is"):
        optim.CyclicLR(opt, 0.1, 1.0, mode="square", cycle_momentum=False)
    with pytest.raises(ValueError, match="no momentum to cycle"):
        optim.CyclicLR(opt, 0.1, 1.0)
    with pytest.raises(TypeError, match="lr_lambda is a function"):
        optim.MultiplicativeLR(opt, 3)
    with pytest.raises(TypeError, match="lr_lambda is a function"):
        optim.LambdaLR(opt, [3])
    part = optim.StepLR(opt, 1)
    chain = optim.ChainedScheduler([part])
    chain.step()
    with pytest.raises(RuntimeError, match="part of another"):
        part.step()
    with pytest.raises(KeyError):
        opt.param_groups[0]["momentum"]


def test_the_average_of_a_model(queue):
    model = Linear(queue, 2, 1)
    ema = optim.ModelEMA(model, decay=0.75, warmup=False)
    start = model.weight.to_host().copy()
    opt = optim.SGD(model.parameters(), lr=1.0)
    gradient(model.weight, np.ones((1, 2)))
    opt.step()
    ema.update()
    trained = model.weight.to_host().copy()
    expected = 0.75 * start + 0.25 * trained
    with ema.averaged() as averaged:
        assert averaged is model
        np.testing.assert_allclose(model.weight.to_host(), expected, rtol=1e-6)
        with pytest.raises(RuntimeError, match="swap"):
            ema.update()
    np.testing.assert_array_equal(model.weight.to_host(), trained)
    other = optim.ModelEMA(model, decay=0.75, warmup=False)
    other.load_state_dict(ema.state_dict())
    assert other.updates == 1
    other.copy_to_model()
    np.testing.assert_allclose(model.weight.to_host(), expected, rtol=1e-6)
    assert optim.ModelEMA(model).current_decay() == pytest.approx(0.1)
