"""The average of a model's weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from netcl._netcl import Tensor
from netcl._netcl.optim import Ema


class ModelEMA(Ema):
    """An exponential moving average of a model's parameters.

        ema = ModelEMA(model, decay=0.999)
        ...
        opt.step()
        ema.update()
        ...
        with ema.averaged():
            evaluate(model)

    With ``warmup`` the decay starts at 1/10 and rises with the updates, so that the random start is soon forgotten.
    """

    model: Any

    def __new__(
        cls, model: Any, decay: float = 0.999, warmup: bool = True, params: Iterable[Tensor] | None = None
    ) -> ModelEMA:
        ema = super().__new__(cls, model.parameters() if params is None else params, decay, warmup)
        ema.model = model
        return ema

    @contextmanager
    def averaged(self) -> Iterator[Any]:
        """Puts the averages into the model for a while."""
        self.swap()
        try:
            yield self.model
        finally:
            self.swap()

    def copy_to_model(self) -> None:
        """Overwrites the model's parameters with the averages for good."""
        self.copy_to_params()

    @property
    def shadow(self) -> list[Tensor]:
        """The averages, one for each parameter; they share the average's memory."""
        return self.averages
