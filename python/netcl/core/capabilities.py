"""What a device can do: a frozen profile, and the family of kernels that suits it."""

from netcl._netcl import DeviceProfile, device_profile, kernel_strategy

__all__ = ["DeviceProfile", "device_profile", "kernel_strategy"]
