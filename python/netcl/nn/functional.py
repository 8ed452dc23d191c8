"""The recorded operations as functions, under PyTorch's name for the place: ``from netcl.nn import functional as F``."""

from __future__ import annotations

from netcl._netcl import Tensor
from netcl.autograd import ops as _ops
from netcl.autograd.ops import *
from netcl.autograd.ops import adaptive_avg_pool2d
from netcl.nn.dropout import Dropout1d, Dropout2d

__all__ = [
    "abs", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_max_pool1d", "adaptive_max_pool2d", "add", "all", "any",
    "argsort", "avg_pool1d", "avg_pool2d", "batch_norm", "bias_add", "binary_cross_entropy", "binary_cross_entropy_with_logits",
    "cast", "cat", "ceil", "chunk", "clamp", "clone", "contiguous", "conv1d", "conv2d", "conv_transpose2d", "cos",
    "cosine_embedding_loss", "cross_entropy", "cumsum", "div", "dropout", "dropout1d", "dropout2d", "einsum", "elu",
    "embedding", "eq", "erf", "exp", "expand", "expm1", "flatten", "flip", "floor", "fma", "gather", "ge", "gelu", "gelu_tanh",
    "global_avg_pool2d", "group_norm", "gt", "hardsigmoid", "hardswish", "hardtanh", "huber_loss", "index_add", "index_select",
    "interpolate", "kl_div", "l1_loss", "layer_norm", "le", "leaky_relu", "linear", "log", "log1p", "log_softmax", "logsigmoid",
    "logsumexp", "lt", "masked_fill", "matmul", "matmul_op", "max", "max_pool1d", "max_pool2d", "maximum", "mean", "min",
    "minimum", "mish", "mse_loss", "mul", "ne", "neg", "nll_loss", "norm", "normalize", "one_hot", "pad", "permute", "pow",
    "prelu", "prod", "reciprocal", "relu", "relu6", "repeat", "reshape", "rms_norm", "rotary", "round", "rsqrt",
    "scaled_dot_product_attention", "scatter_add", "selu", "sigmoid", "sign", "silu", "sin", "slice", "smooth_l1_loss",
    "softmax", "softplus", "softsign", "sort", "split", "sqrt", "square", "squeeze", "stack", "std", "sub", "sum", "swish",
    "tan", "tanh", "topk", "transpose", "tril", "triplet_margin_loss", "triu", "unsqueeze", "upsample", "var", "where",
]


def dropout1d(x: Tensor, p: float = 0.5, training: bool = True, *, seed: int | None = None) -> Tensor:
    """Dropout of whole channels of sequences (N, C, L)."""
    return Dropout1d(p, seed).train(training)(x)


def dropout2d(x: Tensor, p: float = 0.5, training: bool = True, *, seed: int | None = None) -> Tensor:
    """Dropout of whole channels of images (N, C, H, W)."""
    return Dropout2d(p, seed).train(training)(x)


def global_avg_pool2d(x: Tensor) -> Tensor:
    """The mean of each channel: (N, C, H, W) to (N, C, 1, 1)."""
    return adaptive_avg_pool2d(x, 1)


def normalize(x: Tensor, p: float = 2.0, axis: int = 1, eps: float = 1e-12) -> Tensor:
    """Vectors along an axis divided by their norm, or by ``eps`` where that is larger."""
    return x / _ops.maximum(_ops.norm(x, p, axis, True), eps)
