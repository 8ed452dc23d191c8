"""Batch norm over the parts of a batch that run on several devices of this process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from netcl import autograd as ag
from netcl._netcl import Tensor
from netcl._netcl.distributed import joint_batch_norm, refuse_recording
from netcl.amp import autocast, autocast_dtype

__all__ = ["Meeting"]


class _GaveUp(RuntimeError):
    """Another part of the batch has failed."""


class _Part:
    """A function that runs inside of a context, which it leaves while others run."""

    def __init__(self, context: Callable[[], AbstractContextManager[Any]], function: Callable[[], Any]) -> None:
        self.context, self.function = context, function
        self.inside = contextlib.ExitStack()
        self.result: Any = None
        self.normalised: Any = None
        self.error: BaseException | None = None


class Meeting:
    """Where the parts of a batch wait for each other at a layer.

    Each has a thread, but only one runs at a time, in their order: what is drawn at random is the same from run to run, and the
    model's tables hold the copies of one device. The last part to come to a layer normalises all of them.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._changed = threading.Condition()
        self._running: list[_Part] = []  # those that have not ended, the one whose turn it is first
        self._arrived: list[tuple[Tensor, Tensor | None, Tensor | None]] = []
        self._averages: Any = None
        self._failed = False

    def __reduce__(self) -> Any:
        return Meeting, (self.size,)

    def run(self, parts: Sequence[tuple[Callable[[], AbstractContextManager[Any]], Callable[[], Any]]]) -> list[Any]:
        """What functions give, each run inside of its context."""
        refuse_recording(measures=False)
        made = [_Part(*part) for part in parts]
        self._running, self._arrived, self._failed = list(made), [], False
        recording, dtype = ag.is_grad_enabled(), autocast_dtype()

        def in_thread(part: _Part) -> None:
            # As the caller's thread is.
            with contextlib.ExitStack() as modes:
                if not recording:
                    modes.enter_context(ag.no_grad())
                if dtype is not None:
                    modes.enter_context(autocast(dtype=dtype))
                self._work(part)

        threads = [threading.Thread(target=in_thread, args=(part,), daemon=True) for part in made[1:]]
        for thread in threads:
            thread.start()
        self._work(made[0])
        for thread in threads:
            thread.join()
        errors = [part.error for part in made if part.error is not None]
        if errors:
            raise next((error for error in errors if not isinstance(error, _GaveUp)), errors[0])
        return [part.result for part in made]

    def _work(self, part: _Part) -> None:
        try:
            self._await_turn(part)
            with part.inside:
                part.inside.enter_context(part.context())
                part.result = part.function()
        except BaseException as error:
            part.error = error
        finally:
            with self._changed:
                self._running.remove(part)
                # Who ends while others wait at a layer has not come to it.
                self._failed |= part.error is not None or bool(self._arrived)
                self._changed.notify_all()

    def _await_turn(self, part: _Part) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._failed or self._running[0] is part)
            if self._failed:
                raise _GaveUp("another part of the batch has failed, or ran other layers of batch norm")

    @property
    def is_on(self) -> bool:
        """Whether parts of a batch run: whoever calls the model otherwise is alone."""
        return bool(self._running)

    def normalise(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, running: Any, eps: float) -> Any:
        """The part's result of a layer."""
        part = self._running[0]
        if not self._arrived:
            self._averages = running  # those of the first device are the model's own
        self._arrived.append((x, weight, bias))
        part.inside.close()
        with self._changed:
            # The next part runs up to here, and after the last one the first goes on.
            self._running.append(self._running.pop(0))
            if len(self._arrived) == len(self._running):
                arrived, self._arrived = self._arrived, []
                for other, result in zip(self._running, joint_batch_norm(arrived, self._averages, eps)):
                    other.normalised = result
            self._changed.notify_all()
        self._await_turn(part)
        part.inside.enter_context(part.context())
        return part.normalised
