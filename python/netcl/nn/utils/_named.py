"""The older form of weight normalisation, whose names many saved models have: ``weight_g`` and ``weight_v``."""

from __future__ import annotations

import functools

from netcl._netcl import Tensor
from netcl.nn.module import Module, Parameter
from netcl.nn.utils.parametrizations import norm_except
from netcl.nn.utils.parametrize import derive, underive

__all__ = ["remove_weight_norm", "weight_norm"]


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Splits a weight into lengths (``weight_g``) and directions (``weight_v``), which train apart; gives the module back.

    ``nn.utils.parametrizations.weight_norm`` does the same under PyTorch's newer names.
    """
    weight = module._parameters.get(name)
    if weight is None:
        raise ValueError(f"weight_norm: {type(module).__name__} has no parameter {name!r}")
    lengths, directions = f"{name}_g", f"{name}_v"
    del module._parameters[name]
    trained = weight.requires_grad
    module.register_parameter(lengths, Parameter(norm_except(weight.detach(), dim), trained))
    module.register_parameter(directions, Parameter(weight.detach().clone(), trained))

    derive(module, name, functools.partial(_of_lengths, name, dim))
    return module


def _of_lengths(name: str, dim: int | None, owner: Module) -> Tensor:
    g, v = owner.get_parameter(f"{name}_g"), owner.get_parameter(f"{name}_v")
    found: Tensor = v * (g / norm_except(v, dim))
    return found


def remove_weight_norm(module: Module, name: str = "weight") -> Module:
    """Makes a weight that ``weight_norm`` split an ordinary one again."""
    if f"{name}_g" not in module._parameters:
        raise ValueError(f"remove_weight_norm: {name!r} of {type(module).__name__} has no weight_norm")
    direction = module._parameters[f"{name}_v"]
    now, trained = getattr(module, name).detach(), direction is not None and direction.requires_grad
    underive(module, name)
    del module._parameters[f"{name}_g"], module._parameters[f"{name}_v"]
    module.register_parameter(name, Parameter(now.clone(), trained))
    return module
