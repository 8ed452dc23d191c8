"""Values at the edges of what operations take: PyTorch's results are written here by hand."""

import numpy as np
import pytest
from conftest import find_device_selectors

from netcl import Tensor, autograd as ag, nn, ops
from netcl.core.device import manager
from netcl.nn import functional as F
from netcl.runtime import capture

NAN = float("nan")


@pytest.fixture(params=find_device_selectors())
def queue(request):
    return manager.default(request.param).queue


def leaf(queue, values, dtype="float32"):
    return ag.tensor(np.asarray(values), requires_grad=True, dtype=dtype, queue=queue)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("clamp", [ag.clamp, ops.clamp, F.clamp])
def test_a_bound_that_is_not_given_is_none(queue, clamp, dtype):
    x = Tensor.from_host(queue, np.array([-9.0, -1.0, 0.5, 9.0, np.inf, -np.inf, NAN]), dtype=dtype)

    def given(*args, **kwargs):
        return clamp(x, *args, **kwargs).to_host().astype(np.float64)

    np.testing.assert_array_equal(given(min=0.0), [0, 0, 0.5, 9, np.inf, 0, NAN])
    np.testing.assert_array_equal(given(0.0), given(min=0.0))
    np.testing.assert_array_equal(given(0.0, None), given(min=0.0))
    np.testing.assert_array_equal(given(max=0.0), [-9, -1, 0, 0, 0, -np.inf, NAN])
    np.testing.assert_array_equal(given(None, 0.0), given(max=0.0))
    np.testing.assert_array_equal(given(-1, 1), [-1, -1, 0.5, 1, 1, -1, NAN])
    np.testing.assert_array_equal(given(3.0, -2.0), [-2] * 6 + [NAN])
    np.testing.assert_array_equal(given(NAN, 1.0), [NAN] * 7)
    np.testing.assert_array_equal(given(max=NAN), [NAN] * 7)
    with pytest.raises(ValueError, match="clamp: neither bound is given; give min, max or both"):
        clamp(x)
    with pytest.raises(ValueError, match="clamp: neither bound is given"):
        clamp(x, None, max=None)
    with pytest.raises(TypeError, match="clamp: min is a number, not str"):
        clamp(x, "0")


def test_the_gradient_of_clamp(queue):
    values = [-2.0, -1.0, 0.0, 1.0, 2.0, NAN]

    def slopes(**bounds):
        x = leaf(queue, values)
        ag.sum(ag.clamp(x, **bounds)).backward()
        return x.grad.to_host()

    np.testing.assert_array_equal(slopes(min=-1.0, max=1.0), [0, 1, 1, 1, 0, 0])
    np.testing.assert_array_equal(slopes(min=-1.0), [0, 1, 1, 1, 1, 0])
    np.testing.assert_array_equal(slopes(max=1.0), [1, 1, 1, 1, 0, 0])
    np.testing.assert_array_equal(slopes(min=1.0, max=-1.0), [0] * 6)
    f = ag.jit(lambda x: ag.clamp(x * 2.0, min=0.0))
    np.testing.assert_array_equal(f(Tensor.from_host(queue, np.float32([-1, 3]))).to_host(), [0, 6])


def test_bounds_that_cross_are_refused_where_pytorch_refuses_them(queue):
    x = leaf(queue, [1.0])
    for call in (lambda: ag.hardtanh(x, 1.0, -1.0), lambda: ops.hardtanh(x, 1.0, -1.0), lambda: nn.HardTanh(1.0, -1.0)):
        with pytest.raises(ValueError, match="min_val=1.0 is above max_val=-1.0"):
            call()
    with pytest.raises(TypeError, match="hardtanh: min_val is a number, not NoneType"):
        ag.hardtanh(x, None)


def test_prelu_at_zero(queue):
    for slopes in (1, 2):
        layer, x = nn.PReLU(queue, slopes), leaf(queue, [[0.0, -2.0], [-0.0, np.inf]])
        ag.sum(layer(x)).backward()
        np.testing.assert_array_equal(x.grad.to_host(), [[0.25, 0.25], [0.25, 1.0]])
        np.testing.assert_array_equal(layer.weight.grad.to_host(), [-2.0] if slopes == 1 else [0.0, -2.0])
        np.testing.assert_array_equal(layer(x).to_host(), [[0.0, -0.5], [0.0, np.inf]])
    x, weight = leaf(queue, [[-1.0, 2.0]]), leaf(queue, [[0.5, 0.5]])
    np.testing.assert_array_equal(F.prelu(x, weight).to_host(), [[-0.5, 2.0]])


