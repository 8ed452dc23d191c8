"""Functions that are compared with PyTorch's of the same name: ``make_functional.py`` runs them in PyTorch,
``test_functional_golden.py`` in netcl. Inputs are not stored: both sides compute them from their names (``nn_cases.numbers``).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from nn_cases import numbers


@dataclass(frozen=True)
class Case:
    """One call: ``function(*args, **kwargs)``, where tuples (also inside ``tensors``) are shapes of tensors with a gradient.

    Arrays of floats have a gradient, too, but for ``TARGETS``; those of ``state`` are written by the call.
    """

    function: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, tuple[int, ...]] = field(default_factory=dict)
    state: dict[str, np.ndarray] = field(default_factory=dict)
    label: str = ""

    @property
    def name(self) -> str:
        return self.function + (f"-{self.label}" if self.label else "")


SIGNS = np.array([1.0, -1.0, -1.0, 1.0])
COUNTS = np.array([[0.0, 1.0, 2.0], [5.0, 3.0, 1.0]])
RATES = numbers("rates", (2, 3)) + 1.5
LABELS = np.array([2, 0, 1, 1])
SEVERAL = np.array([[2, 0, -1, 3, 1], [1, -1, 0, 0, 0], [-1, 4, 3, 2, 1], [4, 3, 3, 0, 2]])
ROWS = np.array([[1, 4, 4], [0, 2, 4], [4, 4, 4]])
INDICES, OFFSETS = np.array([1, 4, 4, 0, 2, 4, 4]), np.array([0, 3, 3, 5])
# From -2 to 2, most of them inside.
POINTS = numbers("points", (2, 3, 4, 2)) * 1.3
# PyTorch's gradients of these are none, or NaN at 0.
TARGETS = (SIGNS, COUNTS)
AVERAGES = {"running_mean": numbers("mean", (3,)), "running_var": numbers("var", (3,)) * 0.5 + 1.0}

CASES = [
    Case(
        "conv_transpose1d",
        ((2, 4, 5), (4, 3, 3)),
        {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2, "dilation": 2},
        {"bias": (6,)},
    ),
    Case("conv_transpose1d", ((4, 5), (4, 3, 3)), label="one"),
    Case("conv_transpose2d", ((4, 3, 2), (4, 3, 2, 2)), {"stride": 2}, {"bias": (3,)}, label="one"),
    Case("conv1d", ((4, 7), (3, 4, 3)), {"stride": 2}, {"bias": (3,)}, label="one"),
    Case("conv2d", ((4, 5, 6), (3, 4, 3, 2)), {"padding": 1}, {"bias": (3,)}, label="one"),
    Case("instance_norm", ((2, 3, 4, 5),), {"eps": 1e-3}, {"weight": (3,), "bias": (3,)}),
    Case("instance_norm", ((2, 3, 6),), {"momentum": 0.3}, state=AVERAGES, label="running"),
    Case(
        "instance_norm", ((2, 3, 6),), {"use_input_stats": False}, {"weight": (3,), "bias": (3,)}, AVERAGES, label="averages"
    ),
    Case("local_response_norm", ((2, 5, 3, 2), 3, 0.5, 0.75, 2.0)),
    Case("local_response_norm", ((2, 5, 3), 4), label="even"),
    Case("bilinear", ((2, 3, 4), (2, 3, 5), (6, 4, 5)), {}, {"bias": (6,)}),
    Case("bilinear", ((3, 4), (3, 5), (2, 4, 5)), label="plain"),
    Case("pixel_shuffle", ((2, 8, 2, 3), 2)),
    Case("pixel_unshuffle", ((2, 3, 4, 6), 2)),
    Case("channel_shuffle", ((2, 6, 3, 2), 3)),
    *(
        Case("scaled_dot_product_attention", ((2, heads, 3, 4), (2, 2, 5, 4), (2, 2, 5, 6)), how, mask, label=label)
        for label, heads, how, mask in (
            ("mask", 2, {"scale": 0.3}, {"attn_mask": (2, 1, 5)}),
            ("grouped", 6, {"enable_gqa": True}, {}),
            ("grouped-causal", 4, {"enable_gqa": True, "is_causal": True}, {}),
            ("grouped-mask", 4, {"enable_gqa": True}, {"attn_mask": (1, 4, 3, 5)}),
        )
    ),
    Case("unfold", ((2, 3, 5, 6),), {"kernel_size": (2, 3), "dilation": (2, 1), "padding": (1, 2), "stride": (1, 2)}),
    Case("unfold", ((3, 4, 6),), {"kernel_size": 2, "stride": 2}, label="one"),
    Case("fold", ((2, 12, 12),), {"output_size": (4, 5), "kernel_size": 2, "padding": (1, 0), "dilation": (3, 1), "stride": (1, 1)}),
    Case("fold", ((12, 6),), {"output_size": (4, 6), "kernel_size": 2, "stride": 2}, label="one"),
    *(
        Case("interpolate", ((2, 2, 4, 5),), {"mode": mode, **how}, label=f"{mode}-{label}")
        for mode in ("bicubic", "area")
        for label, how in (
            ("larger", {"size": (7, 6)}),
            ("smaller", {"size": (2, 3)}),
            ("factor", {"scale_factor": (1.7, 0.6)}),
            ("corners", {"scale_factor": 2.0, "align_corners": True}),
        )
        if mode == "bicubic" or label != "corners"
    ),
    Case("interpolate", ((2, 3, 7),), {"mode": "area", "size": 3}, label="area-line"),
    *(
        Case("affine_grid", ((2, 2, 3),), {"size": [2, 3, 4, 5], "align_corners": corners}, label=f"{corners}")
        for corners in (False, True)
    ),
    *(
        Case("grid_sample", ((2, 2, 4, 5), POINTS), how, label="-".join(str(value) for value in how.values()))
        for mode in ("bilinear", "nearest", "bicubic")
        for padding in ("zeros", "border", "reflection")
        for corners in (False, True)
        for how in ({"mode": mode, "padding_mode": padding, "align_corners": corners},)
    ),
    Case("glu", ((3, 4, 5), 1)),
    Case("glu", ((3, 6),), label="last"),
    *(
        Case("embedding_bag", (ROWS, (5, 3)), {"mode": mode, **padding}, label=f"rows-{mode}-{len(padding)}")
        for mode in ("sum", "mean", "max")
        for padding in ({}, {"padding_idx": 4})
    ),
    *(
        Case("embedding_bag", (INDICES, (5, 3), OFFSETS), {"mode": mode, **padding}, label=f"{mode}-{len(padding)}")
        for mode in ("sum", "mean", "max")
        for padding in ({}, {"padding_idx": 4})
    ),
    Case("embedding_bag", (INDICES, (5, 3), OFFSETS), {"mode": "sum"}, {"per_sample_weights": (7,)}, label="weights"),
    Case("embedding_bag", (ROWS, (5, 3)), {"mode": "sum"}, {"per_sample_weights": (3, 3)}, label="rows-weights"),
    Case(
        "embedding_bag", (INDICES, (5, 3), np.append(OFFSETS, 7)), {"mode": "max", "include_last_offset": True}, label="last"
    ),
    Case("cosine_similarity", ((3, 4), (3, 4))),
    Case("cosine_similarity", ((3, 1, 4), (2, 4), -1), label="broadcast"),
    Case("cosine_similarity", ((3, 4), np.zeros((3, 4)), 0), label="zeros"),
    *(Case("pairwise_distance", ((3, 4), (3, 4), p), label=f"{p:g}") for p in (1.0, 2.0, 3.0)),
    Case("pairwise_distance", ((2, 3, 4), (3, 4), 2.0, 1e-3, True), label="kept"),
    Case("normalize", ((3, 4),)),
    Case("normalize", ((3, 4), 1.0, 0), label="1"),
    Case("lp_pool2d", ((2, 2, 5, 7), 2.0, (2, 3), 2, True)),
    Case("lp_pool1d", ((2, 2, 7), 4.0, 3)),
    Case("celu", ((3, 4), 0.7)),
    Case("hardshrink", ((3, 4),)),
    Case("softshrink", ((3, 4), 0.3)),
    Case("tanhshrink", ((3, 4),)),
    Case("threshold", ((3, 4), 0.1, -2.0)),
    Case("rrelu", ((3, 4), 0.1, 0.4)),
    Case("softmin", ((3, 4), 1)),
    *(
        Case("margin_ranking_loss", ((4,), (4,), SIGNS), {"margin": 0.5, "reduction": reduction}, label=reduction)
        for reduction in ("mean", "sum", "none")
    ),
    Case("hinge_embedding_loss", ((4,), SIGNS)),
    Case("hinge_embedding_loss", ((4,), np.array([1.0, -1.0, 0.0, 2.0])), {"margin": 0.5, "reduction": "none"}, label="others"),
    Case("soft_margin_loss", ((4,), SIGNS)),
    Case("soft_margin_loss", ((4,), SIGNS), {"reduction": "none"}, label="none"),
    Case("multilabel_soft_margin_loss", ((2, 3), COUNTS > 1.5)),
    Case("multilabel_soft_margin_loss", ((2, 3), COUNTS > 1.5), {"reduction": "none"}, {"weight": (3,)}, label="weight"),
    Case("multi_margin_loss", ((4, 3), LABELS)),
    Case("multi_margin_loss", ((4, 3), LABELS), {"p": 2, "margin": 0.5, "reduction": "none"}, label="square"),
    Case("multi_margin_loss", ((4, 3), LABELS), {"weight": np.array([0.5, 2.0, 1.0]), "reduction": "sum"}, label="weight"),
    Case("multi_margin_loss", ((3,), np.array(1)), label="one"),
    *(
        Case("multilabel_margin_loss", ((4, 5), SEVERAL), {"reduction": reduction}, label=reduction)
        for reduction in ("mean", "sum", "none")
    ),
    Case("multilabel_margin_loss", ((5,), SEVERAL[0]), label="one"),
    Case("poisson_nll_loss", ((2, 3), COUNTS)),
    Case("poisson_nll_loss", ((2, 3), COUNTS), {"full": True, "reduction": "none"}, label="full"),
    Case("poisson_nll_loss", (RATES, COUNTS), {"log_input": False, "reduction": "sum"}, label="rates"),
    Case("gaussian_nll_loss", ((2, 3), (2, 3), RATES)),
    Case("gaussian_nll_loss", ((2, 3), (2, 3), RATES[:, :1]), {"full": True, "reduction": "none"}, label="shared"),
    Case("gaussian_nll_loss", ((2, 3), (2, 3), RATES[:, 0] * 0.0), {"eps": 0.5}, label="least"),
]


def arguments(case: Case, make: Any) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call: ``make(array, trained)`` of every tensor."""

    def one(x: Any, key: str) -> Any:
        if isinstance(x, np.ndarray):
            trained = x.dtype.kind == "f" and not any(x is target for target in TARGETS)
            return make(x.astype(np.float64) if x.dtype.kind == "b" else x, trained)
        # Sizes of windows are tuples, too, but follow a number.
        return make(numbers(f"{case.name}/{key}", x), True) if isinstance(x, tuple) else x

    numbered = next((i for i, x in enumerate(case.args) if isinstance(x, float)), len(case.args))
    args = [one(x, str(i)) if i < numbered else x for i, x in enumerate(case.args)]
    kwargs = {name: make(x, False) if isinstance(x, np.ndarray) else x for name, x in case.kwargs.items()}
    kwargs |= {name: one(shape, name) for name, shape in case.tensors.items()}
    return args, kwargs | {name: make(array.copy(), False) for name, array in case.state.items()}


FILE = Path(__file__).with_name("functional.npz")


def write(arrays: dict[str, np.ndarray]) -> None:
    """All arrays one after the other: a file of hundreds of small ones would be mostly headers."""
    index = json.dumps([(name, array.shape) for name, array in arrays.items()])
    np.savez_compressed(FILE, values=np.concatenate([array.reshape(-1) for array in arrays.values()]), index=index)


def read() -> dict[str, np.ndarray]:
    """What ``write`` wrote."""
    with np.load(FILE) as file:
        values, index = file["values"], json.loads(str(file["index"]))
    ends = np.cumsum([int(np.prod(shape)) for _, shape in index])
    return {name: part.reshape(shape) for (name, shape), part in zip(index, np.split(values, ends[:-1]))}
