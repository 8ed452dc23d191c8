//! Running results along an axis, in log2(n) passes over the tensor: in each, every element is combined with the one 1, 2, 4, ...
//! places before it. All of it is recorded, so that zeros in a product and ties in an extreme need no rule of their own.

use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_ops as ops;

use super::elementwise::{eq, logaddexp, maximum, minimum, mul, ne, sub, where_};
use super::indexing::gather;
use super::layout::{cat, expand, reshape};
use super::rearrange::narrow;
use crate::autocast;
use crate::error::Result;
use crate::graph::no_grad;
use crate::tensor::Tensor;

#[track_caller]
fn running(x: &Tensor, axis: isize, combine: impl Fn(&Tensor, &Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let length = x.shape()[x.shape().axis("scan", axis)?];
    let (mut out, mut step) = (x.clone(), 1);
    while step < length {
        let (before, rest) = (narrow(&out, axis, 0, length - step)?, narrow(&out, axis, step as isize, length - step)?);
        out = cat(&[&narrow(&out, axis, 0, step)?, &combine(&before, &rest)?], axis)?;
        step *= 2;
    }
    Ok(out)
}

/// The running product along an axis.
#[track_caller]
pub fn cumprod(x: &Tensor, axis: isize) -> Result<Tensor> {
    if let Some(casts) = autocast::enter("cumprod", [x]) {
        return cumprod(&casts.of(x)?, axis);
    }
    running(x, axis, |before, rest| mul(before, rest))
}

/// The running `log(sum(exp(x)))` along an axis, stable.
#[track_caller]
pub fn logcumsumexp(x: &Tensor, axis: isize) -> Result<Tensor> {
    if let Some(casts) = autocast::enter("logcumsumexp", [x]) {
        return logcumsumexp(&casts.of(x)?, axis);
    }
    running(x, axis, |before, rest| logaddexp(before, rest))
}

/// The largest element so far along an axis, and where it is; the last of equals. NaN is the largest of all.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::scan::cummax};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32, 3.0, 2.0, 3.0], [4])?;
/// let (values, indices) = cummax(&x, 0)?;
/// assert_eq!((values.to_host::<f32>()?, indices.to_host()?), (vec![1.0, 3.0, 3.0, 3.0], vec![0, 1, 1, 3]));
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn cummax(x: &Tensor, axis: isize) -> Result<(Tensor, IndexTensor)> {
    running_extreme(x, axis, |before, rest| maximum(before, rest))
}

/// The smallest element so far along an axis, and where it is; the last of equals. NaN is the smallest of all.
#[track_caller]
pub fn cummin(x: &Tensor, axis: isize) -> Result<(Tensor, IndexTensor)> {
    running_extreme(x, axis, |before, rest| minimum(before, rest))
}

#[track_caller]
fn running_extreme(
    x: &Tensor,
    axis: isize,
    combine: impl Fn(&Tensor, &Tensor) -> Result<Tensor>,
) -> Result<(Tensor, IndexTensor)> {
    let indices = {
        let _off = no_grad();
        let record = running(x, axis, combine)?;
        // The extreme changes at elements that are equal to it, and the last of those so far is where it is.
        let position = along(&positions(x, x.shape()[x.shape().axis("scan", axis)?])?, x, axis)?;
        let held = where_(&eq(x, &record)?, &position, 0.0)?;
        let held = where_(&ne(x, x)?, &position, &held)?;
        whole(&running(&held, axis, |before, rest| maximum(before, rest))?)?
    };
    Ok((gather(x, axis, &indices)?, indices))
}

/// The differences of neighbours along an axis, `n` times.
#[track_caller]
pub fn diff(x: &Tensor, n: usize, axis: isize) -> Result<Tensor> {
    let mut out = x.clone();
    for _ in 0..n {
        let length = out.shape()[out.shape().axis("diff", axis)?];
        if length == 0 {
            break;
        }
        out = sub(&narrow(&out, axis, 1, length - 1)?, &narrow(&out, axis, 0, length - 1)?)?;
    }
    Ok(out)
}

/// 0, 1, ... n - 1 as floats that are exact: float32 up to 2^24, float64 beyond.
pub(super) fn positions(like: &Tensor, n: usize) -> Result<Tensor> {
    Ok(ops::arange(like.queue(), 0.0, n as f64, 1.0, counting(n))?.into())
}

/// The float dtype that counts exactly up to a number.
pub(super) fn counting(n: usize) -> DType {
    if n <= 1 << 24 { DType::F32 } else { DType::F64 }
}

/// A vector along an axis of a tensor, expanded to its shape.
pub(super) fn along(vector: &Tensor, x: &Tensor, axis: isize) -> Result<Tensor> {
    let mut shape = vec![1; x.ndim()];
    if let Some(length) = shape.get_mut(x.shape().axis("scan", axis)?) {
        *length = vector.size();
    }
    expand(&reshape(vector, shape)?, x.shape())
}

/// Whole numbers that were computed as floats.
pub(super) fn whole(x: &Tensor) -> Result<IndexTensor> {
    Ok(IndexTensor::from_tensor(x.raw().cast(DType::I64)?)?)
}
