"""PyTorch's place for questions about GPUs. ``"cuda"`` is the best GPU here, of whatever vendor."""

from __future__ import annotations

from typing import Any

from netcl import amp as amp
from netcl._factories import manual_seed
from netcl.core.device import device as _device, manager as _manager

__all__ = [
    "amp", "current_device", "device_count", "empty_cache", "get_device_name", "is_available", "manual_seed",
    "manual_seed_all", "synchronize",
]  # fmt: skip

manual_seed_all = manual_seed
"""Another name of ``manual_seed``: one generator serves all devices."""


def is_available() -> bool:
    """Whether there is a GPU."""
    return _manager.default("gpu") is not None


def device_count() -> int:
    """The number of GPUs."""
    return sum(_manager._device_type(dev) == "gpu" for _, dev in _manager.discover())


def current_device() -> int:
    """0: the best GPU."""
    return 0


def get_device_name(device: Any = None) -> str:
    """The name of the GPU."""
    return str(_device("gpu" if device is None or isinstance(device, int) else device).handle.device_name)


def synchronize(device: Any = None) -> None:
    """Waits until the GPU has done all that it was given; does nothing without one."""
    handle = _manager.default("gpu")
    if handle is not None:
        handle.queue.finish()


def empty_cache() -> None:
    """Does nothing: pools trim themselves when memory runs out."""
