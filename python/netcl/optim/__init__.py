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
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Ema,
    Momentum,
    Optimizer,
    ParamGroup,
    RMSProp,
    clip_grad_norm,
    clip_grad_norm_device,
    clip_grad_value,
)
from netcl.optim import lr_scheduler
from netcl.optim.ema import ModelEMA
from netcl.optim.lr_scheduler import *

__all__ = [
    "SGD", "AMPGradScaler", "Adagrad", "Adam", "AdamW", "ChainedScheduler", "CosineAnnealingLR", "Ema", "ExponentialLR",
    "LRScheduler", "LambdaLR", "ModelEMA", "Momentum", "MultiStepLR", "OneCycleLR", "Optimizer", "ParamGroup", "RMSProp",
    "ReduceLROnPlateau", "SequentialLR", "StepLR", "WarmupCosine", "clip_grad_norm", "clip_grad_norm_device", "clip_grad_value",
    "lr_scheduler",
]
