"""What recording, walking backwards and their surroundings do."""

import gc
import inspect
import threading

import numpy as np
import pytest

import netcl as nc
import netcl.autograd as ag
from netcl import ops
from netcl.core.device import manager
from netcl.core.tensor import Tensor, reshape

QUEUE = manager.default("cpu").queue
rng = np.random.default_rng(5)


def leaf(values, dtype="float64"):
    return ag.tensor(np.asarray(values), dtype=dtype, queue=QUEUE)


def host(tensor):
    return tensor.to_host().tolist()


# ---- the documented listings -------------------------------------------------------------------------------------


class TwoLayers:
    def __init__(self, inputs, hidden, outputs):
        self.parameters = [
            ag.tensor(rng.normal(size=shape) / np.sqrt(shape[-1]), queue=QUEUE)
            for shape in ((hidden, inputs), (hidden,), (outputs, hidden), (outputs,))
        ]

    def __call__(self, x):
        first, first_bias, second, second_bias = self.parameters
        return ag.linear(ag.relu(ag.linear(x, first, first_bias)), second, second_bias)


class Descent:
    def __init__(self, parameters, rate):
        self.parameters, self.rate = parameters, rate

    def step(self):
        for p in self.parameters:
            ops.sub(p, ops.mul(p.grad, self.rate), out=p)

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None


def test_a_training_step_as_documented():
    points = rng.normal(size=(64, 2))
    x = Tensor.from_host(QUEUE, points)
    y = (points[:, 0] * points[:, 1] > 0).astype(np.int64)
    model, F = TwoLayers(2, 16, 2), ag
    opt = Descent(model.parameters, 0.5)
    losses = []
    for _ in range(200):
        with ag.Tape() as tape:
            logits = model(x)
            loss = F.cross_entropy(logits, y)
        tape.backward(loss)
        opt.step()
        opt.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]


def test_labels_that_went_to_the_device_as_documented():
    logits = leaf(rng.normal(size=(4, 3)), "float32")
    y_t = Tensor.from_host(QUEUE, np.array([0, 2, 1, 1]))
    with ag.Tape() as tape:
        loss = ag.cross_entropy(logits, y_t)
    assert loss.shape == ()
    tape.backward(loss)
    assert logits.grad.shape == (4, 3)


# ---- leaves and results ------------------------------------------------------------------------------------------


def test_leaves_share_storage():
    x = Tensor.from_shape(QUEUE, (3,), fill=2.0)
    p = ag.tensor(x)
    assert p.requires_grad and not x.requires_grad and p.is_leaf and p._base is x
    ops.add(x, 1.0, out=x)
    assert host(p) == [3.0] * 3
    assert not ag.tensor(x, requires_grad=False).requires_grad
    assert ag.tensor([1, 2]).dtype == "float32" and ag.tensor([1, 2], dtype="float64", queue=QUEUE).dtype == "float64"
    assert x.requires_grad_() is x and x.requires_grad and not x.requires_grad_(False).requires_grad


def test_gradients_accumulate_until_they_are_cleared():
    x = leaf([1.0, 2.0])
    (x * x).sum().backward()
    (x * x).sum().backward()
    assert host(x.grad) == [4.0, 8.0]
    x.grad = None
    (x * 3.0 + x).sum().backward()
    assert host(x.grad) == [4.0, 4.0]
    with pytest.raises(ValueError, match="the gradient has shape"):
        x.grad = leaf([1.0])


def test_only_leaves_get_a_gradient():
    x = leaf([1.0])
    y = x * 2.0
    (y * y).backward()
    assert y.grad is None and not y.is_leaf and x.is_leaf and x.grad_fn is None
    with pytest.raises(ValueError, match="use detach"):
        y.requires_grad = False
    assert not y.detach().requires_grad and y.detach().is_leaf


def test_a_graph_is_walked_once_unless_it_is_kept():
    x = leaf([1.0, 2.0])
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert host(x.grad) == [4.0, 8.0]
    with pytest.raises(RuntimeError, match="pass retain_graph=True the first time"):
        y.backward()


def test_gradients_of_gradients():
    x = leaf([2.0])
    (slope,) = ag.grad(x**3.0, x, create_graph=True)
    (bend,) = ag.grad(slope, x, create_graph=True)
    (rest,) = ag.grad(bend, x)
    assert (slope.item(), bend.item(), rest.item()) == (12.0, 12.0, 6.0)
    assert x.grad is None
    (x**2.0).backward(create_graph=True)
    assert x.grad.requires_grad


