"""What distributions have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netcl import _factories as make
from netcl._netcl import Tensor
from netcl.autograd import ops
from netcl.autograd.tape import no_grad

__all__ = ["Distribution", "broadcast"]


def broadcast(*values: Any) -> tuple[Tensor, ...]:
    """Parameters as tensors of one shape: numbers and tensors that broadcast together."""
    near = next((value for value in values if isinstance(value, Tensor)), None)
    device, dtype = (None, "float32") if near is None else (near.queue, near.dtype)
    tensors = [v if isinstance(v, Tensor) else make.tensor(float(v), dtype=dtype, device=device) for v in values]
    return tuple(ops.broadcast_tensors(*tensors))


class Distribution:
    """A family of random numbers: ``sample``, ``rsample`` with gradients, ``log_prob``, ``entropy``, ``mean``, ``variance``.

    ``batch_shape`` counts distributions, ``event_shape`` is that of one draw of one of them.
    """

    has_rsample = False

    def __init__(
        self, batch_shape: Sequence[int] = (), event_shape: Sequence[int] = (), validate_args: bool | None = None
    ) -> None:
        self.batch_shape, self.event_shape = tuple(batch_shape), tuple(event_shape)

    def _shape(self, sample_shape: Any) -> tuple[int, ...]:
        return (*sample_shape, *self.batch_shape, *self.event_shape)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws, without gradients."""
        with no_grad():
            return self.rsample(sample_shape).detach()

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draws through which gradients reach the parameters."""
        raise NotImplementedError(f"{type(self).__name__} has no rsample: its draws have no gradient; use sample")

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the probability, or of its density."""
        raise NotImplementedError(f"{type(self).__name__} has no log_prob")

    def entropy(self) -> Tensor:
        """The mean of ``-log_prob``."""
        raise NotImplementedError(f"{type(self).__name__} has no entropy")

    @property
    def mean(self) -> Tensor:
        """The mean."""
        raise NotImplementedError(f"{type(self).__name__} has no mean")

    @property
    def variance(self) -> Tensor:
        """The variance."""
        raise NotImplementedError(f"{type(self).__name__} has no variance")

    @property
    def stddev(self) -> Tensor:
        """The standard deviation."""
        return ops.sqrt(self.variance)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_shape: {self.batch_shape}, event_shape: {self.event_shape})"
