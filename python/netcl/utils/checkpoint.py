"""PyTorch's place for ``checkpoint``: less memory for more arithmetic, as ``netcl.autograd.checkpoint``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from netcl import autograd as ag
from netcl._netcl import Tensor

__all__ = ["checkpoint"]


def checkpoint(
    function: Callable[..., Tensor], *args: Any, use_reentrant: bool | None = None, preserve_rng_state: bool = True
) -> Tensor:
    """Runs ``function(*args)`` without keeping what its backward pass needs, and runs it again when the walk gets there.

    Random numbers are drawn again from where they were, and gradients are the same bit for bit, those of tensors that the
    function captures as well. Both options are PyTorch's: the way it works is neither of PyTorch's two, and random numbers
    always repeat.
    """
    if not preserve_rng_state:
        raise ValueError("checkpoint: preserve_rng_state=False is not supported; dropout must drop the same values again")
    return ag.checkpoint(function, *args)
