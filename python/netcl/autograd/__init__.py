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
    "adaptive_avg_pool2d", "adaptive_max_pool1d", "adaptive_max_pool2d", "add", "all", "any", "argsort", "avg_pool1d",
    "avg_pool2d", "backward", "batch_norm", "bias_add", "binary_cross_entropy", "binary_cross_entropy_with_logits", "cast",
    "cat", "ceil", "checkpoint", "chunk", "clamp", "clone", "contiguous", "conv1d", "conv2d", "conv_transpose2d", "cos",
    "cosine_embedding_loss", "cross_entropy", "cumsum", "detect_anomaly", "div", "dropout", "einsum", "elu", "embedding",
    "enable_grad", "eq", "erf", "exp", "expand", "expm1", "flatten", "flip", "floor", "fma", "gather", "ge", "gelu",
    "gelu_tanh", "grad", "gradcheck", "gradgradcheck", "group_norm", "gt", "hardsigmoid", "hardswish", "hardtanh", "huber_loss",
    "index_add", "index_select", "interpolate", "is_grad_enabled", "jit", "jit_compile", "kl_div", "l1_loss", "layer_norm",
    "le", "leaky_relu", "linear", "log", "log1p", "log_softmax", "logsigmoid", "logsumexp", "lt", "masked_fill", "matmul",
    "matmul_op", "max", "max_pool1d", "max_pool2d", "maximum", "mean", "min", "minimum", "mish", "mse_loss", "mul", "ne", "neg",
    "nll_loss", "no_grad", "norm", "one_hot", "pad", "permute", "pow", "prelu", "prod", "reciprocal", "relu", "relu6", "repeat",
    "reshape", "rms_norm", "rotary", "round", "rsqrt", "scaled_dot_product_attention", "scatter_add", "selu", "sigmoid", "sign",
    "silu", "sin", "slice", "smooth_l1_loss", "softmax", "softplus", "softsign", "sort", "split", "sqrt", "square", "squeeze",
    "stack", "std", "sub", "sum", "swish", "tan", "tanh", "tensor", "topk", "transpose", "tril", "triplet_margin_loss", "triu",
    "unsqueeze", "upsample", "var", "where",
]
