"""The CTC loss against the sum over every alignment."""

import itertools

import numpy as np
import pytest
from conftest import find_device_selectors

import netcl.autograd as ag
from netcl import nn
from netcl.core.device import manager
from netcl.core.index import IndexTensor
from netcl.core.tensor import Tensor
from netcl.nn import functional as F
from netcl.runtime import capture

CPU = manager.default("cpu").queue
BLANK = 2
# Samples of 4 classes over at most 5 steps: plain, repeated labels, none at all, shorter inputs, no step at all.
TARGETS = [[0, 3, 1], [1, 1], [], [3], []]
INPUT_LENGTHS, TARGET_LENGTHS = [5, 4, 5, 2, 0], [len(target) for target in TARGETS]
PADDED = np.array([target + [BLANK] * (3 - len(target)) for target in TARGETS])
JOINED = np.concatenate(TARGETS).astype(int)
LOGITS = np.random.default_rng(0).normal(size=(5, len(TARGETS), 4)) * 2


def spelled(path: tuple[int, ...], blank: int) -> list[int]:
    return [c for i, c in enumerate(path) if c != blank and (i == 0 or path[i - 1] != c)]


def by_alignments(logits: np.ndarray, target: list[int], blank: int) -> tuple[float, np.ndarray]:
    """The loss of one sample, and its gradient with respect to the logits, by writing down all paths."""
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    total, occupied = 0.0, np.zeros_like(p)
    for path in itertools.product(range(p.shape[1]), repeat=len(p)):
        if spelled(path, blank) == target:
            likelihood = np.prod(p[np.arange(len(p)), list(path)])
            total += likelihood
            occupied[np.arange(len(p)), list(path)] += likelihood
    return -np.log(total), p - occupied / total


EXPECTED = [
    by_alignments(LOGITS[:steps, i], target, BLANK) for i, (steps, target) in enumerate(zip(INPUT_LENGTHS, TARGETS))
]
LOSSES = np.array([loss for loss, _ in EXPECTED])
FACTORS = {"none": np.ones(5), "sum": np.ones(5), "mean": 1 / np.maximum(TARGET_LENGTHS, 1) / 5}


def leaf(array: np.ndarray, dtype: str = "float64", queue=CPU) -> Tensor:
    x = Tensor.from_host(queue, np.asarray(array), dtype)
    x.requires_grad = True
    return x


