"""Labels and indices: whole numbers that are not differentiated."""

from netcl._netcl import IndexTensor

__all__ = ["IndexTensor"]
