"""PyTorch's place for samplers."""

from netcl.data import *
