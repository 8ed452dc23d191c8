"""Device discovery and selection, the thread's active device, and the native CPU's queue."""

from netcl._netcl import CPUDevice, CPUPlatform, CPUQueue, DeviceHandle, DeviceManager, device, get_active_device

__all__ = [
    "CPUDevice",
    "CPUPlatform",
    "CPUQueue",
    "DeviceHandle",
    "DeviceManager",
    "device",
    "get_active_device",
    "manager",
]

manager = DeviceManager()
"""The process-wide device manager."""
