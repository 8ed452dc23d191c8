"""The trainer: any task, models of any kind, captured steps, exact resume."""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from netcl._netcl import IndexTensor, Tensor
from netcl._netcl.optim import Ema, Optimizer
from netcl._netcl.trainer import Loop, new_session
from netcl._structure import is_sequence, map_leaves
from netcl.amp import GradScaler, autocast
from netcl.autograd import detect_anomaly, no_grad
from netcl.distributed import DataParallel, Group, init
from netcl.nn import functional
from netcl.nn.module import Module
from netcl.runtime.capture import capture

__all__ = ["History", "Trainer"]

# Schedules that count updates unless the user says otherwise; all others count epochs.
_COUNT_UPDATES = frozenset({"OneCycleLR", "WarmupCosine"})
# A step that is recorded so often changes what it reads: replaying does not pay.
_MOST_RECORDINGS = 24


class History:
    """What happened in a run: ``history["val_loss"]`` is a list with one value for each epoch that has it."""

    def __init__(self) -> None:
        #: One dict for each update: step, epoch, loss, lr, samples.
        self.steps: list[dict[str, Any]] = []
        #: One dict for each epoch: epoch, steps, samples, seconds, loss, metrics, and those of the validation as ``val_...``.
        self.epochs: list[dict[str, Any]] = []

    def __getitem__(self, name: str) -> list[float]:
        values = [epoch[name] for epoch in self.epochs if name in epoch]
        if not values:
            known = ", ".join(sorted({key for epoch in self.epochs for key in epoch})) or "nothing yet"
            raise KeyError(f"no epoch has {name!r}; there is {known}")
        return values

    def __repr__(self) -> str:
        return f"History({len(self.steps)} updates, {len(self.epochs)} epochs)"


