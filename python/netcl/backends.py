"""PyTorch's place for switches of its libraries. Results here repeat to the bit anyway, and kernels are chosen once."""

from types import SimpleNamespace

__all__ = ["cuda", "cudnn", "mps"]

cudnn = SimpleNamespace(enabled=False, benchmark=False, deterministic=True, allow_tf32=False)
"""Can be set as in PyTorch, which changes nothing."""
cuda = SimpleNamespace(matmul=SimpleNamespace(allow_tf32=False))
"""Can be set as in PyTorch, which changes nothing: ``netcl.set_matmul_precision`` does."""
mps = SimpleNamespace(is_available=lambda: False, is_built=lambda: False)
"""Not here: an Apple GPU is ``"gpu"``."""
