"""The gradient of every recorded operation, held against finite differences in float64; values against ``netcl.ops``."""

import functools
import re
from pathlib import Path

import numpy as np
import pytest

import netcl as nc
import netcl.autograd as ag
from netcl import ops
from netcl._netcl import elementwise_table
from netcl.core.device import manager
from netcl.ops.elementwise import python_name

QUEUE = manager.default("cpu").queue
rng = np.random.default_rng(11)


def leaf(*shape, low=-2.0, high=2.0, dtype="float64"):
    """Random values away from whole numbers and halves, where some operations have a corner."""
    values = rng.uniform(low, high, size=shape)
    values += 0.1 * (np.abs(values * 2 - np.round(values * 2)) < 0.05)
    return ag.tensor(values, dtype=dtype, queue=QUEUE)


def constant(*shape, **kwargs):
    return leaf(*shape, **kwargs).detach()


# Where an operation is defined, if not everywhere.
DOMAIN = dict.fromkeys(("log", "sqrt", "rsqrt", "reciprocal", "pow"), (0.2, 3.0))
DOMAIN["log1p"] = (-0.7, 3.0)
DOMAIN["tan"] = (-1.2, 1.2)
DOMAIN |= dict.fromkeys(("log2", "log10", "xlogy", "fmod", "remainder", "copysign", "hypot", "atan2"), (0.2, 3.0))
DOMAIN |= dict.fromkeys(("asin", "acos", "atanh"), (-0.8, 0.8)) | {"acosh": (1.2, 3.0)}
# Which case holds is a fact, not a function with a slope.
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "logical_and", "logical_or", "logical_xor", "logical_not")
# What has to be given.
NEEDED = {"clamp": {"min": -1.0, "max": 1.0}}
TABLE = [row for row in elementwise_table() if row[0] not in ("cast", "where", "isclose", "nan_to_num")]


@pytest.mark.parametrize(("name", "operands"), [(row[0], row[2]) for row in TABLE], ids=[row[0] for row in TABLE])
def test_elementwise_gradients(name, operands):
    function = functools.partial(getattr(ag, python_name(name)), **NEEDED.get(name, {}))
    low, high = DOMAIN.get(name, (-2.0, 2.0))
    shapes = [(2, 3), (3,), (2, 1)][: len(operands)]
    inputs = [leaf(*shape, low=low, high=high) for shape in shapes]
    expected = getattr(ops, python_name(name))(*inputs, **NEEDED.get(name, {}))
    assert not expected.requires_grad, "netcl.ops never records"
    np.testing.assert_array_equal(function(*inputs).to_host(), expected.to_host())
    if name in COMPARISONS:
        assert not function(*inputs).requires_grad
        return
    assert ag.gradcheck(function, inputs)
    assert ag.gradgradcheck(function, inputs)
    if len(operands) == 2:
        assert ag.gradcheck(lambda x: function(x, 1.3), inputs[0])
        assert ag.gradcheck(lambda x: function(1.3, x), inputs[0])


X, Y, M, W, B = (2, 3, 4), (2, 3, 4), (3, 4), (5, 4), (5,)
LABELS = np.array([2, 0, 1])
POSITIVE = constant(4, low=0.5)

