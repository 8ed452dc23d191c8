"""Subscripts against NumPy's: reading, assignment, gradients, errors, compiled and captured functions."""

import itertools

import numpy as np
import pytest
from conftest import find_device_selectors

from netcl import Tensor, autograd as ag
from netcl.core.device import manager
from netcl.core.index import IndexTensor
from netcl.runtime import capture

SHAPE = (3, 4, 5)
RANDOM = np.random.default_rng(16)

# What can stand at a place of a subscript of SHAPE; those that take one axis are in range for all of them.
BASIC = [0, -1, slice(None), slice(1, 3), slice(None, None, -1), slice(-1, None, -2), slice(4, 1), None, ...]
LISTS = [[2, 0, 2], np.array([[-1], [1]]), np.array(2), (1,), range(2), np.array([], int), np.array([0, 2, 1], np.uint8)]
MASKS = [True, False, np.bool_(True)]


def mask(*axes):
    return RANDOM.uniform(size=axes) < 0.5


def make_keys():
    """Some 400 keys: all of one part, and some of all pairs, triples and quadruples; a few of them are wrong."""
    keys = [*BASIC, *LISTS, *MASKS, (), mask(3), mask(3, 4), mask(3, 4, 5), mask(3).tolist(), mask(4), mask(3, 5), 3, -4, [0, 3]]
    far = 10**30
    keys += [slice(None, far), slice(-far, None, 2), (0, slice(far, None, -1)), slice(2, -far, -far), slice(1, None, far)]
    keys += [(..., mask(5)), (..., mask(4, 5)), (0, mask(4, 5)), (slice(1, 3), mask(4)), (mask(3), slice(None), [0, 1]), (mask(3), 1),
             (mask(3, 4), -1), (mask(3, 4), [0]), (None, mask(3), None), (mask(3), None, mask(4, 5)), ([0, 1], mask(4, 5)[:2])]
    parts = [*BASIC, *LISTS, *MASKS]
    for length, count in ((2, 130), (3, 170), (4, 60)):
        every = list(itertools.product(range(len(parts)), repeat=length))
        keys += [tuple(parts[i] for i in every[at]) for at in RANDOM.choice(len(every), count, replace=False)]
    return keys


KEYS = make_keys()


@pytest.fixture(params=find_device_selectors())
def queue(request):
    return manager.default(request.param).queue


@pytest.fixture
def cpu():
    return manager.default("cpu").queue


def array(dtype="float32"):
    return np.arange(60).reshape(SHAPE).astype(dtype)


def T(queue, values, grad=False, dtype="float32"):
    tensor = Tensor.from_host(queue, np.asarray(values), dtype)
    tensor.requires_grad = grad
    return tensor


def on_device(queue, key):
    """The key with its arrays on the device."""

    def moved(part):
        kind = np.asarray(part).dtype.kind if isinstance(part, (list, np.ndarray)) else ""
        return IndexTensor.from_host(queue, np.asarray(part), "bool" if kind == "b" else "int32") if kind in list("iub") else part

    return tuple(map(moved, key)) if isinstance(key, tuple) else moved(key)


def expected(f):
    """What NumPy does: a result, or an error."""
    try:
        return f(), None
    except (IndexError, ValueError) as error:
        return None, error


@pytest.mark.parametrize("moved", [False, True])
def test_reading_and_writing_as_numpy_does(queue, moved):
    # All keys on the native CPU, some on each OpenCL device: what differs are the kernels.
    native = Tensor.from_shape(queue, (1,)).backend == "cpu"
    for number, key in enumerate(KEYS if native else KEYS[::4]):
        own = on_device(queue, key) if moved else key
        if moved and own is key:
            continue
        want, error = expected(lambda key=key: array()[key])
        x = T(queue, array())
        if error is not None:
            with pytest.raises((IndexError, ValueError)):
                x[own]
            with pytest.raises((IndexError, ValueError)):
                x[own] = 1.0
            np.testing.assert_array_equal(x.numpy(), array(), err_msg=str(key))
            continue
        got = x[own]
        assert got.shape == want.shape, key
        np.testing.assert_array_equal(got.numpy(), want, err_msg=str(key))
        source = [-1.0, -np.arange(1.0, want.size + 1).reshape(want.shape), -np.ones(want.shape[-1:]), -np.ones((1, *want.shape))]
        value = source[number % 4 if want.ndim else 0]
        after = array()
        after[key] = value
        x[own] = value if number % 8 < 4 else T(queue, value)
        np.testing.assert_array_equal(x.numpy(), after, err_msg=str(key))
        before = array()
        before[key] += 2.0
        x = T(queue, array())
        x[own] += 2.0
        np.testing.assert_array_equal(x.numpy(), before, err_msg=str(key))


