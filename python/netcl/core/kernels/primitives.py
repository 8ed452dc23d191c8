"""From a string to a running OpenCL kernel: specs, programs, work-group sizes, elementwise kernels from expressions."""

from netcl._netcl import (
    PRIMITIVE_PREAMBLE,
    KernelFunction,
    KernelProgram,
    KernelSpec,
    LocalMemory,
    PrimitiveBuilder,
    WorkGroupTuner,
    build_elementwise_kernel,
)

__all__ = [
    "PRIMITIVE_PREAMBLE",
    "KernelFunction",
    "KernelProgram",
    "KernelSpec",
    "LocalMemory",
    "PrimitiveBuilder",
    "WorkGroupTuner",
    "build_elementwise_kernel",
]
