"""No gradient is lost without a word: NumPy's arrays in operators and ufuncs, and operations that do not record."""

import inspect
import operator

import numpy as np
import pytest
from conftest import find_device_selectors

import netcl
import netcl.autograd as ag
from netcl import ops
from netcl.core.device import manager
from netcl.core.index import IndexTensor
from netcl.core.tensor import Tensor, reshape

ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow]
COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]

rng = np.random.default_rng(3)


@pytest.fixture(params=find_device_selectors())
def q(request):
    return manager.default(request.param).queue


def leaf(values, queue=None, dtype="float32"):
    return ag.tensor(values, dtype=dtype, queue=queue or manager.default("cpu").queue)


# ---- NumPy ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [*ARITHMETIC, *COMPARISONS])
def test_operators_with_arrays_are_the_tensors_on_both_sides(function, q):
    values = np.array([[0.5, 2.0, 1.0], [3.0, 0.25, 1.5]], np.float32)
    others = [
        np.array([1.0, 2.0, 1.5], np.float32),
        np.array([[1.0], [2.0]]),
        np.array([1, 2, 3]),
        np.array([True, False, True]),
        np.float32(1.5),
        np.float64(2.0),
        np.int64(2),
        np.array(1.5),
    ]
    for other in others:
        for tensor_first in (True, False):
            x = leaf(values, q)
            result = function(x, other) if tensor_first else function(other, x)
            kind = (Tensor, "float32") if function in ARITHMETIC else (IndexTensor, "bool")
            assert (type(result), result.dtype) == kind and result.queue == x.queue
            with np.errstate(all="ignore"):
                other32 = np.asarray(other, np.float32)
                expected = function(values, other32) if tensor_first else function(other32, values)
            np.testing.assert_allclose(result.to_host().astype(np.float32), expected.astype(np.float32), rtol=2e-6)
            assert result.requires_grad == (function in ARITHMETIC)
            if result.requires_grad:
                result.sum().backward()
                assert x.grad is not None


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_with_arrays_record(q, dtype):
    a, b = rng.normal(size=(2, 3)), rng.normal(size=(3, 4))
    w = leaf(b, q, dtype)
    y = a @ w
    assert type(y) is Tensor and y.dtype == dtype
    np.testing.assert_allclose(y.to_host(), a @ b, rtol=1e-5)
    y.sum().backward()
    np.testing.assert_allclose(w.grad.to_host(), np.repeat(a.sum(0)[:, None], 4, 1), rtol=1e-5)
    v = leaf(a, q, dtype)
    (v @ b).sum().backward()
    np.testing.assert_allclose(v.grad.to_host(), np.repeat(b.sum(1)[None], 2, 0), rtol=1e-5)
    np.testing.assert_allclose((leaf(a, q, dtype) @ b[:, 0]).to_host(), a @ b[:, 0], rtol=1e-5)
    assert type(np.matmul(a, w)) is Tensor and type(np.add(w, b)) is Tensor


@pytest.mark.parametrize("wrap", [ag.jit, netcl.runtime.capture])
def test_arrays_are_read_in_every_call_of_a_compiled_function(wrap, q):
    x, index = Tensor.from_host(q, [1.0, 2.0]), IndexTensor.from_host(q, [1, 2])
    array = np.array([1, 2])
    for function in (lambda t: t + array, lambda t: array * t, lambda t: t @ array, lambda t: t * (index == array)):
        compiled = wrap(function)
        for first in (1, 5):
            array[0] = first
            assert compiled(x).numpy().tolist() == function(x).numpy().tolist()
    assert wrap(lambda t: t * (index == 2))(x).numpy().tolist() == [0.0, 2.0]


