"""Automatic differentiation: recorded operations, the tape, and operations of one's own.

    import netcl.autograd as ag

    with ag.Tape() as tape:
        loss = ag.mse_loss(ag.linear(x, weight, bias), target)
    tape.backward(loss)

Every operation here that consumes a tensor with ``requires_grad`` is recorded, inside a ``Tape`` or not. ``netcl.ops`` has the
same operations without recording.
"""

from netcl._netcl.autograd import (
    FunctionContext,
    HookHandle,
    Node,
    backward,
    checkpoint,
    grad,
    gradcheck,
    gradgradcheck,
    is_grad_enabled,
    tensor,
)
from netcl.autograd.compiler import Compiled, jit, jit_compile
from netcl.autograd.function import Function
from netcl.autograd.ops import *
from netcl.autograd.tape import Tape, detect_anomaly, enable_grad, no_grad

__all__ = [
    "Compiled", "Function", "FunctionContext", "HookHandle", "Node", "Tape", "abs", "adaptive_avg_pool1d",
    "adaptive_avg_pool2d", "adaptive_max_pool1d", "adaptive_max_pool2d", "add", "all", "alpha_dropout", "any", "argsort",
    "avg_pool1d", "avg_pool2d", "backward", "batch_norm", "bias_add", "bilinear", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "cast", "cat", "ceil", "celu", "channel_shuffle", "checkpoint", "chunk", "clamp",
    "clone", "contiguous", "conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d", "cos", "cosine_embedding_loss",
    "cosine_similarity", "cross_entropy", "cumsum", "detect_anomaly", "div", "dropout", "dropout1d", "dropout2d", "einsum",
    "elu", "embedding", "embedding_bag", "enable_grad", "eq", "erf", "exp", "expand", "expm1", "feature_alpha_dropout",
    "flatten", "flip", "floor", "fma", "gather", "gaussian_nll_loss", "ge", "gelu", "gelu_tanh", "glu", "grad", "gradcheck",
    "gradgradcheck", "group_norm", "gt", "gumbel_softmax", "hardshrink", "hardsigmoid", "hardswish", "hardtanh",
    "hinge_embedding_loss", "huber_loss", "index_add", "index_select", "instance_norm", "interpolate", "is_grad_enabled", "jit",
    "jit_compile", "kl_div", "l1_loss", "layer_norm", "le", "leaky_relu", "linear", "local_response_norm", "log", "log1p",
    "log_softmax", "logsigmoid", "logsumexp", "lp_pool1d", "lp_pool2d", "lt", "margin_ranking_loss", "masked_fill", "matmul",
    "matmul_op", "max", "max_pool1d", "max_pool2d", "maximum", "mean", "min", "minimum", "mish", "mse_loss", "mul",
    "multi_margin_loss", "multilabel_margin_loss", "multilabel_soft_margin_loss", "ne", "neg", "nll_loss", "no_grad", "norm",
    "normalize", "one_hot", "pad", "pairwise_distance", "permute", "pixel_shuffle", "pixel_unshuffle", "poisson_nll_loss",
    "pow", "prelu", "prod", "reciprocal", "relu", "relu6", "repeat", "reshape", "rms_norm", "rotary", "round", "rrelu", "rsqrt",
    "scaled_dot_product_attention", "scatter_add", "selu", "sigmoid", "sign", "silu", "sin", "slice", "smooth_l1_loss",
    "soft_margin_loss", "softmax", "softmin", "softplus", "softshrink", "softsign", "sort", "split", "sqrt", "square",
    "squeeze", "stack", "std", "sub", "sum", "swish", "tan", "tanh", "tanhshrink", "tensor", "threshold", "topk", "transpose",
    "tril", "triplet_margin_loss", "triu", "unsqueeze", "upsample", "var", "where",
]
