"""The operations at the top level of the package: those of ``netcl.autograd``, which record, with ``netcl.ops``'s ``out=``."""

from __future__ import annotations

from typing import Any

from netcl import ops
from netcl._netcl import Tensor
from netcl._netcl.autograd import elementwise, is_grad_enabled
from netcl.autograd import bias_add, conv2d, matmul as _matmul, softmax, sum as reduce_sum
from netcl.ops.elementwise import SYMBOLS

__all__ = ["bias_add", "conv2d", "elementwise_binary", "matmul", "reduce_sum", "relu", "softmax"]


def _check_out(op: str, *tensors: Any) -> None:
    """What is written into given memory cannot be recorded: an error where a gradient is wanted."""
    if is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in tensors):
        raise ValueError(
            f"{op}: out= cannot be recorded, and a tensor here requires a gradient; leave out= away, or call it under no_grad"
        )


def matmul(
    a: Tensor, b: Tensor, *, transpose_a: bool = False, transpose_b: bool = False, out: Tensor | None = None
) -> Tensor:
    """The matrix product by NumPy's rules: the last two axes are multiplied, axes before them broadcast.

    Recorded. ``out`` is for tensors without a gradient, or ``no_grad``.
    """
    if out is None:
        return _matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    _check_out("matmul", a, b, out)
    return ops.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b, out=out)


def relu(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``max(x, 0)``; NaN stays NaN. Recorded. ``out`` is for tensors without a gradient, or ``no_grad``."""
    if out is None:
        return elementwise("relu", x)
    _check_out("relu", x, out)
    return ops.relu(x, out=out)


def elementwise_binary(a: Any, b: Any, op: str = "add", *, out: Tensor | None = None) -> Tensor:
    """A two-operand operation by its name (``"add"``, ``"mul"``, ...) or symbol (``"+"``, ``"*"``, ...).

    Recorded. ``out`` is for tensors without a gradient, or ``no_grad``.
    """
    if out is None:
        return elementwise(SYMBOLS.get(op, op), a, b)
    _check_out(op, a, b, out)
    return ops.elementwise_binary(a, b, op, out=out)
