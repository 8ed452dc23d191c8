"""What is compared with PyTorch: layers, their arguments and inputs. ``make_nn.py`` runs them in PyTorch, ``test_nn_golden.py`` in netcl.

Weights and inputs are not stored: both sides compute them from their names.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np


def numbers(key: str, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers in [-1, 1) that depend on a name alone: the bits of SplitMix64, counted from the name's checksum."""
    with np.errstate(over="ignore"):
        x = np.arange(math.prod(shape), dtype=np.uint64) + (np.uint64(zlib.crc32(key.encode())) << np.uint64(24))
        x = (x + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
    return ((x >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0).reshape(shape)


def value(case: str, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The value of a parameter or buffer."""
    last = name.rsplit(".", 1)[-1]
    if last == "num_batches_tracked":
        return np.array(3, np.int64)
    u = numbers(f"{case}/{name}", shape)
    if last == "running_var":
        return 1.0 + 0.5 * u
    if len(shape) >= 2:
        return u * math.sqrt(3.0 / math.prod(shape[1:]))
    return 1.0 + 0.3 * u if last == "weight" else 0.3 * u


@dataclass(frozen=True)
class Case:
    """One layer: ``kind(*args, **kwargs)`` called with inputs of these shapes (or, for arrays, these very inputs)."""

    kind: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    inputs: tuple[Any, ...] = ()
    call: dict[str, Any] = field(default_factory=dict)
    training: bool = True
    label: str = ""

    @property
    def name(self) -> str:
        return self.kind + (f"-{self.label}" if self.label else "")


def given(x: Any, key: str, make: Any) -> Any:
    """An input: ``make(array, trained)`` of numbers for a shape, of the array itself for an array, and of the parts of a tuple."""
    if isinstance(x, np.ndarray):
        return make(x, key.endswith("/input0") and x.dtype.kind == "f")
    if isinstance(x[0], tuple):
        return tuple(given(part, f"{key}.{i}", make) for i, part in enumerate(x))
    return make(numbers(key, x), True)


def _causal(n: int) -> np.ndarray:
    return np.triu(np.ones((n, n), bool), 1)


IMAGE = (2, 4, 5, 6)
CONV = {"in_channels": 4, "out_channels": 6, "kernel_size": 3}
CLASSES = np.array([1, 0, 2, 1])
PROBABILITIES = (numbers("probabilities", (4, 3)) + 1.1) / 2.2

CASES = [
    Case("Linear", {"in_features": 3, "out_features": 4}, ((2, 5, 3),)),
    Case("Linear", {"in_features": 3, "out_features": 4, "bias": False}, ((5, 3),), label="plain"),
    Case("Bilinear", {"in1_features": 3, "in2_features": 4, "out_features": 5}, ((2, 6, 3), (2, 6, 4))),
    Case("Bilinear", {"in1_features": 3, "in2_features": 4, "out_features": 2, "bias": False}, ((3,), (4,)), label="plain"),
    Case("Conv2d", CONV, (IMAGE,)),
    Case(
        "Conv2d",
        {**CONV, "kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 2), "dilation": (1, 2)},
        (IMAGE,),
        label="sizes",
    ),
    Case("Conv2d", {**CONV, "groups": 2, "bias": False, "padding": "same"}, (IMAGE,), label="groups"),
    Case("Conv2d", {**CONV, "kernel_size": 2, "padding": "same"}, (IMAGE,), label="uneven"),
    Case("Conv2d", {**CONV, "padding": 1, "padding_mode": "reflect"}, (IMAGE,), label="reflect"),
    Case("Conv2d", {**CONV, "padding": 2, "padding_mode": "replicate"}, (IMAGE,), label="replicate"),
    Case("Conv2d", CONV, ((4, 5, 6),), label="alone"),
    Case("Conv1d", {**CONV, "stride": 2, "padding": 1}, ((2, 4, 7),)),
    Case("Conv1d", {**CONV, "dilation": 2, "groups": 2}, ((2, 4, 7),), label="dilated"),
    Case("ConvTranspose2d", {"in_channels": 4, "out_channels": 3, "kernel_size": 3, "stride": 2, "padding": 1}, (IMAGE,)),
    Case(
        "ConvTranspose2d",
        {
            "in_channels": 4,
            "out_channels": 6,
            "kernel_size": (2, 3),
            "stride": 2,
            "output_padding": 1,
            "groups": 2,
            "bias": False,
            "dilation": 2,
        },
        ((2, 4, 2, 3),),
        label="groups",
    ),
    Case("Conv1d", {**CONV, "padding": 2, "padding_mode": "circular"}, ((2, 4, 7),), label="circular"),
    Case("ConvTranspose1d", {"in_channels": 4, "out_channels": 3, "kernel_size": 3, "stride": 2}, ((4, 5),), label="alone"),
    Case(
        "ConvTranspose1d",
        {"in_channels": 4, "out_channels": 6, "kernel_size": 3, "stride": 3, "padding": 1, "output_padding": 2, "groups": 2},
        ((2, 4, 5),),
    ),
    Case("BatchNorm2d", {"num_features": 4}, (IMAGE,)),
    Case("BatchNorm2d", {"num_features": 4, "eps": 1e-3}, (IMAGE,), training=False, label="eval"),
    Case("BatchNorm2d", {"num_features": 4, "momentum": None}, (IMAGE,), label="average"),
    Case("BatchNorm2d", {"num_features": 4, "affine": False, "momentum": 0.3}, (IMAGE,), label="plain"),
    Case("BatchNorm2d", {"num_features": 4, "track_running_stats": False}, (IMAGE,), training=False, label="untracked"),
    Case("BatchNorm1d", {"num_features": 4}, ((5, 4),)),
    Case("BatchNorm1d", {"num_features": 4}, ((3, 4, 5),), label="sequences"),
    Case("InstanceNorm2d", {"num_features": 4}, (IMAGE,)),
    Case("InstanceNorm2d", {"num_features": 4, "affine": True, "track_running_stats": True}, (IMAGE,), label="tracked"),
    Case("InstanceNorm2d", {"num_features": 4, "track_running_stats": True}, (IMAGE,), training=False, label="eval"),
    Case("InstanceNorm1d", {"num_features": 4, "affine": True, "eps": 1e-3}, ((2, 4, 5),)),
    Case("InstanceNorm1d", {"num_features": 4}, ((4, 5),), label="alone"),
    Case("LayerNorm", {"normalized_shape": 6}, ((2, 3, 6),)),
    Case("LayerNorm", {"normalized_shape": (3, 6), "bias": False, "eps": 1e-3}, ((2, 3, 6),), label="axes"),
    Case("LayerNorm", {"normalized_shape": 6, "elementwise_affine": False}, ((2, 6),), label="plain"),
    Case("GroupNorm", {"num_groups": 2, "num_channels": 4}, (IMAGE,)),
    Case("GroupNorm", {"num_groups": 4, "num_channels": 4, "affine": False}, ((2, 4, 3),), label="plain"),
    Case("RMSNorm", {"normalized_shape": 6, "eps": 1e-6}, ((2, 3, 6),)),
    Case("Embedding", {"num_embeddings": 7, "embedding_dim": 3}, (np.array([[1, 5, 5], [6, 0, 1]]),)),
    Case(
        "Embedding",
        {"num_embeddings": 7, "embedding_dim": 3, "padding_idx": 5},
        (np.array([[1, 5, 5], [6, 0, 1]]),),
        label="padded",
    ),
    Case("EmbeddingBag", {"num_embeddings": 7, "embedding_dim": 3}, (np.array([[1, 5, 5], [6, 0, 1]]),)),
    *(
        Case(
            "EmbeddingBag",
            {"num_embeddings": 7, "embedding_dim": 3, "mode": mode, "padding_idx": 5},
            (np.array([1, 5, 5, 6, 0, 1]), np.array([0, 2, 5])),
            label=mode,
        )
        for mode in ("sum", "max")
    ),
    Case("MaxPool2d", {"kernel_size": 2}, (IMAGE,)),
    Case("MaxPool2d", {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}, (IMAGE,), label="ceil"),
    Case("MaxPool1d", {"kernel_size": 3, "stride": 1, "dilation": 2}, ((2, 3, 8),)),
    Case("AvgPool2d", {"kernel_size": 2}, (IMAGE,)),
    Case("AvgPool2d", {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False}, (IMAGE,), label="edges"),
    Case("AvgPool1d", {"kernel_size": 3, "stride": 2}, ((2, 3, 8),)),
    Case("AdaptiveAvgPool2d", {"output_size": (2, 4)}, (IMAGE,)),
    Case("AdaptiveAvgPool1d", {"output_size": 3}, ((2, 3, 7),)),
    Case("AdaptiveMaxPool2d", {"output_size": (None, 4)}, (IMAGE,)),
    Case("AdaptiveMaxPool1d", {"output_size": 3}, ((2, 3, 7),)),
    Case("ZeroPad1d", {"padding": (1, 2)}, ((2, 3, 4),)),
    Case("ZeroPad2d", {"padding": (1, 0, 2, -1)}, ((2, 2, 3, 4),)),
    Case("ConstantPad1d", {"padding": 1, "value": 2.5}, ((2, 3, 4),)),
    Case("ConstantPad2d", {"padding": (1, 2, 0, 1), "value": -1.0}, ((2, 2, 3, 4),)),
    Case("ReflectionPad1d", {"padding": (2, 1)}, ((2, 3, 4),)),
    Case("ReflectionPad2d", {"padding": (2, 1, 1, 0)}, ((2, 2, 3, 4),)),
    Case("ReplicationPad1d", {"padding": (2, 1)}, ((2, 3, 4),)),
    Case("ReplicationPad2d", {"padding": (2, 1, 1, 0)}, ((2, 2, 3, 4),)),
    Case("CircularPad1d", {"padding": (2, 3)}, ((2, 3, 4),)),
    Case("CircularPad2d", {"padding": (4, 1, 0, 3)}, ((2, 2, 3, 4),)),
    Case("PixelShuffle", {"upscale_factor": 2}, ((2, 8, 3, 2),)),
    Case("PixelUnshuffle", {"downscale_factor": 2}, ((2, 2, 4, 6),)),
    Case("Upsample", {"scale_factor": 2.0}, ((2, 2, 3, 4),)),
    Case("Upsample", {"size": 7, "mode": "linear", "align_corners": False}, ((2, 2, 3),), label="linear"),
    Case("Upsample", {"size": (5, 7), "mode": "bilinear", "align_corners": False}, ((2, 2, 3, 4),), label="bilinear"),
    Case("Upsample", {"scale_factor": 2.0, "mode": "bilinear", "align_corners": True}, ((2, 2, 3, 4),), label="corners"),
    Case("Flatten", {"start_dim": 1, "end_dim": 2}, ((2, 3, 4, 2),)),
    Case("Unflatten", {"dim": 1, "unflattened_size": (2, 3)}, ((2, 6, 2),)),
    Case("PReLU", {}, ((2, 3, 4),)),
    Case("PReLU", {"num_parameters": 3}, ((2, 3, 4),), label="channels"),
    Case("LeakyReLU", {"negative_slope": 0.2}, ((3, 4),)),
    Case("GELU", {}, ((3, 4),)),
    Case("GELU", {"approximate": "tanh"}, ((3, 4),), label="tanh"),
    Case("Softmax", {"dim": 1}, ((3, 4),)),
    Case("LogSoftmax", {"dim": 0}, ((3, 4),)),
    Case("CELU", {"alpha": 0.5}, ((3, 4),)),
    Case("Hardshrink", {"lambd": 0.3}, ((3, 4),)),
    Case("Softshrink", {"lambd": 0.3}, ((3, 4),)),
    Case("Tanhshrink", {}, ((3, 4),)),
    Case("Threshold", {"threshold": 0.1, "value": -2.0}, ((3, 4),)),
    Case("Softmin", {"dim": 1}, ((3, 4),)),
    Case("Softmax2d", {}, (IMAGE,)),
    Case("GLU", {"dim": 1}, (IMAGE,)),
    Case("LSTM", {"input_size": 3, "hidden_size": 4}, ((5, 2, 3),)),
    Case(
        "LSTM",
        {"input_size": 3, "hidden_size": 4, "num_layers": 2, "batch_first": True, "bidirectional": True},
        ((2, 3, 3), ((4, 2, 4), (4, 2, 4))),
        label="deep",
    ),
    Case("LSTM", {"input_size": 3, "hidden_size": 2, "bias": False}, ((3, 2, 3),), label="plain"),
    Case("GRU", {"input_size": 3, "hidden_size": 4}, ((5, 2, 3),)),
    Case(
        "GRU",
        {"input_size": 3, "hidden_size": 4, "num_layers": 2, "batch_first": True, "bidirectional": True},
        ((2, 3, 3), (4, 2, 4)),
        label="deep",
    ),
    Case("RNN", {"input_size": 3, "hidden_size": 4}, ((5, 2, 3),)),
    Case(
        "RNN",
        {"input_size": 3, "hidden_size": 4, "num_layers": 2, "nonlinearity": "relu", "bidirectional": True},
        ((3, 2, 3), (4, 2, 4)),
        label="deep",
    ),
    Case("LSTMCell", {"input_size": 3, "hidden_size": 4}, ((2, 3), ((2, 4), (2, 4)))),
    Case("GRUCell", {"input_size": 3, "hidden_size": 4, "bias": False}, ((2, 3), (2, 4))),
    Case("RNNCell", {"input_size": 3, "hidden_size": 4, "nonlinearity": "relu"}, ((2, 3),)),
    Case(
        "MultiheadAttention",
        {"embed_dim": 8, "num_heads": 2, "batch_first": True},
        ((2, 3, 8), (2, 4, 8), (2, 4, 8)),
        {"need_weights": True},
    ),
    Case(
        "MultiheadAttention",
        {"embed_dim": 8, "num_heads": 2, "batch_first": False, "bias": False},
        ((4, 2, 8), (4, 2, 8), (4, 2, 8)),
        {
            "need_weights": True,
            "average_attn_weights": False,
            "attn_mask": _causal(4),
            "key_padding_mask": np.array([[False, False, False, True], [False] * 4]),
        },
        label="masks",
    ),
    Case(
        "TransformerEncoderLayer",
        {"d_model": 8, "nhead": 2, "dim_feedforward": 12, "dropout": 0.0, "batch_first": True},
        ((2, 3, 8),),
    ),
    Case(
        "TransformerEncoderLayer",
        {
            "d_model": 8,
            "nhead": 2,
            "dim_feedforward": 12,
            "dropout": 0.3,
            "activation": "gelu",
            "norm_first": True,
            "batch_first": False,
        },
        ((3, 2, 8),),
        {"src_mask": _causal(3)},
        training=False,
        label="first",
    ),
    Case(
        "TransformerDecoderLayer",
        {"d_model": 8, "nhead": 2, "dim_feedforward": 12, "dropout": 0.0, "batch_first": True},
        ((2, 3, 8), (2, 5, 8)),
        {"tgt_mask": _causal(3), "memory_key_padding_mask": np.array([[False] * 5, [False, True, False, False, True]])},
    ),
    Case(
        "TransformerDecoderLayer",
        {
            "d_model": 8,
            "nhead": 2,
            "dim_feedforward": 12,
            "dropout": 0.3,
            "activation": "gelu",
            "norm_first": True,
            "batch_first": False,
        },
        ((3, 2, 8), (4, 2, 8)),
        {
            "memory_mask": np.eye(3, 4, dtype=bool),
            "tgt_key_padding_mask": np.array([[False, False, True], [False] * 3]),
        },
        training=False,
        label="first",
    ),
    Case("MSELoss", {}, ((3, 4), (3, 4))),
    Case("L1Loss", {"reduction": "sum"}, ((3, 4), (3, 4))),
    Case("SmoothL1Loss", {"beta": 0.5}, ((3, 4), (3, 4))),
    Case("HuberLoss", {"delta": 0.5, "reduction": "none"}, ((3, 4), (3, 4))),
    Case("CrossEntropyLoss", {"label_smoothing": 0.1, "ignore_index": 1}, ((4, 3), CLASSES)),
    Case("NLLLoss", {}, ((4, 3), CLASSES)),
    Case("BCELoss", {}, (PROBABILITIES, PROBABILITIES[::-1].copy())),
    Case("BCEWithLogitsLoss", {}, ((4, 3), PROBABILITIES)),
    Case("KLDivLoss", {"reduction": "batchmean"}, ((4, 3), PROBABILITIES)),
    Case("CosineEmbeddingLoss", {"margin": 0.2}, ((4, 3), (4, 3), np.array([1.0, -1.0, 1.0, -1.0]))),
    Case("TripletMarginLoss", {"margin": 0.5, "swap": True}, ((4, 3), (4, 3), (4, 3))),
    Case("MarginRankingLoss", {"margin": 0.2}, ((4,), (4,), np.array([1.0, -1.0, 1.0, -1.0]))),
    Case("HingeEmbeddingLoss", {"margin": 0.8}, ((4,), np.array([1.0, -1.0, 1.0, -1.0]))),
    Case("SoftMarginLoss", {"reduction": "sum"}, ((4,), np.array([1.0, -1.0, 1.0, -1.0]))),
    Case("MultiMarginLoss", {"p": 2, "margin": 0.7}, ((4, 3), CLASSES)),
    Case("MultiLabelMarginLoss", {}, ((2, 4), np.array([[3, 0, -1, 1], [2, -1, 0, 1]]))),
    Case("MultiLabelSoftMarginLoss", {}, ((4, 3), PROBABILITIES)),
    Case("PoissonNLLLoss", {"full": True}, ((4, 3), 5 * PROBABILITIES)),
    Case("GaussianNLLLoss", {"full": True}, ((4, 3), PROBABILITIES, PROBABILITIES[::-1].copy())),
]

# Torchvision's networks in float32: blocks of each stage, kind of block, stem, images. Of each gradient a few elements and the
# norm are kept. Norms need more than a few numbers in the last stage: of two, rounding decides which is the larger.
NETWORKS = {
    "imagenet": ((2, 2, 2, 2), "BasicBlock", (2, 3, 64, 64)),
    "cifar": ((2, 2, 2, 2), "BasicBlock", (2, 3, 16, 16)),
    "imagenet-bottleneck": ((1, 1, 1, 1), "Bottleneck", (2, 3, 64, 64)),
}
SAMPLES = 6


def sampled(array: np.ndarray) -> np.ndarray:
    """A few elements of an array, and its norm."""
    flat = np.asarray(array, np.float64).reshape(-1)
    return np.append(flat[:: max(len(flat) // SAMPLES, 1)][:SAMPLES], np.linalg.norm(flat))
