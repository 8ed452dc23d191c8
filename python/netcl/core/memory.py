"""Pools of device and page-locked memory, their leases and counters, and helpers for host memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from netcl._netcl import (
    BufferHandle,
    BufferPool,
    PersistentBufferPool,
    PinnedBufferPool,
    PoolStats,
    create_pinned_buffer,
    create_zero_copy_buffer,
    get_persistent_pool,
    get_pinned_pool,
    has_svm_support,
    is_integrated_gpu,
)

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

__all__ = [
    "BufferHandle",
    "BufferPool",
    "PersistentBufferPool",
    "PinnedBufferPool",
    "PoolStats",
    "aligned_array",
    "create_pinned_buffer",
    "create_zero_copy_buffer",
    "get_persistent_pool",
    "get_pinned_pool",
    "has_svm_support",
    "is_integrated_gpu",
]


def aligned_array(
    shape: int | Sequence[int], dtype: DTypeLike = "float32", alignment: int = 4096
) -> NDArray[Any]:
    """An array of zeros whose first byte lies at a multiple of ``alignment`` (a power of two): what
    ``create_zero_copy_buffer`` asks for on every device we know."""
    import numpy as np

    if alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"aligned_array: alignment {alignment} is not a power of two")
    kind = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    memory = np.zeros(count * kind.itemsize + alignment, dtype=np.uint8)
    start = -memory.ctypes.data % alignment
    return memory[start : start + count * kind.itemsize].view(kind).reshape(shape)
