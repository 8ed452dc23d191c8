"""Launches that are kept as they run, to be run again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from netcl._netcl.runtime import KernelCapture as _KernelCapture, capture_disabled

__all__ = ["CapturedKernelLaunch", "KernelCapture", "capture_disabled", "get_capture"]


@dataclass
class CapturedKernelLaunch:
    """One launch that was kept: what ran, where, over how many work-items, with which arguments.

    A launch of netcl's own has an OpenCL ``Kernel`` and buffers; on the native CPU the kernel is its name, and the buffers are
    arrays of bytes.
    """

    kernel: Any
    queue: Any
    global_size: tuple[int, ...]
    local_size: tuple[int, ...] | None
    args: tuple[Any, ...]


class KernelCapture(_KernelCapture):
    """Runs launches and keeps them, between ``begin()`` and ``end()``, to be run again on the same memory.

    Launches of this thread are kept that go through netcl: of every operation, of kernels of one's own, and whatever is given
    to ``record``, such as a kernel of PyOpenCL's.
    """

    def __init__(self) -> None:
        self._recorded: dict[int, CapturedKernelLaunch] = {}
        # What stands for what in the replay under way, for kernels of other libraries.
        self._exchanged: dict[int, Any] = {}

    def begin(self) -> None:
        """Starts to keep the launches of this thread; what was kept before is forgotten."""
        self._recorded.clear()
        super().begin()

    def record(self, kernel: Any, queue: Any, global_size: Any, local_size: Any, *args: Any) -> Any:
        """Runs ``kernel(queue, global_size, local_size, *args)``, keeps it after ``begin()``, and returns its event."""
        at = self.num_launches
        event = kernel(queue, global_size, local_size, *args)
        if self.is_recording:
            launch = CapturedKernelLaunch(kernel, queue, global_size, local_size, args)
            if self.num_launches == at:
                self._keep_foreign(launch)
            self._recorded[at] = launch
        return self.event_of(queue) if event is None else event

    def _keep_foreign(self, launch: CapturedKernelLaunch) -> None:
        exchanged = self._exchanged

        def again() -> None:
            args = (exchanged.get(getattr(arg, "int_ptr", -1), arg) for arg in launch.args)
            launch.kernel(launch.queue, launch.global_size, launch.local_size, *args)

        self.keep(again)

    def replay_with_new_buffers(self, buffer_map: Mapping[int, Any]) -> None:
        """Replays with other buffers in the place of some, this time only.

        ``buffer_map`` maps a buffer's address (``tensor.buffer.int_ptr``) to the buffer or tensor that is to be used instead.
        """
        self._exchanged.update(buffer_map)
        try:
            super().replay_with_new_buffers(dict(buffer_map))
        finally:
            self._exchanged.clear()

    def clear(self) -> None:
        """Forgets everything, also what is being kept."""
        self._recorded.clear()
        super().clear()

    @property
    def launches(self) -> list[CapturedKernelLaunch]:
        """The launches that were kept, in order; empty before ``end()``."""
        launches = []
        for at, found in enumerate(self.described()):
            if at in self._recorded or found is None:
                launches.append(self._recorded[at])
            else:
                name, kernel, *rest = found
                launches.append(CapturedKernelLaunch(name if kernel is None else kernel, *rest))
        return launches

    @property
    def names(self) -> list[str]:
        """The names of the launches that were kept."""
        names = (None if found is None else found[0] for found in self.described())
        return [name or self._recorded[at].kernel.function_name for at, name in enumerate(names)]


_capture: KernelCapture | None = None


def get_capture() -> KernelCapture:
    """One ``KernelCapture`` for the whole process, made when it is first asked for."""
    global _capture
    if _capture is None:
        _capture = KernelCapture()
    return _capture
