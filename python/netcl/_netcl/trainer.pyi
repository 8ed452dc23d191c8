"""The extension's part of ``netcl.trainer``."""

import os
from collections.abc import Callable, Iterable
from typing import Any, final

from netcl._netcl import Tensor
from netcl._netcl.amp import GradScaler
from netcl._netcl.optim import Ema, Optimizer

@final
class Loop:
    def __new__(cls) -> Loop: ...
    @property
    def epochs(self) -> int: ...
    @property
    def eager(self) -> str | None: ...
    def fit(
        self,
        trainer: Any,
        train: Iterable[Any],
        valid: Iterable[Any] | None,
        epochs: int,
        settings: dict[str, Any],
        stop: Callable[[], bool],
    ) -> tuple[str, str | None]: ...
    def evaluate(self, trainer: Any, loader: Iterable[Any]) -> dict[str, float]: ...
    def find_lr(
        self, trainer: Any, loader: Iterable[Any], start: float, end: float, updates: int
    ) -> tuple[list[tuple[float, float]], float]: ...
    def resume(self, trainer: Any, path: str | os.PathLike[str]) -> str: ...
    def checkpoint(self, trainer: Any, metadata: str, path: str | os.PathLike[str]) -> None: ...

@final
class Session:
    def backward(self, loss: Tensor, share: float, predictions: Tensor | None = None, target: Any = None) -> None: ...
    def apply(self) -> None: ...
    def observe(self, predictions: Tensor, target: Any) -> None: ...
    @property
    def observes(self) -> bool: ...

def new_session(
    optimizer: Optimizer, scaler: GradScaler | None, ema: Ema | None, grad_clip: float | None, metrics: list[Any]
) -> Session: ...
