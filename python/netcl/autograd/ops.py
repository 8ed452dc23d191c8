"""The recorded operations: each is an operation of ``netcl.ops`` and the rule for its gradient."""

from netcl._netcl import reshape as reshape
from netcl._netcl.functions import *
from netcl.autograd.elementwise import *

matmul_op = matmul
"""Another name of ``matmul``."""

upsample = interpolate
"""Another name of ``interpolate``."""
