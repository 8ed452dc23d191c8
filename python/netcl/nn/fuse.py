"""Folding a batch norm into the convolution or linear layer before it, for inference."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any, overload

from netcl import autograd as ag
from netcl._netcl import Tensor, nn as _nn
from netcl.nn.container import Sequential
from netcl.nn.conv import Conv1d, Conv2d, ConvTranspose1d, ConvTranspose2d
from netcl.nn.linear import Linear
from netcl.nn.module import Module
from netcl.nn.normalization import BatchNorm1d, BatchNorm2d
from netcl.nn.shape import Identity

__all__ = ["fuse_conv_bn"]


@overload
def fuse_conv_bn(model: Module) -> Any: ...
@overload
def fuse_conv_bn(model: Module, bn: Module) -> Any: ...
def fuse_conv_bn(model: Module, bn: Module | None = None) -> Any:
    """A copy in which no batch norm is left to compute behind a convolution; results are equal but for rounding.

    ``fuse_conv_bn(conv, bn)`` returns one layer for two. ``fuse_conv_bn(model)`` does so for neighbours in a ``Sequential`` and
    in the models of this package, and puts ``Identity`` where the norms were. All must be in inference mode: ``model.eval()``.
    """
    if bn is not None:
        if not _foldable(model, bn):
            raise TypeError(f"a {type(bn).__name__} cannot be folded into a {type(model).__name__}")
        _check_mode(model)
        _check_mode(bn)
        return _fold(copy.deepcopy(model), bn)
    _check_mode(model)
    fused = copy.deepcopy(model)
    uses = Counter(id(child) for part in fused.modules() for child in part.children())
    for part in list(fused.modules()):
        for first, second in list(_neighbours(part)):
            layer, norm = part._modules.get(first), part._modules.get(second)
            if layer is None or norm is None or not _foldable(layer, norm):
                continue
            # What is used elsewhere as well has to stay what it is.
            if uses[id(layer)] == 1 and uses[id(norm)] == 1:
                _fold(layer, norm)
                part._modules[second] = Identity().eval()
    return fused


def _neighbours(module: Module) -> Iterator[tuple[str, str]]:
    """Names of modules of which the second sees nothing but what the first gives."""
    if isinstance(module, Sequential):
        names = list(module._modules)
        yield from itertools.pairwise(names)
    yield from getattr(module, "_folded", ())


def _foldable(layer: Module, norm: Module) -> bool:
    pairs: tuple[tuple[Any, Any], ...] = (
        ((Conv2d, ConvTranspose2d), BatchNorm2d),
        ((Conv1d, ConvTranspose1d, Linear), BatchNorm1d),
    )
    if not any(isinstance(layer, first) and isinstance(norm, second) for first, second in pairs):
        return False
    if layer._hooks is not None or norm._hooks is not None or not norm.track_running_stats:
        return False
    outputs = layer.out_features if isinstance(layer, Linear) else layer.out_channels
    grouped = isinstance(layer, (ConvTranspose1d, ConvTranspose2d)) and layer.groups > 1
    return outputs == norm.num_features and not grouped


def _check_mode(module: Module) -> None:
    if any(part.training for part in module.modules()):
        raise ValueError(f"folding is for inference, and the {type(module).__name__} is in training mode; call eval() first")


def _fold(layer: Any, norm: Any) -> Any:
    """``(w x + b - mean) / sqrt(var + eps) * gamma + beta`` as one layer, in place."""
    axis = 1 if isinstance(layer, (ConvTranspose1d, ConvTranspose2d)) else 0
    averages = norm.running_mean, norm.running_var, norm.weight, norm.bias, norm.eps
    weight, bias = _nn.fold_batch_norm(layer.weight, layer.bias, axis, *averages)
    layer.weight, layer.bias = _parameter(weight, layer.weight), _parameter(bias, layer.weight)
    return layer


def _parameter(values: Tensor, like: Tensor) -> Tensor:
    """A parameter of the dtype of another one; frozen as that one is."""
    return ag.tensor(values.detach().to(None, like.dtype), requires_grad=like.requires_grad)
