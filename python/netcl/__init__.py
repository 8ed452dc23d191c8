"""netcl: deep learning on any OpenCL device, or on none.

The subpackages mirror the documentation: ``netcl.core.tensor``, ``netcl.core.device``, and so on. Importing this package
needs neither NumPy's nor OpenCL's attention; both are looked up when first used.
"""

from netcl import amp, autograd, data, io, nn, ops, optim, runtime
from netcl._functions import bias_add, conv2d, elementwise_binary, matmul, reduce_sum, relu, softmax
from netcl._netcl import (
    BuildError,
    IndexTensor,
    KernelSpec,
    Tensor,
    __version__,
    device,
    from_dlpack,
    get_matmul_precision,
    manual_seed,
    num_threads,
    reshape,
    set_matmul_precision,
    set_num_threads,
)
from netcl.core.device import manager
from netcl.ops import build_matmul_kernel

__all__ = [
    "BuildError",
    "IndexTensor",
    "KernelSpec",
    "Tensor",
    "__version__",
    "amp",
    "autograd",
    "bias_add",
    "build_matmul_kernel",
    "conv2d",
    "data",
    "device",
    "elementwise_binary",
    "from_dlpack",
    "get_matmul_precision",
    "io",
    "manager",
    "manual_seed",
    "matmul",
    "nn",
    "num_threads",
    "ops",
    "optim",
    "reduce_sum",
    "relu",
    "reshape",
    "runtime",
    "set_matmul_precision",
    "set_num_threads",
    "softmax",
]
