//! Operations that move or view elements, and the sum that undoes broadcasting.

use netcl_core::backend::Queue;
use netcl_core::shape::{Layout, Shape, Slice};
use netcl_core::tensor::{Tensor as Raw, reshape as raw_reshape};
use netcl_ops as ops;
use smallvec::{SmallVec, smallvec};

use crate::autocast;
use crate::error::Result;
use crate::graph::{RuleContext, Save, grad_enabled, record, record_joint};
use crate::tensor::Tensor;
use crate::trace;

/// The same elements with other axes: a view wherever strides can express it, else a dense copy.
///
/// ```
/// use netcl_autograd::{DType, Tensor, manager, reshape};
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
    trace::settings("permute", || [("axes", axes.into())]);
    record("permute", &[x], out, Save::NOTHING, || {
        let mut inverse = vec![0isize; axes.len()];
        for (to, axis) in axes.iter().enumerate() {
            inverse[axis.rem_euclid(axes.len() as isize) as usize] = to as isize;
        }
        Box::new(move |_, upstream| Ok(smallvec![Some(permute(upstream, &inverse)?)]))
    })
}

/// Two axes exchanged, as a view.
#[track_caller]
pub fn transpose(x: &Tensor, first: isize, second: isize) -> Result<Tensor> {
    let (a, b) = (x.shape().axis("transpose", first)?, x.shape().axis("transpose", second)?);
    let mut axes: SmallVec<[isize; 6]> = (0..x.ndim() as isize).collect();
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
    let out = x.raw().slice(axis, part)?;
    trace::settings("slice", || {
        let (from, to, at) = (x.layout(), out.layout(), x.shape().axis("slice", axis).unwrap_or(0));
        let stride = if out.size() == 0 { 0 } else { from.strides()[at] };
        let start = (to.offset() as isize - from.offset() as isize).checked_div(stride).unwrap_or(0);
        let step = if out.shape()[at] > 1 { to.strides()[at].checked_div(stride).unwrap_or(1) } else { 1 };
        [("axis", at.into()), ("start", start.into()), ("step", step.into())]
    });
    record("slice", &[x], out, Save::NOTHING, || {
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

/// One index of an axis, which disappears.
#[track_caller]
pub fn select(x: &Tensor, axis: isize, index: isize) -> Result<Tensor> {
    let shape = x.raw().select(axis, index)?.shape().clone();
    reshape(&slice(x, axis, Slice::index(index))?, shape)
}

/// Without axes of length 1: the given ones, or all of them where none is given.
#[track_caller]
pub fn squeeze(x: &Tensor, axes: &[isize]) -> Result<Tensor> {
    let shape = ops::squeeze(x.raw(), axes)?.shape().clone();
    reshape(x, shape)
}

/// With a new axis of length 1.
#[track_caller]
pub fn unsqueeze(x: &Tensor, axis: isize) -> Result<Tensor> {
    let shape = ops::unsqueeze(x.raw(), axis)?.shape().clone();
    reshape(x, shape)
}

/// All axes from `start` to `end`, both included, as one.
#[track_caller]
pub fn flatten(x: &Tensor, start: isize, end: isize) -> Result<Tensor> {
    if x.ndim() == 0 {
        return reshape(x, [1]);
    }
    let (first, last) = (x.shape().axis("flatten", start)?, x.shape().axis("flatten", end)?);
    if first > last {
        let what = format!("axis {start} comes after axis {end} of shape {}", x.shape());
        return Err(netcl_core::Error::argument("flatten", what).into());
    }
    let mut shape = x.shape().to_vec();
    let length = shape[first..=last].iter().product();
    shape.splice(first..=last, [length]);
    reshape(x, shape)
}

/// The elements in reverse order along some axes, as a view.
#[track_caller]
pub fn flip(x: &Tensor, axes: &[isize]) -> Result<Tensor> {
    let own = axes.to_vec();
    trace::settings("flip", || [("axes", axes.into())]);
    record("flip", &[x], ops::flip(x.raw(), axes)?, Save::NOTHING, || {
        Box::new(move |_, upstream| Ok(smallvec![Some(flip(upstream, &own)?)]))
    })
}

/// The tensor itself if its elements lie densely in row-major order, else a copy in which they do.
#[track_caller]
pub fn contiguous(x: &Tensor) -> Result<Tensor> {
    if x.layout().is_contiguous() { Ok(x.clone()) } else { duplicate(x) }
}

/// A dense copy with storage of its own.
#[track_caller]
pub fn duplicate(x: &Tensor) -> Result<Tensor> {
    record("duplicate", &[x], x.raw().duplicate()?, Save::NOTHING, || {
        Box::new(|_, upstream| Ok(smallvec![Some(upstream.clone())]))
    })
}

/// The values on another device; the gradient comes back to this one.
#[track_caller]
pub fn to(x: &Tensor, queue: &Queue) -> Result<Tensor> {
    if x.queue().same_device(queue) {
        return Ok(x.clone());
    }
    let home = x.queue().clone();
    record("to", &[x], x.raw().to(queue)?, Save::NOTHING, || {
        Box::new(move |_, upstream| Ok(smallvec![Some(to(upstream, &home)?)]))
    })
}

/// Tensors joined along an existing axis.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::layout::{cat, split}};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
/// let wide = cat(&[&x, &x], 1)?;
/// assert_eq!(wide.to_host::<f32>()?, [1.0, 2.0, 1.0, 2.0, 3.0, 4.0, 3.0, 4.0]);
/// assert_eq!(split(&wide, &[1, 3], 1)?[1].shape().to_vec(), [2, 3]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn cat(tensors: &[&Tensor], axis: isize) -> Result<Tensor> {
    if let Some(casts) = autocast::enter("cat", tensors.iter().copied()) {
        let tensors = tensors.iter().map(|tensor| casts.of(tensor)).collect::<Result<Vec<Tensor>>>()?;
        return cat(&tensors.iter().collect::<Vec<_>>(), axis);
    }
    let out = ops::cat(&tensors.iter().map(|t| t.raw()).collect::<Vec<_>>(), axis)?;
    let at = out.shape().axis("cat", axis)?;
    let lengths: Vec<usize> = tensors.iter().map(|t| t.shape()[at]).collect();
    trace::settings("cat", || [("axis", at.into())]);
    record("cat", tensors, out, Save::NOTHING, || {
        Box::new(move |context, upstream| {
            let mut start = 0;
            let part = |(i, &length): (usize, &usize)| {
                let part = Slice::new(Some(start), Some(start + length as isize), 1);
                start += length as isize;
                context.if_wanted(i, || slice(upstream, axis, part))
            };
            lengths.iter().enumerate().map(part).collect()
        })
    })
}

/// Tensors of one shape joined along a new axis.
#[track_caller]
pub fn stack(tensors: &[&Tensor], axis: isize) -> Result<Tensor> {
    if let Some(casts) = autocast::enter("stack", tensors.iter().copied()) {
        let tensors = tensors.iter().map(|tensor| casts.of(tensor)).collect::<Result<Vec<Tensor>>>()?;
        return stack(&tensors.iter().collect::<Vec<_>>(), axis);
    }
    if let [first, rest @ ..] = tensors
        && let Some(other) = rest.iter().find(|t| t.shape() != first.shape())
    {
        let why = format!("the first tensor has shape {}; all must be equal", first.shape());
        return Err(netcl_core::Error::Shape { op: "stack", shape: other.shape().clone(), why }.into());
    }
    let raised = tensors.iter().map(|t| unsqueeze(t, axis)).collect::<Result<Vec<_>>>()?;
    cat(&raised.iter().collect::<Vec<_>>(), axis)
}

/// Views of consecutive parts with the given lengths, which must add up to the axis.
#[track_caller]
pub fn split(x: &Tensor, lengths: &[usize], axis: isize) -> Result<Vec<Tensor>> {
    let parts = ops::split(x.raw(), lengths, axis)?;
    // An exporter wants slices, which other tools have too.
    if parts.len() > 1 && x.needs_grad() && grad_enabled() && !trace::active() {
        let (shape, lengths) = (x.shape().clone(), lengths.to_vec());
        let rule = Box::new(move |_: &RuleContext<'_>, upstream: &[Option<Tensor>]| {
            Ok(smallvec![Some(unsplit(upstream, &lengths, &shape, axis)?)])
        });
        let parts = parts.into_iter().map(|part| (part, true)).collect();
        return Ok(record_joint("split", smallvec![x.edge()], parts, rule));
    }
    let mut start = 0;
    let part = |&length: &usize| {
        let part = Slice::new(Some(start), Some(start + length as isize), 1);
        start += length as isize;
        slice(x, axis, part)
    };
    lengths.iter().map(part).collect()
}

/// The parts of [`split`] put together again: one copy of each, where the gradients of slices would each be a whole tensor. Zeros stand
/// where nothing has arrived.
#[track_caller]
fn unsplit(parts: &[Option<Tensor>], lengths: &[usize], shape: &Shape, axis: isize) -> Result<Tensor> {
    let at = shape.axis("split", axis)?;
    let Some(some) = parts.iter().flatten().next() else {
        return Err(netcl_core::Error::argument("split", "no part has a gradient").into());
    };
    let mut pieces: Vec<Tensor> = Vec::with_capacity(parts.len());
    let mut missing = 0;
    let zeros = |missing: &mut usize, pieces: &mut Vec<Tensor>| -> Result<()> {
        let length = std::mem::take(missing);
        if length > 0 {
            let mut gap = shape.to_vec();
            gap[at] = length;
            pieces.push(Raw::from_shape(some.queue(), gap, some.dtype())?.into());
        }
        Ok(())
    };
    // Gradients are given up to the last that has arrived.
    for (i, &length) in lengths.iter().enumerate() {
        match parts.get(i).and_then(Option::as_ref) {
            None => missing += length,
            Some(part) => {
                zeros(&mut missing, &mut pieces)?;
                pieces.push(part.clone());
            }
        }
    }
    zeros(&mut missing, &mut pieces)?;
    cat(&pieces.iter().collect::<Vec<_>>(), axis)
}

/// Two tensors of one shape as one with a new first axis, where they are views that memory allows to be seen so; nothing is recorded.
pub fn side_by_side(first: &Tensor, second: &Tensor) -> Result<Option<Tensor>> {
    let (a, b) = (first.raw(), second.raw());
    let (from, to) = (a.layout(), b.layout());
    let alike =
        a.shares_storage(b) && a.dtype() == b.dtype() && from.shape() == to.shape() && from.strides() == to.strides();
    if !alike {
        return Ok(None);
    }
    let step = to.offset() as isize - from.offset() as isize;
    let strides: Vec<isize> = std::iter::once(step).chain(from.strides().iter().copied()).collect();
    let shape: Shape = std::iter::once(2).chain(from.shape().iter().copied()).collect();
    let layout = Layout::strided(shape, &strides, from.offset())?;
    Ok(Some(Raw::from_storage(a.queue(), a.storage().clone(), layout, a.dtype())?.into()))
}

/// Views of at most `n` parts of equal length; the last may be shorter.
#[track_caller]
pub fn chunk(x: &Tensor, n: usize, axis: isize) -> Result<Vec<Tensor>> {
    let at = x.shape().axis("chunk", axis)?;
    let lengths: Vec<usize> = ops::chunk(x.raw(), n, axis)?.iter().map(|part| part.shape()[at]).collect();
    split(x, &lengths, axis)
}

/// The tensor repeated along each axis so many times; new axes come first.
#[track_caller]
pub fn repeat(x: &Tensor, times: &[usize]) -> Result<Tensor> {
    let out = ops::repeat(x.raw(), times)?;
    let before = x.shape().clone();
    let new = times.len() - x.ndim();
    // Each axis is a pair (repeats, length), of which the repeats are summed.
    let pairs: Vec<usize> =
        times.iter().enumerate().flat_map(|(i, &t)| [t, if i < new { 1 } else { before[i - new] }]).collect();
    let repeats: Vec<isize> = (0..times.len() as isize).map(|i| 2 * i).collect();
    trace::settings("repeat", || [("times", times.into())]);
    record("repeat", &[x], out, Save::NOTHING, || {
        Box::new(move |_, upstream| {
            let total = super::reduce::sum(&reshape(upstream, pairs.clone())?, repeats.as_slice(), false)?;
            Ok(smallvec![Some(reshape(&total, before.clone())?)])
        })
    })
}

/// The lower triangle of the last two axes, up to and including a diagonal; zero elsewhere.
#[track_caller]
pub fn tril(x: &Tensor, diagonal: isize) -> Result<Tensor> {
    trace::settings("tril", || [("diagonal", diagonal.into())]);
    record("tril", &[x], ops::tril(x.raw(), diagonal)?, Save::NOTHING, || {
        Box::new(move |_, upstream| Ok(smallvec![Some(tril(upstream, diagonal)?)]))
    })
}

/// The upper triangle of the last two axes, from a diagonal on; zero elsewhere.
#[track_caller]
pub fn triu(x: &Tensor, diagonal: isize) -> Result<Tensor> {
    trace::settings("triu", || [("diagonal", diagonal.into())]);
    record("triu", &[x], ops::triu(x.raw(), diagonal)?, Save::NOTHING, || {
        Box::new(move |_, upstream| Ok(smallvec![Some(triu(upstream, diagonal)?)]))
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