class Trainer:
    """Trains a model: ``Trainer(model, optimizer, loss_fn=F.mse_loss).fit(loader, epochs=3)``.

    Batches are ``(inputs, targets)``, or ``(input, input, ..., targets)`` for a model of several inputs, as arrays or tensors;
    they are brought to the model's device. The loss is ``loss_fn(model(inputs), targets)``; without a ``loss_fn`` the
    cross-entropy. For any other task give a ``training_step``, a function of the model and the batch that returns the loss, a
    tuple of loss, predictions and targets, or a dict with these names; or derive a class that has a method
    ``training_step(self, batch)``.

    Steps are captured where shapes repeat, with everything in them: forward, backward, loss scale, clipping, update, averages
    and metrics. A step that cannot be captured runs as it is written, and a line says why.

    * ``mixed_precision``: ``True`` or ``"float16"`` (with a loss scale), or ``"bfloat16"``.
    * ``grad_clip``: the largest norm of all gradients together.
    * ``accumulation_steps``: so many batches make one update, as one large batch would.
    * ``ema``: an ``optim.Ema`` of the parameters, or its decay; validation then looks at the averages.
    * ``schedule``: a schedule of ``netcl.optim``, or an object with ``step``; ``schedule_every`` is ``"step"`` or ``"epoch"``,
      by itself ``"step"`` for OneCycleLR and WarmupCosine.
    * ``metrics``: names such as ``"accuracy"`` or objects of ``netcl.trainer.metrics``, over training and validation batches.
    * ``callbacks``: objects of ``netcl.trainer.callbacks``, objects with methods such as ``on_epoch_end``, or functions.
    * ``folder``: where checkpoints are kept, ``last.netcl`` after each epoch and when the run is stopped.
    * ``progress``: whether a line shows how far the run is.
    * ``group``: the ranks that train together. ``None`` is ``netcl.distributed.init()``: all processes that ``netcl launch`` or
      ``mpirun`` have started, and this one alone otherwise.

    Ranks make the same trainer and call ``fit`` together. They begin with rank 0's weights; an update has the batches of all of
    them, so that losses, metrics and weights are the same everywhere. A loader that every rank has is shared by turns: rank 0
    takes the first batch, rank 1 the second, and so on. A ``DataLoader`` with a ``DistributedSampler``, or any loader with an
    attribute ``sharded`` that is true, has only samples of its rank and is taken as it is. Callbacks, progress and files are
    rank 0's; resuming works on any number of ranks. Ctrl+C on any rank stops all after the same update; an error on one ends
    all.

        >>> import numpy as np, netcl
        >>> from netcl import nn, optim
        >>> from netcl.trainer import Trainer
        >>> netcl.manual_seed(0)
        >>> model = nn.Linear(netcl.manager.default("cpu").queue, 2, 1)
        >>> x = np.random.default_rng(0).normal(size=(64, 2)).astype("float32")
        >>> y = x @ np.array([[2.0], [-1.0]], "float32")
        >>> trainer = Trainer(model, optim.Adam(model.parameters(), 0.1), loss_fn=nn.functional.mse_loss, progress=False)
        >>> history = trainer.fit([(x, y)], epochs=200)
        >>> history["loss"][-1] < 1e-3
        True
    """

    def __init__(
        self,
        model: Module,
        optimizer: Optimizer,
        device_queue: Any = None,
        mixed_precision: bool | str = False,
        grad_clip: float | None = None,
        loss_fn: Callable[..., Tensor] | None = None,
        metrics_stride: int = 10,
        accumulation_steps: int = 1,
        ema: Ema | float | None = None,
        *,
        schedule: Any = None,
        schedule_every: str | None = None,
        training_step: Callable[[Any, Any], Any] | None = None,
        validation_step: Callable[[Any, Any], Any] | None = None,
        metrics: Sequence[Any] = (),
        callbacks: Sequence[Any] = (),
        folder: str | os.PathLike[str] | None = None,
        capture: bool = True,
        progress: bool = True,
        group: Group | None = None,
    ) -> None:
        if not isinstance(model, Module):
            raise TypeError(f"Trainer: the model is a {type(model).__name__}; a netcl.nn.Module is needed")
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"Trainer: the optimizer is a {type(optimizer).__name__}; one of netcl.optim is needed")
        if isinstance(accumulation_steps, bool) or int(accumulation_steps) < 1:
            raise ValueError(f"Trainer: accumulation_steps is {accumulation_steps}; an update needs at least 1 batch")
        if grad_clip is not None and not 0.0 < float(grad_clip) < float("inf"):
            raise ValueError(f"Trainer: grad_clip is {grad_clip}; use a norm above 0, such as 1.0")
        if group is not None and not isinstance(group, Group):
            raise TypeError(f"Trainer: group is a {type(group).__name__}; one of netcl.distributed is needed")
        parameters = list(model.parameters())
        if not parameters:
            raise ValueError("Trainer: the model has no parameters to train")
        if not optimizer.holds(parameters):
            raise ValueError("Trainer: the optimizer holds none of the model's parameters; make it from this model")
        self.model = model
        self._dtype = parameters[0].dtype
        self.optimizer = optimizer
        self.queue = parameters[0].queue if device_queue is None else getattr(device_queue, "queue", device_queue)
        self.loss_fn = loss_fn
        self.grad_clip = None if grad_clip is None else float(grad_clip)
        self.accumulation_steps = int(accumulation_steps)
        #: Taken for code that was written for the published package; losses are read in blocks anyway.
        self.metrics_stride = metrics_stride
        self.mixed_precision = _precision(mixed_precision)
        self.scaler = GradScaler() if self.mixed_precision == "float16" else None
        self.ema = Ema(parameters, decay=float(ema)) if isinstance(ema, (int, float)) else ema
        if self.ema is not None and not isinstance(self.ema, Ema):
            raise TypeError(f"Trainer: ema is a {type(self.ema).__name__}; use a netcl.optim.Ema or its decay, such as 0.999")
        self.schedule = schedule
        if schedule is not None and not hasattr(schedule, "step"):
            raise TypeError(f"Trainer: schedule is a {type(schedule).__name__}, which has no step()")
        by_itself = "step" if type(schedule).__name__ in _COUNT_UPDATES else "epoch"
        self.schedule_every = by_itself if schedule_every is None else schedule_every
        self.callbacks = list(callbacks)
        self.folder = None if folder is None else Path(folder)
        self.progress = progress
        self.history = History()
        self._training_step, self._validation_step = training_step, validation_step
        #: The ranks that train together.
        self.group = init() if group is None else group
        self._session = new_session(optimizer, self.scaler, self.ema, self.grad_clip, list(metrics), self.group)
        self._loop = Loop()
        self._capture = bool(capture)
        #: When something was said last, and the length of a line that is to be overwritten.
        self._said, self._shown = time.monotonic(), 0
        self._of = (model, loss_fn, training_step)
        self._forget()

    # What users call.

    def fit(
        self,
        train_loader: Iterable[Any],
        val_loader: Iterable[Any] | None = None,
        epochs: int = 1,
        loss_fn: Callable[..., Tensor] | None = None,
        log_every: int = 1,
        *,
        resume: bool | str | os.PathLike[str] = False,
    ) -> History:
        """Trains for so many epochs, with a validation after every ``log_every`` of them; returns the history.

        ``resume=True`` goes on from ``last.netcl`` in the trainer's folder where there is one, ``resume="runs/mine"`` from that
        of another folder, or from a file: ``epochs`` are then those of the whole run. The result has the bits of a run that was
        never stopped, if the loader gives the same batches (``netcl.data.DataLoader`` does, and any list).

        Ctrl+C ends the run after the update under way, keeps a checkpoint, says how to resume, and raises
        ``KeyboardInterrupt``. Without a folder that can be written the checkpoint goes to the temporary folder. A second Ctrl+C
        does not wait.
        """
        if isinstance(epochs, bool) or int(epochs) < 1:
            raise ValueError(f"fit: epochs is {epochs}; use 1 or more")
        if int(log_every) < 1:
            raise ValueError(f"fit: log_every is {log_every}; use 1 or more")
        for name, loader in (("train_loader", train_loader), ("val_loader", val_loader)):
            if loader is not None and not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
                raise TypeError(f"fit: {name} is a {type(loader).__name__}; an iterable of batches is needed")
        if loss_fn is not None:
            self.loss_fn = loss_fn
        resumed = self._resume(resume)
        target = int(epochs) if resumed else self._loop.epochs + int(epochs)
        settings = {
            "accumulation_steps": self.accumulation_steps,
            "schedule_every": self.schedule_every,
            "validate_every": int(log_every),
            "folder": self.folder,
            "metadata": self._metadata(),
            "capture": self._capture,
        }
        with _Interrupts() as interrupts:
            try:
                outcome, said = self._loop.fit(self, train_loader, val_loader, target, settings, interrupts.asked)
            except OSError:
                # The checkpoint of a run that was stopped, where its folder cannot be written.
                if self.folder is None or not interrupts.asked() or self.group.size > 1:
                    raise
                outcome, said = "stopped", None
        if outcome == "ended":
            self._say(f"ended: {said}")
        if outcome == "stopped":
            kept = said or self._keep()
            if kept is None:
                self._say("stopped; no checkpoint could be written, here or in the temporary folder")
            else:
                self._say(f"stopped; everything is kept in {kept}. To go on: fit(..., epochs={target}, resume={kept!r})")
            raise KeyboardInterrupt
        return self.history

    def evaluate(self, data_loader: Iterable[Any], loss_fn: Callable[..., Tensor] | None = None) -> dict[str, float]:
        """The mean loss and all metrics over a loader's batches: ``{"loss": 0.31, "accuracy": 0.91}``."""
        if loss_fn is not None:
            self.loss_fn = loss_fn
        return self._loop.evaluate(self, data_loader)

    def predict(self, data_loader: Iterable[Any]) -> Any:
        """The model's outputs for all batches as one array. Batches are inputs, or tuples whose first element is one."""
        training, outputs = self.model.training, []
        self.model.eval()
        try:
            with no_grad(), self._autocast():
                for batch in data_loader:
                    batch = self._upload(batch)
                    inputs = batch[0] if is_sequence(batch) else batch
                    outputs.append(self.model(inputs).to_host())
        finally:
            self.model.train(training)
        if not outputs:
            raise ValueError("predict: the loader has no batches")
        return np.concatenate(outputs)

    def find_lr(
        self, train_loader: Iterable[Any], start: float = 1e-6, end: float = 1.0, updates: int = 100
    ) -> tuple[float, list[tuple[float, float]]]:
        """A learning rate to begin with, and the smoothed losses by rate that led to it.

        Runs some updates with rates that rise from ``start`` to ``end``; model, optimizer and random numbers are then put back.
        """
        points, suggestion = self._loop.find_lr(self, train_loader, float(start), float(end), int(updates))
        return suggestion, points

    def save_checkpoint(self, path: str | os.PathLike[str]) -> Path:
        """Writes everything that the run needs to go on: ``fit(..., resume=path)`` reads it, ``load_model`` the model in it.

        Of several ranks only rank 0 writes; all call it where the optimizer is a ``netcl.distributed.ShardedOptimizer``.
        """
        self._loop.checkpoint(self, self._metadata(), path)
        return Path(path)

    def report(self, path: str | os.PathLike[str], title: str | None = None) -> Path:
        """Writes one HTML page of the run so far, which needs nothing else: curves, settings, layers, throughput and memory."""
        settings = {
            "optimizer": self.optimizer,
            "loss": getattr(self.loss_fn or self._training_step, "__name__", self.loss_fn) or "cross_entropy",
            "schedule": "none" if self.schedule is None else f"{type(self.schedule).__name__}, every {self.schedule_every}",
            "mixed precision": self.mixed_precision or "off",
            "gradient clipping": self.grad_clip or "off",
            "accumulation": self.accumulation_steps,
            "average of weights": "off" if self.ema is None else "on",
            "steps": "captured" if self._loop.eager is None else f"not captured: {self._loop.eager}",
        }
        shown = [(name, str(value)) for name, value in settings.items()]
        self._loop.report(self.model, title or type(self.model).__name__, shown, path)
        return Path(path)

    # What subclasses may replace.

    def training_step(self, batch: Any) -> Any:
        """The loss of a batch; or loss, predictions and targets."""
        if self._training_step is not None:
            return self._training_step(self.model, batch)
        if hasattr(self.model, "training_step"):
            return self.model.training_step(batch)
        return self._supervised(batch)

    def validation_step(self, batch: Any) -> Any:
        """The same for a validation batch, without gradients; by itself the training step."""
        if self._validation_step is not None:
            return self._validation_step(self.model, batch)
        if hasattr(self.model, "validation_step"):
            return self.model.validation_step(batch)
        return self.training_step(batch)

    # What the loop calls.

    def _supervised(self, batch: Any) -> Any:
        if not is_sequence(batch) or len(batch) < 2:
            raise TypeError(
                f"Trainer: a batch is a tuple such as (inputs, targets), not {_kind(batch)}; give a training_step for others"
            )
        *inputs, targets = batch
        predictions = self.model(*inputs)
        if self.loss_fn is not None:
            return self.loss_fn(predictions, targets), predictions, targets
        return _cross_entropy(predictions, targets)

    def _update(self, group: list[Any], shares: list[float], captured: bool) -> None:
        if self._of != (now := (self.model, self.loss_fn, self._training_step)):
            self._of = now
            self._forget()
        if not captured:
            observed = self._group(*self._of, group, shares)
        elif len(group) == 1 and is_sequence(group[0]):
            observed = self._single(*group[0])
        else:
            observed = self._captured(group, shares)
        for predictions, targets in observed:
            self._session.observe(predictions, targets)

    def _group(self, model: Any, loss_fn: Any, task: Any, group: Sequence[Any], shares: Sequence[float]) -> list[Any]:
        """One update. What it reads through the trainer is named as arguments as well, where capture looks for changes."""
        observes, seen = self._session.observes, []
        for batch, share in zip(group, shares):
            with self._autocast():
                loss, predictions, targets = _parts(self.training_step(batch))
            self._session.backward(loss, share, predictions, targets)
            if observes and predictions is not None:
                seen.append((predictions.detach(), targets))
        self._session.apply()
        return seen

    def _forget(self) -> None:
        """Forgets captured steps."""
        group = self._group
        # The steps of a user's class: capture looks into the method, and at what it reads.
        own = self.training_step if type(self) is not Trainer else None

        def several(model: Any, loss_fn: Any, task: Any, own: Any, batches: list[Any], shares: list[float]) -> list[Any]:
            return group(model, loss_fn, task, batches, shares)

        def single(model: Any, loss_fn: Any, task: Any, own: Any, *batch: Any) -> list[Any]:
            return group(model, loss_fn, task, (batch,), (1.0,))

        self._captured = capture(functools.partial(several, *self._of, own))
        # Calls with tensors alone are recognised the fastest.
        self._single = capture(functools.partial(single, *self._of, own))

    def _given_up(self) -> str | None:
        """Why steps are no longer captured, if they are not."""
        if self._captured.recordings + self._single.recordings <= _MOST_RECORDINGS:
            return None
        self._captured.clear()
        self._single.clear()
        return f"the step was recorded {_MOST_RECORDINGS} times: it changes what it reads, or shapes hardly repeat"

    def _validate(self, batch: Any) -> tuple[Tensor, Tensor | None, Any]:
        with no_grad(), self._autocast():
            return _parts(self.validation_step(batch))

    def _diagnose(self, batch: Any) -> str | None:
        try:
            with detect_anomaly(), self._autocast():
                _parts(self.training_step(batch))[0].backward()
        except RuntimeError as error:
            return f"{error}{_line_of(error)}"
        return None

    def _upload(self, value: Any) -> Any:
        """A batch with its arrays on the device: floats in the model's dtype, whole numbers as ``IndexTensor``."""
        return map_leaves(value, self._upload_leaf)

    def _upload_leaf(self, value: Any) -> Any:
        if isinstance(value, dict):  # of a derived class
            return self._upload(dict(value))
        if isinstance(value, (Tensor, IndexTensor)) or not hasattr(value, "__array__"):
            return value
        array = np.asarray(value)
        if array.dtype.kind in "iu":
            return IndexTensor.from_host(self.queue, array.astype("int64", copy=False))
        if array.dtype.kind in "fb":
            return Tensor.from_host(self.queue, array, dtype=self._dtype)
        return value

    def _autocast(self) -> Any:
        return nullcontext() if self.mixed_precision is None else autocast(dtype=self.mixed_precision)

    def _weights(self) -> list[float] | None:
        """How a model over several devices divides batches, once that is known: checkpoints keep it."""
        weights = self.model.weights if isinstance(self.model, DataParallel) else None
        return None if isinstance(weights, str) else weights

    def _set_weights(self, weights: list[float]) -> None:
        # Those of other devices are measured again, and those that the user gives hold.
        if isinstance(self.model, DataParallel) and self.model.weights == "measured" and len(weights) == len(self.model.queues):
            self.model.__dict__["weights"] = weights

    def _step_done(self, step: dict[str, Any]) -> None:
        self.history.steps.append(step)

    def _epoch_done(self, epoch: dict[str, Any]) -> None:
        self.history.epochs.append(epoch)

    def _has_terminal(self) -> bool:
        real = sys.__stderr__
        try:
            return real is not None and sys.stderr is real and real.isatty()
        except ValueError:  # it was closed
            return False

    def _say(self, text: str) -> None:
        if self.progress and self.group.rank == 0 and sys.stderr is not None:
            # A notebook's line of the moment is overwritten.
            print(f"\r{text:<{self._shown}}" if self._shown else text, file=sys.stderr, flush=True)
            self._shown, self._said = 0, time.monotonic()

    def _status(self, text: str) -> None:
        """The line of the moment: redrawn in a notebook, and elsewhere a line now and then."""
        now = time.monotonic()
        if not text or sys.stderr is None:
            return
        if type(sys.stderr).__module__.startswith("ipykernel"):
            if now - self._said > 0.5:
                print(f"\r{text:<{self._shown}}", end="", file=sys.stderr, flush=True)
                self._shown, self._said = len(text), now
        elif now - self._said > 10.0:
            self._say(text)

    def _keep(self) -> str | None:
        """Writes the checkpoint of a run without a folder, or with one that cannot be written; where it is."""
        kept = "interrupted.netcl"
        try:
            self.save_checkpoint(kept)
        except OSError as problem:
            # Other ranks have left, and a sharded optimizer needs all of them to write again.
            if self.group.size > 1:
                raise
            try:
                kept = os.path.join(tempfile.mkdtemp(prefix="netcl-"), kept)
                self.save_checkpoint(kept)
            except OSError:
                return None
            # Also without progress: nobody would look there.
            warnings.warn(f"Trainer: {problem}; the checkpoint is {kept}", RuntimeWarning, stacklevel=3)
        return kept

    def _metadata(self) -> str:
        from netcl.io.serialization import describe

        return json.dumps(describe(self.model))

    def _resume(self, resume: bool | str | os.PathLike[str]) -> bool:
        if resume is False or resume is None:
            return False
        if resume is True:
            if self.folder is None:
                raise ValueError('fit: resume=True needs a folder to look into: Trainer(..., folder="runs/mine")')
            if not (self.folder / "last.netcl").exists():
                return True
            place = self.folder
        else:
            place = Path(resume)
        history = json.loads(self._loop.resume(self, place / "last.netcl" if place.is_dir() else place))
        self.history = History()
        self.history.steps = history["steps"]
        self.history.epochs = [{**{k: v for k, v in e.items() if k != "values"}, **e["values"]} for e in history["epochs"]]
        self._forget()
        return True


