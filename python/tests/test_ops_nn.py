"""The operations of layers from Python: values on every device against NumPy, gradients in float64 against finite differences."""

import inspect
import itertools

import numpy as np
import pytest

import netcl as nc
import netcl._netcl as extension
import netcl.autograd as ag
from netcl import ops
from netcl.core.device import manager
from netcl.nn import functional as F

rng = np.random.default_rng(5)
CPU = manager.default("cpu").queue
# Programs are built per dtype, so that OpenCL devices see float32 and the native backend float64.
SELECTORS = ["cpu", *range(len(manager.discover()))]


@pytest.fixture(params=SELECTORS, ids=str)
def q(request):
    return manager.default(request.param).queue


# ---- references ------------------------------------------------------------------------------------------------------


def normal(*shape):
    """Random values that are all different by more than the step of a finite difference."""
    values = np.linspace(-1.5, 1.5, int(np.prod(shape))) + 0.01
    return rng.permutation(values).reshape(shape)


def conv2d(x, w, b=None, stride=(1, 1), pad=(0, 0, 0, 0), dilation=(1, 1), groups=1):
    top, bottom, left, right = pad
    x = np.pad(x, [(0, 0), (0, 0), (top, bottom), (left, right)])
    height = (x.shape[2] - dilation[0] * (w.shape[2] - 1) - 1) // stride[0] + 1
    width = (x.shape[3] - dilation[1] * (w.shape[3] - 1) - 1) // stride[1] + 1
    filters, channels = w.shape[0] // groups, w.shape[1]
    out = np.zeros((x.shape[0], w.shape[0], height, width))
    for g, r, c in itertools.product(range(groups), range(w.shape[2]), range(w.shape[3])):
        down, right = r * dilation[0], c * dilation[1]
        part = x[:, g * channels : (g + 1) * channels, down:, right:]
        part = part[:, :, : (height - 1) * stride[0] + 1 : stride[0], : (width - 1) * stride[1] + 1 : stride[1]]
        mine = slice(g * filters, (g + 1) * filters)
        out[:, mine] += np.einsum("nchw,fc->nfhw", part, w[mine, :, r, c])
    return out if b is None else out + b[:, None, None]


def conv_transpose2d(x, w, b, stride, pad, extra):
    """Every pixel adds its filters; margins are cut off."""
    (n, _, height, width), (_, filters, rows, columns) = x.shape, w.shape
    full = np.zeros((n, filters, (height - 1) * stride + rows + extra, (width - 1) * stride + columns + extra))
    for i, j in itertools.product(range(height), range(width)):
        part = np.einsum("nc,cfrs->nfrs", x[:, :, i, j], w)
        full[:, :, i * stride : i * stride + rows, j * stride : j * stride + columns] += part
    return full[:, :, pad : full.shape[2] - pad, pad : full.shape[3] - pad] + b[:, None, None]


def pool_axis(n, kernel, stride, pad, dilation, ceil_mode):
    """The elements of each window along an axis, and how many the window counts with its padding."""
    left = n + 2 * pad - dilation * (kernel - 1) - 1
    count = left // stride + 1
    if ceil_mode and left % stride and count * stride < n + pad:
        count += 1
    starts = [o * stride - pad for o in range(count)]
    taps = [[s + k * dilation for k in range(kernel)] for s in starts]
    return [([t for t in window if 0 <= t < n], sum(t < n + pad for t in window)) for window in taps]


def pool2d(x, reduce, kernel, stride, pad=(0, 0), dilation=(1, 1), ceil_mode=False):
    axes = [pool_axis(x.shape[a - 2], kernel[a], stride[a], pad[a], dilation[a], ceil_mode) for a in (0, 1)]
    rows = [[reduce(x[..., np.ix_(r, c)[0], np.ix_(r, c)[1]], a * b) for c, b in axes[1]] for r, a in axes[0]]
    return np.moveaxis(np.array(rows), (0, 1), (-2, -1))


def largest(window, _count):
    return window.max(axis=(-2, -1))


def mean_with_padding(window, count):
    return window.sum(axis=(-2, -1)) / count


def mean_of_elements(window, _count):
    return window.mean(axis=(-2, -1))