def test_gradients_of_all_keys(cpu):
    weights = RANDOM.normal(size=SHAPE).astype(np.float32)
    for key in KEYS[::2]:
        want, error = expected(lambda key=key: array()[key])
        if error is not None or want.size == 0:
            continue
        upstream = RANDOM.normal(size=want.shape).astype(np.float32)
        x = T(cpu, array(), grad=True)
        ag.sum(x[key] * T(cpu, upstream)).backward()
        summed = np.zeros(SHAPE, np.float32)
        np.add.at(summed, key, upstream)
        np.testing.assert_allclose(x.grad.numpy(), summed, rtol=1e-5, atol=1e-6, err_msg=str(key))

        x, y = T(cpu, array(), grad=True), T(cpu, upstream, grad=True)
        z = x * 1.0
        z[key] = y
        ag.sum(z * T(cpu, weights)).backward()
        # The last of several writes to an element counts, and has its gradient.
        written, number = np.full(SHAPE, -1), np.arange(want.size).reshape(want.shape)
        written[key] = number
        np.testing.assert_allclose(x.grad.numpy(), np.where(written < 0, weights, 0), err_msg=str(key))
        of_y = np.where(written[key] == number, weights[key], 0)
        np.testing.assert_allclose(y.grad.numpy(), of_y, err_msg=str(key))


@pytest.mark.parametrize(
    "key", [([2, 0, 2],), (slice(None, None, -1), [1, -1]), ([0, 1, 0], slice(None), [4, 0, 4]), (mask(3, 4),), (1, ..., [[0], [2]])]
)
def test_second_derivatives(cpu, key):
    def assigned(x, y):
        z = x * x
        z[key] = y * x[0, 0, 0]
        z.index_put_(key, y, accumulate=True)
        return z * z

    x = Tensor.from_host(cpu, RANDOM.normal(size=SHAPE), "float64")
    y = Tensor.from_host(cpu, RANDOM.normal(size=array()[key].shape), "float64")
    x.requires_grad = y.requires_grad = True
    assert ag.gradcheck(lambda x: x[key] * x[key], [x])
    assert ag.gradgradcheck(lambda x: x[key] * x[key], [x])
    assert ag.gradcheck(assigned, [x, y])
    assert ag.gradgradcheck(assigned, [x, y])


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_dtypes(queue, dtype):
    try:
        x = T(queue, array(), dtype=dtype)
    except RuntimeError:
        pytest.skip(f"no {dtype} here")
    want = array()
    want[[2, 0], :, [1, -1]] = 9.0
    x[[2, 0], :, [1, -1]] = 9.0
    np.testing.assert_array_equal(x[[0, 1, 2]].numpy(), want)


@pytest.mark.parametrize("dtype", ["int32", "int64", "bool"])
def test_whole_numbers_and_truth_values(queue, dtype):
    def make():
        return IndexTensor.from_host(queue, array("int64") % 3, dtype)

    want = (array("int64") % 3).astype(dtype)
    x = make()
    mask = x > 0
    assert isinstance(x[0], IndexTensor) and isinstance(x[[0]], IndexTensor) and x[mask].dtype == dtype
    np.testing.assert_array_equal(x[mask].numpy(), want[want > 0])
    np.testing.assert_array_equal(x[:, [0, -1]].numpy(), want[:, [0, -1]])
    x[mask] = 0
    x[[2, 0], 1:3] = np.ones((2, 5), dtype)
    want[want > 0] = 0
    want[[2, 0], 1:3] = 1
    np.testing.assert_array_equal(x.numpy(), want)
    if dtype != "bool":
        x.index_put_(([1, 1], 0), 2**40 if dtype == "int64" else 7, accumulate=True)
        np.add.at(want, ([1, 1], 0), 2**40 if dtype == "int64" else 7)
        np.testing.assert_array_equal(x.numpy(), want)


def test_accumulating(queue):
    x, want = T(queue, array()), array()
    key = ([0, 2, 0, 0], slice(None), [1, 1, -4, 0])
    values = np.arange(16.0).reshape(4, 4)
    assert x.index_put_(key, values, accumulate=True) is x
    np.add.at(want, key, values)
    np.testing.assert_array_equal(x.numpy(), want)
    x.index_put_((0, slice(1, 3)), 1.0, accumulate=True)
    want[0, 1:3] += 1
    np.testing.assert_array_equal(x.numpy(), want)
    x.index_put_(([1, 1],), -5.0)
    want[1] = -5
    np.testing.assert_array_equal(x.numpy(), want)


