//! Operations that move or view elements, and the sum that undoes broadcasting.

use netcl_core::shape::{Shape, Slice};
use netcl_core::tensor::{Tensor as Raw, reshape as raw_reshape};
use smallvec::smallvec;

use crate::error::Result;
use crate::graph::{Save, record};
use crate::tensor::Tensor;

/// The same elements with other axes: a view wherever strides can express it, else a dense copy.
///
/// ```
/// use netcl_autograd::{Tensor, reshape, core::{device::manager, dtype::DType}};
///
/// let flat = Tensor::from_shape(&manager().cpu().queue, [12], DType::F32)?;
/// let mat = reshape(&flat, [3, 4])?;
/// assert!(mat.shares_storage(&flat));
/// assert!(reshape(&flat, [5, 2]).is_err()); // the number of elements must stay the same
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn reshape(x: &Tensor, shape: impl Into<Shape>) -> Result<Tensor> {
    let before = x.shape().clone();
    record("reshape", &[x], raw_reshape(x.raw(), shape)?, Save::NOTHING, || {
        Box::new(move |_, upstream| Ok(smallvec![Some(reshape(upstream, before.clone())?)]))
    })
}

/// The axes in another order, as a view.
#[track_caller]
pub fn permute(x: &Tensor, axes: &[isize]) -> Result<Tensor> {
    let out = x.raw().permute(axes)?;
    let mut inverse = vec![0isize; axes.len()];
    for (to, &axis) in axes.iter().enumerate() {
        inverse[x.shape().axis("permute", axis)?] = to as isize;
    }
    record("permute", &[x], out, Save::NOTHING, || {
        Box::new(move |_, upstream| Ok(smallvec![Some(permute(upstream, &inverse)?)]))
    })
}

/// Two axes exchanged, as a view.
#[track_caller]
pub fn transpose(x: &Tensor, first: isize, second: isize) -> Result<Tensor> {
    let (a, b) = (x.shape().axis("transpose", first)?, x.shape().axis("transpose", second)?);
    let mut axes: Vec<isize> = (0..x.ndim() as isize).collect();
    axes.swap(a, b);
    permute(x, &axes)
}

/// The elements repeated along new or length-1 axes, as a view.
#[track_caller]
pub fn expand(x: &Tensor, shape: impl Into<Shape>) -> Result<Tensor> {
    let before = x.shape().clone();
    record("expand", &[x], x.raw().expand(shape)?, Save::NOTHING, || {
        Box::new(move |_, upstream| Ok(smallvec![Some(sum_to(upstream, &before)?)]))
    })
}

/// A part of one axis, as a view.
#[track_caller]
pub fn slice(x: &Tensor, axis: isize, part: Slice) -> Result<Tensor> {
    let before = x.shape().clone();
    record("slice", &[x], x.raw().slice(axis, part)?, Save::NOTHING, || {
        Box::new(move |_, upstream| Ok(smallvec![Some(unslice(upstream, &before, axis, part)?)]))
    })
}

/// Zeros of a shape with a tensor written into a part of one axis: what undoes [`slice`].
#[track_caller]
fn unslice(x: &Tensor, shape: &Shape, axis: isize, part: Slice) -> Result<Tensor> {
    let out = Raw::from_shape(x.queue(), shape.clone(), x.dtype())?;
    out.slice(axis, part)?.assign(x.raw())?;
    record("slice_backward", &[x], out, Save::NOTHING, || {
        Box::new(move |_, upstream| Ok(smallvec![Some(slice(upstream, axis, part)?)]))
    })
}

/// The sum over every axis along which a smaller shape was broadcast: the gradient of broadcasting.
#[track_caller]
pub fn sum_to(x: &Tensor, shape: &Shape) -> Result<Tensor> {
    if x.shape() == shape {
        return Ok(x.clone());
    }
    let new = x.ndim() - shape.ndim();
    let axes: Vec<isize> = (0..x.ndim())
        .filter(|&axis| axis < new || (shape[axis - new] == 1 && x.shape()[axis] != 1))
        .map(|axis| axis as isize)
        .collect();
    reshape(&super::reduce::sum(x, axes.as_slice(), true)?, shape.clone())
}
