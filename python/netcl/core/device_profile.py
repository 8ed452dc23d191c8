"""More about a device than ``netcl.core.capabilities``: its family and the figures that kernels are ranked with."""

from netcl._netcl import ExtendedDeviceProfile, extended_device_profile

__all__ = ["ExtendedDeviceProfile", "extended_device_profile"]
