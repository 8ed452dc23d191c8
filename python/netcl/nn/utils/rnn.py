"""Sequences of different lengths as one tensor: ``netcl.nn.utils.rnn``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from netcl import _factories as make
from netcl._netcl import Tensor
from netcl.autograd import ops
from netcl.nn._packed import PackedSequence

__all__ = [
    "PackedSequence", "pack_padded_sequence", "pack_sequence", "pad_packed_sequence", "pad_sequence", "unpack_sequence",
    "unpad_sequence",
]  # fmt: skip


def pad_sequence(
    sequences: Sequence[Tensor], batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right"
) -> Tensor:
    """Sequences ``(length, ...)`` as one tensor ``(longest, batch, ...)``, or ``(batch, longest, ...)``."""
    if not sequences:
        raise ValueError("pad_sequence: there is at least one sequence")
    if padding_side not in ("left", "right"):
        raise ValueError(f'pad_sequence: padding_side is "left" or "right", not {padding_side!r}')
    longest = max(t.shape[0] for t in sequences)
    padded = []
    for t in sequences:
        missing = longest - t.shape[0]
        ends = (missing, 0) if padding_side == "left" else (0, missing)
        padded.append(ops.pad(t, [ends, *[(0, 0)] * (t.ndim - 1)], value=padding_value) if missing else t)
    return ops.stack(padded, 0 if batch_first else 1)


def unpad_sequence(padded_sequences: Tensor, lengths: Any, batch_first: bool = False) -> list[Tensor]:
    """The sequences that ``pad_sequence`` padded on the right."""
    each = padded_sequences if batch_first else ops.transpose(padded_sequences, 0, 1)
    return [each[i][: int(length)] for i, length in enumerate(lengths)]


def pack_padded_sequence(
    input: Tensor, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """Padded sequences ``(longest, batch, ...)``, or ``(batch, longest, ...)``, without their padding: what ``LSTM``, ``GRU``
    and ``RNN`` take.

    With ``enforce_sorted`` the longest comes first; else they are put into that order, and results come in the order given.
    """
    whole = [int(length) for length in (lengths.tolist() if hasattr(lengths, "tolist") else lengths)]
    batch, longest = input.shape[:2] if batch_first else input.shape[1::-1]
    if len(whole) != batch:
        raise ValueError(f"pack_padded_sequence: {len(whole)} lengths for a batch of {batch}")
    if not whole or min(whole) < 1 or max(whole) > longest:
        raise ValueError(f"pack_padded_sequence: lengths are from 1 to {longest}, not {whole}")
    order = sorted(range(batch), key=lambda i: -whole[i])
    if enforce_sorted and any(a < b for a, b in pairwise(whole)):
        raise ValueError("pack_padded_sequence: the longest sequence comes first; enforce_sorted=False takes any order")
    stride = (longest, 1) if batch_first else (1, batch)
    sizes = [sum(1 for length in whole if length > step) for step in range(max(whole))]
    rows = [order[i] * stride[0] + step * stride[1] for step, size in enumerate(sizes) for i in range(size)]
    data = ops.index_select(ops.flatten(input, 0, 1), 0, make.tensor(rows, device=input.queue))
    sizes_tensor = make.tensor(sizes, device="cpu")
    if enforce_sorted:
        return PackedSequence(data, sizes_tensor)
    back = sorted(range(batch), key=order.__getitem__)
    return PackedSequence(
        data, sizes_tensor, make.tensor(order, device=input.queue), make.tensor(back, device=input.queue)
    )


def pad_packed_sequence(
    sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> tuple[Tensor, Tensor]:
    """What ``pack_padded_sequence`` packed, and the lengths."""
    sizes = [int(size) for size in sequence.batch_sizes.tolist()]
    length = len(sizes) if total_length is None else total_length
    if length < len(sizes):
        raise ValueError(f"pad_packed_sequence: total_length is {length}; the longest sequence has {len(sizes)} steps")
    starts = [sum(sizes[:step]) for step in range(len(sizes))]
    batch, rows = sizes[0], sequence.data.shape[0]
    order = range(batch) if sequence.unsorted_indices is None else sequence.unsorted_indices.tolist()
    # The row after the last one is the padding.
    places = [[starts[step] + i if step < len(sizes) and i < sizes[step] else rows for step in range(length)] for i in order]
    padding = make.full((1, *sequence.data.shape[1:]), padding_value, dtype=sequence.data.dtype, device=sequence.data.queue)
    flat = places if batch_first else zip(*places)
    index = make.tensor([row for line in flat for row in line], device=sequence.data.queue)
    padded = ops.index_select(ops.cat([sequence.data, padding], 0), 0, index)
    shape = (batch, length) if batch_first else (length, batch)
    lengths = [sum(1 for size in sizes if size > i) for i in order]
    return ops.reshape(padded, (*shape, *sequence.data.shape[1:])), make.tensor(lengths, device="cpu")


def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Sequences ``(length, ...)`` of different lengths, packed."""
    lengths = [t.shape[0] for t in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The sequences that ``pack_sequence`` packed."""
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths.tolist(), batch_first=True)
