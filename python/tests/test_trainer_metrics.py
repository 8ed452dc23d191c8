"""Metrics against NumPy, over uneven batches and in every form of targets; metrics that users write."""

import numpy as np
import pytest

from netcl import IndexTensor, Tensor
from netcl._netcl.trainer import _rehearse_metric
from netcl.amp import autocast
from netcl.core.device import manager
from netcl.trainer import metrics

RANDOM = np.random.default_rng(7)
LOGITS = RANDOM.normal(size=(61, 5)).astype(np.float32)
LABELS = RANDOM.integers(0, 5, 61)
BATCHES = [slice(0, 25), slice(25, 50), slice(50, 61)]
QUEUE = manager.default("cpu").queue


def tensor(array):
    return Tensor.from_host(QUEUE, array)


def over_batches(metric, predictions=LOGITS, targets=LABELS):
    for batch in BATCHES:
        metric.update(tensor(predictions[batch]), targets[batch])
    return metric.compute()


def confusion(guesses, labels, classes):
    matrix = np.zeros((classes, classes), int)
    np.add.at(matrix, (labels, guesses), 1)
    return matrix


def by_class(matrix):
    found = np.diag(matrix)
    return found / matrix.sum(0), found / matrix.sum(1), 2 * found / (matrix.sum(0) + matrix.sum(1))


def area(scores, positive):
    above = scores[positive][:, None] - scores[~positive][None]
    return ((above > 0) + 0.5 * (above == 0)).mean()


def test_figures_of_classes_are_numpys():
    guesses = LOGITS.argmax(1)
    matrix = confusion(guesses, LABELS, 5)
    probabilities = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)
    assert over_batches(metrics.Accuracy()) == (guesses == LABELS).mean()
    best = np.argsort(-LOGITS, 1)[:, :2]
    assert over_batches(metrics.TopK(2)) == (best == LABELS[:, None]).any(1).mean()
    kept = metrics.ConfusionMatrix()
    over_batches(kept)
    assert kept.matrix() == matrix.tolist()
    for kind, wanted in zip((metrics.Precision, metrics.Recall, metrics.F1), by_class(matrix)):
        assert over_batches(kind()) == pytest.approx(wanted.mean())
        assert over_batches(kind("weighted")) == pytest.approx((wanted * matrix.sum(1)).sum() / 61)
        metric = kind("micro")
        assert over_batches(metric) == pytest.approx((guesses == LABELS).mean())
        assert metric.per_class() == pytest.approx(wanted)
    own = np.array([area(probabilities[:, c], c == LABELS) for c in range(5)])
    assert over_batches(metrics.AUROC()) == pytest.approx(own.mean(), abs=1e-9)
    entropy = -np.log(probabilities[np.arange(61), LABELS]).mean()
    assert over_batches(metrics.Perplexity()) == pytest.approx(np.exp(entropy), rel=1e-5)


def test_figures_of_numbers_and_of_two_classes():
    scores, positive = np.round(LOGITS[:, 0], 1), LABELS > 2  # rounded, so that some are equal
    assert over_batches(metrics.AUROC(), scores, positive.astype(int)) == pytest.approx(area(scores, positive))
    precision, recall, f1 = by_class(confusion((scores > 0.5).astype(int), positive.astype(int), 2))
    assert over_batches(metrics.Precision(threshold=0.5), scores, positive.astype(int)) == pytest.approx(precision[1])
    assert over_batches(metrics.Recall(threshold=0.5), scores, positive.astype(int)) == pytest.approx(recall[1])
    assert over_batches(metrics.F1(threshold=0.5), scores, positive.astype(int)) == pytest.approx(f1[1])
    wanted = LOGITS[:, 1:4]
    error = LOGITS[:, :3] - wanted
    assert over_batches(metrics.MeanError(), LOGITS[:, :3], wanted) == pytest.approx(np.abs(error).mean(), rel=1e-6)
    assert over_batches(metrics.MeanSquaredError(), LOGITS[:, :3], wanted) == pytest.approx((error**2).mean(), rel=1e-6)
    root = metrics.MeanSquaredError(root=True)
    assert over_batches(root, LOGITS[:, :3], wanted) == pytest.approx(np.sqrt((error**2).mean()), rel=1e-6)
    assert root.name == "rmse"


