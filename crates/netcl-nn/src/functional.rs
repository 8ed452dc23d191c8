//! The recordable operations as functions, under PyTorch's name for the place: `use netcl_nn::functional as F`.

pub use netcl_autograd::ops::elementwise::{
    abs, add, apply, cast, clamp, div, elu, exp, fma, gelu, gelu_tanh, hardsigmoid, hardswish, hardtanh, leaky_relu,
    log, logsigmoid, maximum, minimum, mish, mul, neg, pow, relu, relu6, selu, sigmoid, silu, softplus, softsign, sqrt,
    sub, tanh, where_,
};
pub use netcl_autograd::ops::layout::{cat, flatten, permute, reshape, split, stack, transpose};
pub use netcl_autograd::ops::loss::*;
pub use netcl_autograd::ops::matmul::{bias_add, linear, matmul};
pub use netcl_autograd::ops::reduce::{argmax, argmin, cumsum, logsumexp, max, mean, min, norm, prod, std, sum, var};
pub use netcl_autograd::ops::softmax::{log_softmax, softmax};
