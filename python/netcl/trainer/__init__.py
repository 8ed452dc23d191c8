"""Training: a model, an optimizer and a loader become a run that can be watched, stopped and resumed.

    from netcl.trainer import Trainer

    trainer = Trainer(model, opt, loss_fn=F.cross_entropy, metrics=["accuracy"], folder="runs/mine")
    trainer.fit(train_loader, val_loader, epochs=10)
    print(trainer.evaluate(test_loader))
"""

from __future__ import annotations

from netcl.trainer import callbacks, metrics
from netcl.trainer.trainer import History, Trainer

__all__ = ["History", "Trainer", "callbacks", "metrics"]