CASES = {
    "matmul": (lambda a, b: ag.matmul(a, b), [X, (4, 2)]),
    "matmul of a vector": (lambda a, b: ag.matmul(a, b), [(4,), (4, 2)]),
    "matmul transposed": (lambda a, b: ag.matmul(a, b, transpose_a=True, transpose_b=True), [(4, 3), (2, 4)]),
    "matmul_op": (ag.matmul_op, [M, (4, 2)]),
    "linear": (ag.linear, [X, W, B]),
    "linear without bias": (ag.linear, [X, W]),
    "bias_add": (ag.bias_add, [M, (4,)]),
    "bias_add of images": (ag.bias_add, [(2, 3, 2, 2), (3,)]),
    "sum": (ag.sum, [X]),
    "sum of an axis": (lambda x: ag.sum(x, 1, keepdims=True), [X]),
    "mean": (lambda x: ag.mean(x, (0, 2)), [X]),
    "max": (lambda x: ag.max(x, -1), [X]),
    "min": (lambda x: ag.min(x, axis=(0, 1), keepdims=True), [X]),
    "prod": (lambda x: ag.prod(x, 1), [X]),
    "var": (lambda x: ag.var(x, -1), [X]),
    "std": (lambda x: ag.std(x, (0, 1), correction=0.0), [X]),
    "norm": (lambda x: ag.norm(x, axis=1), [X]),
    "norm with p = 3": (lambda x: ag.norm(x, 3.0, -1), [X]),
    "logsumexp": (lambda x: ag.logsumexp(x, 0), [X]),
    "cumsum": (lambda x: ag.cumsum(x, 1), [X]),
    "softmax": (lambda x: ag.softmax(x, 1), [X]),
    "log_softmax": (ag.log_softmax, [X]),
    "reshape": (lambda x: ag.reshape(x, (4, 6)), [X]),
    "core's reshape": (lambda x: nc.core.tensor.reshape(x, (4, 6)), [X]),
    "permute": (lambda x: ag.permute(x, (2, 0, 1)), [X]),
    "transpose": (lambda x: ag.transpose(x, 0, 2), [X]),
    "expand": (lambda x: ag.expand(x, (3, 2, 4)), [(2, 1)]),
    "slice": (lambda x: ag.slice(x, 2, 3, 0, -2), [X]),
    "squeeze": (lambda x: ag.squeeze(x, 1), [(2, 1, 3)]),
    "unsqueeze": (lambda x: ag.unsqueeze(x, -1), [X]),
    "flatten": (lambda x: ag.flatten(x, 1), [X]),
    "flip": (lambda x: ag.flip(x, (0, 2)), [X]),
    "contiguous": (lambda x: ag.contiguous(ag.transpose(x)), [X]),
    "clone": (ag.clone, [X]),
    "cat": (lambda a, b: ag.cat([a, b, a], -1), [X, (2, 3, 1)]),
    "stack": (lambda a, b: ag.stack([a, b], 1), [X, Y]),
    "split": (lambda x: ag.split(x, [1, 3], 2)[1], [X]),
    "split evenly": (lambda x: ag.mul(*ag.split(x, 2, 2)), [X]),
    "chunk": (lambda x: ag.chunk(x, 2, 1)[0], [X]),
    "repeat": (lambda x: ag.repeat(x, (2, 1, 2)), [(2, 3)]),
    "tril": (lambda x: ag.tril(x, 1), [X]),
    "triu": (ag.triu, [X]),
    "where": (lambda x, y: ag.where(np.eye(3, 4), x, y), [M, M]),
    "where with a number": (lambda x: ag.where(np.tri(3, 4), x, 0.5), [M]),
    "cast": (lambda x: ag.cast(x, "float64"), [X]),
    "operators": (lambda x, y: 2.0 - x * y / 3.0 + (x - y) ** 2 @ (-y), [(4, 4), (4, 4)]),
    "reflected operators": (lambda x: 2.0 / (3.0 + x) + 2.0**x + 1.5 * abs(x), [M]),
    "subscripts": (lambda x: x[1, ..., None, 1:] * x[0, :, None, ::-1][..., :3], [X]),
    "method forms": (lambda x: x.sum(1) * x.mean(1), [X]),
    "mse_loss": (ag.mse_loss, [M, M]),
    "mse_loss with an array": (lambda x: ag.mse_loss(x, np.ones((3, 4)), "sum"), [M]),
    "l1_loss": (ag.l1_loss, [M, M]),
    "smooth_l1_loss": (lambda x, y: ag.smooth_l1_loss(x, y, "none", beta=0.7), [M, M]),
    "huber_loss": (lambda x, y: ag.huber_loss(x, y, delta=0.7), [M, M]),
    "cross_entropy": (lambda x: ag.cross_entropy(x, LABELS), [M]),
    "cross_entropy smoothed": (lambda x: ag.cross_entropy(x, LABELS, label_smoothing=0.1, reduction="none"), [M]),
    "nll_loss": (lambda x: ag.nll_loss(ag.log_softmax(x), LABELS, reduction="sum"), [M]),
    "binary_cross_entropy": (lambda x: ag.binary_cross_entropy(ag.sigmoid(x), np.eye(3, 4)), [M]),
    "binary_cross_entropy_with_logits": (
        lambda x: ag.binary_cross_entropy_with_logits(x, np.eye(3, 4), pos_weight=POSITIVE),
        [M],
    ),
    "kl_div": (lambda x: ag.kl_div(ag.log_softmax(x), np.full((3, 4), 0.25), "batchmean"), [M]),
    "cosine_embedding_loss": (lambda x, y: ag.cosine_embedding_loss(x, y, [1, -1, 1], margin=-0.9), [M, M]),
    "triplet_margin_loss": (lambda a, p, n: ag.triplet_margin_loss(a, p, n, margin=3.0), [M, M, M]),
}


@pytest.mark.parametrize("case", CASES)
def test_gradients(case):
    function, shapes = CASES[case]
    assert ag.gradcheck(function, [leaf(*shape) for shape in shapes])


