"""PyTorch's place for ``netcl.data``."""

from netcl.data import *
