"""The Tensor class and the free function ``reshape``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from netcl._netcl import IndexTensor, Tensor, from_dlpack, reshape

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Tensor", "from_dlpack", "reshape"]


def _rebuild(values: np.ndarray[Any, Any], state: dict[str, Any]) -> Tensor:
    """Unpickles a tensor, on the active or default device."""
    if values.dtype.kind in "ib":
        return IndexTensor.from_host(None, values, dtype=state["dtype"])
    tensor = Tensor.from_host(None, values, dtype=state["dtype"])
    tensor.requires_grad = state["requires_grad"]
    return tensor
