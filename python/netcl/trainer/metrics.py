"""Metrics: figures over all samples of an epoch, gathered on the device.

    accuracy = Accuracy()
    for x, y in batches:
        accuracy.update(model(x), y)  # puts work on the device, waits for nothing
    print(accuracy.compute())

Metrics of classes take logits ``(N, C)`` or ``(N, C, d1, ...)`` beside labels ``(N,)`` or ``(N, d1, ...)``, the logits of
language models ``(N, T, C)`` beside ``(N, T)``, and one number per sample for two classes. ``Trainer`` takes objects, and the
short names ``"accuracy"``, ``"top5"`` (any number), ``"precision"``, ``"recall"``, ``"f1"``, ``"confusion_matrix"``,
``"auroc"``, ``"perplexity"``, ``"mae"``, ``"mse"`` and ``"rmse"``.

Your own derives from ``Metric``:

    class Bias(Metric):
        name = "bias"

        def __init__(self):
            self.reset()

        def reset(self):
            self.total, self.count = 0.0, 0

        def update(self, predictions, targets):
            self.total += float((predictions - targets).sum().item())
            self.count += predictions.size

        def compute(self):
            return self.total / self.count
"""

from __future__ import annotations

from netcl._netcl.trainer import (
    AUROC,
    F1,
    Accuracy,
    ConfusionMatrix,
    MeanError,
    MeanSquaredError,
    Metric,
    Perplexity,
    Precision,
    Recall,
    TopK,
    from_name,
)

__all__ = [
    "AUROC", "F1", "Accuracy", "ConfusionMatrix", "MeanError", "MeanSquaredError", "Metric", "Perplexity", "Precision",
    "Recall", "TopK", "from_name",
]
