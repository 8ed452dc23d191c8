"""Forward-only operations: tensors in, tensors out, nothing recorded.

``netcl.autograd`` has the same operations with recording. A result of an operation here whose inputs require a gradient
remembers that, and a backward pass that would need the gradient fails with the operation's name; under ``no_grad``, and of
detached tensors, nothing is remembered.

The elementwise functions are made from the library's own table, so that one declaration there gives the kernel, the native
loop, the gradient and the function here. Operands are tensors (broadcast like NumPy's) and numbers; every function takes
``out=``.
"""

from netcl._netcl import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    all,
    any,
    arange,
    argmax,
    argmin,
    argsort,
    avg_pool1d,
    avg_pool2d,
    batch_norm,
    bernoulli,
    bias_add,
    build_matmul_kernel,
    cast,
    cat,
    chunk,
    contiguous,
    conv1d,
    conv2d,
    conv_transpose2d,
    cumsum,
    dropout,
    einsum,
    embedding,
    expand,
    flip,
    full,
    gather,
    group_norm,
    index_add,
    index_select,
    interpolate,
    layer_norm,
    linear,
    log_softmax,
    logsumexp,
    masked_fill,
    matmul,
    max,
    max_pool1d,
    max_pool2d,
    mean,
    min,
    norm,
    normal,
    one_hot,
    pad,
    permutation,
    permute,
    prod,
    repeat,
    rms_norm,
    rotary,
    scaled_dot_product_attention,
    scatter_add,
    softmax,
    sort,
    split,
    squeeze,
    stack,
    std,
    sum,
    topk,
    transpose,
    tril,
    triu,
    uniform,
    unsqueeze,
    var,
)
from netcl._netcl import reshape_forward as reshape
from netcl.ops.elementwise import *

reduce_sum = sum
"""Another name of ``sum``."""

upsample = interpolate
"""Another name of ``interpolate``."""

__all__ = [
    "abs", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_max_pool1d", "adaptive_max_pool2d", "add", "all", "any",
    "arange", "argmax", "argmin", "argsort", "avg_pool1d", "avg_pool2d", "batch_norm", "bernoulli", "bias_add",
    "build_matmul_kernel", "cast", "cat", "ceil", "chunk", "clamp", "contiguous", "conv1d", "conv2d", "conv_transpose2d", "cos",
    "cumsum", "div", "dropout", "einsum", "elementwise_binary", "elu", "embedding", "eq", "erf", "exp", "expand", "expm1",
    "flip", "floor", "fma", "full", "gather", "ge", "gelu", "gelu_tanh", "group_norm", "gt", "hardsigmoid", "hardswish",
    "hardtanh", "index_add", "index_select", "interpolate", "layer_norm", "le", "leaky_relu", "linear", "log", "log1p",
    "log_softmax", "logsigmoid", "logsumexp", "lt", "masked_fill", "matmul", "max", "max_pool1d", "max_pool2d", "maximum",
    "mean", "min", "minimum", "mish", "mul", "ne", "neg", "norm", "normal", "one_hot", "pad", "permutation", "permute", "pow",
    "prelu", "prod", "reciprocal", "reduce_sum", "relu", "relu6", "repeat", "reshape", "rms_norm", "rotary", "round", "rsqrt",
    "scaled_dot_product_attention", "scatter_add", "selu", "sigmoid", "sign", "silu", "sin", "softmax", "softplus", "softsign",
    "sort", "split", "sqrt", "square", "squeeze", "stack", "std", "sub", "sum", "swish", "tan", "tanh", "topk", "transpose",
    "tril", "triu", "uniform", "unsqueeze", "upsample", "var", "where",
]
