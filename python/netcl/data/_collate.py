"""How samples become a batch."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["default_collate"]


def default_collate(samples: Sequence[Any]) -> Any:
    """Joins samples to a batch, field by field.

    ======================================  ==============================================================
    samples                                 batch
    ======================================  ==============================================================
    arrays (and what becomes one)           one array with a new first axis, of the same dtype
    NumPy's numbers                         an array of their dtype
    ``int``, ``float``, ``bool``            an array of int64, float64, bool: the types of PyTorch's collation
    ``str``, ``bytes``                      a list
    tuples, named tuples, lists, dicts      the same with a batch in each field
    ======================================  ==============================================================
    """
    import numpy as np

    if not isinstance(samples, list | tuple) or not samples:
        raise TypeError(f"default_collate: a list of samples is wanted, at least one, not {samples!r:.200}")
    first = samples[0]
    try:
        if isinstance(first, np.ndarray):
            return np.stack(samples)
        if isinstance(first, np.generic | bool | int | float):
            return np.asarray(samples)
        if isinstance(first, str | bytes):
            return list(samples)
        if isinstance(first, Mapping):
            joined = {key: default_collate([sample[key] for sample in samples]) for key in first}
            return joined if type(first) is dict else _like(first, joined)
        if isinstance(first, tuple | list):
            if any(len(sample) != len(first) for sample in samples):
                raise ValueError(f"samples have different numbers of fields: {sorted({len(sample) for sample in samples})}")
            fields = [default_collate(field) for field in zip(*samples)]
            if isinstance(first, list):
                return fields
            return type(first)(*fields) if hasattr(first, "_fields") else tuple(fields)
        if type(first).__module__ == "torch":
            # One copy instead of one array for each sample: a third of the time.
            return sys.modules["torch"].stack(list(samples)).detach().cpu().numpy()
        if hasattr(first, "__array__"):
            return np.stack([np.asarray(sample) for sample in samples])
    except ValueError as error:
        shapes = {np.shape(sample) for sample in samples if hasattr(sample, "shape")}
        if len(shapes) < 2:
            raise
        raise ValueError(
            f"collate: the arrays of a batch have different shapes: {sorted(shapes)}; bring them to one with a transform, or "
            "join them with a collate_fn (netcl.data.filters.pad_sequences pads sequences)"
        ) from error
    except KeyError as error:
        raise ValueError(f"collate: the dicts of a batch have different fields: one lacks {error}") from error
    raise TypeError(
        f"collate: samples hold a {type(first).__name__}, which is no array, number, text, tuple, list or dict; pass a "
        "collate_fn that joins them"
    )


def _like(first: Mapping[Any, Any], joined: dict[Any, Any]) -> Any:
    """A mapping of the samples' type where it can be made of a dict."""
    try:
        return type(first)(joined)  # type: ignore[call-arg]
    except TypeError:
        return joined
