"""Which kernel variant runs a problem on a device, and with which tiles."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from netcl._netcl import KernelSelector, get_kernel_selector

__all__ = [
    "KernelConfig",
    "KernelSelector",
    "KernelVariant",
    "get_kernel_selector",
    "select_conv2d_config",
    "select_matmul_config",
]


class KernelVariant(Enum):
    """Every implementation the selector knows about."""

    MATMUL_NAIVE = "matmul_naive"
    MATMUL_TILED = "matmul_tiled"
    MATMUL_REGISTER_TILED = "matmul_register_tiled"
    MATMUL_VECTORIZED = "matmul_vectorized"
    MATMUL_STRIP = "matmul_strip"
    MATMUL_MMA = "matmul_mma"
    MATMUL_MMA_SPLIT = "matmul_mma_split"
    MATMUL_WGMMA = "matmul_wgmma"
    MATMUL_WGMMA_SPLIT = "matmul_wgmma_split"
    CONV2D_NAIVE = "conv2d_naive"
    CONV2D_IM2COL = "conv2d_im2col"
    CONV2D_IMPLICIT_GEMM = "conv2d_implicit_gemm"
    CONV2D_TILED_LOCAL = "conv2d_tiled_local"
    CONV2D_WINOGRAD = "conv2d_winograd"
    CONV2D_DEPTHWISE = "conv2d_depthwise"
    CONV2D_UNITS = "conv2d_units"
    ELEMENTWISE_SCALAR = "elementwise_scalar"
    ELEMENTWISE_VECTORIZED = "elementwise_vectorized"
    REDUCTION_SEQUENTIAL = "reduction_sequential"
    REDUCTION_PARALLEL = "reduction_parallel"
    REDUCTION_WORKGROUP = "reduction_workgroup"
    BATCHNORM_NAIVE = "batchnorm_naive"
    BATCHNORM_FUSED = "batchnorm_fused"


@dataclass
class KernelConfig:
    """The tile and launch parameters of a chosen kernel."""

    variant: KernelVariant
    tile_m: int = 32
    tile_n: int = 32
    tile_k: int = 8
    work_per_thread: int = 4
    local_size_1d: int = 256
    local_size_2d: tuple[int, int] = (16, 16)
    use_local_memory: bool = True
    use_vectorization: bool = True
    vector_width: int = 4
    extra: dict[str, Any] = field(default_factory=dict)


def select_matmul_config(M: int, N: int, K: int, dtype: str = "float32") -> KernelConfig:
    """The matmul kernel of the active or default device."""
    return get_kernel_selector().select_matmul_kernel(M, N, K, dtype)


def select_conv2d_config(*args: Any, **kwargs: Any) -> KernelConfig:
    """The convolution kernel of the active or default device; takes what ``select_conv2d_kernel`` takes."""
    return get_kernel_selector().select_conv2d_kernel(*args, **kwargs)
