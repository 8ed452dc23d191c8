"""Gradients and parameters of many tensors at once, under PyTorch's names."""

from __future__ import annotations

import math
from collections.abc import Iterable

from netcl._netcl import Tensor
from netcl.autograd import cat, clamp, norm, stack
from netcl.autograd.tape import no_grad
from netcl.nn.utils import parametrizations, parametrize, rnn
from netcl.nn.utils._named import remove_weight_norm, weight_norm
from netcl.nn.utils.parametrizations import spectral_norm
from netcl.optim import clip_grad_norm, clip_grad_value

__all__ = [
    "clip_grad_norm_", "clip_grad_value_", "get_total_norm", "parameters_to_vector", "parametrizations", "parametrize",
    "remove_weight_norm", "rnn", "spectral_norm", "vector_to_parameters", "weight_norm",
]  # fmt: skip


def get_total_norm(tensors: Tensor | Iterable[Tensor], norm_type: float = 2.0) -> Tensor:
    """The norm of all elements of tensors together."""
    from netcl._factories import tensor

    each = [norm(t.reshape(-1), norm_type) for t in ([tensors] if isinstance(tensors, Tensor) else tensors)]
    return norm(stack(each), norm_type) if each else tensor(0.0)


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> Tensor:
    """Scales gradients down so that their norm together is at most ``max_norm``; gives the norm before."""
    from netcl._factories import tensor

    parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    if error_if_nonfinite:
        total = get_total_norm([p.grad for p in parameters if p.grad is not None], norm_type)
        if not math.isfinite(total.item()):
            raise ValueError(f"clip_grad_norm_: the norm of the gradients is {total.item()}, and error_if_nonfinite=True")
    if norm_type == 2.0:
        return tensor(clip_grad_norm(parameters, max_norm))
    with no_grad():
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        total = get_total_norm(gradients, norm_type)
        factor = clamp(max_norm / (total + 1e-6), max=1.0)
        for gradient in gradients:
            gradient.mul_(factor)
    return total


def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
    """Limits every element of gradients to [-clip_value, clip_value]."""
    clip_grad_value([parameters] if isinstance(parameters, Tensor) else list(parameters), clip_value)


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """All parameters as one vector."""
    return cat([parameter.reshape(-1) for parameter in parameters])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Writes a vector over the parameters that ``parameters_to_vector`` would make it of."""
    start = 0
    with no_grad():
        for parameter in parameters:
            parameter.copy_(vec[start : start + parameter.numel()].reshape(parameter.shape))
            start += parameter.numel()