@pytest.mark.parametrize("factor", [3.0000000001, 2.9999999999, 3.0])
def test_nearest_repeats_evenly_next_to_a_whole_factor(queue, factor):
    size = int(np.floor(6 * factor))
    expected = np.repeat(np.arange(6.0), 3)[:size]
    for dtype in ("float64", "float32"):
        try:
            x = leaf(queue, np.arange(6.0).reshape(1, 1, 1, 6), dtype)
        except Exception as error:
            assert dtype == "float64", error
            continue
        y = ag.interpolate(x, scale_factor=(1.0, factor))
        np.testing.assert_array_equal(y.to_host().ravel(), expected)
        ag.sum(y).backward()
        np.testing.assert_array_equal(x.grad.to_host().ravel(), np.bincount(expected.astype(int)))


def test_interpolate_leaves_channels_alone(queue):
    x = leaf(queue, np.arange(12.0).reshape(2, 3, 2))
    for call in (ag.interpolate, ops.interpolate, F.interpolate):
        assert call(x, scale_factor=2).shape == (2, 3, 4)
        assert call(x, size=5).shape == call(x, size=(5,)).shape == (2, 3, 5)
        np.testing.assert_array_equal(call(x, scale_factor=2.0).to_host()[0], [[0, 0, 1, 1], [2, 2, 3, 3], [4, 4, 5, 5]])
        np.testing.assert_array_equal(call(x, size=4, mode="linear").to_host()[0, 0], [0.0, 0.25, 0.75, 1.0])
        np.testing.assert_array_equal(call(x, 3, mode="linear", align_corners=True).to_host()[0, 0], [0.0, 0.5, 1.0])
    ag.sum(ag.interpolate(x, scale_factor=3)).backward()
    np.testing.assert_array_equal(x.grad.to_host(), np.full((2, 3, 2), 3.0))
    assert nn.Upsample(scale_factor=2)(x).shape == (2, 3, 4) and nn.Upsample(size=7, mode="linear")(x).shape == (2, 3, 7)
    for wrong, text in [
        (lambda: ag.interpolate(x, scale_factor=2, mode="bilinear"), r"mode='bilinear' is for \(N, C, H, W\)"),
        (lambda: ag.interpolate(x, size=(4, 4)), "size"),
        (lambda: ag.interpolate(leaf(queue, np.zeros((3, 2))), scale_factor=2), r"takes \(N, C, L\) or \(N, C, H, W\)"),
        (lambda: ag.interpolate(leaf(queue, np.zeros((1, 1, 1, 1, 2))), scale_factor=2), r"takes \(N, C, L\)"),
        (lambda: ag.interpolate(leaf(queue, np.zeros((1, 1, 2, 2))), size=4, mode="linear"), "mode='linear' is for"),
    ]:
        with pytest.raises((ValueError, TypeError), match=text):
            wrong()


@pytest.mark.parametrize("wrong", [-0.5, 1.5, np.inf, -1e-30, NAN])
def test_what_is_no_probability_has_no_silent_loss(queue, wrong):
    p, target = leaf(queue, [0.25, wrong]), Tensor.from_host(queue, np.float32([1.0, 0.0]))
    if queue == manager.default("cpu").queue:
        with pytest.raises(ValueError, match=r"binary_cross_entropy: element 1 of the input is .*; apply sigmoid first"):
            F.binary_cross_entropy(p, target)
        with pytest.raises(ValueError, match="probabilities lie in 0 to 1"):
            nn.BCELoss()(p, target)
        # A step that is recorded looks at no value.
        step = capture(lambda p: {"loss": F.binary_cross_entropy(p, target)})
        assert np.isnan(step(Tensor.from_host(queue, np.float32([0.25, wrong])))["loss"].item())
        return
    losses = F.binary_cross_entropy(p, target, reduction="none")
    ag.sum(losses).backward()
    for values in (losses, p.grad):
        assert np.isfinite(values.to_host()[0]) and np.isnan(values.to_host()[1])


def test_probabilities_at_the_edges(queue):
    p = leaf(queue, [0.0, 1.0, 1.0, 0.0])
    losses = F.binary_cross_entropy(p, Tensor.from_host(queue, np.float32([0, 1, 0, 1])), reduction="none")
    np.testing.assert_array_equal(losses.to_host(), [0, 0, 100, 100])
    ag.sum(losses).backward()
    np.testing.assert_allclose(p.grad.to_host(), [0, 0, 1e12, -1e12])
