"""Losses as modules; each is the function of the same name in ``netcl.nn.functional`` with its settings kept."""

from __future__ import annotations

from typing import Any

from netcl import autograd as ag
from netcl._netcl import Tensor
from netcl.nn.module import Module

__all__ = [
    "BCELoss",
    "BCEWithLogitsLoss",
    "CosineEmbeddingLoss",
    "CrossEntropyLoss",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "MSELoss",
    "NLLLoss",
    "SmoothL1Loss",
    "TripletMarginLoss",
]


class _Loss(Module):
    """``reduction`` is "mean", "sum" or "none"."""

    _settings: tuple[str, ...] = ("reduction",)

    def __init__(self, reduction: str = "mean") -> None:
        if reduction not in ("mean", "sum", "none") and not (reduction == "batchmean" and isinstance(self, KLDivLoss)):
            raise ValueError(f'{type(self).__name__}: reduction is "mean", "sum" or "none", not {reduction!r}')
        self.reduction = reduction


class MSELoss(_Loss):
    """The square of the difference."""

    def forward(self, input: Tensor, target: Any) -> Tensor:
        return ag.mse_loss(input, target, self.reduction)


class L1Loss(_Loss):
    """The absolute difference."""

    def forward(self, input: Tensor, target: Any) -> Tensor:
        return ag.l1_loss(input, target, self.reduction)


class SmoothL1Loss(_Loss):
    """The absolute difference, rounded off by a parabola where it is below ``beta``."""

    _settings = ("reduction", "beta")

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction)
        self.beta = beta

    def forward(self, input: Tensor, target: Any) -> Tensor:
        return ag.smooth_l1_loss(input, target, self.reduction, self.beta)


class HuberLoss(_Loss):
    """Half the square of the difference below ``delta``, linear above."""

    _settings = ("reduction", "delta")

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        self.delta = delta

    def forward(self, input: Tensor, target: Any) -> Tensor:
        return ag.huber_loss(input, target, self.reduction, self.delta)


class _Weighted(_Loss):
    """A loss with a weight for each class or element, which moves with the module but is not trained."""

    def __init__(self, weight: Any = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self._weights(weight=weight)

    def _weights(self, **given: Any) -> None:
        for name, values in given.items():
            self.register_buffer(name, None if values is None else _constant(values))


def _constant(values: Any) -> Tensor:
    return values.detach() if isinstance(values, Tensor) else Tensor.from_host(None, values)


class CrossEntropyLoss(_Weighted):
    """``-log(softmax(input)[target])`` over axis 1, for class numbers or probabilities as targets."""

    _settings = ("ignore_index", "reduction", "label_smoothing")

    def __init__(
        self,
        weight: Any = None,
        ignore_index: int | None = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(weight, reduction)
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing

    def forward(self, input: Tensor, target: Any) -> Tensor:
        return ag.cross_entropy(input, target, self.weight, self.ignore_index, self.reduction, self.label_smoothing)


class NLLLoss(_Weighted):
    """``-input[target]`` over axis 1, for logarithms of probabilities."""

    _settings = ("ignore_index", "reduction")

    def __init__(self, weight: Any = None, ignore_index: int | None = -100, reduction: str = "mean") -> None:
        super().__init__(weight, reduction)
        self.ignore_index = ignore_index

    def forward(self, input: Tensor, target: Any) -> Tensor:
        return ag.nll_loss(input, target, self.weight, self.ignore_index, self.reduction)


class BCELoss(_Weighted):
    """Cross entropy of probabilities of two classes."""

    def forward(self, input: Tensor, target: Any) -> Tensor:
        return ag.binary_cross_entropy(input, target, self.weight, self.reduction)


class BCEWithLogitsLoss(_Weighted):
    """``BCELoss`` of ``sigmoid(input)``, computed in one safe step."""

    def __init__(self, weight: Any = None, reduction: str = "mean", pos_weight: Any = None) -> None:
        super().__init__(weight, reduction)
        self._weights(pos_weight=pos_weight)

    def forward(self, input: Tensor, target: Any) -> Tensor:
        return ag.binary_cross_entropy_with_logits(input, target, self.weight, self.reduction, self.pos_weight)


class KLDivLoss(_Loss):
    """``target * (log(target) - input)``, for an input of logarithms; ``"batchmean"`` divides the sum by the batch."""

    _settings = ("reduction", "log_target")

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__(reduction)
        self.log_target = log_target

    def forward(self, input: Tensor, target: Any) -> Tensor:
        return ag.kl_div(input, target, self.reduction, self.log_target)


class CosineEmbeddingLoss(_Loss):
    """``1 - cos`` for pairs with target 1, ``max(cos - margin, 0)`` for those with target -1."""

    _settings = ("margin", "reduction")

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.margin = margin

    def forward(self, input1: Tensor, input2: Tensor, target: Any) -> Tensor:
        return ag.cosine_embedding_loss(input1, input2, target, self.margin, self.reduction)


class TripletMarginLoss(_Loss):
    """``max(distance(anchor, positive) - distance(anchor, negative) + margin, 0)``."""

    _settings = ("margin", "p", "eps", "swap", "reduction")

    def __init__(
        self, margin: float = 1.0, p: float = 2.0, eps: float = 1e-6, swap: bool = False, reduction: str = "mean"
    ) -> None:
        super().__init__(reduction)
        self.margin, self.p, self.eps, self.swap = margin, p, eps, swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return ag.triplet_margin_loss(anchor, positive, negative, self.margin, self.p, self.eps, self.swap, self.reduction)