def test_what_does_not_mix_says_so():
    x, array = leaf([1.0, 2.0]), np.array([1.0, 2.0])
    for function in (divmod, operator.and_, operator.lshift):
        for pair in ((x, array), (array, x)):
            with pytest.raises(TypeError):
                function(*pair)
    for wrong in (np.array([1j, 2j]), np.complex64(1j), np.array(["a", "b"]), np.array([object(), 1])):
        for pair in ((x, wrong), (wrong, x)):
            with pytest.raises(TypeError):
                operator.mul(*pair)
    with pytest.raises(TypeError):
        x @ 2.0
    with pytest.raises(ValueError, match=r"add: .*\(2,\).*\(3,\)"):
        x + np.ones(3)


def test_other_ufuncs_give_arrays_or_name_the_operation(q):
    x = leaf([0.5, 2.0], q)
    plain = x.detach()
    for ufunc in (np.exp, np.absolute, np.negative, np.sqrt, np.maximum.reduce, np.add.reduce):
        result = ufunc(plain)
        assert isinstance(result, (np.ndarray, np.floating))
        np.testing.assert_allclose(result, ufunc(plain.numpy()))
    for ufunc, name in ((np.exp, "exp"), (np.absolute, "abs"), (np.negative, "neg"), (np.tanh, "tanh")):
        with pytest.raises(TypeError, match=rf"np\.{ufunc.__name__}: .*use netcl\.autograd\.{name},"):
            ufunc(x)
    with pytest.raises(TypeError, match=r"np\.logaddexp2: .*netcl\.autograd"):
        np.logaddexp2(x, np.ones(2))
    with ag.no_grad():
        np.testing.assert_allclose(np.exp(x), np.exp([0.5, 2.0]), rtol=1e-6)
    total = np.zeros(2, np.float32)
    total += plain
    np.testing.assert_array_equal(total, plain.to_host())
    with pytest.raises(TypeError, match="requires a gradient"):
        total += x
    for write in (lambda: np.add(total, 1.0, out=plain), lambda: np.add.at(plain, [0], 1.0)):
        with pytest.raises(TypeError, match="cannot write into a tensor"):
            write()
    np.testing.assert_array_equal(np.asarray(x), [0.5, 2.0])
    np.testing.assert_array_equal(np.array(x), [0.5, 2.0])


# ---- The top level -------------------------------------------------------------------------------------------------

TOP_LEVEL = {
    "matmul": (lambda x: netcl.matmul(x, x, transpose_b=True), lambda x: ag.matmul(x, x, transpose_b=True)),
    "relu": (netcl.relu, ag.relu),
    "softmax": (lambda x: netcl.softmax(x, axis=0), lambda x: ag.softmax(x, axis=0)),
    "bias_add": (lambda x: netcl.bias_add(x, x[0]), lambda x: ag.bias_add(x, x[0])),
    "reduce_sum": (lambda x: netcl.reduce_sum(x, 1, True), lambda x: ag.sum(x, 1, True)),
    "conv2d": (
        lambda x: netcl.conv2d(reshape(x, (1, 1, 3, 4)), reshape(x, (1, 1, 3, 4)), pad=1),
        lambda x: ag.conv2d(reshape(x, (1, 1, 3, 4)), reshape(x, (1, 1, 3, 4)), pad=1),
    ),
    "elementwise_binary": (lambda x: netcl.elementwise_binary(x, x, "*"), lambda x: x * x),
}


@pytest.mark.parametrize("name", TOP_LEVEL)
def test_top_level_functions_record(name, q):
    values = rng.normal(size=(3, 4))
    grads = []
    for function in TOP_LEVEL[name]:
        x = leaf(values, q)
        (function(x) * 0.5).sum().backward()
        grads.append(x.grad.to_host())
    np.testing.assert_array_equal(*grads)


def test_top_level_signatures_are_those_of_ops():
    for name in TOP_LEVEL:
        own, forward = (inspect.signature(getattr(module, name)) for module in (netcl, ops))
        own, forward = ([(p.name, p.kind) for p in signature.parameters.values()] for signature in (own, forward))
        # PyTorch's names of the same arguments besides.
        assert [parameter for parameter in own if parameter[0] not in ("dim", "keepdim", "dtype")] == forward


