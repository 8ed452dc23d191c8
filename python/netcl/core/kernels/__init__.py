"""Writing kernels of one's own."""

from netcl.core.kernels.primitives import PRIMITIVE_PREAMBLE, KernelSpec, PrimitiveBuilder, WorkGroupTuner

__all__ = ["PRIMITIVE_PREAMBLE", "KernelSpec", "PrimitiveBuilder", "WorkGroupTuner"]
