"""Sequences of different lengths as one tensor: ``netcl.nn.utils.rnn``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netcl._netcl import Tensor
from netcl.autograd import ops

__all__ = ["pad_sequence", "unpad_sequence"]


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