def test_views_are_views_and_choices_are_copies(queue):
    x = T(queue, array())
    x[::-1, ..., None, 1:3] += 100.0
    x[[0]] += 1000.0
    x[[0]].fill_(0.0)
    want = array()
    want[..., 1:3] += 100
    want[0] += 1000
    np.testing.assert_array_equal(x.numpy(), want)
    # A choice from a view, written to the view's tensor.
    x[1][[0, -1]] = 7.0
    want[1][[0, -1]] = 7
    np.testing.assert_array_equal(x.numpy(), want)


def test_rules_of_writing_in_place(cpu):
    leaf = T(cpu, array(), grad=True)
    with pytest.raises(RuntimeError, match="leaf that requires grad"):
        leaf[[0]] = 1.0
    with ag.no_grad():
        leaf[[0]] = 1.0
    squares = leaf * leaf
    used = squares * squares
    squares[[0]] = 0.0
    with pytest.raises(RuntimeError, match="overwritten"):
        ag.sum(used).backward()
    # Through a view, whose tensor goes on as the result of the write.
    whole = leaf * 1.0
    whole[1][[0, 2]] = T(cpu, np.ones((2, 5)), grad=True) * 3.0
    ag.sum(whole * whole).backward()
    np.testing.assert_array_equal(leaf.grad.numpy()[1, [0, 2]], 0)


@pytest.mark.parametrize(
    ("key", "error", "words"),
    [
        ([0, 5], IndexError, "index 5 is out of range for axis 0 of shape (3, 4, 5)"),
        ((0, slice(None), [1, -6]), IndexError, "index -6 is out of range for axis 2 of shape (3, 4, 5)"),
        ((0, 4), IndexError, "index 4 is out of range for axis 1 of shape (3, 4, 5)"),
        ((0, 0, 0, [0]), IndexError, "4 indices for the 3 axes of shape (3, 4, 5)"),
        ((..., 0, ...), IndexError, "more than one `...`"),
        (([0, 1], [0, 1, 2]), IndexError, "indices of shapes (2,) and (3,) do not broadcast"),
        (np.zeros((3, 5), bool), IndexError, "a mask of shape (3, 5) for axes 0 to 1 of shape (3, 4, 5)"),
        (10**30, IndexError, "out of range"),
        (range(10**12), IndexError, "out of range"),
        (slice(None, None, 0), ValueError, "step cannot be zero"),
        (slice(0.5), TypeError, "integer"),
        ([0.5], TypeError, "not an array of float64"),
        ("rows", TypeError, "whole numbers"),
        ({0}, TypeError, "whole numbers"),
    ],
)
def test_what_is_wrong_is_said(cpu, key, error, words):
    x = T(cpu, array())
    with pytest.raises(error) as raised:
        x[key]
    assert words in str(raised.value)
    with pytest.raises(error):
        x[key] = 0.0
    with pytest.raises(TypeError, match="not by a tensor of float32"):
        x[T(cpu, [0.0, 1.0])]
    with pytest.raises(ValueError, match="does not broadcast"):
        x[[0, 1]] = np.zeros((2, 3))
    np.testing.assert_array_equal(x.numpy(), array())


def test_compiled_and_captured(queue):
    at = IndexTensor.from_host(queue, [2, 0, -1], "int64")
    columns = IndexTensor.from_host(queue, [[0], [-1]], "int32")

    def step(x, at):
        y = x * 2.0
        y[at, :, 1:3] = 5.0
        return y[:, columns, at] + y[1, [0, 2, 1]][:, None, :3]

    def reference(x, at):
        y = x * 2.0
        y[at, :, 1:3] = 5.0
        return y[:, [[0], [-1]], at] + y[1, [0, 2, 1]][:, None, :3]

    compiled, graph = ag.jit(step), capture(step)
    for rows in ([2, 0, -1], [1, 1, 0]):
        at, x = IndexTensor.from_host(queue, rows, "int64"), T(queue, array())
        want = reference(array(), np.array(rows))
        np.testing.assert_array_equal(compiled(x, at).numpy(), want)
        np.testing.assert_array_equal(graph(x, at).numpy(), want)
    with pytest.raises(RuntimeError, match="where"):
        ag.jit(lambda x: x[x > 1.0])(T(queue, array()))
    leaf = T(queue, array(), grad=True)
    ag.sum(ag.jit(lambda x, at: x[at, 1])(leaf, at)).backward()
    want = np.zeros(SHAPE)
    np.add.at(want, ([1, 1, 0], 1), 1.0)
    np.testing.assert_array_equal(leaf.grad.numpy(), want)
