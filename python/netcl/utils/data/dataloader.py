"""PyTorch's place for ``DataLoader``."""

from netcl.data import *
