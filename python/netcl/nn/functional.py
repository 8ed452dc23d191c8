"""The recorded operations as functions, under PyTorch's name for the place: ``from netcl.nn import functional as F``."""

from netcl.autograd import ops as _ops
from netcl.autograd.ops import *  # noqa: F403

__all__ = list(_ops.__all__)
