"""Writing to tensors in place: values, aliases, autograd's rules, compiled and captured functions."""

import numpy as np
import pytest
from conftest import find_device_selectors

from netcl import Tensor, autograd as ag, ops
from netcl.core.device import manager
from netcl.runtime import capture

OPERATORS = {
    "+": (lambda x, y: x.__iadd__(y), np.add, ag.add),
    "-": (lambda x, y: x.__isub__(y), np.subtract, ag.sub),
    "*": (lambda x, y: x.__imul__(y), np.multiply, ag.mul),
    "/": (lambda x, y: x.__itruediv__(y), np.divide, ag.div),
    "add_": (lambda x, y: x.add_(y), np.add, ag.add),
    "sub_": (lambda x, y: x.sub_(y), np.subtract, ag.sub),
    "mul_": (lambda x, y: x.mul_(y), np.multiply, ag.mul),
    "div_": (lambda x, y: x.div_(y), np.divide, ag.div),
    "pow_": (lambda x, y: x.pow_(y), np.power, ag.pow),
}


@pytest.fixture(params=find_device_selectors())
def queue(request):
    return manager.default(request.param).queue


def cells(names, few):
    """All names on the native CPU, a few on each OpenCL device."""
    chosen = [(s, n) for s in find_device_selectors() for n in names if s == "cpu" or n in few]
    return pytest.mark.parametrize(("queue", "name"), chosen, indirect=["queue"])


@pytest.fixture
def cpu():
    return manager.default("cpu").queue


def T(queue, values, grad=False, dtype="float32"):
    tensor = Tensor.from_host(queue, np.asarray(values), dtype)
    tensor.requires_grad = grad
    return tensor


def values(tensor):
    return np.array(tensor.to_host())


def random(*shape, seed=0):
    return np.random.default_rng(seed).uniform(0.5, 2.0, size=shape).astype(np.float32)


# ---- values ----------------------------------------------------------------------------------------------------------


@cells(OPERATORS, ["+", "div_"])
def test_operators_write_in_place(queue, name):
    write, expected, _ = OPERATORS[name]
    a, b = random(3, 4), random(4, seed=1)
    for other in (T(queue, b), 1.5):
        x = T(queue, a)
        alias, row = x.detach(), x[1]
        result = write(x, other)
        assert result is None or result is x
        want = expected(a, b if isinstance(other, Tensor) else np.float32(1.5))
        np.testing.assert_allclose(values(x), want, rtol=1e-6)
        np.testing.assert_array_equal(values(alias), values(x))
        np.testing.assert_array_equal(values(row), values(x)[1])


def test_the_statement_keeps_the_object(cpu):
    x = T(cpu, [1.0, 2.0])
    before, array = x, x.array
    x += 1.0
    x *= x
    x -= 1
    x /= np.float32(2)
    x **= 2
    assert x is before and x.array is array and x.to_host() is array
    np.testing.assert_array_equal(array, [((2.0**2 - 1) / 2) ** 2, ((3.0**2 - 1) / 2) ** 2])


def test_methods_return_the_tensor(queue):
    x = T(queue, random(2, 3))
    assert x.fill_(3.0) is x and (values(x) == 3.0).all()
    assert x.zero_() is x and not values(x).any()
    assert x.copy_(T(queue, [1.0, 2.0, 3.0])) is x
    np.testing.assert_array_equal(values(x), [[1, 2, 3]] * 2)
    assert x.copy_(np.float64([[4.0], [5.0]])) is x
    np.testing.assert_array_equal(values(x), [[4] * 3, [5] * 3])
    np.testing.assert_array_equal(values(x.clamp_(max=4.5)), [[4] * 3, [4.5] * 3])
    np.testing.assert_array_equal(values(x.clamp_(4.25)), [[4.25] * 3, [4.5] * 3])


KEYS = [0, -1, slice(1, None), slice(None, None, -2), (..., 1), (slice(None), None, 0), (1, 2), (slice(0, 2), slice(1, 3)), ...]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_assignment_to_a_subscript(queue, key):
    a = random(3, 4)
    part = random(*a[key].shape, seed=1)
    for given, expected in ((2.5, 2.5), (T(queue, part), part), (part, part)):
        x, want = T(queue, a), a.copy()
        want[key] = expected
        x[key] = given
        np.testing.assert_array_equal(values(x), want)
        want[key] *= 2
        x[key] *= 2
        np.testing.assert_array_equal(values(x), want)


