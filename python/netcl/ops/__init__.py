"""Forward-only operations: tensors in, tensors out, nothing recorded.

The elementwise functions are made from the library's own table, so that one declaration there gives the kernel, the native
loop, the gradient and the function here. Operands are tensors (broadcast like NumPy's) and numbers; every function takes
``out=``.
"""

from netcl._netcl import (
    arange,
    bernoulli,
    cast,
    cat,
    chunk,
    contiguous,
    expand,
    flip,
    full,
    normal,
    permutation,
    permute,
    repeat,
    reshape,
    split,
    squeeze,
    stack,
    transpose,
    tril,
    triu,
    uniform,
    unsqueeze,
)
from netcl.ops import elementwise as _elementwise
from netcl.ops.elementwise import *  # noqa: F403

__all__ = [
    "arange",
    "bernoulli",
    "cast",
    "cat",
    "chunk",
    "contiguous",
    "expand",
    "flip",
    "full",
    "normal",
    "permutation",
    "permute",
    "repeat",
    "reshape",
    "split",
    "squeeze",
    "stack",
    "transpose",
    "tril",
    "triu",
    "uniform",
    "unsqueeze",
    *_elementwise.__all__,
]
