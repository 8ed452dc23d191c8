"""PyTorch's place for ``netcl.nn.Parameter``."""

from netcl.nn.module import Parameter

__all__ = ["Parameter"]
