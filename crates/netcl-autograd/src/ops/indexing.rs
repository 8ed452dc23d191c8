//! Elements chosen by index. Gradients are summed at their indices in a fixed order, without atomics.

use netcl_core::index::IndexTensor;
use netcl_core::shape::Shape;
use netcl_core::tensor::Tensor as Raw;
use netcl_ops as ops;
use smallvec::smallvec;

use super::elementwise::{add, cast};
use super::linear_map::LinearMap;
use super::pad::{PadMode, pad};
use super::whole;
use crate::autocast;
use crate::error::Result;
use crate::graph::{Save, grad_enabled, record};
use crate::tensor::Tensor;
use crate::trace;

/// The whole numbers in a tensor of any dtype, as indices; a value with a fraction is an error that names it.
pub fn indices(x: &Tensor) -> Result<IndexTensor> {
    if !x.dtype().is_float() {
        return Ok(IndexTensor::from_tensor(x.raw().clone())?);
    }
    let found = IndexTensor::from_float(x.raw())?;
    trace::note("cast", [x.raw()], &[found.tensor()]);
    Ok(found)
}

/// The slices of an axis with the given indices, in their order.
#[track_caller]
pub fn index_select(x: &Tensor, axis: isize, indices: &IndexTensor) -> Result<Tensor> {
    let length = x.shape()[x.shape().axis("index_select", axis)?];
    let (at, again) = (indices.clone(), indices.clone());
    trace::settings("index_select", || [("axis", axis.into()), ("indices", indices.tensor().into())]);
    LinearMap::new(
        ["index_select", "index_select_backward"],
        move |x| ops::index_select(x, axis, &at),
        move |grad| ops::index_select_backward(grad, axis, &again, length),
    )
    .apply(x)
}

/// `out[i][j][k] = x[index[i][j][k]][j][k]` for axis 0, and likewise for others.
#[track_caller]
pub fn gather(x: &Tensor, axis: isize, indices: &IndexTensor) -> Result<Tensor> {
    let shape = x.shape().clone();
    let (at, again) = (indices.clone(), indices.clone());
    trace::settings("gather", || [("axis", axis.into()), ("indices", indices.tensor().into())]);
    LinearMap::new(
        ["gather", "gather_backward"],
        move |x| ops::gather(x, axis, &at),
        move |grad| ops::gather_backward(grad, axis, &again, shape.clone()),
    )
    .apply(x)
}

/// `x` with `source` added at indices along an axis: the adjoint of [`gather`].
#[track_caller]
pub fn scatter_add(x: &Tensor, axis: isize, indices: &IndexTensor, source: &Tensor) -> Result<Tensor> {
    if let Some(casts) = autocast::enter("scatter_add", [x, source]) {
        return scatter_add(&casts.of(x)?, axis, indices, &casts.of(source)?);
    }
    if !x.dtype().is_float() {
        return whole::through_floats(x, |x, wide| scatter_add(x, axis, indices, &cast(source, wide)?));
    }
    let output = ops::scatter_add(x.raw(), axis, indices, source.raw())?;
    let (at, shape) = (indices.clone(), source.shape().clone());
    record("scatter_add", &[x, source], output, Save::NOTHING, || {
        Box::new(move |context, upstream| {
            // What the indices do not reach of a longer source has no gradient.
            let of_source = || embed(&gather(upstream, axis, &at)?, &shape);
            Ok(smallvec![Some(upstream.clone()), context.if_wanted(1, of_source)?])
        })
    })
}

/// A tensor in the first corner of a larger one that is zero elsewhere.
fn embed(x: &Tensor, shape: &Shape) -> Result<Tensor> {
    if x.shape() == shape {
        return Ok(x.clone());
    }
    let pads: Vec<(isize, isize)> =
        x.shape().iter().zip(shape.iter()).map(|(&n, &full)| (0, (full - n) as isize)).collect();
    pad(x, &pads, PadMode::Constant(0.0))
}

/// `x` with slices of `source` added at indices of an axis.
#[track_caller]
pub fn index_add(x: &Tensor, axis: isize, indices: &IndexTensor, source: &Tensor) -> Result<Tensor> {
    if let Some(casts) = autocast::enter("index_add", [x, source]) {
        return index_add(&casts.of(x)?, axis, indices, &casts.of(source)?);
    }
    if !x.dtype().is_float() {
        return whole::through_floats(x, |x, wide| index_add(x, axis, indices, &cast(source, wide)?));
    }
    let output = ops::index_add(x.raw(), axis, indices, source.raw())?;
    let at = indices.clone();
    record("index_add", &[x, source], output, Save::NOTHING, || {
        Box::new(move |context, upstream| {
            let of_source = || index_select(upstream, axis, &at);
            Ok(smallvec![Some(upstream.clone()), context.if_wanted(1, of_source)?])
        })
    })
}

/// The rows of a table with the given indices, of any shape. The row `padding`, if there is one, gets no gradient.
///
/// ```
/// use netcl_autograd::{IndexTensor, Tensor, manager, ops::indexing::embedding};
///
/// let queue = manager().cpu().queue;
/// let table = Tensor::from_host(&queue, &[1.0f32, 2.0, 3.0, 4.0], [2, 2])?.with_grad();
/// let words = IndexTensor::from_host(&queue, &[1i64, 1, 0], [3])?;
/// embedding(&table, &words, None)?.sum((), false)?.backward()?;
/// assert_eq!(table.grad().unwrap().to_host::<f32>()?, [1.0, 1.0, 2.0, 2.0]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn embedding(weight: &Tensor, indices: &IndexTensor, padding: Option<usize>) -> Result<Tensor> {
    let output = ops::embedding(weight.raw(), indices)?;
    let count = weight.shape()[0];
    let (at, again) = (indices.clone(), indices.clone());
    let names = ["embedding", "embedding_backward"];
    let forward = move |table: &Raw| match padding {
        None => ops::embedding(table, &at),
        // The part that has a derivative: the padding row counts as zero.
        Some(row) => {
            let table = table.duplicate()?;
            table.select(0, row as isize)?.fill(0.0)?;
            ops::embedding(&table, &at)
        }
    };
    trace::settings(names[0], || [("indices", indices.tensor().into())]);
    LinearMap::new(names, forward, move |grad| ops::embedding_backward(grad, &again, count, padding))
        .record(weight, output)
}

/// [`embedding`] of a table plus that of another, whose indices are as many or only one; one launch where nothing is recorded.
#[track_caller]
pub fn embedding_sum(first: (&Tensor, &IndexTensor), second: (&Tensor, &IndexTensor)) -> Result<Tensor> {
    let wants = grad_enabled() && (first.0.needs_grad() || second.0.needs_grad());
    if wants || first.0.dtype() != second.0.dtype() {
        return add(&embedding(first.0, first.1, None)?, &embedding(second.0, second.1, None)?);
    }
    Ok(ops::embedding_sum((first.0.raw(), first.1), (second.0.raw(), second.1))?.into())
}

/// A value where a mask is not 0, else `x`.
#[track_caller]
pub fn masked_fill(x: &Tensor, mask: &Raw, value: f64) -> Result<Tensor> {
    let output = ops::masked_fill(x.raw(), mask, value)?;
    trace::settings("masked_fill", || [("mask", mask.into()), ("value", value.into())]);
    let (mask, again) = (mask.clone(), mask.clone());
    LinearMap::new(
        ["masked_fill", "masked_fill_backward"],
        move |x| ops::masked_fill(x, &mask, 0.0),
        move |grad| ops::masked_fill(grad, &again, 0.0),
    )
    .record(x, output)
}
