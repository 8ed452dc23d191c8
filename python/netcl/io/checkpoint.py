"""Checkpoints: everything that a run needs to go on exactly where it was.

    from netcl.io import load_checkpoint, save_checkpoint

    for epoch in range(10):
        train(model, opt)
        schedule.step()
        save_checkpoint("run/state.netcl", model, opt, scheduler=schedule, epoch=epoch + 1)

    # in another process
    done = load_checkpoint("run/state.netcl", model, opt, scheduler=schedule)
    for epoch in range(done["epoch"], 10):
        ...
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from netcl._netcl.amp import GradScaler
from netcl._netcl.io import Checkpoint
from netcl._netcl.optim import Ema, LRScheduler, Optimizer
from netcl.io._values import pack, unpack
from netcl.nn.module import Module

__all__ = ["load_checkpoint", "save_checkpoint"]

# Their states are numbers and arrays by name, which Rust's checkpoints keep as arrays of their own.
_FLAT = (Optimizer, LRScheduler, Ema, GradScaler)


def save_checkpoint(
    path: str | os.PathLike[str],
    model: Module,
    optimizer: Any = None,
    *,
    scheduler: Any = None,
    scaler: Any = None,
    ema: Any = None,
    metrics: Any = None,
    step: int | None = None,
    keep: int | None = None,
    best: bool = False,
    **parts: Any,
) -> Path:
    """Writes a model and all that trains it to a file, from which ``load_checkpoint`` goes on with the same bits.

    The file holds the model's parameters and buffers, netcl's random generator, the states of what is given, and any further
    ``parts``: objects with ``state_dict``, or plain values (numbers, texts, lists, dictionaries, arrays). It is written beside
    its place and renamed when it is on the disk: a process that is killed leaves the previous file whole.

    With ``keep=3`` the last three stay, as ``run/state-000120.netcl`` for ``path="run/state.netcl"`` and ``step=120`` (counted
    up where there is no step), with the links ``state-last.netcl`` and ``state-best.netcl``, if this is the ``best`` so far.
    Returns the path of the file. It is a model file as well, which ``load_model`` and NumPy read.
    """
    from netcl.io.serialization import describe

    if isinstance(path, Module):
        raise TypeError("save_checkpoint(path, model, optimizer, ...): the path comes first")
    if keep is None and best:
        raise ValueError("save_checkpoint: best=True marks one of several checkpoints; say how many to keep, such as keep=3")
    if keep is not None and keep < 1:
        raise ValueError(f"save_checkpoint: keep is {keep}; at least 1 checkpoint has to stay")
    checkpoint = Checkpoint(model, json.dumps(describe(model)))
    given = {"optimizer": optimizer, "schedule": scheduler, "scaler": scaler, "ema": ema, "metrics": metrics, "step": step}
    values: dict[str, Any] = {}
    for name, part in {**_present(given), **parts}.items():
        if isinstance(part, _FLAT):
            checkpoint.put(name, part.state_dict())
            continue
        arrays: dict[str, Any] = {}
        has_state = hasattr(part, "state_dict")
        packed = pack(part.state_dict() if has_state else part, name, arrays)
        values[name] = {"$state": packed} if has_state else packed
        if arrays:
            checkpoint.put(name, arrays)
    checkpoint.progress = json.dumps(values)
    return Path(checkpoint.write(path, keep, step, best))


def load_checkpoint(
    path: str | os.PathLike[str],
    model: Module | None = None,
    optimizer: Any = None,
    *,
    scheduler: Any = None,
    scaler: Any = None,
    ema: Any = None,
    **parts: Any,
) -> dict[str, Any]:
    """Puts a model, what trains it and netcl's random generator back to where ``save_checkpoint`` found them.

    Returns the plain values of the file: ``metrics``, ``step`` and what was given by other names. For a name under which
    ``save_checkpoint(..., keep=n)`` wrote, the last checkpoint is read. A damaged file, a part that it does not have, or
    weights that do not fit, are an error before anything has changed. The model is written last: a state that its part
    refuses leaves the model as it is.
    """
    checkpoint = Checkpoint.read(path)
    values = json.loads(checkpoint.progress)
    if not isinstance(values, dict):  # what another loop than Python's wrote
        values = {"progress": values}
    states = {name: value["$state"] for name, value in values.items() if isinstance(value, dict) and "$state" in value}
    flat = [name for name in checkpoint.parts if name not in values]
    given = _present({"optimizer": optimizer, "schedule": scheduler, "scaler": scaler, "ema": ema, **parts})
    missing = [name for name in given if name not in flat and name not in states]
    if missing:
        held = ", ".join([*flat, *states]) or "nothing"
        raise ValueError(f"{os.fspath(path)} has no state of {' and '.join(missing)}; beside the model's it has {held}")

    def content(name: str, value: Any) -> Any:
        try:
            return unpack(value, checkpoint.state(name) if name in checkpoint.parts else {})
        except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise ValueError(f"{os.fspath(path)}: what it says of {name} is damaged ({error})") from error

    loaded = {name: content(name, states[name]) if name in states else checkpoint.state(name) for name in given}
    plain = {name: content(name, value) for name, value in values.items() if name not in states}
    if model is not None:
        checkpoint.check(model)
    for name, part in given.items():
        part.load_state_dict(loaded[name])
    if model is not None:
        checkpoint.restore(model)
    return plain


def _present(parts: dict[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in parts.items() if part is not None}
