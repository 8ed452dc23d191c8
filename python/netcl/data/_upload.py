"""Batches on a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from netcl.core.index import IndexTensor
from netcl.core.tensor import Tensor

__all__ = ["upload"]


def upload(batch: Any, queue: Any) -> Any:
    """A batch with its arrays on the queue's device.

    Floats, bytes (images) and booleans become a ``Tensor``, whole numbers of other types (labels, tokens) an ``IndexTensor``;
    texts stay as they are.
    """
    import numpy as np

    if isinstance(batch, np.ndarray):
        if batch.dtype.kind in "iu" and batch.dtype != np.uint8:
            return IndexTensor.from_host(queue, batch, dtype="int32" if batch.dtype == np.int32 else "int64")
        return Tensor.from_host(queue, batch)
    if isinstance(batch, Mapping):
        return {key: upload(value, queue) for key, value in batch.items()}
    if isinstance(batch, list):
        return [upload(value, queue) for value in batch]
    if isinstance(batch, tuple):
        fields = (upload(value, queue) for value in batch)
        return type(batch)(*fields) if hasattr(batch, "_fields") else tuple(fields)
    return batch
