"""Callbacks: what a run does beside training.

    callbacks = [EarlyStopping("val_loss", patience=5), ModelCheckpoint("val_accuracy"), TensorBoard("runs/1")]
    trainer = Trainer(model, optimizer, callbacks=callbacks)

Your own derives from ``Callback`` and has the methods that it needs, or is a function that is called as
``function(trainer, event, value)``: with ``"fit_begin"`` and ``"fit_end"`` (the value is None), ``"epoch_begin"`` (the
number of the epoch), ``"step_end"`` and ``"epoch_end"`` (the dicts of the methods).

    class Goal(Callback):
        def on_epoch_end(self, trainer, epoch):
            if epoch["val_accuracy"] > 0.99:
                return "the goal is reached"  # a text ends the run

An exception in a callback ends the run; it keeps its type and gets a note with the name of the callback.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from netcl._netcl import Tensor
from netcl._netcl.trainer import (
    Callback,
    Checkpoint,
    CSVLogger,
    EarlyStopping,
    JSONLines,
    LearningRateLog,
    TensorBoard as _TensorBoard,
)

__all__ = [
    "CSVLogger", "Callback", "Checkpoint", "EarlyStopping", "JSONLines", "LearningRateLog", "ModelCheckpoint", "TensorBoard",
]

ModelCheckpoint = Checkpoint


class TensorBoard(_TensorBoard):
    """Event files for ``tensorboard --logdir``: as a callback, or by hand like PyTorch's ``SummaryWriter``.

    As a callback it writes the loss and the learning rate of every update, all figures of every epoch, and the model's
    layers; with ``weights=n`` histograms of the weights every n epochs, with ``gradients=n`` those of the gradients every n
    updates.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, TensorBoard(folder) as board:
        ...     board.add_scalar("loss", 0.5, 1)
        ...     board.add_histogram("weights", [0.0, 0.5, 1.0], 1)
    """

    def add_histogram(self, tag: str, values: Any, global_step: int = 0) -> None:
        """How numbers are distributed: a tensor, an array or a list."""
        values = values.to_host() if isinstance(values, Tensor) else values
        self._add_histogram(tag, np.asarray(values, dtype=np.float64).tobytes(), global_step)

    def add_image(self, tag: str, img_tensor: Any, global_step: int = 0, dataformats: str = "CHW") -> None:
        """A picture: bytes, or floats from 0 to 1. ``dataformats`` is ``"CHW"``, ``"HWC"`` or ``"HW"``."""
        image = np.asarray(img_tensor.to_host() if isinstance(img_tensor, Tensor) else img_tensor)
        if dataformats not in ("CHW", "HWC", "HW"):
            raise ValueError(f'add_image: there is no format {dataformats!r}; use "CHW", "HWC" or "HW"')
        if image.ndim != len(dataformats):
            raise ValueError(f"add_image: an image of shape {image.shape} is not {dataformats}")
        if dataformats == "CHW":
            image = image.transpose(1, 2, 0)
        elif dataformats == "HW":
            image = image[:, :, None]
        if image.dtype.kind == "f":
            # What is no number is black.
            image = np.nan_to_num(image.astype(np.float64)).clip(0, 1) * 255 + 0.5
        elif image.dtype != np.uint8:
            raise TypeError(f"add_image: an image holds uint8 or floats from 0 to 1, not {image.dtype}")
        self._add_image(tag, image.astype(np.uint8).tobytes(), image.shape, global_step)

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
