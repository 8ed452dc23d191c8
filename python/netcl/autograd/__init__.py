"""Automatic differentiation: recorded operations, the tape, and operations of one's own.

    import netcl.autograd as ag

    with ag.Tape() as tape:
        loss = ag.mse_loss(ag.linear(x, weight, bias), target)
    tape.backward(loss)

Every operation here that consumes a tensor with ``requires_grad`` is recorded, inside a ``Tape`` or not. ``netcl.ops`` has the
same operations without recording.
"""

from typing import TYPE_CHECKING

from netcl._lazy import attributes
from netcl._netcl.autograd import (
    FunctionContext as FunctionContext,
    HookHandle as HookHandle,
    Node as Node,
    backward as backward,
    checkpoint as checkpoint,
    grad as grad,
    gradcheck as gradcheck,
    gradgradcheck as gradgradcheck,
    is_grad_enabled as is_grad_enabled,
    tensor as tensor,
)
from netcl.autograd.function import Function as Function, Variable as Variable
from netcl.autograd.ops import *
from netcl.autograd.tape import (
    Tape as Tape,
    detect_anomaly as detect_anomaly,
    enable_grad as enable_grad,
    inference_mode as inference_mode,
    no_grad as no_grad,
    set_detect_anomaly as set_detect_anomaly,
    set_grad_enabled as set_grad_enabled,
)

if TYPE_CHECKING:
    from netcl.autograd import functional as functional
    from netcl.autograd.compiler import Compiled as Compiled, jit as jit, jit_compile as jit_compile
else:
    _compiler = dict.fromkeys(["Compiled", "jit", "jit_compile"], "netcl.autograd.compiler")
    __getattr__, __dir__ = attributes(__name__, ["functional"], **_compiler)
    del _compiler
del TYPE_CHECKING, attributes