def check(logits: Tensor, targets, input_lengths, target_lengths, reduction: str, tolerance: float) -> None:
    log_probs = F.log_softmax(logits, -1)
    loss = F.ctc_loss(log_probs, targets, input_lengths, target_lengths, BLANK, reduction)
    module = nn.CTCLoss(BLANK, reduction)(log_probs.detach(), targets, input_lengths, target_lengths)
    factors = FACTORS[reduction]
    losses = LOSSES * factors
    expected = losses if reduction == "none" else losses.sum()
    for found in (loss, module):
        np.testing.assert_allclose(found.to_host(), expected, rtol=tolerance, atol=tolerance)
    loss.sum().backward()
    slopes = np.zeros_like(LOGITS)
    for i, (_, slope) in enumerate(EXPECTED):
        slopes[: len(slope), i] = slope * factors[i]
    np.testing.assert_allclose(logits.grad.to_host(), slopes, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("reduction", FACTORS)
@pytest.mark.parametrize("targets", [PADDED, JOINED], ids=["padded", "joined"])
def test_equals_all_alignments(targets, reduction):
    check(leaf(LOGITS), targets, INPUT_LENGTHS, TARGET_LENGTHS, reduction, 1e-10)


@pytest.mark.parametrize("selector", find_device_selectors())
def test_float32_on_every_device(selector):
    queue = manager.default(selector).queue
    lengths = (Tensor.from_host(queue, np.array(x, np.float32)) for x in (INPUT_LENGTHS, TARGET_LENGTHS))
    check(leaf(LOGITS, "float32", queue), Tensor.from_host(queue, PADDED, "float32"), *lengths, "mean", 1e-5)


def test_one_sample_and_long_inputs():
    x = leaf(LOGITS[:, 0])
    for reduction, expected in (("none", LOSSES[0]), ("mean", LOSSES[0] / 3)):
        loss = F.ctc_loss(F.log_softmax(x, -1), TARGETS[0], 5, np.int64(3), blank=BLANK, reduction=reduction)
        assert loss.shape == () and abs(loss.item() - expected) < 1e-12
    # Far below the least float64: likelihoods are added as logarithms.
    steps, classes = 2000, 20
    x = leaf(np.full((steps, classes), -np.log(classes)), "float32")
    loss = F.ctc_loss(x, np.arange(100) % 19 + 1, steps, 100)
    loss.backward()
    slopes = x.grad.to_host().sum(1)
    assert 40 < loss.item() < 60 and np.allclose(slopes, -1 / 100, rtol=1e-4)


def test_gradients():
    x = leaf(LOGITS[:, :3])
    for reduction in ("mean", "none"):
        assert ag.gradcheck(
            lambda x: F.ctc_loss(F.log_softmax(x, -1), PADDED[:3], [5, 4, 5], [3, 2, 0], BLANK, reduction), [x]
        )
    # With respect to log-probabilities that are free of each other.
    assert ag.gradcheck(lambda x: F.ctc_loss(x, PADDED[:3], [5, 4, 5], [3, 2, 0], BLANK), [x])
    loss = F.ctc_loss(x, PADDED[:3], [5, 4, 5], [3, 2, 0], BLANK)
    (slope,) = ag.grad(loss, [x], create_graph=True)
    with pytest.raises(RuntimeError, match="ctc_loss_backward"):
        (slope * slope).sum().backward()


def test_targets_that_do_not_fit():
    # Two equal labels need a blank in between: three steps.
    logits = np.array(LOGITS[:, :2])
    arguments = (PADDED[[1, 3]], [2, 5], [2, 1])
    x = leaf(logits)
    losses = F.ctc_loss(F.log_softmax(x, -1), *arguments, BLANK, "none")
    losses.sum().backward()
    slopes = x.grad.to_host()
    assert losses.to_host()[0] == np.inf and np.isfinite(losses.to_host()[1])
    assert np.isnan(slopes[:2, 0]).all() and np.isfinite(slopes[:, 1]).all()
    x = leaf(logits)
    loss = nn.CTCLoss(BLANK, zero_infinity=True)(F.log_softmax(x, -1), *arguments)
    loss.backward()
    assert abs(loss.item() - losses.to_host()[1] / 2) < 1e-12
    np.testing.assert_array_equal(x.grad.to_host()[:, 0], 0)
    np.testing.assert_allclose(x.grad.to_host()[:, 1], slopes[:, 1] / 2, atol=1e-12)
    # A label that is never likely; and NaN stays NaN.
    never = np.log(np.array([[0.5, 0.5, 0.0]] * 3) + 1e-300)
    never[:, 2] = -np.inf
    x = leaf(never)
    F.ctc_loss(x, [1], 3, 1).backward()
    assert np.isfinite(x.grad.to_host()).all() and (x.grad.to_host()[:, 2] == 0).all()
    assert F.ctc_loss(x, [2], 3, 1).item() == np.inf
    assert np.isnan(F.ctc_loss(leaf(np.full((3, 2), np.nan)), [1], 3, 1, zero_infinity=True).item())


X = Tensor.from_host(CPU, LOGITS, "float32")
T, N = INPUT_LENGTHS, TARGET_LENGTHS
MISTAKES = {
    "axes": (lambda: F.ctc_loss(X[0, 0], [1], 1, 1), ValueError, r"ctc_loss: .*\(T, N, C\)"),
    "blank": (lambda: F.ctc_loss(X, PADDED, T, N, 4), ValueError, "blank is 4.*0..4"),
    "negative blank": (lambda: F.ctc_loss(X, PADDED, T, N, -1), ValueError, "blank cannot be negative"),
    "negative blank of a layer": (lambda: nn.CTCLoss(-1), (TypeError, ValueError), "blank"),
    "samples": (lambda: F.ctc_loss(X, PADDED, T[:4], N, BLANK), ValueError, "input_lengths has 4 lengths.*5 samples"),
    "long input": (lambda: F.ctc_loss(X, PADDED, [6, *T[1:]], N, BLANK), ValueError, "sample 0 is 6, more than the 5 steps"),
    "long target": (lambda: F.ctc_loss(X, PADDED, T, [4, *N[1:]], BLANK), ValueError, "target_lengths of sample 0 is 4"),
    "negative length": (lambda: F.ctc_loss(X, PADDED, T, [-1] * 5, BLANK), ValueError, "target_lengths cannot be negative"),
    "fraction": (lambda: F.ctc_loss(X, PADDED, [0.5] * 5, N, BLANK), ValueError, "0.5"),
    "text": (lambda: F.ctc_loss(X, PADDED, "five", N, BLANK), (TypeError, ValueError), "dtype <U4"),
    "rows": (lambda: F.ctc_loss(X, PADDED[:4], T, N, BLANK), ValueError, r"\(4, 3\).*\(5, S\)"),
    "joined": (lambda: F.ctc_loss(X, JOINED[1:], T, N, BLANK), ValueError, "as many as target_lengths say, 6"),
    "blank as label": (lambda: F.ctc_loss(X, PADDED, T, [3] * 5, BLANK), ValueError, "label 2 of sample 1.*the blank, 2"),
    "no class": (lambda: F.ctc_loss(X, PADDED + 3, T, N, BLANK), ValueError, "label 6 of sample 0 is none of 0..4"),
    "reduction": (lambda: F.ctc_loss(X, PADDED, T, N, BLANK, "max"), ValueError, "no reduction"),
    "whole": (lambda: F.ctc_loss(IndexTensor.from_host(CPU, np.zeros((3, 2), int)), [1], 3, 1), (TypeError, ValueError), "float"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name):
    call, error, text = MISTAKES[name]
    with pytest.raises(error, match=text):
        call()


def test_needs_values_that_can_be_read():
    with pytest.raises(RuntimeError, match="values cannot be read"):
        capture(lambda x: F.ctc_loss(x, PADDED, T, N, BLANK))(X)
