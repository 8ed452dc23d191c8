"""Optimizers, learning-rate schedules, clipping of gradients, averages of weights.

    opt = Adam(model.parameters(), lr=1e-3)
    schedule = CosineAnnealingLR(opt, T_max=10)
    for epoch in range(10):
        for x, y in batches:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step(max_norm=1.0)
            opt.zero_grad()
        schedule.step()
"""

from netcl._netcl.amp import GradScaler as AMPGradScaler
from netcl._netcl.optim import (
    ASGD,
    LBFGS,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Ema,
    Lion,
    Momentum,
    Muon,
    NAdam,
    Optimizer,
    ParamGroup,
    RAdam,
    RMSProp,
    Rprop,
    clip_grad_norm,
    clip_grad_norm_device,
    clip_grad_value,
)
from netcl.optim import lr_scheduler
from netcl.optim.ema import ModelEMA
from netcl.optim.lr_scheduler import *

RMSprop = RMSProp
"""``RMSProp``, as PyTorch spells it."""

__all__ = [
    "ASGD", "LBFGS", "SGD", "AMPGradScaler", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ChainedScheduler",
    "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR", "Ema", "ExponentialLR", "LRScheduler",
    "LambdaLR", "LinearLR", "Lion", "ModelEMA", "Momentum", "MultiStepLR", "MultiplicativeLR", "Muon", "NAdam",
    "OneCycleLR", "Optimizer", "ParamGroup", "PolynomialLR", "RAdam", "RMSProp", "RMSprop", "ReduceLROnPlateau", "Rprop",
    "SequentialLR", "StepLR", "WarmupCosine", "clip_grad_norm", "clip_grad_norm_device", "clip_grad_value", "lr_scheduler",
]