def adaptive2d(x, reduce, output):
    spans = [[(o * n // m, -(-(o + 1) * n // m)) for o in range(m)] for n, m in zip(x.shape[-2:], output)]
    rows = [[reduce(x[..., a:b, c:d], 0) for c, d in spans[1]] for a, b in spans[0]]
    return np.moveaxis(np.array(rows), (0, 1), (-2, -1))


def bilinear(x, size, align_corners):
    for axis, to in zip((-2, -1), size):
        n = x.shape[axis]
        if align_corners:
            at = np.arange(to) * (n - 1) / (to - 1)
        else:
            at = np.clip((np.arange(to) + 0.5) * n / to - 0.5, 0, None)
        low = np.minimum(at.astype(int), n - 1)
        high, share = np.minimum(low + 1, n - 1), at - low
        shape = (-1, 1) if axis == -2 else (-1,)
        x = x.take(low, axis) * (1 - share).reshape(shape) + x.take(high, axis) * share.reshape(shape)
    return x


def standard(x, axes, eps):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention(q, k, v, seen=None, scale=None):
    scores = q @ np.swapaxes(k, -1, -2) * (scale or 1 / np.sqrt(q.shape[-1]))
    if seen is not None:
        scores = np.where(seen, scores, -np.inf)
    return softmax(scores) @ v


def rotated(x, interleaved, start=0, base=10000.0):
    half = x.shape[-1] // 2
    angles = (start + np.arange(x.shape[-2]))[:, None] * base ** (-2 * np.arange(half) / x.shape[-1])
    turned = (x[..., ::2] + 1j * x[..., 1::2] if interleaved else x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)
    if interleaved:
        return np.stack([turned.real, turned.imag], -1).reshape(x.shape)
    return np.concatenate([turned.real, turned.imag], -1)


# ---- cases -----------------------------------------------------------------------------------------------------------

CASES = {}


def case(name, call, arrays, expected):
    """``call`` takes the function (of ``netcl.ops`` or of ``netcl.autograd``) and a tensor for each array."""
    operation = name.split(" ")[0]
    CASES[name] = (operation, call, arrays, np.asarray(expected))


images, filters, bias = normal(2, 4, 6, 5), normal(6, 4, 3, 3), normal(6)
case("conv2d", lambda f, *t: f(*t, pad=1), [images, filters, bias], conv2d(images, filters, bias, pad=(1, 1, 1, 1)))
odd = normal(6, 2, 2, 3)
case("conv2d odd", lambda f, x, w: f(x, w, stride=(2, 1), padding=(0, 2, 1, 0), dilation=(1, 2), groups=2), [images, odd],
     conv2d(images, odd, None, (2, 1), (0, 2, 1, 0), (1, 2), 2))
lines, taps = normal(2, 4, 9), normal(4, 2, 3)
case("conv1d", lambda f, *t: f(*t, None, 2, (1, 2), groups=2), [lines, taps],
     conv2d(lines[:, :, None], taps[:, :, None], None, (1, 2), (0, 0, 1, 2), groups=2)[:, :, 0])
spread = [normal(2, 3, 3, 2), normal(3, 2, 3, 3), normal(2)]
case("conv_transpose2d", lambda f, *t: f(*t, stride=2, pad=1, output_padding=1), spread, conv_transpose2d(*spread, 2, 1, 1))

case("max_pool2d", lambda f, x: f(x, 2), [images], pool2d(images, largest, (2, 2), (2, 2)))
case("max_pool2d odd", lambda f, x: f(x, (2, 3), (2, 1), padding=1, dilation=(2, 1), ceil_mode=True), [images],
     pool2d(images, largest, (2, 3), (2, 1), (1, 1), (2, 1), True))
case("max_pool1d", lambda f, x: f(x, 3, 2, 1), [lines], pool2d(lines[:, :, None], largest, (1, 3), (1, 2), (0, 1))[:, :, 0])
case("avg_pool2d", lambda f, x: f(x, 3, 2, 1, ceil_mode=True), [images],
     pool2d(images, mean_with_padding, (3, 3), (2, 2), (1, 1), ceil_mode=True))
case("avg_pool2d without padding", lambda f, x: f(x, (2, 3), padding=(1, 0), count_include_pad=False), [images],
     pool2d(images, mean_of_elements, (2, 3), (2, 3), (1, 0)))
case("avg_pool2d divided", lambda f, x: f(x, 2, divisor_override=3), [images],
     pool2d(images, mean_of_elements, (2, 2), (2, 2)) * 4 / 3)
case("avg_pool1d", lambda f, x: f(x, 2, 3), [lines], pool2d(lines[:, :, None], mean_of_elements, (1, 2), (1, 3))[:, :, 0])
case("adaptive_avg_pool2d", lambda f, x: f(x, (4, 2)), [images], adaptive2d(images, mean_of_elements, (4, 2)))
case("adaptive_avg_pool2d kept", lambda f, x: f(x, (None, 1)), [images], images.mean(-1, keepdims=True))
case("adaptive_avg_pool1d", lambda f, x: f(x, 1), [lines], lines.mean(-1, keepdims=True))
case("adaptive_max_pool2d", lambda f, x: f(x, 3), [images], adaptive2d(images, largest, (3, 3)))
case("adaptive_max_pool1d", lambda f, x: f(x, 4), [lines], adaptive2d(lines[:, :, None], largest, (1, 4))[:, :, 0])

case("interpolate", lambda f, x: f(x, scale_factor=2), [images], images.repeat(2, -2).repeat(2, -1))
case("interpolate bilinear", lambda f, x: f(x, (4, 9), mode="bilinear"), [images], bilinear(images, (4, 9), False))
case("interpolate corners", lambda f, x: f(x, size=7, mode="bilinear", align_corners=True), [images],
     bilinear(images, (7, 7), True))
case("pad", lambda f, x: f(x, [(1, 0), (2, -1)], value=0.5), [lines],
     np.pad(lines, [(0, 0), (1, 0), (2, 0)], constant_values=0.5)[..., :-1])
case("pad reflect", lambda f, x: f(x, [[0, 2], [3, 1]], "reflect"), [images],
     np.pad(images, [(0, 0), (0, 0), (0, 2), (3, 1)], "reflect"))
case("pad circular", lambda f, x: f(x, [(3, 0), (1, 4)], "circular"), [images],
     np.pad(images, [(0, 0), (0, 0), (3, 0), (1, 4)], "wrap"))
case("pad replicate", lambda f, x: f(x, [(2, 2)], mode="replicate"), [lines], np.pad(lines, [(0, 0), (0, 0), (2, 2)], "edge"))

scale, shift = normal(4) + 2, normal(4)
columns = (4, 1, 1)
case("batch_norm", lambda f, x, w, b: f(x, None, None, w, b, True, eps=1e-3), [images, scale, shift],
     standard(images, (0, 2, 3), 1e-3) * scale.reshape(columns) + shift.reshape(columns))
width_scale, width_shift = normal(5), normal(5)
case("layer_norm", lambda f, x, w, b: f(x, 5, w, b), [images, width_scale, width_shift],
     standard(images, -1, 1e-5) * width_scale + width_shift)
case("layer_norm of axes", lambda f, x: f(x, (6, 5), eps=0.1), [images], standard(images, (2, 3), 0.1))
case("group_norm", lambda f, x, w, b: f(x, 2, w, b), [images, scale, shift],
     standard(images.reshape(2, 2, -1), -1, 1e-5).reshape(images.shape) * scale.reshape(columns) + shift.reshape(columns))
line_scale = normal(9)
case("rms_norm", lambda f, x, w: f(x, [9], w), [lines, line_scale],
     lines / np.sqrt((lines**2).mean(-1, keepdims=True) + 1e-6) * line_scale)

query, key, value = normal(2, 2, 5, 4), normal(2, 2, 7, 4), normal(2, 2, 7, 3)
seen = rng.random((5, 7)) < 0.7
seen[:, 0] = True
case("scaled_dot_product_attention", lambda f, *t: f(*t), [query, key, value], attention(query, key, value))
case("scaled_dot_product_attention causal", lambda f, *t: f(*t, is_causal=True, scale=0.3), [query, key, value],
     attention(query, key, value, np.tri(5, 7, dtype=bool), 0.3))
case("scaled_dot_product_attention of seen keys", lambda f, *t: f(*t, seen), [query, key, value],
     attention(query, key, value, seen))
case("rotary", lambda f, x: f(x), [query], rotated(query, False))
case("rotary interleaved", lambda f, x: f(x, start=3, base=100.0, interleaved=True), [query], rotated(query, True, 3, 100.0))
case("rotary with tables", lambda f, x: f(x, np.zeros((5, 2)), np.ones((5, 2))), [query],
     np.concatenate([-query[..., 2:], query[..., :2]], -1))

table, rows = normal(6, 3), [[0, 5, 2], [2, 2, 1]]
case("embedding", lambda f, t: f(rows, t), [table], table[rows])
case("index_select", lambda f, x: f(x, -1, [3, 0, 3]), [lines], lines[..., [3, 0, 3]])
picks = rng.integers(0, 9, size=(2, 4, 3))
case("gather", lambda f, x: f(x, 2, picks), [lines], np.take_along_axis(lines, picks, 2))
case("gather of some", lambda f, x: f(x, 1, np.array([[[3, 0]]])), [lines], lines[:1, [3, 0], [0, 1]].reshape(1, 1, 2))


def scattered(x, at, source):
    out = x.copy()
    np.add.at(out, (np.arange(2)[:, None, None], np.arange(4)[:, None], at), source)
    return out


additions = normal(2, 4, 3)
case("scatter_add", lambda f, x, s: f(x, 2, picks, s), [lines, additions], scattered(lines, picks, additions))
case("index_add", lambda f, x, s: f(x, 2, [8, 0, 8], s), [lines, additions],
     scattered(lines, np.broadcast_to([8, 0, 8], (2, 4, 3)), additions))
case("masked_fill", lambda f, x: f(x, np.arange(9) % 3 == 0, -2.0), [lines], np.where(np.arange(9) % 3 == 0, -2.0, lines))
case("topk", lambda f, x: f(x, 3)[0], [lines], -np.sort(-lines)[..., :3])
case("topk smallest", lambda f, x: f(x, 2, axis=1, largest=False)[0], [lines], np.sort(lines, 1)[:, :2])
case("sort", lambda f, x: f(x, 1, descending=True)[0], [lines], -np.sort(-lines, 1))
case("einsum", lambda f, a, b: f("bij,bkj->bik", a, b), [lines, additions.repeat(3, -1)],
     np.einsum("bij,bkj->bik", lines, additions.repeat(3, -1)))
factors = [normal(2, 3, 3), normal(3, 4), normal(4)]
case("einsum odd", lambda f, *t: f("...ii,ij,j", *t), factors, np.einsum("...ii,ij,j", *factors))


def leaves(q, arrays):
    dtype = "float64" if q == CPU else "float32"
    return [ag.tensor(array, dtype=dtype, queue=q) for array in arrays]


@pytest.mark.parametrize("name", CASES)
def test_values(name, q):
    operation, call, arrays, expected = CASES[name]
    tensors = leaves(q, arrays)
    raw, recorded = call(getattr(ops, operation), *tensors), call(getattr(ag, operation), *tensors)
    assert not raw.requires_grad, "netcl.ops never records"
    assert recorded.requires_grad
    assert raw.shape == expected.shape
    assert raw.queue == tensors[0].queue
    tolerance = 1e-10 if raw.dtype == "float64" else 2e-5
    np.testing.assert_allclose(raw.to_host(), expected, rtol=tolerance, atol=tolerance)
    np.testing.assert_array_equal(recorded.to_host(), raw.to_host())


@pytest.mark.parametrize("name", CASES)
def test_gradients(name):
    operation, call, arrays, _ = CASES[name]
    inputs = leaves(CPU, [array[:1] if array is images else array for array in arrays])
    assert ag.gradcheck(lambda *t: call(getattr(ag, operation), *t), inputs)


def test_every_operation_has_a_case_and_three_names():
    named = {case[0] for case in CASES.values()} | {"argsort", "dropout", "one_hot"}
    for name in named:
        assert getattr(ops, name) is getattr(extension, name)
        recorded = extension.autograd if hasattr(extension.autograd, name) else extension.functions
        assert getattr(F, name) is getattr(ag, name) is getattr(recorded, name)
        # One declaration gives both.
        assert getattr(ops, name).__doc__ == getattr(ag, name).__doc__
        assert inspect.signature(getattr(ops, name)) == inspect.signature(getattr(ag, name))
    assert ops.upsample is ops.interpolate
    assert nc.conv2d is ag.conv2d
    assert str(inspect.signature(ops.conv2d)).startswith("(x, weight, bias=None, stride=1, pad=0")


# ---- what has no gradient, or something beside its value -------------------------------------------------------------


def test_running_averages_move_in_place(q):
    (x,) = leaves(q, [images])
    mean, var = (nc.Tensor.from_shape(q, (4,), x.dtype, fill=fill) for fill in (0.0, 1.0))
    F.batch_norm(x, mean, var, training=True, momentum=0.25)
    expected_mean, expected_var = 0.25 * images.mean((0, 2, 3)), 0.75 + 0.25 * images.var((0, 2, 3), ddof=1)
    np.testing.assert_allclose(mean.to_host(), expected_mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(var.to_host(), expected_var, rtol=1e-5, atol=1e-6)
    evaluated = ops.batch_norm(x, mean, var)
    expected = (images - expected_mean.reshape(columns)) / np.sqrt(expected_var.reshape(columns) + 1e-5)
    np.testing.assert_allclose(evaluated.to_host(), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mean.to_host(), expected_mean, rtol=1e-5, atol=1e-6)


def test_batch_norm_in_evaluation_has_gradients():
    mean, var = leaves(CPU, [shift, scale])
    inputs = leaves(CPU, [images[:1], scale, shift])
    assert ag.gradcheck(lambda x, w, b: ag.batch_norm(x, mean.detach(), var.detach(), w, b), inputs)


def test_order(q):
    (x,) = leaves(q, [lines])
    for function in (ops.sort, ag.sort):
        _, at = function(x, axis=0)
        np.testing.assert_array_equal(at.to_host(), np.argsort(lines, 0, kind="stable"))
        assert isinstance(at, nc.IndexTensor)
    np.testing.assert_array_equal(ops.argsort(x, descending=True).to_host(), np.argsort(-lines, kind="stable"))
    np.testing.assert_array_equal(F.topk(x, 2)[1].to_host(), np.argsort(-lines, kind="stable")[..., :2])


def test_one_hot(q):
    np.testing.assert_array_equal(ops.one_hot([2, 0], 3, queue=q).to_host(), [[0, 0, 1], [1, 0, 0]])
    at = nc.IndexTensor.from_host(q, [[1]])
    made = F.one_hot(at, 2, dtype="float64" if q == CPU else None)
    assert made.shape == (1, 1, 2)
    assert made.queue == at.queue
    with pytest.raises(ValueError, match="is 3, but must lie in 0..3"):
        ops.one_hot([3], 3, queue=q)


def test_dropout(q):
    x = ag.tensor(np.ones((40, 50)), queue=q)
    y = ag.dropout(x, 0.25, seed=3)
    host = y.to_host()
    assert set(np.unique(host)) == {0.0, np.float32(1 / 0.75)}
    assert abs((host == 0).mean() - 0.25) < 0.05
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.to_host(), host)
    np.testing.assert_array_equal(ops.dropout(x, 0.25, seed=3).to_host(), host)
    # Without a seed every call draws anew.
    assert (ops.dropout(x, 0.5).to_host() != ops.dropout(x, 0.5).to_host()).any()
    assert ag.dropout(x, training=False).requires_grad
    kept = ops.dropout(x, 0.9, training=False)
    assert not kept.requires_grad
    np.testing.assert_array_equal(kept.to_host(), 1.0)


CHANNELS = {"dropout1d": (30, 40, 5), "dropout2d": (30, 40, 3, 2), "feature_alpha_dropout": (30, 40, 5)}


@pytest.mark.parametrize("name", ["alpha_dropout", *CHANNELS])
def test_other_dropouts(q, name):
    shape = CHANNELS.get(name, (30, 40))
    x = ag.tensor(np.full(shape, 0.5), queue=q)
    for module in (ops, ag):
        # What is dropped of alpha_dropout is selu's lowest value, before a scale and a shift keep mean 0 and variance 1.
        scale, shift, kept = 1 / 0.75, 0.0, 1 / 0.75
        dropped = 0.0
        if "alpha" in name:
            kept = scale = (0.75 * (1 + 0.25 * 1.7580993408473766**2)) ** -0.5
            shift = scale * 1.7580993408473766 * 0.25
            dropped = shift - scale * 1.7580993408473766
        y = getattr(module, name)(x, 0.25, True, seed=3)
        host = y.to_host().reshape(30 * 40, -1)
        assert (host == host[:, :1]).all(), "whole channels"
        np.testing.assert_allclose(np.unique(host), sorted([dropped, 0.5 * scale + shift]), rtol=1e-6)
        assert abs(np.isclose(host, dropped).mean() - 0.25) < 0.05
    y.sum().backward()
    np.testing.assert_allclose(x.grad.to_host(), np.where(np.isclose(y.to_host(), dropped), 0.0, kept), rtol=1e-6)
    np.testing.assert_array_equal(getattr(F, name)(x, 0.25, False).to_host(), 0.5)
    np.testing.assert_array_equal(getattr(F, name)(x, 1.0, True).to_host(), 0.0)
    with pytest.raises(ValueError, match="1.5 is not a probability"):
        getattr(F, name)(x, 1.5, True)


def test_alpha_dropout_keeps_mean_and_variance():
    x = ops.normal((400, 500), seed=1)
    y = ops.alpha_dropout(x, 0.3, True, seed=2).to_host()
    assert abs(y.mean()) < 0.01 and abs(y.var() - 1) < 0.02


def test_random_slopes(q):
    x = ag.tensor(np.array([[2.0, -1.0, -3.0]] * 500), queue=q)
    y = F.rrelu(x, 0.25, 0.5, True, seed=1)
    slopes = y.to_host() / x.to_host()
    assert (slopes[:, 0] == 1).all() and 0.25 <= slopes[:, 1:].min() < 0.26 and 0.49 < slopes[:, 1:].max() < 0.5
    y.sum().backward()
    np.testing.assert_allclose(x.grad.to_host(), slopes, rtol=1e-6)
    np.testing.assert_array_equal(ops.rrelu(x, 0.25, 0.5, training=True, seed=1).to_host(), y.to_host())


@pytest.mark.parametrize("axis", [0, -1])
def test_gumbel_softmax(q, axis):
    probabilities = np.array([0.5, 0.3, 0.2])
    logits = np.log(probabilities) + np.zeros((3000, 1))
    x = ag.tensor(logits if axis else logits.T, queue=q)
    soft, hard = (F.gumbel_softmax(x, 0.5, hard, axis, seed=4) for hard in (False, True))
    np.testing.assert_allclose(soft.to_host().sum(axis), 1.0, rtol=1e-5)
    choice = hard.to_host()
    assert set(np.unique(choice)) == {0.0, 1.0} and (choice.sum(axis) == 1).all()
    np.testing.assert_array_equal(choice.argmax(axis), soft.to_host().argmax(axis))
    np.testing.assert_allclose(choice.mean(0 if axis else 1), probabilities, atol=0.03)
    # The gradient of the choice is that of the softmax.
    factor = nc.Tensor.from_host(q, rng.normal(size=hard.shape), x.dtype)
    (one,), (other,) = (ag.grad((out * factor).sum(), [x]) for out in (soft, hard))
    np.testing.assert_array_equal(one.to_host(), other.to_host())
    assert F.gumbel_softmax(nc.Tensor.from_shape(q, (0, 3)), hard=True).shape == (0, 3)


def test_one_sequence_is_a_batch_of_one(q):
    mean, var = (nc.Tensor.from_shape(q, (4,), "float32", fill=fill) for fill in (0.0, 1.0))
    x = nc.Tensor.from_host(q, lines, "float32")
    for stats in (True, False):
        one, batch = (ops.instance_norm(x, mean, var, use_input_stats=stats) for x in (x[0], x[:1]))
        np.testing.assert_allclose(one.to_host(), batch.to_host()[0], rtol=1e-5)


def test_empty_batches_of_new_operations(q):
    def empty(*shape):
        return ag.tensor(np.zeros(shape), queue=q)

    none = np.zeros(0, np.int64)
    calls = [
        (lambda x: F.conv_transpose1d(x, nc.Tensor.from_shape(q, (4, 2, 3))), (0, 4, 5), (0, 2, 7)),
        (F.instance_norm, (0, 4, 5), (0, 4, 5)),
        (F.instance_norm, (2, 0, 5), (2, 0, 5)),
        (lambda x: F.local_response_norm(x, 3), (0, 4, 5), (0, 4, 5)),
        (lambda x: F.bilinear(x, x, nc.Tensor.from_shape(q, (2, 3, 3))), (0, 3), (0, 2)),
        (lambda x: F.pixel_shuffle(x, 2), (0, 4, 3, 2), (0, 1, 6, 4)),
        (lambda x: F.channel_shuffle(x, 2), (0, 4, 3), (0, 4, 3)),
        (F.glu, (0, 4), (0, 2)),
        (lambda x: F.cosine_similarity(x, x), (0, 4), (0,)),
        (lambda x: F.pairwise_distance(x, x), (0, 4), (0,)),
        (F.normalize, (0, 4), (0, 4)),
        (lambda x: F.lp_pool2d(x, 2.0, 2), (0, 2, 4, 4), (0, 2, 2, 2)),
        (lambda x: F.pad(x, [(1, 1)], "circular"), (0, 4), (0, 6)),
        (lambda x: F.dropout1d(x), (0, 4, 3), (0, 4, 3)),
        (lambda x: F.alpha_dropout(x, training=True), (0, 4), (0, 4)),
        (lambda x: F.soft_margin_loss(x, x.detach(), reduction="sum"), (0, 4), ()),
        (lambda x: F.multilabel_margin_loss(x, np.zeros((0, 4), np.int64), reduction="sum"), (0, 4), ()),
        *((lambda x, mode=mode: F.embedding_bag(none, x, none, mode), (3, 2), (0, 2)) for mode in ("sum", "mean", "max")),
        *((lambda x, mode=mode: F.embedding_bag(none, x, [0, 0], mode), (3, 2), (2, 2)) for mode in ("sum", "mean", "max")),
        *((lambda x, mode=mode: F.embedding_bag(none.reshape(2, 0), x, None, mode), (3, 2), (2, 2)) for mode in ("sum", "max")),
    ]
    for call, shape, expected in calls:
        x = empty(*shape)
        y = call(x)
        assert y.shape == expected and not y.to_host().any()
        y.sum().backward()
        assert x.grad.shape == shape and not x.grad.to_host().any()


def test_dropout_of_attention():
    inputs = leaves(CPU, [query, key, value])
    one, same, other = (ops.scaled_dot_product_attention(*inputs, dropout_p=0.5, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.to_host(), same.to_host())
    assert (one.to_host() != other.to_host()).any()
    assert ag.gradcheck(lambda *t: ag.scaled_dot_product_attention(*t, dropout_p=0.5, seed=1), inputs)


def test_masks_of_attention(q):
    inputs = leaves(q, [query, key, value])
    added = np.where(seen, 0.0, -np.inf)
    expected = ops.scaled_dot_product_attention(*inputs, attn_mask=seen).to_host()
    as_tensor = nc.Tensor.from_host(q, added, dtype=inputs[0].dtype)
    for mask in (added, as_tensor, ag.tensor(as_tensor)):
        np.testing.assert_array_equal(ops.scaled_dot_product_attention(*inputs, mask).to_host(), expected)
    learned = ag.tensor(as_tensor)
    ag.scaled_dot_product_attention(*inputs, learned).sum().backward()
    assert learned.grad.shape == learned.shape and not np.isnan(learned.grad.to_host()).any()
    hidden = ops.scaled_dot_product_attention(*inputs, np.zeros((5, 7), bool))
    np.testing.assert_array_equal(hidden.to_host(), 0.0)


def test_the_padding_row_gets_no_gradient(q):
    for row in (2, -4):
        (weight,) = leaves(q, [table])
        out = F.embedding(rows, weight, padding_idx=row)
        np.testing.assert_allclose(out.to_host(), table[rows], rtol=1e-6)
        out.sum().backward()
        np.testing.assert_array_equal(weight.grad.to_host()[:, 0], [1, 1, 0, 0, 0, 1])


# ---- forms of arguments ----------------------------------------------------------------------------------------------


def test_forms_of_sizes():
    x, w = leaves(CPU, [images, filters])
    same = [ops.conv2d(x, w, None, 2, 1), ops.conv2d(x, w, stride=(2, 2), padding=(1, 1)),
            ops.conv2d(x, w, stride=[2], pad=[1, 1, 1, 1]), F.conv2d(x, w, None, (2, 2), 1, 1, 1),
            ops.conv2d(x, w, stride=np.int64(2), pad=np.array([1, 1]), dilation=None)]
    for other in same[1:]:
        np.testing.assert_array_equal(other.to_host(), same[0].to_host())
    np.testing.assert_array_equal(ops.max_pool2d(x, 2, None).to_host(), ops.max_pool2d(x, (2, 2), 2).to_host())
    np.testing.assert_array_equal(ops.adaptive_avg_pool2d(x, 2).to_host(), ops.adaptive_avg_pool2d(x, [2, 2]).to_host())
    np.testing.assert_array_equal(ops.interpolate(x, scale_factor=(2, 1)).to_host(), images.repeat(2, -2))


def test_forms_of_indices(q):
    (x,) = leaves(q, [lines])
    expected = lines[:, [1, 3]]
    whole = nc.Tensor.from_host(q, [1.0, 3.0])
    for at in ([1, 3], (1, 3), np.array([1, 3], np.int32), nc.IndexTensor.from_host(q, [1, 3]), whole):
        np.testing.assert_allclose(ops.index_select(x, 1, at).to_host(), expected, rtol=1e-6)


# ---- mistakes --------------------------------------------------------------------------------------------------------

X, W, L = (nc.Tensor.from_host(CPU, array) for array in (images, filters, lines))

MISTAKES = {
    "channels": (lambda: ops.conv2d(X, nc.Tensor.from_host(CPU, odd)), ValueError, r"conv2d: .*\(6, 2, 2, 3\)"),
    "axes": (lambda: ag.conv2d(L[0], W), ValueError, r"conv2d: .*\(4, 9\).*four axes"),
    "conv1d": (lambda: ag.conv1d(X, W), ValueError, r"conv1d: .*\(2, 4, 6, 5\).*three axes"),
    "filters of conv_transpose1d": (lambda: F.conv_transpose1d(L, W), ValueError, "conv_transpose1d: .*three axes"),
    "long circle": (lambda: ops.pad(L, [(10, 0)], "circular"), ValueError, "go round by at most 9, not 10"),
    "one place": (lambda: F.instance_norm(L[:, :, :1]), ValueError, r"instance_norm: .*\(2, 4, 1\).*no variance"),
    "averages": (lambda: F.instance_norm(L, L[0, 0], L[0, 0]), ValueError, "running_mean has one element for each of 4"),
    "half": (lambda: F.glu(L), ValueError, "glu: .*9 elements, which have no two equal halves"),
    "shuffle": (lambda: F.pixel_shuffle(X, 3), ValueError, "pixel_shuffle: .*4 channels are no multiple"),
    "unshuffle": (lambda: F.pixel_unshuffle(X, 2), ValueError, "pixel_unshuffle: .*multiples of the factor 2"),
    "groups of channels": (lambda: F.channel_shuffle(X, 3), ValueError, "channel_shuffle: .*4 channels do not make 3"),
    "features": (lambda: F.bilinear(L, L, W), ValueError, r"bilinear: .*\(6, 4, 3, 3\).*three axes"),
    "no offsets": (lambda: F.embedding_bag([0], L[0]), ValueError, "two axes, a bag in each row, or one axis and offsets"),
    "offsets": (lambda: F.embedding_bag([0, 1], L[0], [1]), ValueError, "offset 0 is 1; offsets begin with 0"),
    "unordered offsets": (lambda: F.embedding_bag([0, 1], L[0], [0, 2, 1]), ValueError, "offset 2 is 1"),
    "mode of bags": (lambda: F.embedding_bag([[0]], L[0], mode="min"), ValueError, "no mode \"min\""),
    "factors of a mean": (lambda: F.embedding_bag([[0]], L[0], per_sample_weights=L), ValueError, "factors of a sum"),
    "tau": (lambda: F.gumbel_softmax(L, 0.0), ValueError, "gumbel_softmax: tau is 0"),
    "range": (lambda: F.rrelu(L, 0.5, 0.25), ValueError, "rrelu: slopes from 0.5 to 0.25"),
    "norm": (lambda: F.lp_pool2d(X, 0.0, 2), ValueError, "lp_pool2d: the norm is 0"),
    "shapes of a loss": (lambda: F.soft_margin_loss(L, X), ValueError, "soft_margin_loss: .*losses do not broadcast"),
    "variance": (lambda: F.gaussian_nll_loss(L, L, -1.0), ValueError, "element 0 of the variance is -1"),
    "labels of rows": (lambda: F.multilabel_margin_loss(L[0, :1], [[9] * 9]), ValueError, r"label 9 at \(0, 0\)"),
    "power": (lambda: F.multi_margin_loss(L[0], [0] * 4, p=3), ValueError, "p is 3, but must be 1 or 2"),
    "two paddings": (lambda: ops.conv2d(X, W, pad=1, padding=1), ValueError, "conv2d: pad and padding"),
    "three paddings": (lambda: ops.conv2d(X, W, pad=(1, 2, 3)), ValueError, r"pad is one number.*top.*\(1, 2, 3\)"),
    "negative": (lambda: ops.conv2d(X, W, padding=-1), ValueError, "conv2d: padding cannot be negative, and -1"),
    "negative groups": (lambda: F.conv2d(X, W, groups=-1), ValueError, "conv2d: groups cannot be negative, and -1"),
    "negative k": (lambda: ops.topk(L, -1), ValueError, "topk: k cannot be negative, and -1"),
    "text": (lambda: ops.conv2d(X, W, stride=["a"]), TypeError, r"conv2d: stride .*\['a'\]"),
    "three strides": (lambda: ops.max_pool2d(X, 2, (1, 1, 1)), ValueError, "stride is one number or 2"),
    "stride 0": (lambda: ops.conv2d(X, W, stride=0), ValueError, "at least 1"),
    "output_padding": (lambda: F.conv_transpose2d(X, W[:4], output_padding=1), ValueError, "output_padding 1 .*stride 1"),
    "window": (lambda: ops.avg_pool2d(X, 9), ValueError, r"avg_pool2d: .*\(2, 4, 6, 5\)"),
    "adaptive": (lambda: ops.adaptive_avg_pool2d(L[0, 0], 2), ValueError, "adaptive_avg_pool2d: .*2 axes"),
    "no size": (lambda: ops.interpolate(X), ValueError, "either size or scale_factor"),
    "two sizes": (lambda: ops.interpolate(X, 2, 2.0), ValueError, "either size or scale_factor"),
    "mode of interpolate": (lambda: ops.interpolate(X, 2, mode="cubic"), ValueError, "interpolate: mode \"cubic\""),
    "corners": (lambda: ops.interpolate(X, 2, align_corners=True), ValueError, "mode='bilinear'"),
    "mode of pad": (lambda: ops.pad(L, [(1, 1)], "wrap"), ValueError, "pad: mode \"wrap\""),
    "long reflection": (lambda: ops.pad(L, [(9, 0)], "reflect"), ValueError, r"pad: .*\(2, 4, 9\)"),
    "normalized_shape": (lambda: F.layer_norm(L, (4, 8)), ValueError, r"layer_norm: .*\(2, 4, 9\).*\(4, 8\)"),
    "weight of a norm": (lambda: F.rms_norm(L, 9, L), ValueError, r"rms_norm: .*\(2, 4, 9\)"),
    "groups": (lambda: F.group_norm(L, 3), ValueError, "group_norm: "),
    "one average": (lambda: F.batch_norm(L, None, L), ValueError, "both running_mean and running_var"),
    "no averages": (lambda: F.batch_norm(L, None, None), ValueError, "unless training=True"),
    "attention": (lambda: F.scaled_dot_product_attention(X, X, L), ValueError, r"\(2, 4, 9\)"),
    "odd width": (lambda: F.rotary(X), ValueError, "rotary: .*5"),
    "one table": (lambda: F.rotary(X, cos=L), ValueError, "both cos and sin"),
    "probability": (lambda: F.dropout(X, 1.5), ValueError, "dropout: .*1.5"),
    "row": (lambda: F.embedding([6], L[0, 0:2]), ValueError, "embedding: .* is 6, but must lie in 0..2"),
    "padding_idx": (lambda: F.embedding([0], L[0], 4), ValueError, "padding_idx 4"),
    "fraction": (lambda: F.index_select(L, 1, [0.5]), ValueError, "0.5"),
    "gather": (lambda: F.gather(L, 1, [0]), ValueError, r"gather: .*\(1,?\)"),
    "source": (lambda: F.index_add(L, 1, [0], L), ValueError, r"index_add: .*\(2, 1, 9\)"),
    "k": (lambda: F.topk(L, 10), ValueError, r"topk: 10 .*\(2, 4, 9\)"),
    "notation": (lambda: F.einsum("ij,jk", L), ValueError, "einsum: "),
    "no operands": (lambda: F.einsum(""), ValueError, "no operands"),
    "an array as operand": (lambda: F.einsum("i", lines), TypeError, "operands are tensors"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named(name):
    call, error, text = MISTAKES[name]
    with pytest.raises(error, match=text):
        call()
