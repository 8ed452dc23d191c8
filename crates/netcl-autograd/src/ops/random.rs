//! Random tensors. They depend on no input, so nothing is recorded.

use netcl_core::backend::Queue;
use netcl_core::dtype::DType;
use netcl_core::random::Generator;
use netcl_core::shape::Shape;
use netcl_ops::random as ops;

use crate::error::Result;
use crate::tensor::Tensor;

/// Uniform numbers in [low, high); the process-wide generator is used and moved on where none is given.
pub fn uniform(
    queue: &Queue,
    shape: impl Into<Shape>,
    dtype: DType,
    low: f64,
    high: f64,
    generator: Option<&mut Generator>,
) -> Result<Tensor> {
    Ok(ops::uniform(queue, shape, dtype, low, high, generator)?.into())
}

/// Normal numbers; the process-wide generator is used and moved on where none is given.
pub fn normal(
    queue: &Queue,
    shape: impl Into<Shape>,
    dtype: DType,
    mean: f64,
    std: f64,
    generator: Option<&mut Generator>,
) -> Result<Tensor> {
    Ok(ops::normal(queue, shape, dtype, mean, std, generator)?.into())
}

/// 1 with probability `p`, else 0; the process-wide generator is used and moved on where none is given.
pub fn bernoulli(
    queue: &Queue,
    shape: impl Into<Shape>,
    dtype: DType,
    p: f64,
    generator: Option<&mut Generator>,
) -> Result<Tensor> {
    Ok(ops::bernoulli(queue, shape, dtype, p, generator)?.into())
}