def test_gradients_that_are_given():
    x = leaf([1.0, 2.0])
    for given in (leaf([1.0, 10.0]).detach(), np.array([1.0, 10.0]), [1.0, 10.0]):
        x.grad = None
        (x * x).backward(given)
        assert host(x.grad) == [2.0, 40.0]
    with pytest.raises(ValueError, match="no single gradient"):
        (x * x).backward()
    with pytest.raises(ValueError, match="the given gradient has shape"):
        (x * x).backward(leaf([1.0]))
    with pytest.raises(ValueError, match="does not depend on anything with requires_grad"):
        x.detach().sum().backward()
    with ag.Tape() as tape:
        y = x * x
        x.grad = None
        tape.backward(y, grad=[1.0, 0.0], retain_graph=True)
    tape.backward(y, [0.0, 1.0])
    assert host(x.grad) == [2.0, 4.0]


def test_grad_of_several():
    x, y, z = leaf([2.0]), leaf([3.0]), leaf([4.0])
    gx, gy = ag.grad([x * y, x], [x, y])
    assert (gx.item(), gy.item()) == (4.0, 2.0)
    gx, gy = ag.grad([x * y, x], [x, y], grad_outputs=[leaf([2.0]), None])
    assert (gx.item(), gy.item()) == (7.0, 4.0)
    with pytest.raises(ValueError, match="no output depends on input 1; allow_unused=True"):
        ag.grad(x * y, [x, z])
    assert ag.grad(x * y, [x, z], allow_unused=True)[1] is None
    with pytest.raises(ValueError, match="input 0 does not require"):
        ag.grad(x * y, x.detach())
    with pytest.raises(ValueError, match="1 gradients are given for 2"):
        ag.grad([x * y, x], x, grad_outputs=[None])
    shared = x * y
    ag.backward([shared * 2.0, shared])
    assert (x.grad.item(), y.grad.item()) == (9.0, 6.0)


def test_grad_fn_is_the_local_gradient():
    x, y = leaf([2.0]), leaf([5.0])
    product = x * y
    node = product.grad_fn
    assert isinstance(node, ag.Node) and node.name == "mul" and node == product.grad_fn and "mul" in repr(node)
    assert len({node, product.grad_fn}) == 1 and node != (x * y).grad_fn
    of_x, of_y = node(leaf([1.0]))
    assert (of_x.item(), of_y.item()) == (5.0, 2.0)
    assert product.sum().grad_fn.next_functions == (node,) and node.next_functions == (None, None)

    def own(grad):
        return (grad,)

    x.grad_fn = own
    assert x.grad_fn is own


def test_views_record():
    flat = leaf(np.arange(12.0))
    mat = reshape(flat, (3, 4))
    assert mat._base is flat and mat.requires_grad
    (mat[1] * mat[:, None, 0][:2].sum()).sum().backward()
    expected = np.zeros((3, 4))
    expected[1] += 0 + 4
    expected[:2, 0] += np.arange(4, 8).sum()
    np.testing.assert_allclose(flat.grad.to_host(), expected.ravel())
    with ag.no_grad():
        assert not mat[1].requires_grad and mat[1]._base is mat
    with pytest.raises(IndexError):
        mat[3]
    with pytest.raises(TypeError, match="indexed by"):
        mat["x"]


def test_another_dtype_records():
    x = leaf([1.0, 2.0], "float32")
    (x.to(dtype="float64") * 3.0).sum().backward()
    assert x.grad.dtype == "float32" and host(x.grad) == [3.0, 3.0]


# ---- operators ---------------------------------------------------------------------------------------------------


def test_operators_are_those_of_numpy():
    a, b = rng.uniform(0.5, 2, size=(3, 4)), rng.uniform(0.5, 2, size=(4,))
    x, y = leaf(a), leaf(b)  # noqa: F841 - eval reads them
    checks = {
        "x + y": a + b, "x - y": a - b, "x * y": a * b, "x / y": a / b, "x ** y": a**b, "x @ y": a @ b,
        "x + 2": a + 2, "2 - x": 2 - a, "3 * x": 3 * a, "1 / x": 1 / a, "2 ** x": 2**a, "-x": -a, "abs(-x)": a,
        "np.float32(2) * x": 2 * a, "np.float64(2) - x": 2 - a, "np.int64(2) + x": 2 + a, "True + x": a + 1,
    }  # fmt: skip
    for text, expected in checks.items():
        result = eval(text)
        assert isinstance(result, Tensor) and result.requires_grad, text
        np.testing.assert_allclose(result.to_host(), expected, rtol=1e-12, err_msg=text)
    for text, expected in {"x < y": a < b, "x >= 1": a >= 1, "x == x": a == a, "x != y": a != b, "1 > x": a < 1}.items():
        result = eval(text)
        assert not result.requires_grad and result.dtype == "bool"
        np.testing.assert_array_equal(result.to_host(), expected, err_msg=text)


