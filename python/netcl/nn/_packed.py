"""Sequences of different lengths without padding, and how recurrent layers walk along them."""

from __future__ import annotations

from typing import Any, NamedTuple

from netcl import _factories as make
from netcl._netcl import Tensor, nn as _nn
from netcl.autograd import ops

__all__ = ["PackedSequence", "run"]


class PackedSequence(NamedTuple):
    """The steps of all sequences, the longest first: all first steps, then all second ones, and so on.

    ``batch_sizes`` says how many sequences have each step. ``pack_padded_sequence`` makes one, recurrent layers take it.
    """

    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None = None
    unsorted_indices: Tensor | None = None

    def to(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """The steps on another device or in another dtype."""
        return self._replace(data=self.data.to(*args, **kwargs))


def run(network: Any, function: Any, sequence: PackedSequence, states: tuple[Tensor, ...] | None) -> Any:
    """What a recurrent network makes of packed sequences: the results packed alike, and the last states of each.

    Sequences end at different steps. Between two ends the batch is the same, so that each layer and direction is one run of
    the fused kernel per length that occurs. A backward direction walks over reversed sequences.
    """
    x, sizes = sequence.data, [int(size) for size in sequence.batch_sizes.tolist()]
    directions = 2 if network.bidirectional else 1
    backwards: Any = make.tensor(_reversal(sizes), device=x.queue) if directions == 2 else None
    if states is not None:
        expected = network.num_layers * directions, sizes[0], network.hidden_size
        if wrong := [tuple(state.shape) for state in states if tuple(state.shape) != expected]:
            raise ValueError(
                f"{type(network).__name__}: the states of these sequences have the shape {expected}, not {wrong[0]}"
            )
    if states is not None and sequence.sorted_indices is not None:
        states = tuple(ops.index_select(state, 1, sequence.sorted_indices) for state in states)
    last: list[tuple[Tensor, ...]] = []
    for layer in range(network.num_layers):
        if layer and network.dropout and network.training:
            x = ops.dropout(x, network.dropout)
        results = []
        for direction in range(directions):
            at = layer * directions + direction
            steps = x if direction == 0 else ops.index_select(x, 0, backwards)
            start = None if states is None else tuple(state[at : at + 1] for state in states)
            out, end = _walk(_one(network, layer, direction, x.shape[1]), function, steps, sizes, start)
            results.append(out if direction == 0 else ops.index_select(out, 0, backwards))
            last.append(end)
        x = results[0] if directions == 1 else ops.cat(results, 1)
    ends = tuple(ops.cat(list(parts), 0) for parts in zip(*last))
    if sequence.unsorted_indices is not None:
        ends = tuple(ops.index_select(end, 1, sequence.unsorted_indices) for end in ends)
    return sequence._replace(data=x), ends


def _one(network: Any, layer: int, direction: int, width: int) -> tuple[Any, dict[str, Any]]:
    """One layer in one direction as a network of its own: the Rust part, and the tables that it reads."""
    names = "weight_ih", "weight_hh", "bias_ih", "bias_hh"
    suffix = f"_l{layer}{'_reverse' if direction else ''}"
    weights = {f"{name}_l0": getattr(network, name + suffix) for name in names if network.bias or name[0] == "w"}
    settings = {"input_size": width, "hidden_size": network.hidden_size, "bias": network.bias}
    if hasattr(network, "nonlinearity"):
        settings["nonlinearity"] = network.nonlinearity
    return _nn.Layer.hollow(network._kind, settings), {"_parameters": weights, "_buffers": {}, "training": network.training}


def _walk(
    part: tuple[Any, dict[str, Any]], function: Any, x: Tensor, sizes: list[int], start: tuple[Tensor, ...] | None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The results of all steps, and the states after each sequence's last one."""
    results, ended, states, first, row = [], [], start, 0, 0
    while first < len(sizes):
        size = sizes[first]
        count = sum(1 for other in sizes[first:] if other == size)
        steps = ops.reshape(x[row : row + count * size], (count, size, x.shape[1]))
        if states is not None and states[0].shape[1] > size:
            ended.append(tuple(state[:, size:] for state in states))
            states = tuple(state[:, :size] for state in states)
        given = None if states is None else states if len(states) > 1 else states[0]
        out, after = function(*part, steps, given)
        states = after if isinstance(after, tuple) else (after,)
        results.append(ops.reshape(out, (count * size, out.shape[2])))
        first, row = first + count, row + count * size
    assert states is not None
    ended.append(states)
    # The longest sequence ends last, and is the first of the batch.
    ends = tuple(ops.cat(list(reversed(parts)), 1) for parts in zip(*ended))
    return ops.cat(results, 0) if len(results) > 1 else results[0], ends


def _reversal(sizes: list[int]) -> list[int]:
    """For each packed row the row of the same sequence that is as far from its end as this one is from its start."""
    starts = [sum(sizes[:step]) for step in range(len(sizes))]
    lengths = [sum(1 for size in sizes if size > i) for i in range(sizes[0])]
    return [starts[lengths[i] - 1 - step] + i for step, size in enumerate(sizes) for i in range(size)]
