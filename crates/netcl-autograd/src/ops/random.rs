//! Random tensors. Draws have no gradient, so nothing is recorded.

use netcl_core::backend::Queue;
use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_core::random::Generator;
use netcl_core::shape::Shape;
use netcl_ops::random as ops;

use super::elementwise::{div, log, lt, minimum, mul, neg};
use super::layout::{expand, reshape};
use super::rearrange::narrow;
use super::reduce::cumsum;
use super::scan::{counting, whole};
use super::select::searchsorted;
use super::sort::topk;
use crate::error::{Error, Result};
use crate::graph::no_grad;
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

/// 1 with the probability that each element of `p` is, else 0.
pub fn bernoulli_of(p: &Tensor, generator: Option<&mut Generator>) -> Result<Tensor> {
    let _off = no_grad();
    let drawn = uniform(p.queue(), p.shape().clone(), p.dtype(), 0.0, 1.0, generator)?;
    let holds = lt(&drawn, &p.detach())?;
    Ok(holds.raw().cast(p.dtype())?.into())
}

/// `n` indices of each row of weights, drawn with probabilities in their proportion; without `replacement` all different. Reads
/// the weights to check them.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::random::multinomial};
///
/// let weights = Tensor::from_host(&manager().cpu().queue, &[0.0f32, 3.0, 1.0], [3])?;
/// let mut drawn = multinomial(&weights, 2, false, None)?.to_host()?;
/// drawn.sort();
/// assert_eq!(drawn, [1, 2]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
pub fn multinomial(
    weights: &Tensor,
    n: usize,
    replacement: bool,
    generator: Option<&mut Generator>,
) -> Result<IndexTensor> {
    let op = "multinomial";
    let vector = weights.ndim() == 1;
    let (rows, classes) = match weights.shape()[..] {
        [classes] => (1, classes),
        [rows, classes] => (rows, classes),
        _ => return Err(Error::shape(op, weights.shape(), "the weights are a vector, or a row for each draw")),
    };
    if n == 0 || classes == 0 {
        return Err(Error::argument(op, format!("{n} draws of {classes} classes: at least one of each is needed")));
    }
    let values = weights.raw().to_f64_vec()?;
    if let Some((at, wrong)) = values.iter().enumerate().find(|(_, w)| !w.is_finite() || **w < 0.0) {
        return Err(Error::argument(op, format!("weight {at} is {wrong}; weights are finite and not negative")));
    }
    let needed = if replacement { 1 } else { n };
    if let Some(row) = values.chunks(classes).position(|row| row.iter().filter(|w| **w > 0.0).count() < needed) {
        let what = format!("row {row} has fewer than {needed} weights above 0; draw fewer, or with replacement");
        return Err(Error::argument(op, what));
    }
    let _off = no_grad();
    let dtype = if weights.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    let weights: Tensor = reshape(&weights.detach(), [rows, classes])?.raw().cast(dtype)?.into();
    let drawn = if replacement {
        let bounds = cumsum(&weights, -1)?;
        let total = narrow(&bounds, -1, classes as isize - 1, 1)?;
        let draws = mul(&uniform(weights.queue(), [rows, n], dtype, 0.0, 1.0, generator)?, &total)?;
        // A draw that is rounded up to the total belongs to the last class that has a weight.
        let counted = |found: IndexTensor| -> Result<Tensor> { Ok(found.tensor().cast(counting(classes))?.into()) };
        let found = counted(searchsorted(&bounds, &draws, true)?)?;
        let last = expand(&counted(searchsorted(&bounds, &total, false)?)?, [rows, n])?;
        whole(&minimum(&found, &last)?)?
    } else {
        // The first of clocks that ring at random times, whose rates are the weights. A draw of 0 would ring at once.
        let uniform = uniform(weights.queue(), [rows, classes], dtype, f64::from(f32::MIN_POSITIVE), 1.0, generator)?;
        topk(&div(&weights, &neg(&log(&uniform)?)?)?, n, -1, true)?.1
    };
    match vector {
        false => Ok(drawn),
        true => Ok(IndexTensor::from_tensor(netcl_core::tensor::reshape(drawn.tensor(), [n])?)?),
    }
}
