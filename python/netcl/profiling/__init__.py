"""Measuring: where the time and the memory of a program go, and which kernels are the fastest on a device."""

from __future__ import annotations

from netcl.profiling import autotuner
from netcl.profiling._profile import (
    Command,
    EventTimer,
    Holder,
    KernelRow,
    LineRow,
    Memory,
    ModuleRow,
    ProfileRecord,
    profile,
)
from netcl.profiling.autotuner import autotune_conv2d, autotune_matmul

__all__ = [
    "Command",
    "EventTimer",
    "Holder",
    "KernelRow",
    "LineRow",
    "Memory",
    "ModuleRow",
    "ProfileRecord",
    "autotune_conv2d",
    "autotune_matmul",
    "autotuner",
    "profile",
]
