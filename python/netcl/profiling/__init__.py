"""Measuring: which kernels are the fastest on a device."""

from __future__ import annotations

from netcl.profiling import autotuner
from netcl.profiling.autotuner import autotune_conv2d, autotune_matmul

__all__ = ["autotune_conv2d", "autotune_matmul", "autotuner"]
