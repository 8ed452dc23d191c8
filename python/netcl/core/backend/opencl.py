"""The OpenCL backend: its objects, and the transport that moves data between host and device.

The objects (``Platform``, ``Device``, ``Context``, ``CommandQueue``, ``Buffer``, ``Event``, ``Program``, ``Kernel``) are thin
owners of the driver's. Each has ``int_ptr``, so that PyOpenCL can wrap it with ``from_int_ptr``; and wherever netcl takes one
of them it takes PyOpenCL's as well. PyOpenCL itself is not needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from netcl._netcl import (
    Buffer,
    BufferHandle,
    CommandQueue,
    Context,
    Device,
    Event,
    EventProfile,
    Kernel,
    Platform,
    Program,
    Tensor,
    interruptible_finish,
)
from netcl.core.device import manager

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = [
    "Buffer",
    "CommandQueue",
    "Context",
    "Device",
    "Event",
    "EventProfile",
    "Kernel",
    "OpenCLBackend",
    "Platform",
    "Program",
    "interruptible_finish",
]


class OpenCLBackend:
    """The transport of one queue: what ``Tensor`` does with buffers, for those who hold buffers themselves.

    A buffer keeps its memory for as long as it lives; dropping it gives the memory back to the queue's pool. An empty shape
    needs no buffer and has ``None`` instead.
    """

    name = "cl"

    def __init__(self, queue: Any = None) -> None:
        if queue is None:
            handle = manager.default("opencl")
            if handle is None:
                raise RuntimeError("OpenCLBackend: there is no OpenCL device; use netcl.core.backend.cpu.CPUBackend")
            queue = handle.queue
        # A tensor without elements costs nothing and turns any queue (PyOpenCL's, a handle's) into ours, or says why not.
        self.queue: CommandQueue = Tensor.from_shape(queue, (0,), backend="cl").queue

    def from_host(
        self,
        data: ArrayLike,
        dtype: str = "float32",
        async_copy: bool | None = None,
        use_pinned: bool | None = None,
    ) -> tuple[Buffer | None, Event | None, BufferHandle | None, NDArray[Any] | None]:
        """Copies data to the device: ``(buffer, event, pending_release, host_ref)``.

        The event (``None``: the copy is done) marks the copy as complete; ``pending_release`` is the page-locked memory it goes
        through and ``host_ref`` the snapshot it reads where it goes through none. Hand the event and the lease to ``wait``.
        """
        tensor = Tensor.from_host(self.queue, data, dtype=dtype, async_copy=async_copy, use_pinned=use_pinned)
        event, release, snapshot = tensor.pending_event, tensor.pending_release, tensor.host_ref
        return tensor.buffer, event, release, snapshot

    def from_shape(self, shape: Sequence[int], dtype: str = "float32", fill: float = 0, pool: Any = None) -> Buffer | None:
        """A filled buffer from the queue's pool, or from another pool."""
        return Tensor.from_shape(self.queue, shape, dtype=dtype, fill=fill, pool=pool).buffer

    def to_host(self, buffer: Any, shape: Sequence[int], dtype: str = "float32") -> NDArray[Any]:
        """The values as an ndarray, after everything enqueued so far."""
        return self._tensor(buffer, shape, dtype).to_host()

    def to_host_async(
        self, buffer: Any, shape: Sequence[int], dtype: str = "float32"
    ) -> tuple[NDArray[Any], Event | None]:
        """An ndarray, and the event after which it holds the values (``None``: it does already)."""
        return self._tensor(buffer, shape, dtype).to_host_async()

    def wait(self, event: Any = None, pending_release: BufferHandle | None = None) -> None:
        """Waits for an event, or for the whole queue, then releases page-locked memory."""
        if event is None:
            self.queue.finish()
        else:
            event.wait()
        if pending_release is not None:
            pending_release.release()

    def reshape(self, buffer: Any, shape: Sequence[int]) -> Any:
        """The buffer itself: shapes are a matter of how it is read."""
        return buffer

    def _tensor(self, buffer: Any, shape: Sequence[int], dtype: str) -> Tensor:
        return Tensor(buffer=buffer, shape=shape, dtype=dtype, queue=self.queue)