class _Interrupts:
    """Turns the first Ctrl+C into a question that the loop asks between updates; the second raises as usual."""

    def __init__(self) -> None:
        self._asked = False
        self._before: Any = None

    def asked(self) -> bool:
        return self._asked

    def _note(self, number: int, frame: Any) -> None:
        if self._asked and callable(self._before):
            self._before(number, frame)
        self._asked = True

    def __enter__(self) -> _Interrupts:
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) not in (
            None,
            signal.SIG_IGN,
        ):
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)


def _precision(value: bool | str) -> str | None:
    if value is False or value is None:
        return None
    name = "float16" if value is True else str(value)
    if name not in ("float16", "bfloat16"):
        raise ValueError(f"Trainer: mixed_precision is {value!r}; use True, \"float16\" or \"bfloat16\"")
    return name


def _cross_entropy(predictions: Tensor, targets: Any) -> tuple[Tensor, Tensor, Any]:
    """Also of a language model, whose classes are on the last axis: (N, T, C) beside (N, T)."""
    if predictions.ndim == 3 and targets.ndim == 2 and tuple(predictions.shape[:2]) == tuple(targets.shape):
        n, t, c = predictions.shape
        predictions, targets = functional.reshape(predictions, (n * t, c)), targets.reshape(n * t)
    return functional.cross_entropy(predictions, targets), predictions, targets


def _parts(result: Any) -> tuple[Tensor, Tensor | None, Any]:
    """Loss, predictions and targets of what a step returned."""
    if isinstance(result, Tensor):
        return result, None, None
    if isinstance(result, dict) and isinstance(result.get("loss"), Tensor):
        return result["loss"], result.get("predictions"), result.get("targets")
    if isinstance(result, tuple) and len(result) == 3 and isinstance(result[0], Tensor):
        return result
    raise TypeError(
        f"Trainer: a step returned {_kind(result)}; return the loss, a tuple (loss, predictions, targets), or a dict with "
        "these names"
    )


def _kind(value: Any) -> str:
    if is_sequence(value):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


def _line_of(error: BaseException) -> str:
    """The innermost line of the user's code that an error passed."""
    place, traceback = "", error.__traceback__
    here = str(Path(__file__).parent.parent)
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not code.co_filename.startswith(here):
            place = f" ({code.co_filename}:{traceback.tb_lineno})"
        traceback = traceback.tb_next
    return place