def test_top_level_out_is_for_tensors_without_a_gradient(q):
    x, out = leaf([[-1.0, 2.0]], q), Tensor.from_shape(q, (1, 2))
    calls = {
        "relu": lambda x, out: netcl.relu(x, out=out),
        r"\*": lambda x, out: netcl.elementwise_binary(x, 1.0, "*", out=out),
        "matmul": lambda x, out: netcl.matmul(x, Tensor.from_host(q, np.eye(2)), out=out),
    }
    for name, call in calls.items():
        assert call(x.detach(), out) is out
        with ag.no_grad():
            assert call(x, out) is out
        with pytest.raises(ValueError, match=f"{name}: out= cannot be recorded"):
            call(x, out)
        with pytest.raises(ValueError, match="out= cannot be recorded"):
            call(x.detach(), leaf([[0.0, 0.0]], q))


# ---- Operations that do not record ---------------------------------------------------------------------------------

IMAGE, INDEX = (1, 2, 4, 4), np.array([[0, 1, 1, 0]])

#: Calls of operations whose derivative is not zero: (shape of x, call).
LOSING = {
    "reshape": ((2, 6), lambda x: ops.reshape(x, (3, 4))),
    "permute": ((2, 6), lambda x: ops.permute(x, (1, 0))),
    "transpose": ((2, 6), ops.transpose),
    "expand": ((2, 1), lambda x: ops.expand(x, (2, 3))),
    "squeeze": ((2, 1), ops.squeeze),
    "unsqueeze": ((2,), lambda x: ops.unsqueeze(x, 0)),
    "flip": ((2, 3), lambda x: ops.flip(x, 0)),
    "contiguous": ((2, 3), ops.contiguous),
    "cast": ((2, 3), lambda x: ops.cast(x, "float16")),
    "cat": ((2, 3), lambda x: ops.cat([x, x])),
    "stack": ((2, 3), lambda x: ops.stack([x, x])),
    "split": ((2, 3), lambda x: ops.split(x, 1)[1]),
    "chunk": ((2, 3), lambda x: ops.chunk(x, 2)[0]),
    "repeat": ((2, 3), lambda x: ops.repeat(x, [2, 1])),
    "tril": ((2, 3), ops.tril),
    "triu": ((2, 3), ops.triu),
    "sum": ((2, 3), ops.sum),
    "mean": ((2, 3), lambda x: ops.mean(x, axis=1)),
    "prod": ((2, 3), ops.prod),
    "max": ((2, 3), ops.max),
    "min": ((2, 3), ops.min),
    "logsumexp": ((2, 3), ops.logsumexp),
    "var": ((2, 3), ops.var),
    "std": ((2, 3), ops.std),
    "norm": ((2, 3), ops.norm),
    "cumsum": ((2, 3), ops.cumsum),
    "softmax": ((2, 3), ops.softmax),
    "log_softmax": ((2, 3), ops.log_softmax),
    "matmul": ((2, 3), lambda x: ops.matmul(x, x, transpose_b=True)),
    "linear": ((2, 3), lambda x: ops.linear(x.detach(), x)),
    "bias_add": ((3,), lambda x: ops.bias_add(Tensor.from_shape(x.queue, (2, 3)), x)),
    "conv2d": (IMAGE, lambda x: ops.conv2d(x, Tensor.from_shape(x.queue, (1, 2, 3, 3)))),
    "conv1d": ((1, 2, 4), lambda x: ops.conv1d(x, Tensor.from_shape(x.queue, (1, 2, 3)))),
    "conv_transpose2d": (IMAGE, lambda x: ops.conv_transpose2d(x, Tensor.from_shape(x.queue, (2, 1, 3, 3)))),
    "conv_transpose1d": ((2, 4), lambda x: ops.conv_transpose1d(x, Tensor.from_shape(x.queue, (2, 1, 3)))),
    "max_pool2d": (IMAGE, lambda x: ops.max_pool2d(x, 2)),
    "max_pool1d": ((1, 2, 4), lambda x: ops.max_pool1d(x, 2)),
    "avg_pool2d": (IMAGE, lambda x: ops.avg_pool2d(x, 2)),
    "avg_pool1d": ((1, 2, 4), lambda x: ops.avg_pool1d(x, 2)),
    "adaptive_avg_pool2d": (IMAGE, lambda x: ops.adaptive_avg_pool2d(x, 2)),
    "adaptive_avg_pool1d": ((1, 2, 4), lambda x: ops.adaptive_avg_pool1d(x, 2)),
    "adaptive_max_pool2d": (IMAGE, lambda x: ops.adaptive_max_pool2d(x, 2)),
    "adaptive_max_pool1d": ((1, 2, 4), lambda x: ops.adaptive_max_pool1d(x, 2)),
    "batch_norm": (IMAGE, lambda x: ops.batch_norm(x, None, None, training=True)),
    "layer_norm": ((3,), lambda x: ops.layer_norm(Tensor.from_shape(x.queue, (2, 3)), (3,), x)),
    "group_norm": (IMAGE, lambda x: ops.group_norm(x, 2)),
    "lp_pool2d": (IMAGE, lambda x: ops.lp_pool2d(x, 2.0, 2)),
    "lp_pool1d": ((1, 2, 4), lambda x: ops.lp_pool1d(x, 2.0, 2)),
    "rms_norm": ((2, 3), lambda x: ops.rms_norm(x, (3,))),
    "instance_norm": (IMAGE, ops.instance_norm),
    "local_response_norm": (IMAGE, lambda x: ops.local_response_norm(x, 2)),
    "embedding": ((2, 3), lambda x: ops.embedding(INDEX, x)),
    "embedding_bag": ((2, 3), lambda x: ops.embedding_bag(INDEX, x)),
    "index_select": ((2, 3), lambda x: ops.index_select(x, 0, [1, 0])),
    "gather": ((2, 4), lambda x: ops.gather(x, 0, INDEX)),
    "scatter_add": ((1, 4), lambda x: ops.scatter_add(Tensor.from_shape(x.queue, (2, 4)), 0, INDEX, x)),
    "index_add": ((1, 3), lambda x: ops.index_add(Tensor.from_shape(x.queue, (2, 3)), 0, [1], x)),
    "masked_fill": ((2, 3), lambda x: ops.masked_fill(x, np.eye(2, 3), 0.0)),
    "topk": ((2, 3), lambda x: ops.topk(x, 2)[0]),
    "sort": ((2, 3), lambda x: ops.sort(x)[0]),
    "dropout": ((2, 3), lambda x: ops.dropout(x, 0.5)),
    "dropout1d": ((2, 3), lambda x: ops.dropout1d(x, 0.5)),
    "dropout2d": (IMAGE, lambda x: ops.dropout2d(x, 0.5)),
    "alpha_dropout": ((2, 3), lambda x: ops.alpha_dropout(x, 0.5, True)),
    "feature_alpha_dropout": ((2, 3), lambda x: ops.feature_alpha_dropout(x, 0.5, True)),
    "glu": ((2, 4), ops.glu),
    "rrelu": ((2, 3), ops.rrelu),
    "softmin": ((2, 3), ops.softmin),
    "gumbel_softmax": ((2, 3), ops.gumbel_softmax),
    "bilinear": ((2, 3), lambda x: ops.bilinear(x.detach(), x, Tensor.from_shape(x.queue, (2, 3, 3)))),
    "cosine_similarity": ((2, 3), lambda x: ops.cosine_similarity(x.detach(), x)),
    "pairwise_distance": ((2, 3), lambda x: ops.pairwise_distance(x.detach(), x)),
    "normalize": ((2, 3), ops.normalize),
    "pixel_shuffle": ((4, 2, 2), lambda x: ops.pixel_shuffle(x, 2)),
    "pixel_unshuffle": ((1, 2, 2), lambda x: ops.pixel_unshuffle(x, 2)),
    "unfold": (IMAGE, lambda x: ops.unfold(x, 1)),
    "fold": ((1, 4, 1), lambda x: ops.fold(x, 2, 2)),
    "affine_grid": ((1, 2, 3), lambda x: ops.affine_grid(x, (1, 1, 2, 2))),
    "grid_sample": ((1, 2, 2, 2), lambda x: ops.grid_sample(x.detach(), x)),
    "channel_shuffle": ((1, 4), lambda x: ops.channel_shuffle(x, 2)),
    "einsum": ((2, 3), lambda x: ops.einsum("ij,ij->i", x.detach(), x)),
    "pad": ((2, 3), lambda x: ops.pad(x, [(1, 1)])),
    "interpolate": (IMAGE, lambda x: ops.interpolate(x, scale_factor=2)),
    "rotary": ((3, 4), ops.rotary),
    "scaled_dot_product_attention": (IMAGE, lambda x: ops.scaled_dot_product_attention(x.detach(), x, x.detach())),
    "where": ((2, 3), lambda x: ops.where(x.detach(), 1.0, x)),
    "pow": ((2, 3), lambda x: ops.pow(2.0, x)),
    "clamp": ((2, 3), lambda x: ops.clamp(x, -1.0, 1.0)),
    "gelu": ((2, 3), ops.gelu),
    "mul": ((2, 3), lambda x: ops.elementwise_binary(3.0, x, "*")),
}

