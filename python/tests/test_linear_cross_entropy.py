"""The cross-entropy of a linear layer in pieces, beside that of all logits; and products under autocast with their epilogues."""

import numpy as np
import pytest
from conftest import find_device_selectors

import netcl.autograd as ag
from netcl import IndexTensor, Tensor, amp, manual_seed
from netcl.core.device import manager
from netcl.nn import functional as F
from netcl.nn.gpt import GPT
from netcl.optim import AdamW
from netcl.runtime import capture

ROWS, FEATURES, CLASSES = 7, 5, 21


@pytest.fixture(params=find_device_selectors())
def queue(request):
    return manager.default(request.param).queue


def leaf(queue, shape, seed, dtype):
    return ag.tensor(Tensor.from_host(queue, np.random.default_rng(seed).normal(size=shape), dtype=dtype))


def given(queue, dtype, outer=(ROWS,)):
    labels = np.random.default_rng(9).integers(0, CLASSES, outer)
    labels.flat[2] = -100
    x, weight, bias = (leaf(queue, s, i, dtype) for i, s in enumerate([(*outer, FEATURES), (CLASSES, FEATURES), (CLASSES,)]))
    return x, weight, bias, labels


def plain(x, weight, labels, bias, **options):
    logits = ag.linear(x, weight, bias)
    flat = ag.reshape(logits, (labels.size, CLASSES))
    return F.cross_entropy(flat, labels.reshape(-1), **options)


