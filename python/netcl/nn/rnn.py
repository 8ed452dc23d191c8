"""Recurrent layers and cells. Weights have PyTorch's names, shapes and order of gates."""

from __future__ import annotations

from typing import Any

from netcl._netcl import Tensor, nn as _nn
from netcl.nn import _packed
from netcl.nn._layer import Layer, Parametric, given
from netcl.nn._packed import PackedSequence

__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNCell"]


def _pair(layer: Layer, hx: Any) -> tuple[Tensor, Tensor] | None:
    if hx is None or (isinstance(hx, (list, tuple)) and len(hx) == 2):
        return None if hx is None else (hx[0], hx[1])
    raise TypeError(f"{type(layer).__name__}: the states are a pair (h, c), not {type(hx).__name__}")


class _Network(Parametric):
    """Layers of cells that walk along a sequence, in one or both directions."""

    input_size: int = given()
    hidden_size: int = given()
    num_layers: int = 1
    bias: bool = True
    batch_first: bool = False
    dropout: float = 0.0
    bidirectional: bool = False

    def flatten_parameters(self) -> None:
        """Does nothing: the weights of a layer need not lie beside each other."""

    def _of_one(self, function: Any, x: Any, hx: Any) -> Any:
        """The results of a network whose state is one tensor."""
        if isinstance(x, PackedSequence):
            out, (h,) = _packed.run(self, function, x, None if hx is None else (hx,))
            return out, h
        return function(self._layer, self.__dict__, x, hx)


class LSTM(_Network):
    """Long short-term memory: ``output, (h, c) = LSTM(queue, 16, 32)(x)``.

    Sequences are (length, batch, input_size), with ``batch_first`` (batch, length, input_size), or a single one (length,
    input_size); the output has ``hidden_size`` values instead, twice as many with ``bidirectional``. States are (layers *
    directions, batch, hidden_size) and start as zeros unless given. A ``PackedSequence`` of ``nn.utils.rnn`` gives another one.
    """

    def forward(self, x: Any, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Any, tuple[Tensor, Tensor]]:
        if isinstance(x, PackedSequence):
            out, states = _packed.run(self, _nn.lstm, x, _pair(self, hx))
            return out, states
        return _nn.lstm(self._layer, self.__dict__, x, _pair(self, hx))


class GRU(_Network):
    """Gated recurrent units: ``output, h = GRU(queue, 16, 32)(x)``; axes are those of ``LSTM``."""

    def forward(self, x: Any, hx: Tensor | None = None) -> tuple[Any, Tensor]:
        result: tuple[Any, Tensor] = self._of_one(_nn.gru, x, hx)
        return result


class RNN(_Network):
    """``tanh`` (or ``relu``) of the input's part plus the state's: ``out, h = RNN(queue, 16, 32)(x)``; axes as in ``LSTM``."""

    nonlinearity: str = "tanh"
    bias: bool = True
    batch_first: bool = False
    dropout: float = 0.0
    bidirectional: bool = False

    def forward(self, x: Any, hx: Tensor | None = None) -> tuple[Any, Tensor]:
        result: tuple[Any, Tensor] = self._of_one(_nn.rnn, x, hx)
        return result


class _Cell(Parametric):
    """One step of a network over (batch, input_size), or a single sample (input_size,)."""

    input_size: int = given()
    hidden_size: int = given()
    bias: bool = True
    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor | None
    bias_hh: Tensor | None


class LSTMCell(_Cell):
    """One step of an ``LSTM``: ``h, c = LSTMCell(queue, 16, 32)(x, (h, c))``; states start as zeros unless given."""

    def forward(self, x: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        return _nn.lstm_cell(self._layer, self.__dict__, x, _pair(self, hx))


class GRUCell(_Cell):
    """One step of a ``GRU``: ``h = GRUCell(queue, 16, 32)(x, h)``."""

    def forward(self, x: Tensor, hx: Tensor | None = None) -> Tensor:
        return _nn.gru_cell(self._layer, self.__dict__, x, hx)


class RNNCell(_Cell):
    """One step of an ``RNN``: ``h = RNNCell(queue, 16, 32)(x, h)``."""

    nonlinearity: str = "tanh"

    def forward(self, x: Tensor, hx: Tensor | None = None) -> Tensor:
        return _nn.rnn_cell(self._layer, self.__dict__, x, hx)
