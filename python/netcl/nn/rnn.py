"""Recurrent layers."""

from __future__ import annotations

from typing import Any

from netcl import autograd as ag
from netcl._netcl import Tensor
from netcl.nn._arguments import depth, positive, queue_first, uniform_parameter
from netcl.nn.module import Module

__all__ = ["GRU", "LSTM"]


class _Recurrent(Module):
    """Layers of cells that walk along a sequence, in one or both directions. Weights have PyTorch's names and shapes."""

    _settings = ("input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional")
    _gates: int

    @queue_first
    def __init__(
        self,
        queue: Any,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        dtype: str | None = None,
    ) -> None:
        kind = type(self).__name__
        positive(kind, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        depth(kind, num_layers=num_layers)
        if not 0 <= dropout <= 1:
            raise ValueError(f"{kind}: dropout is a probability from 0 to 1, not {dropout}")
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout, self.bidirectional = bias, batch_first, dropout, bidirectional
        for layer in range(num_layers):
            width = input_size if layer == 0 else hidden_size * self._directions
            for direction in range(self._directions):
                for name, shape in (
                    ("weight_ih", (self._gates * hidden_size, width)),
                    ("weight_hh", (self._gates * hidden_size, hidden_size)),
                    ("bias_ih", (self._gates * hidden_size,)),
                    ("bias_hh", (self._gates * hidden_size,)),
                ):
                    if bias or name.startswith("weight"):
                        made = uniform_parameter(queue, shape, hidden_size, dtype)
                        self.register_parameter(name + _suffix(layer, direction), made)

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    def _cell(self, x: Tensor, state: list[Tensor], weight: Tensor, bias: Tensor | None) -> list[Tensor]:
        """The next state, of the input's part of the gates and the state; its first tensor is the output."""
        raise NotImplementedError

    def _run(self, x: Tensor, states: list[Tensor] | None) -> tuple[Tensor, list[Tensor]]:
        """The outputs of the last layer and the last states, each (layers * directions, batch, hidden)."""
        kind = type(self).__name__
        if x.ndim != 3 or x.shape[2] != self.input_size:
            axes = f"({'batch, length' if self.batch_first else 'length, batch'}, {self.input_size})"
            raise ValueError(f"{kind}(input_size={self.input_size}) takes {axes}; the input has shape {tuple(x.shape)}")
        # Time goes first inside, so that one place of the sequence is one block of memory.
        steps = ag.transpose(x, 0, 1) if self.batch_first else x
        length, batch, _ = steps.shape
        if length == 0:
            raise ValueError(f"{kind}: the sequence is empty; the input has shape {tuple(x.shape)}")
        shape = (self.num_layers * self._directions, batch, self.hidden_size)
        for state in states or ():
            if tuple(state.shape) != shape:
                raise ValueError(f"{kind}: a first state has shape {tuple(state.shape)}; it must be {shape}")
        count = 2 if isinstance(self, LSTM) else 1
        if states is None:
            states = [Tensor.from_shape(x.queue, shape, x.dtype) for _ in range(count)]
        last: list[list[Tensor]] = [[] for _ in range(count)]
        for layer in range(self.num_layers):
            sides = []
            for direction in range(self._directions):
                index = layer * self._directions + direction
                outputs, end = self._walk(steps, [state[index] for state in states], layer, direction)
                sides.append(outputs)
                for found, state in zip(last, end):
                    found.append(state)
            steps = sides[0] if len(sides) == 1 else ag.cat(sides, -1)
            if self.dropout and self.training and layer + 1 < self.num_layers:
                steps = ag.dropout(steps, self.dropout)
        return ag.transpose(steps, 0, 1) if self.batch_first else steps, [ag.stack(found) for found in last]

    def _walk(self, steps: Tensor, state: list[Tensor], layer: int, direction: int) -> tuple[Tensor, list[Tensor]]:
        """One layer in one direction."""
        suffix = _suffix(layer, direction)
        weights = [getattr(self, name + suffix) for name in ("weight_ih", "weight_hh")]
        biases = [getattr(self, name + suffix) if self.bias else None for name in ("bias_ih", "bias_hh")]
        # The input's part of all gates at all places is one product; only the state's part has to wait.
        gates = ag.linear(steps, weights[0], biases[0])
        places = range(steps.shape[0])
        outputs: list[Tensor] = []
        for place in reversed(places) if direction else places:
            state = self._cell(gates[place], state, weights[1], biases[1])
            outputs.append(state[0])
        return ag.stack(outputs[::-1] if direction else outputs), state


def _suffix(layer: int, direction: int) -> str:
    return f"_l{layer}" + ("_reverse" if direction else "")


class LSTM(_Recurrent):
    """Long short-term memory: ``output, (h, c) = LSTM(queue, 16, 32)(x)``.

    ``x`` is (length, batch, input_size), with ``batch_first`` (batch, length, input_size). The output holds the states of the
    last layer at every place; ``h`` and ``c`` are the last ones of every layer, (layers * directions, batch, hidden_size).
    """

    _gates = 4

    def forward(self, x: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        if hx is not None and (not isinstance(hx, (list, tuple)) or len(hx) != 2):
            raise TypeError("LSTM starts from a pair (h, c) of tensors")
        output, (h, c) = self._run(x, None if hx is None else list(hx))
        return output, (h, c)

    def _cell(self, x: Tensor, state: list[Tensor], weight: Tensor, bias: Tensor | None) -> list[Tensor]:
        h, c = state
        i, f, g, o = ag.chunk(x + ag.linear(h, weight, bias), 4, -1)
        c = ag.sigmoid(f) * c + ag.sigmoid(i) * ag.tanh(g)
        return [ag.sigmoid(o) * ag.tanh(c), c]


class GRU(_Recurrent):
    """Gated recurrent unit: ``output, h = GRU(queue, 16, 32)(x)``; axes are those of ``LSTM``."""

    _gates = 3

    def forward(self, x: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        output, (h,) = self._run(x, None if hx is None else [hx])
        return output, h

    def _cell(self, x: Tensor, state: list[Tensor], weight: Tensor, bias: Tensor | None) -> list[Tensor]:
        (h,) = state
        reset, update, new = ag.chunk(x, 3, -1)
        h_reset, h_update, h_new = ag.chunk(ag.linear(h, weight, bias), 3, -1)
        new = ag.tanh(new + ag.sigmoid(reset + h_reset) * h_new)
        keep = ag.sigmoid(update + h_update)
        return [new + keep * (h - new)]
