"""The native CPU backend, with ndarrays as its storage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from netcl._netcl import CPUBuffer, CPUQueue, Tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike

__all__ = ["CPUBackend", "CPUBuffer", "CPUQueue"]


class CPUBackend:
    """The same interface as ``OpenCLBackend``; what it hands out are ndarrays over the backend's aligned memory."""

    name = "cpu"

    def __init__(self, queue: CPUQueue | None = None) -> None:
        self.queue = CPUQueue() if queue is None else queue

    def from_host(self, data: ArrayLike, dtype: str = "float32") -> np.ndarray[Any, Any]:
        """A copy of the data in the backend's memory."""
        return self._array(Tensor.from_host(self.queue, data, dtype=dtype))

    def from_shape(self, shape: Sequence[int], dtype: str = "float32", fill: float = 0) -> np.ndarray[Any, Any]:
        """A filled array in the backend's memory."""
        return self._array(Tensor.from_shape(self.queue, shape, dtype=dtype, fill=fill))

    def to_host(self, array: np.ndarray[Any, Any], shape: Sequence[int], dtype: str) -> np.ndarray[Any, Any]:
        """The array itself; a view of it where the shape differs."""
        if array.dtype.name != dtype_name(dtype):
            raise ValueError(f"to_host: the array holds {array.dtype.name}, not {dtype_name(dtype)}")
        return array if array.shape == tuple(shape) else array.reshape(shape)

    def to_host_async(
        self, array: np.ndarray[Any, Any], shape: Sequence[int], dtype: str
    ) -> tuple[np.ndarray[Any, Any], None]:
        """Like ``to_host``, with the event of the copy: there is none."""
        return self.to_host(array, shape, dtype), None

    def wait(self, event: object = None) -> None:
        """Returns at once: nothing is ever outstanding."""

    def reshape(self, array: np.ndarray[Any, Any], shape: Sequence[int]) -> np.ndarray[Any, Any]:
        """A view with another shape."""
        return array.reshape(shape)

    @staticmethod
    def _array(tensor: Tensor) -> np.ndarray[Any, Any]:
        if tensor.array is None:
            raise ValueError("NumPy has no bfloat16, so CPUBackend cannot hold it; use Tensor")
        return tensor.array


def dtype_name(dtype: str) -> str:
    """The canonical name of a dtype: ``"half"`` is ``"float16"``."""
    return Tensor.from_shape(CPUQueue(), (0,), dtype=dtype).dtype