def test_memory_that_overlaps(queue):
    a = random(5)
    x, want = T(queue, a), a.copy()
    x[1:] += x[:-1]
    want[1:] += a[:-1]
    np.testing.assert_array_equal(values(x), want)
    x[:] = x[::-1]
    np.testing.assert_array_equal(values(x), want[::-1])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_dtype_of_the_left_stays(cpu, dtype):
    x = T(cpu, [1.0, 2.0], dtype=dtype)
    x += T(cpu, [0.5, 0.25], dtype="float64")
    x[0] = T(cpu, [8.0], dtype="float32")
    assert x.dtype == dtype
    np.testing.assert_array_equal(values(x).astype(np.float64), [8.0, 2.25])


def test_wrong_operands(cpu):
    x = T(cpu, random(3))
    kept = values(x)
    with pytest.raises(ValueError, match=r"add_.*\(2, 3\).*\(3,?\)"):
        x += T(cpu, random(2, 3))
    with pytest.raises(ValueError, match="mul_"):
        x.mul_(T(cpu, random(2)))
    with pytest.raises(ValueError, match="copy_"):
        x.copy_(np.ones((2, 3)))
    with pytest.raises(ValueError, match="assignment"):
        x[:2] = T(cpu, random(3))
    with pytest.raises(ValueError, match="share memory"):
        ag.expand(x, (2, 3)).add_(1.0)
    with pytest.raises(IndexError):
        x[3] = 0.0
    with pytest.raises(TypeError):
        x["a"] = 0.0
    with pytest.raises(TypeError, match="add_"):
        x.add_("a")
    with pytest.raises(TypeError):
        x += "a"
    np.testing.assert_array_equal(values(x), kept)


def test_another_device_is_an_error(cpu):
    others = find_device_selectors()[1:]
    if not others:
        pytest.skip("one device only")
    x, y = T(cpu, [1.0]), T(manager.default(others[0]).queue, [1.0])
    for write in (lambda: x.add_(y), lambda: x.copy_(y), lambda: x.__setitem__(0, y)):
        with pytest.raises(ValueError, match="to\\("):
            write()


# ---- autograd --------------------------------------------------------------------------------------------------------


def test_a_leaf_that_requires_grad_is_written_under_no_grad_only(queue):
    p = T(queue, [1.0, 2.0], grad=True)
    (p * p).sum().backward()
    writes = [
        lambda: p.__isub__(p.grad),
        lambda: p.add_(1.0),
        p.zero_,
        lambda: p.fill_(1.0),
        lambda: p.copy_(p.grad),
        lambda: p.clamp_(0.0, 1.0),
        lambda: p.__setitem__(0, 1.0),
        lambda: p[0].add_(1.0),
        lambda: p[0].zero_(),
    ]
    for write in writes:
        with pytest.raises(RuntimeError, match="leaf that requires grad.*no_grad"):
            write()
    np.testing.assert_array_equal(values(p), [1.0, 2.0])
    same = p
    with ag.no_grad():
        p -= 0.25 * p.grad
        p[1] += 1.0
    assert p is same and p.is_leaf and p.requires_grad
    np.testing.assert_array_equal(values(p), [0.5, 2.0])
    p.grad.zero_()
    assert not values(p.grad).any()


@cells(OPERATORS, ["*"])
@pytest.mark.parametrize("case", ["whole", "number", "part", "plain", "itself"])
def test_gradients_are_those_of_the_operation_that_is_not_in_place(queue, name, case):
    write, _, op = OPERATORS[name]
    a, b = random(3, 4), random(4, seed=1)

    def run(in_place):
        x, y = T(queue, a, grad=True), T(queue, b, grad=True)
        z = T(queue, a + 1.0) if case == "plain" else x * 1.5
        other = {"number": 2.5, "itself": z}.get(case, y)
        if case == "part":
            if in_place:
                row = z[1]
                write(row, other)
                assert row.requires_grad
            else:
                z = ag.stack([z[0], op(z[1], other), z[2]], 0)
        elif in_place:
            same = z
            write(z, other)
            assert z is same and not z.is_leaf
        else:
            z = op(z, other)
        (z * z * z).sum().backward()
        return [values(z), *(None if t.grad is None else values(t.grad) for t in (x, y))]

    for got, want in zip(run(True), run(False), strict=True):
        if want is None:
            assert got is None
        else:
            np.testing.assert_allclose(got, want, rtol=1e-5)


