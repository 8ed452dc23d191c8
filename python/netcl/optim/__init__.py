"""Optimizers.

    opt = SGD(model.parameters(), lr=0.1, momentum=0.9)
    ...
    opt.step()
    opt.zero_grad()
"""

from netcl._netcl.optim import SGD, Optimizer, ParamGroup

__all__ = ["Optimizer", "ParamGroup", "SGD"]
