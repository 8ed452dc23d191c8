"""PyTorch's names for places: ``netcl.utils.data`` has what ``netcl.data`` has."""

from netcl.utils import checkpoint as checkpoint, data as data, dlpack as dlpack