OPTIONS = [
    {},
    {"reduction": "sum"},
    {"reduction": "none"},
    {"label_smoothing": 0.1},
    {"label_smoothing": 0.3, "reduction": "none", "ignore_index": None},
    {"ignore_index": 3},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_as_the_cross_entropy_of_all_logits(queue, options):
    for dtype, tolerance in [("float64", 1e-12), ("float32", 2e-5)]:
        for biased, chunk in [(True, 3), (False, 1), (True, None)]:
            x, weight, bias, labels = given(queue, dtype)
            if options.get("ignore_index", -100) != -100:
                labels[2] = 3
            leaves = [x, weight, bias][: 2 + biased]
            mean = {"reduction": "mean"} | options
            weights = Tensor.from_host(queue, np.linspace(-1, 2, ROWS), dtype=dtype)
            results = []
            for loss in (
                plain(x, weight, labels, bias if biased else None, **options),
                F.linear_cross_entropy(x, weight, labels, bias if biased else None, chunk=chunk, **options),
            ):
                assert loss.dtype == dtype and loss.shape == ((ROWS,) if mean["reduction"] == "none" else ())
                total = ag.sum(loss * weights) if loss.ndim else loss * 1.5
                total.backward()
                results.append([loss.to_host(), *(leaf.grad.to_host().copy() for leaf in leaves)])
                for each in leaves:
                    each.grad = None
            for ours, theirs in zip(results[1], results[0]):
                np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


def test_gradients_by_differences_and_again(queue):
    labels = np.array([1, -100, 4, 0])
    x, weight, bias = (leaf(queue, s, i, "float64") for i, s in enumerate([(4, 3), (5, 3), (5,)]))
    for reduction in ("mean", "none"):

        def loss(x, weight, bias, reduction=reduction):
            return F.linear_cross_entropy(x, weight, labels, bias, reduction=reduction, label_smoothing=0.2, chunk=3)

        assert ag.gradcheck(loss, [x, weight, bias])
        assert ag.gradgradcheck(loss, [x, weight, bias])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_under_autocast(queue, dtype):
    x, weight, _, labels = given(queue, "float32", (2, 4))
    exact = plain(x, weight, labels, None)
    exact.backward()
    expected = [x.grad.to_host().copy(), weight.grad.to_host().copy()]
    x.grad = weight.grad = None
    with amp.autocast(dtype=dtype):
        loss = F.linear_cross_entropy(x, weight, labels, chunk=3)
    loss.backward()
    assert loss.dtype == weight.grad.dtype == x.grad.dtype == "float32"
    assert abs(loss.item() - exact.item()) < 0.03
    np.testing.assert_allclose(x.grad.to_host(), expected[0], atol=0.01)
    np.testing.assert_allclose(weight.grad.to_host(), expected[1], atol=0.01)


def test_rows_that_do_not_count_and_rows_of_infinities(queue):
    x, weight = leaf(queue, (3, 2), 1, "float32"), leaf(queue, (4, 2), 2, "float32")
    loss = F.linear_cross_entropy(x, weight, np.full(3, -100))
    loss.backward()
    assert np.isnan(loss.item()) and not x.grad.to_host().any() and not weight.grad.to_host().any()
    large = Tensor.from_host(queue, np.array([[1e4, 0.0]], np.float32))
    assert F.linear_cross_entropy(large, ag.tensor(weight) * 1.0, [0]).item() >= 0


def test_errors_name_what_is_wrong(queue):
    x, weight = leaf(queue, (3, 2), 1, "float32"), leaf(queue, (4, 2), 2, "float32")
    with pytest.raises(ValueError, match="label 4 in row 1 is outside 0..4"):
        F.linear_cross_entropy(x, weight, [0, 4, 1])
    with pytest.raises(ValueError, match="chunk is 0"):
        F.linear_cross_entropy(x, weight, [0, 1, 1], chunk=0)
    with pytest.raises(ValueError, match="class labels"):
        F.linear_cross_entropy(x, weight, np.full((3, 4), 0.25, np.float32))
    with pytest.raises(ValueError, match="label_smoothing"):
        F.linear_cross_entropy(x, weight, [0, 1, 1], label_smoothing=2.0)


def gpt_step(queue, dtype, with_targets=True):
    manual_seed(11)
    model = GPT(queue, 33, 8, n_layer=2, n_head=2, n_embd=16)
    optimizer = AdamW(model.parameters(), lr=0.01)

    def step(x, y):
        with amp.autocast(dtype=dtype, enabled=dtype != "float32"):
            if with_targets:
                loss = model(x, targets=y)
            else:
                loss = F.cross_entropy(ag.reshape(model(x), (16, 33)), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    tokens = np.random.default_rng(0).integers(0, 33, (2, 9))
    x, y = IndexTensor.from_host(queue, tokens[:, :-1].copy()), IndexTensor.from_host(queue, tokens[:, 1:].reshape(-1))
    return model, step, (x, y)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_captured_gpt_has_the_bits_of_the_plain_one(queue, dtype):
    """Casts, additions and gradients of gelu are epilogues of products in the captured step, which round as launches did."""
    model, step, batch = gpt_step(queue, dtype)
    losses = [step(*batch).item() for _ in range(3)]
    weights = [p.to_host().copy() for p in model.parameters()]
    _, other, _ = gpt_step(queue, dtype, with_targets=False)
    tolerance = {"float32": 1e-5, "float16": 2e-2, "bfloat16": 1e-1}[dtype]
    np.testing.assert_allclose([other(*batch).item() for _ in range(3)], losses, rtol=tolerance)

    model, step, batch = gpt_step(queue, dtype)
    step = capture(step)
    assert [step(*batch).item() for _ in range(3)] == losses
    for ours, theirs in zip(model.parameters(), weights):
        np.testing.assert_array_equal(ours.to_host(), theirs)
    names = step.stats()["names"]
    # Results as small as these take any epilogue (test_capture_chains.py has a large one).
    assert any(name.startswith("matmul") and name.endswith("gelu_backward") for name in names), names
    if dtype != "float32":
        # The result of the attention and of each MLP, added to what bypasses them.
        assert sum(name.startswith("matmul") and name.endswith("cast_add") for name in names) >= 4, names
        # Gradients of weights.
        assert sum(name.startswith("matmul") and name.endswith("_cast") for name in names) >= 8, names