def test_assignment_is_recorded(queue):
    a, b = random(3, 4), random(4, seed=1)
    x, y = T(queue, a, grad=True), T(queue, b, grad=True)
    z = x * 2.0
    z[1] = y * y
    z[:, 0] = 7.0
    (z * z).sum().backward()
    want_x, want_y = 8 * a, 4 * b**3
    want_x[1], want_x[:, 0], want_y[0] = 0, 0, 0
    np.testing.assert_allclose(values(x.grad), want_x, rtol=1e-5)
    np.testing.assert_allclose(values(y.grad), want_y, rtol=1e-5)


def test_a_buffer_that_takes_in_recorded_values(queue):
    w = T(queue, [1.0, 2.0], grad=True)
    buffer = T(queue, np.zeros((3, 2)))
    for i in range(3):
        buffer[i] = w * float(i)
    buffer[0] += w
    assert not buffer.is_leaf
    buffer.sum().backward()
    np.testing.assert_array_equal(values(w.grad), [4.0, 4.0])


def test_fill_and_copy_cut_what_was_there(queue):
    x, y = T(queue, [1.0, 2.0], grad=True), T(queue, [3.0], grad=True)
    z = x * 2.0
    z.zero_()
    z += y
    v = x * 3.0
    v.copy_(y)
    (z * v).sum().backward()
    np.testing.assert_array_equal(values(x.grad), [0.0, 0.0])
    np.testing.assert_array_equal(values(y.grad), [12.0])


def test_clamp_has_the_gradient_of_clamp(cpu):
    x = T(cpu, [-2.0, 0.5, 3.0], grad=True)
    y = x * 1.0
    y.clamp_(0.0, 1.0)
    y.sum().backward()
    np.testing.assert_array_equal(values(x.grad), [0.0, 1.0, 0.0])


def test_second_gradients(cpu):
    x = T(cpu, [1.5, 2.5], grad=True, dtype="float64")
    y = x * x
    y *= x
    y[0] = x[0] * 2.0
    (first,) = ag.grad([y.sum()], [x], create_graph=True)
    (second,) = ag.grad([first.sum()], [x])
    np.testing.assert_allclose(values(first), [2.0, 3 * 2.5**2])
    np.testing.assert_allclose(values(second), [0.0, 6 * 2.5])


def test_values_that_a_rule_has_saved_are_guarded(queue):
    x = T(queue, [1.0, 2.0], grad=True)
    y = x * 2.0
    z = y * y
    y += 1.0
    with pytest.raises(RuntimeError, match="overwritten in place"):
        z.sum().backward()


def test_views_made_before_follow_the_tensor(queue):
    x, w = T(queue, [1.0, 2.0], grad=True), T(queue, [3.0], grad=True)
    y, buffer = x * 2.0, T(queue, np.zeros((2, 2)))
    first, flat, row = y[0], ag.reshape(y, (1, 2)), buffer[1]
    y *= 3.0
    first += 1.0
    buffer[1] = w * 2.0
    np.testing.assert_array_equal(values(flat), [[7.0, 12.0]])
    (flat.sum() + row.sum()).backward()
    np.testing.assert_array_equal(values(x.grad), [6.0, 6.0])
    np.testing.assert_array_equal(values(w.grad), [4.0])


def test_another_alias_of_what_was_written_is_refused(queue):
    x = T(queue, [[1.0, 2.0]], grad=True)
    y = x * 2.0
    turned = ag.transpose(y)
    y *= 3.0
    with pytest.raises(RuntimeError, match="overwritten in place"):
        turned.sum().backward()


def test_no_grad_changes_values_and_leaves_the_graph(cpu):
    x = T(cpu, [1.0, 2.0], grad=True)
    y = x * 2.0
    with ag.no_grad():
        y += 5.0
        y[0] = 0.0
    assert y.requires_grad
    np.testing.assert_array_equal(values(y), [0.0, 9.0])
    y.sum().backward()
    np.testing.assert_array_equal(values(x.grad), [2.0, 2.0])