#: Operations that take no tensor with a gradient, or have no gradient themselves.
WITHOUT = {
    "all", "any", "arange", "argmax", "argmin", "argsort", "bernoulli", "build_matmul_kernel", "full", "normal", "one_hot",
    "permutation", "uniform",
}  # fmt: skip
OTHER_NAMES = {"reduce_sum", "upsample", *ops.elementwise.__all__}


def test_every_operation_is_looked_at():
    assert set(ops.__all__) - OTHER_NAMES == {*LOSING, *WITHOUT} - OTHER_NAMES
    assert all(hasattr(ag, name) for name in LOSING)


def lost(name):
    return pytest.raises(ValueError, match=rf"^backward: {name} of netcl\.ops .*use netcl\.autograd\.{name},")


@pytest.mark.parametrize("name", LOSING)
def test_a_backward_pass_that_needs_an_operation_that_did_not_record_names_it(name):
    shape, call = LOSING[name]
    x = leaf(rng.uniform(0.5, 1.5, size=shape))
    h = call(x)
    assert not h.requires_grad and h.grad_fn is None
    with lost(name):
        ag.sum(h).backward()
    w = leaf(np.ones(h.shape), dtype=h.dtype)
    with lost(name):
        ag.sum(h * w).backward()
    assert x.grad is None and w.grad is None
    with ag.no_grad():
        quiet = call(x)
    ag.sum(quiet * w).backward()
    ag.sum(call(x.detach()) * w).backward()
    ag.sum(h.detach() * w).backward()
    assert x.grad is None and w.grad is not None


