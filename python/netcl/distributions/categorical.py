"""Distributions over classes and truth values."""

from __future__ import annotations

from typing import Any

from netcl import _factories as make
from netcl._netcl import Tensor
from netcl.autograd import ops
from netcl.autograd.tape import no_grad
from netcl.distributions.distribution import Distribution, broadcast

__all__ = ["Bernoulli", "Categorical"]


class Categorical(Distribution):
    """Indices of classes with the ``probs`` (or their ``logits``) along the last axis."""

    def __init__(self, probs: Tensor | None = None, logits: Tensor | None = None, validate_args: bool | None = None) -> None:
        given = probs if logits is None else logits
        if given is None or (probs is not None and logits is not None):
            raise ValueError("Categorical: give either probs or logits")
        if given.ndim < 1:
            raise ValueError("Categorical: the probabilities have at least one axis")
        if logits is None:
            self.probs = given / ops.sum(given, -1, True)
            # PyTorch's bounds: what cannot happen has a finite logarithm.
            eps = {"float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}.get(given.dtype, 2.0**-23)
            self.logits = ops.log(ops.clamp(self.probs, eps, 1 - eps))
        else:
            self.logits = given - ops.logsumexp(given, -1, True)
            self.probs = ops.softmax(self.logits, -1)
        super().__init__(given.shape[:-1])

    def sample(self, sample_shape: Any = ()) -> Tensor:
        count = 1
        for length in sample_shape:
            count *= length
        with no_grad():
            rows = ops.reshape(self.probs.detach(), (-1, self.probs.shape[-1]))
            drawn = ops.multinomial(rows, count, True)
            return ops.reshape(drawn.T.contiguous(), self._shape(sample_shape))

    def log_prob(self, value: Any) -> Tensor:
        value = value if isinstance(value, Tensor) else make.tensor(value, device=self.logits.queue)
        whole = value.to(dtype="int64") if value.is_floating_point() else value
        shape = (whole + make.zeros(self.batch_shape, dtype="int64", device=whole.queue)).shape
        logits = ops.expand(self.logits, (*shape, self.logits.shape[-1]))
        return ops.squeeze(ops.gather(logits, -1, ops.unsqueeze(ops.expand(whole, shape), -1)), -1)

    def entropy(self) -> Tensor:
        lowest = ops.clamp(self.logits, min=-3.4e38 if self.logits.dtype == "float32" else -6e4)
        return -ops.sum(self.probs * lowest, -1)

    @property
    def mode(self) -> Tensor:
        """The likeliest class."""
        return ops.argmax(self.probs, -1)


class Bernoulli(Distribution):
    """1 with the probability ``probs`` (or its ``logits``), else 0."""

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        if (probs is None) == (logits is None):
            raise ValueError("Bernoulli: give either probs or logits")
        if logits is None:
            (self.probs,) = broadcast(probs)
            eps = 2.0**-52 if self.probs.dtype == "float64" else 2.0**-23
            held = ops.clamp(self.probs, eps, 1 - eps)
            self.logits = ops.log(held) - ops.log1p(-held)
        else:
            (self.logits,) = broadcast(logits)
            self.probs = ops.sigmoid(self.logits)
        super().__init__(self.probs.shape)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with no_grad():
            return make.bernoulli(ops.expand(self.probs.detach(), self._shape(sample_shape)))

    def log_prob(self, value: Any) -> Tensor:
        (value,) = broadcast(value)
        found: Tensor = (value - 1) * self.logits - ops.softplus(-self.logits)
        # Where the logit is far below 0, the other of two equal forms is the exact one.
        other: Tensor = value * self.logits - ops.softplus(self.logits)
        return ops.where(self.logits < 0, other, found)

    def entropy(self) -> Tensor:
        found: Tensor = ops.softplus(self.logits) - self.probs * self.logits
        return found

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)
