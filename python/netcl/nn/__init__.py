"""Modules, layers and models.

    from netcl.nn import Linear, ReLU, Sequential
    from netcl.nn import functional as F

    model = Sequential(Linear(queue, 2, 32), ReLU(), Linear(queue, 32, 2))
    loss = F.cross_entropy(model(x), y)
"""

from netcl.nn import functional, init, layers
from netcl.nn.functional import cross_entropy, mse_loss
from netcl.nn.init import constant, kaiming_uniform, normal, xavier_uniform
from netcl.nn.layers import *  # noqa: F403
from netcl.nn.module import IncompatibleKeys, Module, Parameter

__all__ = [
    "IncompatibleKeys",
    "Module",
    "Parameter",
    "constant",
    "cross_entropy",
    "functional",
    "init",
    "kaiming_uniform",
    "layers",
    "mse_loss",
    "normal",
    "xavier_uniform",
    *(name for name in layers.__all__ if name not in ("Module", "Parameter")),
]
