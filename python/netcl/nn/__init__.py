"""Modules, layers and models.

    from netcl.nn import Linear, ReLU, Sequential
    from netcl.nn import functional as F

    model = Sequential(Linear(queue, 2, 32), ReLU(), Linear(queue, 32, 2))
    loss = F.cross_entropy(model(x), y)
"""

from netcl.nn import factory, functional, init, layers, resnet
from netcl.nn.factory import *  # noqa: F403
from netcl.nn.functional import cross_entropy, mse_loss
from netcl.nn.fuse import fuse_conv_bn
from netcl.nn.init import constant, kaiming_uniform, normal, xavier_uniform
from netcl.nn.layers import *  # noqa: F403
from netcl.nn.module import IncompatibleKeys, Module, Parameter, RemovableHandle, StateDictError
from netcl.nn.resnet import ResNet, ResNet18, ResNet34, ResNet50

__all__ = [
    "IncompatibleKeys",
    "Module",
    "Parameter",
    "RemovableHandle",
    "ResNet",
    "ResNet18",
    "ResNet34",
    "ResNet50",
    "StateDictError",
    "constant",
    "cross_entropy",
    "functional",
    "fuse_conv_bn",
    "init",
    "kaiming_uniform",
    "layers",
    "mse_loss",
    "normal",
    "resnet",
    "xavier_uniform",
    *factory.__all__,
    *(name for name in layers.__all__ if name not in ("Module", "Parameter")),
]
