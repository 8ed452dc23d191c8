"""Automatic differentiation: recorded operations, the tape, and operations of one's own.

    import netcl.autograd as ag

    with ag.Tape() as tape:
        loss = ag.mse_loss(ag.linear(x, weight, bias), target)
    tape.backward(loss)

Every operation here that consumes a tensor with ``requires_grad`` is recorded, inside a ``Tape`` or not. ``netcl.ops`` has the
same operations without recording.
"""

from netcl._netcl.autograd import (
    FunctionContext,
    HookHandle,
    Node,
    backward,
    checkpoint,
    grad,
    gradcheck,
    gradgradcheck,
    is_grad_enabled,
    tensor,
)
from netcl.autograd import ops
from netcl.autograd.function import Function
from netcl.autograd.compiler import Compiled, jit, jit_compile
from netcl.autograd.ops import *  # noqa: F403
from netcl.autograd.tape import Tape, detect_anomaly, enable_grad, no_grad

__all__ = [
    "Compiled",
    "Function",
    "FunctionContext",
    "HookHandle",
    "Node",
    "Tape",
    "backward",
    "checkpoint",
    "detect_anomaly",
    "enable_grad",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "is_grad_enabled",
    "jit",
    "jit_compile",
    "no_grad",
    "tensor",
    *ops.__all__,
]