def test_tensors_stay_hashable_and_comparable_with_anything():
    x, y = leaf([1.0]), leaf([1.0])
    assert len({x, y}) == 2 and {x: "x"}[x] == "x"
    assert (x == None) is False and (x != "x") is True  # noqa: E711
    assert bool(x == y)
    for wrong in (lambda: x + "x", lambda: x @ 2.0, lambda: pow(x, 2, 3), lambda: x < "x"):
        with pytest.raises(TypeError):
            wrong()


def test_numpys_reductions_of_a_tensor_are_the_tensors():
    x = leaf([[1.0, 2.0], [3.0, 4.0]])
    assert np.sum(x).requires_grad and np.mean(x).item() == 2.5
    assert host(np.sum(x, axis=0, keepdims=True)) == [[4.0, 6.0]]
    with pytest.raises(TypeError, match="neither dtype nor out"):
        np.sum(x, dtype=np.float32)


# ---- scopes ------------------------------------------------------------------------------------------------------


def test_recording_can_be_turned_off_and_on():
    x = leaf([1.0])
    with ag.no_grad():
        assert not ag.is_grad_enabled() and not (x * x).requires_grad
        with ag.enable_grad():
            assert (x * x).requires_grad
        with ag.Tape():
            assert (x * x).requires_grad
        assert not (x * x).requires_grad
    with pytest.raises(KeyError), ag.no_grad():
        raise KeyError
    assert ag.is_grad_enabled() and (x * x).requires_grad


def test_scopes_decorate():
    x = leaf([1.0])

    @ag.no_grad()
    def countdown(n, *, scale=1.0):
        """Counts."""
        assert not ag.is_grad_enabled()
        return countdown(n - 1) if n else x * scale

    @ag.no_grad
    def bare():
        return x * x

    @ag.enable_grad()
    def inner():
        return x * x

    assert not countdown(3).requires_grad and not bare().requires_grad
    assert countdown.__name__ == "countdown" and countdown.__doc__ == "Counts."
    assert list(inspect.signature(countdown).parameters) == ["n", "scale"]
    with ag.no_grad():
        assert inner().requires_grad
    assert ag.is_grad_enabled()


def test_scopes_belong_to_their_thread():
    scope, seen = ag.no_grad(), []

    def other():
        seen.append(ag.is_grad_enabled())
        with scope:
            seen.append(ag.is_grad_enabled())
        seen.append(ag.is_grad_enabled())

    with scope:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        with scope:
            pass
        assert not ag.is_grad_enabled()
    assert seen == [True, False, True] and ag.is_grad_enabled()


def test_threads_walk_their_graphs_at_once():
    weight = leaf(rng.normal(size=(4, 4)))
    failures = []

    def work(seed):
        try:
            local = np.random.default_rng(seed)
            for _ in range(30):
                x = leaf(local.normal(size=(3, 4)))
                x.register_hook(lambda grad: grad * 2.0)
                (ag.matmul(x, weight.detach()) * 1.5).sum().backward()
                np.testing.assert_allclose(x.grad.to_host(), 3.0 * np.ones((3, 4)) @ weight.to_host().T, rtol=1e-12)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_other_threads_go_on_during_a_walk():
    """A hook that waits for another thread would wait forever if the walk kept that thread out."""
    x = leaf([1.0])
    arrived, answered = threading.Event(), threading.Event()

    def other():
        arrived.wait(10)
        leaf([2.0]).sum()
        answered.set()

    def hook(grad):
        arrived.set()
        assert answered.wait(10)

    x.register_hook(hook)
    thread = threading.Thread(target=other)
    thread.start()
    (x * 2.0).backward()
    thread.join()
    assert x.grad.item() == 2.0


# ---- hooks, checks, anomalies ------------------------------------------------------------------------------------


def test_hooks_see_and_replace_gradients():
    x = leaf([1.0, 2.0])
    seen = []
    y = x * 3.0
    y.register_hook(lambda grad: seen.append(host(grad)))
    handle = x.register_hook(lambda grad: grad * 10.0)
    (y * y).sum().backward(retain_graph=True)
    assert seen == [[6.0, 12.0]] and host(x.grad) == [180.0, 360.0]
    handle.remove()
    handle.remove()
    x.grad = None
    (x * 3.0).sum().backward()
    assert host(x.grad) == [3.0, 3.0]
    x.register_hook(lambda grad: 3.0)
    with pytest.raises(TypeError, match="a hook returns a Tensor or None, not <class 'float'>"):
        (x * 3.0).sum().backward()
    with pytest.raises(ValueError, match="would never run"):
        x.detach().register_hook(print)