@pytest.mark.parametrize(
    "call",
    [
        lambda x: ops.gt(x, 0.0),
        lambda x: ops.eq(x, x),
        ops.sign,
        ops.floor,
        ops.round,
        ops.any,
        ops.all,
        lambda x: ops.where(x, 1.0, 0.0),
        lambda x: ops.one_hot(ops.argmax(x, axis=1), 3),
    ],
)
def test_what_has_no_slope_loses_nothing(call, q):
    x = leaf(rng.normal(size=(3, 3)), q)
    ag.sum(x * call(x)).backward()
    assert x.grad is not None


def test_the_operation_is_remembered_on_the_way(q):
    x, w = leaf([1.0, -2.0], q), leaf([3.0, 4.0], q)
    h = ops.relu(x)
    # Through recorded and other operations, views, casts and scalars, under the name of the first.
    for derived in (h + 1.0, ops.exp(h), h[0], reshape(h, (2, 1)), ag.softmax(h), h.to(dtype="float16"), -h):
        with lost("relu"):
            ag.sum(derived).backward()
        assert not derived.requires_grad
    with lost("relu"):
        h.sum().backward()
    for loss in (ag.sum(h * w), ag.mse_loss(w, h)):
        with pytest.raises(ValueError, match="relu of netcl.ops"):
            ag.grad(loss, [w])
    # A leaf begins a graph whatever its values come from.
    start = ops.relu(x).requires_grad_()
    ag.sum(start * w).backward()
    assert start.grad is not None and x.grad is None
    assert h.numpy().tolist() == [1.0, 0.0] and "1" in repr(h)


