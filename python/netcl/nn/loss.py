"""Losses as modules; each is the function of the same name in ``netcl.nn.functional`` with its settings kept."""

from __future__ import annotations

from typing import Any

from netcl._netcl import Tensor, nn as _nn
from netcl.nn._layer import KW_ONLY, Layer, given

__all__ = [
    "BCELoss",
    "BCEWithLogitsLoss",
    "CTCLoss",
    "CosineEmbeddingLoss",
    "CrossEntropyLoss",
    "GaussianNLLLoss",
    "HingeEmbeddingLoss",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "MSELoss",
    "MarginRankingLoss",
    "MultiLabelMarginLoss",
    "MultiLabelSoftMarginLoss",
    "MultiMarginLoss",
    "NLLLoss",
    "PoissonNLLLoss",
    "SmoothL1Loss",
    "SoftMarginLoss",
    "TripletMarginLoss",
]


class _Loss(Layer):
    """``reduction`` is "mean", "sum" or "none"."""

    reduction: str = "mean"

    def forward(self, input: Tensor, target: Any) -> Tensor:
        return _nn.loss(self._layer, self.__dict__, input, target)


class _Weighted(_Loss):
    """A loss with a weight for each class or element, which moves with the module but is not trained."""

    weight: Tensor | None = given(None)
    reduction: str = "mean"

    def _make(self, queue: Any = None, dtype: Any = None, **settings: Any) -> None:
        given = {name: settings.pop(name) for name in ("weight", "pos_weight") if name in settings}
        super()._make(queue, dtype, **settings)
        for name, values in given.items():
            self._buffers[name] = values.detach() if isinstance(values, Tensor) else Tensor.from_host(None, values)


class MSELoss(_Loss):
    """The square of the difference."""


class L1Loss(_Loss):
    """The absolute difference."""


class SmoothL1Loss(_Loss):
    """The absolute difference, rounded off by a parabola where it is below ``beta``."""

    beta: float = 1.0


class HuberLoss(_Loss):
    """Half the square of the difference below ``delta``, linear above."""

    delta: float = 1.0


class CrossEntropyLoss(_Weighted):
    """``-log(softmax(input)[target])`` over axis 1, for class numbers or probabilities as targets."""

    weight: Tensor | None = given(None)
    ignore_index: int | None = -100
    reduction: str = "mean"
    label_smoothing: float = 0.0


class NLLLoss(_Weighted):
    """``-input[target]`` over axis 1, for logarithms of probabilities."""

    weight: Tensor | None = given(None)
    ignore_index: int | None = -100
    reduction: str = "mean"


class BCELoss(_Weighted):
    """Cross entropy of probabilities of two classes."""


class BCEWithLogitsLoss(_Weighted):
    """``BCELoss`` of ``sigmoid(input)``, computed in one safe step."""

    pos_weight: Tensor | None = given(None)


class KLDivLoss(_Loss):
    """``target * (log(target) - input)``, for an input of logarithms; ``"batchmean"`` divides the sum by the batch."""

    log_target: bool = False


class PoissonNLLLoss(_Loss):
    """The negative log-likelihood of counts under rates, or with ``log_input`` under their logarithms."""

    log_input: bool = True
    full: bool = False
    eps: float = 1e-8
    reduction: str = "mean"


class HingeEmbeddingLoss(_Loss):
    """The input itself where the target is 1, ``max(0, margin - input)`` where it is -1."""

    margin: float = 1.0
    reduction: str = "mean"


class SoftMarginLoss(_Loss):
    """``log(1 + exp(-target * input))``, for targets of 1 and -1."""


class MultiMarginLoss(_Weighted):
    """How far other classes are not below the label's score by a margin, as a mean over the classes."""

    p: int = 1
    margin: float = 1.0
    weight: Tensor | None = given(None)
    reduction: str = "mean"


class MultiLabelMarginLoss(_Loss):
    """How far other classes are not below the scores of a row's labels by 1. The labels of a row come first, then -1."""


class MultiLabelSoftMarginLoss(_Weighted):
    """``BCEWithLogitsLoss`` of several labels at once, as a mean over the classes."""


class _LossOfThree(_Loss):
    """A loss of three tensors."""

    def forward(self, input1: Tensor, input2: Any, target: Any) -> Tensor:  # type: ignore[override]
        return _nn.loss_of_three(self._layer, self.__dict__, input1, input2, target)


class CosineEmbeddingLoss(_LossOfThree):
    """``1 - cos`` for pairs with target 1, ``max(cos - margin, 0)`` for those with target -1."""

    margin: float = 0.0
    reduction: str = "mean"


class MarginRankingLoss(_LossOfThree):
    """``max(0, -target * (input1 - input2) + margin)``: the first score should be the larger one where the target is 1."""

    margin: float = 0.0
    reduction: str = "mean"


class GaussianNLLLoss(_LossOfThree):
    """The negative log-likelihood of values that have a variance of their own."""

    _: KW_ONLY
    full: bool = False
    eps: float = 1e-6
    reduction: str = "mean"

    def forward(self, input: Tensor, target: Any, var: Any) -> Tensor:  # type: ignore[override]
        return super().forward(input, target, var)


class TripletMarginLoss(_LossOfThree):
    """``max(distance(anchor, positive) - distance(anchor, negative) + margin, 0)``."""

    margin: float = 1.0
    p: float = 2.0
    eps: float = 1e-6
    swap: bool = False
    reduction: str = "mean"

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(anchor, positive, negative)


class CTCLoss(_Loss):
    """The negative log-likelihood of sequences of labels whose places in time are not known.

    Computed on the host: it cannot be captured or compiled.
    """

    blank: int = 0
    reduction: str = "mean"
    zero_infinity: bool = False

    def forward(self, log_probs: Tensor, targets: Any, input_lengths: Any, target_lengths: Any) -> Tensor:  # type: ignore[override]
        return _nn.ctc_loss(self._layer, self.__dict__, log_probs, targets, input_lengths, target_lengths)