RESULTS = {
    "mul": lambda x: x * 2.0,
    "exp": ag.exp,
    "sigmoid": ag.sigmoid,
    "tanh": ag.tanh,
    "relu": ag.relu,
    "softmax": lambda x: ag.softmax(x, -1),
    "log_softmax": lambda x: ag.log_softmax(x, -1),
    "sum": lambda x: ag.sum(x, 0),
    "max": lambda x: ag.max(x, 0),
    "std": lambda x: ag.std(x, 0),
    "norm": lambda x: ag.norm(x, axis=0),
    "logsumexp": lambda x: ag.logsumexp(x, 0),
    "reshape": lambda x: ag.reshape(x * 1.0, (4, 3)),
    "matmul": lambda x: x @ ag.transpose(x),
}


@cells(RESULTS, ["mul", "softmax"])
def test_out_into_a_recorded_result_is_noticed(queue, name):
    x = T(queue, random(3, 4), grad=True)
    b = RESULTS[name](x)
    ops.mul(b, 2.0, out=b)
    with pytest.raises(RuntimeError, match="overwritten in place"):
        ag.sum(b).backward()
    with pytest.raises(RuntimeError, match="overwritten in place"):
        ag.grad([ag.sum(b * b)], [x])
    with pytest.raises(RuntimeError, match="overwritten in place"):
        b.backward(T(queue, np.ones(b.shape)))
    assert x.grad is None


@cells(["relu", "softmax", "log_softmax", "max", "std", "norm", "logsumexp"], ["softmax"])
def test_a_saved_result_is_guarded(queue, name):
    x = T(queue, random(3, 4), grad=True)
    b = RESULTS[name](x)
    loss = ag.sum(b)
    ops.mul(b, 2.0, out=b)
    with pytest.raises(RuntimeError, match="overwritten in place"):
        loss.backward()


# ---- compiled and captured functions ---------------------------------------------------------------------------------


def test_writes_inside_a_compiled_function(queue):
    def f(x, w):
        y = x * w
        y += x
        y[0] *= 2.0
        y *= y
        return y

    compiled = ag.jit(f)
    for seed in range(3):
        a, b = random(3, 4, seed=seed), random(3, 4, seed=seed + 10)
        results = []
        for function in (f, compiled):
            x, w = T(queue, a), T(queue, b, grad=True)
            y = function(x, w)
            y.sum().backward()
            results.append((values(y), values(w.grad)))
        for got, want in zip(results[1], results[0], strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5)


def test_a_compiled_function_writes_to_arguments_and_captured_tensors(queue):
    total, w = T(queue, np.zeros(3)), T(queue, [1.0, 2.0, 3.0], grad=True)

    @ag.jit
    def f(x, seen):
        y = x * w
        with ag.no_grad():
            seen += x
            total[1:] += y.detach()[1:]
        return y

    seen = T(queue, np.zeros(3))
    for i in range(3):
        f(T(queue, np.full(3, i + 1.0)), seen).sum().backward()
    np.testing.assert_array_equal(values(seen), [6.0] * 3)
    np.testing.assert_array_equal(values(total), [0.0, 12.0, 18.0])
    np.testing.assert_array_equal(values(w.grad), [6.0] * 3)


def test_a_recorded_write_to_an_argument_of_a_compiled_function_is_refused(cpu):
    w = T(cpu, [1.0, 2.0], grad=True)

    @ag.jit
    def f(x):
        x += w
        return x * 2.0

    with pytest.raises(RuntimeError, match="add_.*outside of a compiled or captured function"):
        f(T(cpu, [1.0, 1.0]))


def test_writes_inside_a_captured_step(queue):
    a = random(4, 3)

    def training(wrap):
        w, seen = T(queue, random(3, 2, seed=1), grad=True), T(queue, np.zeros((4, 3)))

        def step(x):
            y = x @ w
            y *= 2.0
            y[0] += 1.0
            loss = (y * y).mean()
            loss.backward()
            with ag.no_grad():
                w.sub_(0.01 * w.grad)
                seen.add_(x)
            w.grad = None
            return loss

        run = wrap(step)
        losses = [values(run(T(queue, a + i))) for i in range(4)]
        return losses, values(w), values(seen)

    eager, captured = training(lambda f: f), training(capture)
    for want, got in zip(eager, captured, strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_recorded_write_to_a_tensor_from_outside_a_captured_step_is_refused(cpu):
    w, total = T(cpu, [1.0], grad=True), T(cpu, [0.0])

    @capture
    def step(x):
        total.add_(x * w)
        return x * 1.0

    with pytest.raises(RuntimeError, match="add_.*outside of a compiled or captured function"):
        step(T(cpu, [1.0]))
