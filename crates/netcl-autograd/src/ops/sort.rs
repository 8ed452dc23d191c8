//! Elements in order. Which goes where is a fact; the values that are moved have gradients.

use netcl_core::index::IndexTensor;
use netcl_core::tensor::Tensor as Raw;
use netcl_ops as ops;
use netcl_ops::sort::Sorted;

use super::linear_map::LinearMap;
use crate::error::Result;
use crate::tensor::Tensor;
use crate::trace;

/// The elements in order along an axis, and where they were. Stable; NaN comes last.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::sort::sort};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[3.0f32, 1.0, 2.0], [3])?.with_grad();
/// let (values, indices) = sort(&x, 0, false)?;
/// assert_eq!(indices.to_host()?, [1, 2, 0]);
/// values.slice(0, netcl_autograd::Slice::index(0))?.sum((), false)?.backward()?;
/// assert_eq!(x.grad().unwrap().to_host::<f32>()?, [0.0, 1.0, 0.0]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn sort(x: &Tensor, axis: isize, descending: bool) -> Result<(Tensor, IndexTensor)> {
    moved(["sort", "sort_backward"], x, axis, descending, ops::sort(x.raw(), axis, descending)?)
}

/// The `k` largest (or smallest) elements along an axis, the best first, and where they were.
#[track_caller]
pub fn topk(x: &Tensor, k: usize, axis: isize, largest: bool) -> Result<(Tensor, IndexTensor)> {
    moved(["topk", "topk_backward"], x, axis, largest, ops::topk(x.raw(), k, axis, largest)?)
}

/// The positions that put the elements in order along an axis.
pub fn argsort(x: &Tensor, axis: isize, descending: bool) -> Result<IndexTensor> {
    Ok(ops::argsort(x.raw(), axis, descending)?)
}

#[track_caller]
fn moved(
    names: [&'static str; 2],
    x: &Tensor,
    axis: isize,
    largest: bool,
    sorted: Sorted,
) -> Result<(Tensor, IndexTensor)> {
    let length = x.shape()[x.shape().axis(names[0], axis)?];
    trace::settings(names[0], || [("axis", axis.into()), ("largest", largest.into())]);
    trace::note(names[0], [x.raw()], &[&sorted.values, sorted.indices.tensor()]);
    let (at, again) = (sorted.indices.clone(), sorted.indices.clone());
    let map = LinearMap::new(
        names,
        move |raw: &Raw| ops::gather(raw, axis, &at),
        move |grad| ops::sort_backward(grad, axis, &again, length),
    );
    Ok((map.record(x, sorted.values)?, sorted.indices))
}
