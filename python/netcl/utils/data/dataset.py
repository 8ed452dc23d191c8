"""PyTorch's place for data sets."""

from netcl.data import *