def test_memory_that_was_given_remembers_its_last_values_only(q):
    x, w, out = leaf([1.0, -2.0], q), leaf([3.0, 4.0], q), Tensor.from_shape(q, (2,))
    ops.relu(x, out=out)
    with lost("relu"):
        ag.sum(out * w).backward()
    ops.relu(x.detach(), out=out)
    ag.sum(out * w).backward()
    np.testing.assert_array_equal(w.grad.to_host(), [1.0, 0.0])
    # A step by hand: the parameter stays a leaf.
    with ag.no_grad():
        ops.sub(w, w.grad, out=w)
    ag.sum(w * 2.0).backward()


def test_functions_checkpoints_and_compiled_functions(q):
    class Square(ag.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return ops.square(x)

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return ops.mul(ops.mul(grad, x), 2.0)

    x, w = leaf([1.0, -2.0], q), leaf([3.0, 4.0], q)
    # Inside of an operation of one's own nothing records, and nothing is lost: its backward is the gradient.
    ag.sum(Square.apply(x)).backward()
    np.testing.assert_array_equal(x.grad.to_host(), [2.0, -4.0])
    (slope,) = ag.grad(ag.sum(Square.apply(x)), [x], create_graph=True)
    with lost("mul"):
        ag.sum(slope).backward()

    for wrap in (ag.jit, lambda f: lambda *args: ag.checkpoint(f, *args)):
        mixed = wrap(lambda x, w: ops.relu(x) * w)
        whole = wrap(lambda x: ops.relu(x) + 1.0)
        given = wrap(lambda h, w: h * w)
        for _ in range(2):
            for result in (mixed(x, w), whole(x), whole(x) * w, given(ops.relu(x), w)):
                with lost("relu"):
                    ag.sum(result).backward()
        ag.sum(given(x, w)).backward()
        with ag.no_grad():
            np.testing.assert_array_equal(mixed(x, w).to_host(), [3.0, 0.0])
    with pytest.raises(ValueError, match="square of netcl.ops"):
        ag.gradcheck(ops.square, leaf([1.0, 2.0], q, "float64"))


def test_optimizers_layers_and_averages_use_their_own():
    from netcl import nn, optim

    with netcl.device("cpu"):
        net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.BatchNorm1d(3), nn.Linear(3, 2))
        opt, ema = optim.Adam(net.parameters(), lr=0.1), optim.ModelEMA(net)
        x = Tensor.from_host(None, rng.normal(size=(5, 4)))
        for _ in range(3):
            loss = ag.cross_entropy(net(x), np.array([0, 1, 0, 1, 1]))
            # What is reported of a parameter that requires a gradient is nobody's input.
            ops.norm(next(iter(net.parameters()))).item()
            opt.zero_grad()
            loss.backward()
            opt.step()
            ema.update()