def test_values_that_were_overwritten_are_refused():
    x = leaf([1.0, 2.0])
    y = ag.exp(x)
    z = (y * y).sum()
    ops.add(y, 1.0, out=y)
    with pytest.raises(RuntimeError, match="backward of mul needs an input that was overwritten in place"):
        z.backward()


def line():
    return inspect.currentframe().f_back.f_lineno


def test_anomalies_name_the_line_that_called():
    x = leaf([0.0, 1.0])
    with ag.detect_anomaly():
        with pytest.raises(RuntimeError, match="anomaly: log gave a value that is not finite at element 0"):
            ag.log(x)
        root, at = ag.sqrt(x), line()
        stacked = ag.stack([root, root * 2.0]).sum()
        with pytest.raises(RuntimeError, match=rf"the backward pass of sqrt \(called at .*test_autograd.py:{at}\)"):
            stacked.backward()
        y, at = x * x, line()
        z = y.sum()
        ops.add(x.detach(), 1.0, out=x.detach())
        with pytest.raises(RuntimeError, match=rf"backward of mul \(called at .*test_autograd.py:{at}\) needs an input"):
            z.backward()
        part, at = x[1] / x[0], line()
        ag.sqrt(part)
    with pytest.raises(RuntimeError, match="ran before .*detect_anomaly"):
        z = (x * x).sum()
        z.backward()
        z.backward()


def test_checkpoints_compute_twice_and_give_the_same():
    calls = []
    weight = leaf(rng.normal(size=(4, 4)))

    def block(x, scale):
        calls.append(ag.is_grad_enabled())
        noise = ops.uniform((3, 4), dtype="float64", queue=QUEUE)
        return ag.tanh(ag.matmul(x, weight)) * scale + x * noise

    x = leaf(rng.normal(size=(3, 4)))
    results = []
    for run in (block, lambda *args: ag.checkpoint(block, *args)):
        nc.manual_seed(3)
        x.grad = weight.grad = None
        y = run(run(x, 2.0), 3.0)
        y.sum().backward()
        results.append([y.to_host(), x.grad.to_host(), weight.grad.to_host()])
    for plain, checked in zip(*results):
        np.testing.assert_array_equal(plain, checked)
    assert len(calls) == 2 + 4
    with pytest.raises(TypeError, match="must return one Tensor"):
        ag.checkpoint(lambda x: 3.0, x)


def test_gradcheck_finds_mistakes():
    class Wrong(ag.Function):
        @staticmethod
        def forward(ctx, x):
            return ops.mul(x, 2.0)

        @staticmethod
        def backward(ctx, grad):
            return grad * 2.1

    x = leaf([1.0, 2.0])
    with pytest.raises(ValueError, match="the gradient of element 0 of input 0 is"):
        ag.gradcheck(Wrong.apply, x)
    assert ag.gradcheck(Wrong.apply, x, atol=0.2)
    with pytest.raises(ValueError, match="differences need float64"):
        ag.gradcheck(ag.exp, leaf([1.0], "float32"))
    assert ag.gradgradcheck(lambda a, b: ag.exp(a * b), [x, leaf([0.5, 0.1])])


# ---- size and memory ---------------------------------------------------------------------------------------------


def test_a_long_graph_is_walked_and_dropped():
    x = leaf([1.0])
    y = x
    for _ in range(100_000):
        y = y + 0.0
    y.backward(retain_graph=True)
    assert x.grad.item() == 1.0
    del y
    gc.collect()


@pytest.mark.parametrize("index", range(len(manager.discover())))
def test_an_inference_loop_keeps_nothing(index):
    queue = manager.default(index).queue
    pool = nc.core.memory.get_persistent_pool(queue)
    weight = ag.tensor(rng.normal(size=(64, 64)), queue=queue)
    x = Tensor.from_host(queue, rng.normal(size=(64, 64)))

    def step():
        y = x
        for _ in range(5):
            y = ag.tanh(ag.matmul(y, weight))
        return y.mean().item()

    step()
    queue.finish()
    gc.collect()
    before = pool.stats
    for _ in range(50):
        step()
    queue.finish()
    after = pool.stats
    assert after.bytes_in_use == before.bytes_in_use
