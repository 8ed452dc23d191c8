"""Operations of one's own: gradients, second gradients, own kernels, and every mistake."""

import gc
import weakref

import numpy as np
import pytest
from conftest import find_device_selectors

import netcl as nc
import netcl.autograd as ag
from netcl import ops
from netcl.core.device import manager

QUEUE = manager.default("cpu").queue


def leaf(values, dtype="float64", queue=QUEUE):
    return ag.tensor(np.asarray(values), dtype=dtype, queue=queue)


class Square(ag.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return ops.square(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x * 2.0


class Exp(ag.Function):
    """Saves its output."""

    @staticmethod
    def forward(ctx, x):
        y = ops.exp(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0]


class Scaled(ag.Function):
    """Two tensors, a number in between, attributes, and something that is neither input nor output."""

    @staticmethod
    def forward(ctx, x, factor, y):
        ctx.factor = factor
        product = ops.mul(x, y)
        ctx.save_for_backward(x, None, y, product)
        return ops.mul(product, factor)

    @staticmethod
    def backward(ctx, grad):
        x, nothing, y, product = ctx.saved_tensors
        assert nothing is None and not product.requires_grad
        assert ctx.needs_input_grad[1] is False
        of_x = grad * y * ctx.factor if ctx.needs_input_grad[0] else None
        of_y = grad * x * ctx.factor if ctx.needs_input_grad[2] else None
        return of_x, None, of_y


def test_gradients_once_and_twice():
    x, y = leaf([0.5, -1.5, 2.0]), leaf([1.0, 2.0, -0.5])
    for function, inputs in [(Square.apply, [x]), (Exp.apply, [x])]:
        assert ag.gradcheck(function, inputs) and ag.gradgradcheck(function, inputs)
    assert ag.gradcheck(lambda x, y: Scaled.apply(x, 3.0, y), [x, y])
    assert ag.gradgradcheck(lambda x, y: Scaled.apply(x, 3.0, y), [x, y])
    result = Scaled.apply(x, 3.0, y.detach())
    assert result.grad_fn.name == "Scaled" and not result.is_leaf
    result.sum().backward()
    np.testing.assert_allclose(x.grad.to_host(), 3.0 * y.to_host())
    assert y.grad is None


def test_forward_is_not_recorded_and_nothing_is_recorded_without_need():
    seen = []

    class Looks(ag.Function):
        @staticmethod
        def forward(ctx, x):
            seen.append((ag.is_grad_enabled(), ctx.needs_input_grad, (x * 2.0).requires_grad))
            return x * 2.0

        @staticmethod
        def backward(ctx, grad):
            return grad * 2.0

    x = leaf([1.0])
    assert Looks.apply(x).requires_grad
    with ag.no_grad():
        assert not Looks.apply(x).requires_grad
    assert not Looks.apply(x.detach()).requires_grad
    assert seen == [(False, (True,), False), (False, (False,), False), (False, (False,), False)]
    assert ag.is_grad_enabled()


def test_a_context_lives_as_long_as_its_graph():
    class Token:
        pass

    class Keeps(Exp):
        @staticmethod
        def forward(ctx, x):
            ctx.token = token  # noqa: F821 - deleted further down, after the call
            return Exp.forward(ctx, x)

    token = Token()
    alive = weakref.ref(token)
    result = Keeps.apply(leaf([1.0]))
    del token
    gc.collect()
    assert alive() is not None
    del result
    gc.collect()
    assert alive() is None, "an output that was saved must not keep its own graph alive"


def test_a_walk_frees_what_was_saved():
    class Token:
        pass

    class Keeps(Square):
        @staticmethod
        def forward(ctx, x):
            ctx.token = Token()
            alive.append(weakref.ref(ctx.token))
            return Square.forward(ctx, x)

    alive = []
    result = Keeps.apply(leaf([1.0]))
    result.backward()
    gc.collect()
    assert alive[0]() is None
    with pytest.raises(RuntimeError, match="backward of Keeps ran before"):
        result.backward()


KERNEL = nc.KernelSpec(
    name="cubes",
    src="__kernel void cubes(__global const float* x, __global float* y) {"
    "  int i = get_global_id(0);"
    "  y[i] = x[i] * x[i] * x[i];"
    "}",
)
SLOPE = nc.KernelSpec(
    name="slopes",
    src="__kernel void slopes(__global const float* x, __global const float* grad, __global float* out) {"
    "  int i = get_global_id(0);"
    "  out[i] = 3.0f * x[i] * x[i] * grad[i];"
    "}",
)


class Cube(ag.Function):
    """Forward and backward are OpenCL kernels of the user's own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        y = nc.Tensor.from_shape(x.queue, x.shape)
        KERNEL.build(x.queue).run(x.queue, (x.size,), None, x, y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        out = nc.Tensor.from_shape(x.queue, x.shape)
        SLOPE.build(x.queue).run(x.queue, (x.size,), None, x, ops.contiguous(grad), out)
        return out


@pytest.mark.parametrize("selector", find_device_selectors())
def test_kernels_of_ones_own(selector):
    queue = manager.default(selector).queue
    values = np.linspace(-2, 2, 1000).astype(np.float32)
    x = leaf(values, "float32", queue)
    ag.sum(Cube.apply(x * 2.0)).backward()
    np.testing.assert_allclose(x.grad.to_host(), 24 * values**2, rtol=1e-5)


def with_backward(result):
    class Wrong(ag.Function):
        @staticmethod
        def forward(ctx, x, k):
            return ops.mul(x, k)

        @staticmethod
        def backward(ctx, grad):
            return result(grad)

    return Wrong.apply(leaf([1.0, 2.0]), 2.0)


@pytest.mark.parametrize(
    ("result", "error", "text"),
    [
        (lambda grad: grad, ValueError, r"returned 1 gradient\(s\), but forward takes 2 argument"),
        (lambda grad: (grad, None, None), ValueError, r"returned 3 gradient\(s\)"),
        (lambda grad: (grad, grad), TypeError, "argument 1, which is no tensor"),
        (lambda grad: (3.0, None), TypeError, "<class 'float'> for argument 0"),
        (lambda grad: (grad[:1], None), ValueError, r"shape \(1,\) and dtype float64 for argument 0, which has shape \(2,\)"),
        (lambda grad: (grad.to(dtype="float32"), None), ValueError, "dtype float32 for argument 0"),
    ],
)
def test_wrong_gradients_are_explained(result, error, text):
    with pytest.raises(error, match=f"Wrong.backward returned .*{text}" if "returned" not in text else text):
        with_backward(result).sum().backward()


def test_no_gradient_at_all_is_fine():
    assert with_backward(lambda grad: (None, None)).sum().backward() is None


def test_mistakes_in_forward_are_explained():
    class Several(ag.Function):
        @staticmethod
        def forward(ctx, x):
            return x, x

    with pytest.raises(TypeError, match="Several.forward must return one Tensor"):
        Several.apply(leaf([1.0]))
    with pytest.raises(NotImplementedError):
        ag.Function.apply(leaf([1.0]))

    class NoBackward(ag.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2.0

    with pytest.raises(NotImplementedError, match="backward"):
        NoBackward.apply(leaf([1.0])).backward()

    class Late(Square):
        @staticmethod
        def backward(ctx, grad):
            ctx.save_for_backward(grad)

    with pytest.raises(RuntimeError, match="in forward only"):
        Late.apply(leaf([1.0])).backward()

    class Early(Square):
        @staticmethod
        def forward(ctx, x):
            return ctx.saved_tensors

    with pytest.raises(RuntimeError, match="in backward"):
        Early.apply(leaf([1.0]))


def test_saved_tensors_that_were_overwritten_are_refused():
    class SavesOther(ag.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(workspace)
            return ops.mul(x, 1.0)

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.saved_tensors[0]

    workspace = ops.full((1,), 2.0, "float64", QUEUE)
    x = leaf([3.0])
    for result, written in ((SavesOther.apply(x), workspace), (Square.apply(x), x.detach())):
        ops.add(written, 1.0, out=written)
        with pytest.raises(RuntimeError, match="overwritten in place"):
            result.backward()


class Boom(Exception):
    pass


def test_exceptions_come_out_unchanged():
    class Raises(ag.Function):
        @staticmethod
        def forward(ctx, x):
            return ops.mul(x, 1.0)

        @staticmethod
        def backward(ctx, grad):
            raise Boom("from backward")

    x = leaf([1.0])
    result = Raises.apply(x * 2.0).sum()
    for walk in (lambda: result.backward(retain_graph=True), lambda: ag.grad(result, x, retain_graph=True)):
        with pytest.raises(Boom, match="^from backward$") as caught:
            walk()
        frames = [entry.name for entry in caught.traceback]
        assert frames[-1] == "backward" and frames[0] == "test_exceptions_come_out_unchanged"

    def hook(grad):
        raise Boom("from a hook")

    x.register_hook(hook)
    with pytest.raises(Boom, match="^from a hook$"):
        (x * 2.0).backward()

    def function(x):
        raise Boom("from a function")

    for call in (ag.checkpoint, lambda f, x: ag.gradcheck(f, x)):
        with pytest.raises(Boom, match="^from a function$"):
            call(function, x)


def test_a_long_chain_is_dropped_without_recursion():
    x = leaf([1.0])
    for _ in range(20_000):
        x = Square.apply(x)
    del x
