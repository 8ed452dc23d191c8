"""Batch normalisation counts its batches on the device: plain, compiled and captured steps agree."""

import copy
import pickle

import numpy as np
import pytest
from conftest import find_device_selectors

from netcl import IndexTensor, Tensor, autograd as ag, nn
from netcl.core.device import manager
from netcl.runtime import KernelCapture, capture

STEPS = 5


@pytest.fixture(params=find_device_selectors())
def queue(request):
    return manager.default(request.param).queue


def batch(queue, i):
    values = np.random.default_rng(i).normal(loc=i, size=(6, 3, 4))
    return Tensor.from_host(queue, values.astype(np.float32))


def expected(momentum):
    """The averages of PyTorch's formula, in float64."""
    mean, var = np.zeros(3), np.ones(3)
    for i in range(STEPS):
        x = np.random.default_rng(i).normal(loc=i, size=(6, 3, 4)).astype(np.float32).astype(np.float64)
        share = 1 / (i + 1) if momentum is None else momentum
        mean = (1 - share) * mean + share * x.mean((0, 2))
        var = (1 - share) * var + share * x.var((0, 2), ddof=1)
    return mean, var


def check(norm, momentum, steps=STEPS):
    assert int(norm.num_batches_tracked) == steps
    if steps == STEPS:
        for ours, theirs in zip((norm.running_mean, norm.running_var), expected(momentum)):
            np.testing.assert_allclose(ours.to_host(), theirs, rtol=1e-5, atol=1e-5)


def kept(norm):
    return [buffer.to_host().copy() for buffer in norm.buffers()]


def plain(norm):
    return norm


def compiled(norm):
    return ag.jit(norm)


def compiled_argument(norm):
    function = ag.jit(lambda x, part: part(x) * 1.0)
    return lambda x: function(x, norm)


def captured(norm):
    return capture(lambda x: {"y": norm(x)})


def captured_training(norm):
    def step(x):
        loss = ag.sum(ag.square(norm(x)))
        loss.backward()
        norm.zero_grad()
        return {"loss": loss}

    return capture(step)


def compiled_in_captured(norm):
    inner = ag.jit(lambda x: norm(x))
    return capture(lambda x: {"y": inner(x)})


MODES = [plain, compiled, compiled_argument, captured, captured_training, compiled_in_captured]


@pytest.mark.parametrize("momentum", [0.1, None])
def test_every_mode_counts_and_averages_alike(queue, momentum):
    states = {}
    for mode in MODES:
        norm = nn.BatchNorm1d(queue, 3, momentum=momentum)
        call = mode(norm)
        for i in range(STEPS):
            call(batch(queue, i))
            assert int(norm.num_batches_tracked) == i + 1, mode.__name__
        check(norm, momentum)
        states[mode.__name__] = kept(norm)
    for name, state in states.items():
        for ours, theirs in zip(state, states["plain"]):
            np.testing.assert_array_equal(ours, theirs, err_msg=name)


def test_a_shared_plan_counts_for_the_module_that_is_given(queue):
    function = ag.jit(lambda x, part: part(x) * 1.0)
    norms = [nn.BatchNorm1d(queue, 3, momentum=None) for _ in range(2)]
    for i, at in enumerate([0, 1, 1, 0, 1]):
        function(batch(queue, i), norms[at])
    assert [int(norm.num_batches_tracked) for norm in norms] == [2, 3]


@pytest.mark.parametrize("momentum", [0.1, None])
def test_a_verified_step_counts_once(queue, momentum):
    norm = nn.BatchNorm1d(queue, 3, momentum=momentum)
    step = capture(lambda x: {"y": norm(x)})
    for i in range(STEPS - 1):
        step(batch(queue, i))
    step.verify(batch(queue, STEPS - 1))
    check(norm, momentum)


def test_kept_launches_count_at_every_replay(queue):
    norm, x = nn.BatchNorm1d(queue, 3, momentum=None), batch(queue, 0)
    launches = KernelCapture()
    launches.begin()
    norm(x)
    launches.end()
    for _ in range(3):
        launches.replay()
    assert int(norm.num_batches_tracked) == 4
    np.testing.assert_allclose(norm.running_mean.to_host(), x.to_host().mean((0, 2)), rtol=1e-5)


def test_what_is_loaded_between_replays_is_counted_on(queue):
    norm = nn.BatchNorm1d(queue, 3, momentum=None)
    for call in (capture(lambda x: {"y": norm(x)}), ag.jit(norm)):
        norm.reset_running_stats()
        for i in range(3):
            call(batch(queue, i))
        saved = norm.state_dict()
        assert saved["num_batches_tracked"].dtype == np.int64 and saved["num_batches_tracked"].shape == ()
        norm.reset_running_stats()
        call(batch(queue, 7))
        assert int(norm.num_batches_tracked) == 1
        norm.load_state_dict(saved)
        for i in range(3, STEPS):
            call(batch(queue, i))
        check(norm, None)


def test_the_counter_is_a_buffer(queue):
    norm = nn.BatchNorm2d(queue, 2)
    assert [name for name, _ in norm.named_buffers()] == ["running_mean", "running_var", "num_batches_tracked"]
    assert isinstance(norm.num_batches_tracked, IndexTensor) and norm.num_batches_tracked.shape == ()
    norm.num_batches_tracked = 4
    assert norm.num_batches_tracked.item() == 4 and "num_batches_tracked" in norm._buffers
    twin = copy.deepcopy(norm)
    twin.num_batches_tracked = 9
    moved = copy.deepcopy(norm).to("cpu", "float64")
    loaded = pickle.loads(pickle.dumps(norm))
    assert [int(n.num_batches_tracked) for n in (norm, twin, moved, loaded)] == [4, 9, 4, 4]
    assert moved.running_mean.dtype == "float64" and moved.num_batches_tracked.dtype == "int64"
    for value in (np.int64(3), np.array(3), np.array([3]), 3, 3.0):
        norm.load_state_dict({**norm.state_dict(), "num_batches_tracked": value})
        assert int(norm.num_batches_tracked) == 3
    with pytest.raises(nn.StateDictError, match="'num_batches_tracked' is a whole number, not str"):
        norm.load_state_dict({**norm.state_dict(), "num_batches_tracked": "many"})
    untracked = nn.BatchNorm2d(queue, 2, track_running_stats=False)
    assert untracked.num_batches_tracked is None and untracked.state_dict().keys() == {"weight", "bias"}


def test_counting_costs_no_launch(queue):
    def launches(momentum):
        norm, kept = nn.BatchNorm1d(queue, 3, momentum=momentum), KernelCapture()
        x = batch(queue, 0)
        kept.begin()
        norm(x)
        counted = kept.end()
        kept.begin()
        ag.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, True)
        return counted - kept.end()

    assert (launches(0.1), launches(None)) == (0, 1)


def test_averages_of_other_dtypes(queue):
    for dtype in ("float16", "bfloat16"):
        norm = nn.BatchNorm1d(queue, 3, momentum=None, dtype=dtype)
        call = capture(lambda x, norm=norm: {"y": norm(x)})
        for i in range(3):
            call(batch(queue, i).to(queue, dtype))
        assert int(norm.num_batches_tracked) == 3


def test_a_batch_of_one_value_names_what_there_is(queue):
    with pytest.raises(ValueError, match=r"one value per channel has no variance.*eval\(\)"):
        nn.BatchNorm1d(queue, 3)(Tensor.from_shape(queue, (1, 3)))