def test_every_operation_has_a_case():
    here = Path(__file__)
    source, layers = here.read_text(), here.with_name("test_ops_nn.py").read_text()
    compared = (here.parent / "golden" / "functional_cases.py").read_text()
    functions = (here.parent / "test_functions.py").read_text() + (here.parent / "golden" / "idioms_cases.py").read_text()
    elsewhere = {python_name(row[0]) for row in TABLE} | {"any", "all", "swish"}
    # Operations of layers have a table of their own, and these a test each beside it.
    elsewhere |= {"argmax", "argmin", "argsort", "dropout", "one_hot", "upsample", "ctc_loss", "linear_cross_entropy"}
    elsewhere |= {"alpha_dropout", "dropout1d", "dropout2d", "feature_alpha_dropout", "gumbel_softmax"}
    untested = [
        name
        for name in (n for n, value in vars(ag.ops).items() if not n.startswith("_") and not isinstance(value, type))
        if f"ag.{name}" not in source
        and f'case("{name}' not in layers
        and f'Case("{name}"' not in compared
        and name not in elsewhere
        and not re.search(rf"\b{name}\(", functions)
    ]
    assert not untested


def test_operations_without_a_gradient_say_so():
    x = leaf(3)
    assert ag.any(x).item() == 1 and ag.all(x).item() == 1
    with pytest.raises(RuntimeError, match="any has no gradient"):
        ag.any(x).backward()
    with pytest.raises(RuntimeError, match="norm with p = 0 has no gradient"):
        ag.norm(x, 0.0).backward()


def test_parameters_of_elementwise_operations():
    x = leaf(5)
    assert ag.gradcheck(lambda x: ag.leaky_relu(x, negative_slope=0.3), x)
    assert ag.gradcheck(lambda x: ag.clamp(x, -1.0, max=1.0), x)
    assert ag.gradcheck(lambda x: ag.gelu(x, approximate="tanh"), x)
    np.testing.assert_allclose(ag.swish(x).to_host(), ag.silu(x).to_host())
    assert ag.elu.__doc__.startswith("elu(x, alpha=1.0)")
    for wrong in (lambda: ag.clamp(x, 0, 1, 2), lambda: ag.clamp(x, low=1), lambda: ag.fma(x), lambda: ag.add("x", x)):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(ValueError, match="approximate"):
        ag.gelu(x, "fast")


def labels_of_every_kind():
    return {
        "ndarray": LABELS,
        "int32": LABELS.astype(np.int32),
        "uint8": LABELS.astype(np.uint8),
        "list": LABELS.tolist(),
        "IndexTensor": nc.IndexTensor.from_host(QUEUE, LABELS),
        "Tensor": nc.Tensor.from_host(QUEUE, LABELS),
        "one-hot Tensor": nc.Tensor.from_host(QUEUE, np.eye(4)[LABELS]),
        "one-hot array": np.eye(4, dtype=np.float32)[LABELS],
    }


@pytest.mark.parametrize("kind", labels_of_every_kind())
def test_labels_are_taken_in_every_form(kind):
    logits = nc.Tensor.from_host(QUEUE, rng.normal(size=(3, 4)))
    z = logits.to_host().astype(np.float64)
    expected = -(z[np.arange(3), LABELS] - np.log(np.exp(z).sum(1))).mean()
    assert ag.cross_entropy(logits, labels_of_every_kind()[kind]).item() == pytest.approx(expected, rel=1e-5)


def test_labels_out_of_range_are_named():
    with pytest.raises((ValueError, IndexError), match="7"):
        ag.cross_entropy(leaf(2, 3), [0, 7])
    with pytest.raises(ValueError, match="reduction"):
        ag.mse_loss(leaf(2), np.ones(2), "max")


def test_results_of_ops_are_not_recorded():
    x = leaf(2, 2)
    assert not ops.reshape(x, (4,)).requires_grad and ops.reshape(x, (4,))._base is x
    assert not ops.matmul(x, x).requires_grad and not ops.sum(x).requires_grad
    assert (x * x).requires_grad and x[0].requires_grad and nc.reshape(x, (4,)).requires_grad


@pytest.mark.parametrize("selector", ["cpu", *range(len(manager.discover()))], ids=str)
def test_a_small_network_on_every_device(selector):
    queue = manager.default(selector).queue
    x, w = rng.normal(size=(5, 3)), rng.normal(size=(2, 3))
    weight = ag.tensor(w, queue=queue)
    loss = ag.cross_entropy(ag.tanh(ag.linear(nc.Tensor.from_host(queue, x), weight)), [0, 1, 0, 1, 1])
    loss.backward()
    double = ag.tensor(w, dtype="float64", queue=QUEUE)
    tensor = nc.Tensor.from_host(QUEUE, x, dtype="float64")
    ag.cross_entropy(ag.tanh(ag.linear(tensor, double)), [0, 1, 0, 1, 1]).backward()
    np.testing.assert_allclose(weight.grad.to_host(), double.grad.to_host(), rtol=1e-4, atol=1e-6)