def test_targets_of_every_form():
    wanted = (LOGITS.argmax(1) == LABELS).mean()
    logits, one_hot = tensor(LOGITS), np.eye(5, dtype=np.float32)[LABELS]
    for labels in (LABELS, LABELS.tolist(), IndexTensor.from_host(QUEUE, LABELS), LABELS.astype(np.float32), one_hot):
        metric = metrics.Accuracy()
        with autocast():
            metric.update(logits, labels)
        assert metric.compute() == wanted
        metric.reset()
        metric.update(logits, labels)
        assert metric.compute() == wanted
    text = metrics.Accuracy()
    text.update(tensor(LOGITS[:60].reshape(12, 5, 5)[:, :4]), LABELS[:60].reshape(12, 5)[:, :4])  # (N, T, C)
    rows = (np.arange(60) % 5) < 4
    assert text.compute() == (LOGITS.argmax(1) == LABELS)[:60][rows].mean()


def test_errors_say_what_was_given():
    with pytest.raises(ValueError, match=r"accuracy: no batch was seen yet"):
        metrics.Accuracy().compute()
    with pytest.raises(ValueError, match=r"f1: got predictions of shape \(61, 5\) and targets of shape \(3,\)"):
        metrics.F1().update(tensor(LOGITS), [1, 2, 3])
    with pytest.raises(ValueError, match='there is no average "none"; .* per_class'):
        metrics.F1("none")
    with pytest.raises(ValueError, match="there is no metric"):
        metrics.from_name("bleu")
    with pytest.raises(ValueError, match="k is 0"):
        metrics.TopK(0)
    with pytest.raises(NotImplementedError, match=r"Metric derives from Metric and must have update"):
        metrics.Metric().update(tensor(LOGITS), LABELS)
    with pytest.raises(TypeError, match=r"int has no update\(\)"):
        _rehearse_metric(3, tensor(LOGITS), LABELS)


class Largest(metrics.Metric):
    name = "largest"

    def __init__(self, scale):
        self.scale = scale
        self.reset()

    def reset(self):
        self.seen = []

    def update(self, predictions, targets):
        assert isinstance(predictions, Tensor) and isinstance(targets, IndexTensor)
        self.seen.append(self.scale * float(predictions.to_host().max()))

    def compute(self):
        return max(self.seen)


def test_metrics_that_users_write_are_called_by_rust():
    mine = Largest(2.0)
    mine.update(tensor(LOGITS + 10), IndexTensor.from_host(QUEUE, LABELS))
    name, value, fresh = _rehearse_metric(mine, tensor(LOGITS), LABELS)
    # The fresh one has the settings, and has seen only its own batch.
    assert (name, value, fresh) == ("largest", 2 * (LOGITS + 10).max(), 2 * LOGITS.max())
    assert len(mine.seen) == 2, "the user's object is used, not a copy"

    class Broken(Largest):
        def compute(self):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        _rehearse_metric(Broken(1.0), tensor(LOGITS), LABELS)


def test_ours_share_their_state_and_subclasses_are_called():
    accuracy = metrics.Accuracy()
    wanted = (LOGITS.argmax(1) == LABELS).mean()
    assert _rehearse_metric(accuracy, tensor(LOGITS), LABELS) == ("accuracy", wanted, wanted)
    assert accuracy.compute() == wanted
    assert _rehearse_metric("top5", tensor(LOGITS), LABELS) == ("top5", 1.0, 1.0)

    class Percent(metrics.Accuracy):
        def compute(self):
            return 100 * super().compute()

    assert _rehearse_metric(Percent(), tensor(LOGITS), LABELS)[1] == 100 * wanted
    assert repr(metrics.from_name("mae")) == 'Metric(name="mae")'
