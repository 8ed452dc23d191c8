"""Operations of one's own."""

from __future__ import annotations

from typing import Any

from netcl._netcl import Tensor
from netcl._netcl.autograd import apply_function, tensor

__all__ = ["Function", "Variable"]


class Function:
    """An operation with a gradient of its own: the way to put a hand-written kernel into a network.

    Write the two static methods and call ``apply``:

        class Square(Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return ops.square(x)

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                return grad * x * 2.0

        y = Square.apply(x)

    ``forward`` takes the context and any arguments, runs without recording, and returns one tensor. ``backward`` takes the
    context and the gradient of that tensor and returns one gradient per argument of ``forward``, None for those that have
    none. Written with operations of ``netcl.autograd`` it can be differentiated again. ``gradcheck`` holds the one against the
    other.
    """

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        """The result."""
        raise NotImplementedError("a Function needs a static method forward(ctx, ...)")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """The gradients of the arguments."""
        raise NotImplementedError("a Function needs a static method backward(ctx, grad)")

    @classmethod
    def apply(cls, *args: Any) -> Tensor:
        """Runs ``forward`` and records the operation."""
        return apply_function(cls, *args)


def Variable(data: Tensor, requires_grad: bool = False) -> Tensor:
    """The tensor itself, or with ``requires_grad`` a leaf over its memory: a name of PyTorch's older programs."""
    return tensor(data, requires_grad=True) if requires_grad else data
