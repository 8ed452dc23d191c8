"""The recorded operations as functions, under PyTorch's name for the place: ``from netcl.nn import functional as F``."""

from __future__ import annotations

from netcl._netcl import Tensor
from netcl.autograd.ops import *
from netcl.autograd.ops import adaptive_avg_pool2d

__all__ = [
    "abs", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_max_pool1d", "adaptive_max_pool2d", "add", "all",
    "alpha_dropout", "any", "argsort", "avg_pool1d", "avg_pool2d", "batch_norm", "bias_add", "bilinear", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "cast", "cat", "ceil", "celu", "channel_shuffle", "chunk", "clamp", "clone",
    "contiguous", "conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d", "cos", "cosine_embedding_loss",
    "cosine_similarity", "cross_entropy", "cumsum", "div", "dropout", "dropout1d", "dropout2d", "einsum", "elu", "embedding",
    "embedding_bag", "eq", "erf", "exp", "expand", "expm1", "feature_alpha_dropout", "flatten", "flip", "floor", "fma",
    "gather", "gaussian_nll_loss", "ge", "gelu", "gelu_tanh", "global_avg_pool2d", "glu", "group_norm", "gt", "gumbel_softmax",
    "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "hinge_embedding_loss", "huber_loss", "index_add", "index_select",
    "instance_norm", "interpolate", "kl_div", "l1_loss", "layer_norm", "le", "leaky_relu", "linear", "local_response_norm",
    "log", "log1p", "log_softmax", "logsigmoid", "logsumexp", "lp_pool1d", "lp_pool2d", "lt", "margin_ranking_loss",
    "masked_fill", "matmul", "matmul_op", "max", "max_pool1d", "max_pool2d", "maximum", "mean", "min", "minimum", "mish",
    "mse_loss", "mul", "multi_margin_loss", "multilabel_margin_loss", "multilabel_soft_margin_loss", "ne", "neg", "nll_loss",
    "norm", "normalize", "one_hot", "pad", "pairwise_distance", "permute", "pixel_shuffle", "pixel_unshuffle",
    "poisson_nll_loss", "pow", "prelu", "prod", "reciprocal", "relu", "relu6", "repeat", "reshape", "rms_norm", "rotary",
    "round", "rrelu", "rsqrt", "scaled_dot_product_attention", "scatter_add", "selu", "sigmoid", "sign", "silu", "sin", "slice",
    "smooth_l1_loss", "soft_margin_loss", "softmax", "softmin", "softplus", "softshrink", "softsign", "sort", "split", "sqrt",
    "square", "squeeze", "stack", "std", "sub", "sum", "swish", "tan", "tanh", "tanhshrink", "threshold", "topk", "transpose",
    "tril", "triplet_margin_loss", "triu", "unsqueeze", "upsample", "var", "where",
]


def global_avg_pool2d(x: Tensor) -> Tensor:
    """The mean of each channel: (N, C, H, W) to (N, C, 1, 1)."""
    return adaptive_avg_pool2d(x, 1)
