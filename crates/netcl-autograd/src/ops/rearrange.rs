//! Elements in another order or shape, composed of the views and copies of [`layout`](super::layout), whose gradients they have.

use netcl_core::shape::{Shape, Slice};

use super::layout::{cat, expand, flip, permute, repeat, reshape, select, slice, transpose, unsqueeze};
use super::pad::{PadMode, pad};
use super::reduce::sum;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Every index of an axis by itself, which disappears.
#[track_caller]
pub fn unbind(x: &Tensor, axis: isize) -> Result<Vec<Tensor>> {
    let length = x.shape()[x.shape().axis("unbind", axis)?];
    (0..length as isize).map(|at| select(x, axis, at)).collect()
}

/// `length` elements of an axis from `start` on, as a view; a negative start counts from the end.
///
/// # Errors
/// If the part is not inside the axis.
#[track_caller]
pub fn narrow(x: &Tensor, axis: isize, start: isize, length: usize) -> Result<Tensor> {
    let full = x.shape()[x.shape().axis("narrow", axis)?];
    let first = if start < 0 { start.checked_add_unsigned(full) } else { Some(start) };
    let first = first.and_then(|first| usize::try_from(first).ok());
    let Some((first, end)) = first.and_then(|first| Some((first, first.checked_add(length)?))).filter(|r| r.1 <= full)
    else {
        let why = format!("{length} elements from {start} on are not inside axis {axis}");
        return Err(Error::shape("narrow", x.shape(), why));
    };
    slice(x, axis, Slice::new(Some(first as isize), Some(end as isize), 1))
}

/// Some axes at other places, as a view; the rest keep their order.
#[track_caller]
pub fn movedim(x: &Tensor, from: &[isize], to: &[isize]) -> Result<Tensor> {
    let op = "movedim";
    let places = |axes: &[isize]| -> Result<Vec<usize>> {
        let mut seen = Vec::with_capacity(axes.len());
        for &axis in axes {
            let at = x.shape().axis(op, axis)?;
            if seen.contains(&at) {
                return Err(Error::argument(op, format!("axis {axis} is given twice")));
            }
            seen.push(at);
        }
        Ok(seen)
    };
    if from.len() != to.len() {
        let what = format!("{} axes cannot move to {} places", from.len(), to.len());
        return Err(Error::argument(op, what));
    }
    let (from, to) = (places(from)?, places(to)?);
    let mut order: Vec<isize> = (0..x.ndim()).filter(|axis| !from.contains(axis)).map(|axis| axis as isize).collect();
    let mut pairs: Vec<(usize, usize)> = to.into_iter().zip(from).collect();
    pairs.sort_unstable();
    for (to, from) in pairs {
        order.insert(to, from as isize);
    }
    permute(x, &order)
}

/// The tensor repeated along each axis so many times; where `times` is shorter than the shape, the first axes are not repeated.
#[track_caller]
pub fn tile(x: &Tensor, times: &[usize]) -> Result<Tensor> {
    let missing = x.ndim().saturating_sub(times.len());
    repeat(x, &[&vec![1; missing][..], times].concat())
}

/// The elements moved along some axes, those that leave at the end coming in at the start; without axes, along the flattened
/// tensor.
#[track_caller]
pub fn roll(x: &Tensor, shifts: &[isize], axes: &[isize]) -> Result<Tensor> {
    let op = "roll";
    if axes.is_empty() && shifts.len() == 1 {
        let flat = roll(&reshape(x, [x.size()])?, shifts, &[0])?;
        return reshape(&flat, x.shape().clone());
    }
    if axes.len() != shifts.len() {
        let what = format!("there are {} shifts and {} axes; give one shift for each axis", shifts.len(), axes.len());
        return Err(Error::argument(op, what));
    }
    let mut out = x.clone();
    for (&shift, &axis) in shifts.iter().zip(axes) {
        let length = x.shape()[x.shape().axis(op, axis)?];
        let cut = match length {
            0 => 0,
            _ => (length as isize - shift.rem_euclid(length as isize)) as usize % length,
        };
        if cut > 0 {
            let (front, back) = (narrow(&out, axis, 0, cut)?, narrow(&out, axis, cut as isize, length - cut)?);
            out = cat(&[&back, &front], axis)?;
        }
    }
    Ok(out)
}

/// The plane of two axes turned by 90 degrees `k` times, from the first axis towards the second.
#[track_caller]
pub fn rot90(x: &Tensor, k: isize, axes: [isize; 2]) -> Result<Tensor> {
    let [first, second] = axes;
    if x.shape().axis("rot90", first)? == x.shape().axis("rot90", second)? {
        return Err(Error::argument("rot90", "the two axes of the plane must be different"));
    }
    match k.rem_euclid(4) {
        0 => Ok(x.clone()),
        1 => transpose(&flip(x, &[second])?, first, second),
        2 => flip(x, &[first, second]),
        _ => flip(&transpose(x, first, second)?, &[second]),
    }
}

/// Every element `times` times in a row along an axis; without an axis, of the flattened tensor.
#[track_caller]
pub fn repeat_interleave(x: &Tensor, times: usize, axis: Option<isize>) -> Result<Tensor> {
    let Some(axis) = axis else {
        return repeat_interleave(&reshape(x, [x.size()])?, times, Some(0));
    };
    let at = x.shape().axis("repeat_interleave", axis)?;
    let raised = unsqueeze(x, at as isize + 1)?;
    let mut shape = raised.shape().to_vec();
    shape[at + 1] = times;
    let spread = expand(&raised, shape)?;
    let mut shape = x.shape().to_vec();
    shape[at] = shape[at].checked_mul(times).ok_or_else(|| {
        Error::shape("repeat_interleave", x.shape(), format!("{times} times its axis {axis} is too long"))
    })?;
    reshape(&spread, shape)
}

/// Vectors spread over a grid that has an axis for each: views of the grid's shape. With `xy` the first two axes are exchanged, as
/// for images.
#[track_caller]
pub fn meshgrid(tensors: &[&Tensor], xy: bool) -> Result<Vec<Tensor>> {
    if let Some(wrong) = tensors.iter().find(|tensor| tensor.ndim() > 1) {
        return Err(Error::shape("meshgrid", wrong.shape(), "a grid is made of vectors and numbers"));
    }
    let shape: Vec<usize> = tensors.iter().map(|tensor| tensor.size()).collect();
    let spread = |(axis, tensor): (usize, &&Tensor)| {
        let own: Vec<usize> = (0..shape.len()).map(|other| if other == axis { tensor.size() } else { 1 }).collect();
        let grid = expand(&reshape(tensor, own)?, shape.clone())?;
        if xy && shape.len() > 1 { transpose(&grid, 0, 1) } else { Ok(grid) }
    };
    tensors.iter().enumerate().map(spread).collect()
}

/// The diagonal of the matrices of two axes, `offset` places above the main one, as the last axis.
#[track_caller]
pub fn diagonal(x: &Tensor, offset: isize, first: isize, second: isize) -> Result<Tensor> {
    let matrices = movedim(x, &[first, second], &[-2, -1])?;
    let (rows, columns) = (matrices.shape()[x.ndim() - 2], matrices.shape()[x.ndim() - 1]);
    let below = offset.unsigned_abs();
    let (skipped_rows, skipped_columns) = if offset < 0 { (below, 0) } else { (0, below) };
    let length = rows.saturating_sub(skipped_rows).min(columns.saturating_sub(skipped_columns));
    let outer = &matrices.shape()[..x.ndim() - 2];
    let flat = reshape(&matrices, [outer, &[rows * columns]].concat())?;
    // One row down and one column on, from the first element of the diagonal.
    let (start, step) = match length {
        0 => (0, 1),
        _ => (skipped_rows * columns + skipped_columns, columns + 1),
    };
    let end = if length == 0 { 0 } else { start + (length - 1) * step + 1 };
    slice(&flat, -1, Slice::new(Some(start as isize), Some(end as isize), step as isize))
}

/// Vectors along the last axis as diagonals of matrices of two new axes, which are zero elsewhere.
#[track_caller]
pub fn diag_embed(x: &Tensor, offset: isize, first: isize, second: isize) -> Result<Tensor> {
    let op = "diag_embed";
    let Some((&length, outer)) = x.shape().split_last() else {
        return Err(Error::shape(op, x.shape(), "a number has no axis to put on a diagonal"));
    };
    let side = length.checked_add(offset.unsigned_abs());
    let Some((n, square)) = side.and_then(|n| Some((n, n.checked_mul(n.checked_add(1)?)?))) else {
        return Err(Error::argument(op, format!("the offset {offset} is too large")));
    };
    // One element of the diagonal and the n that follow it make a row of n + 1, and the end past the last row is cut off.
    let rows = pad(&unsqueeze(x, -1)?, &[(0, n as isize)], PadMode::Constant(0.0))?;
    let flat = reshape(&rows, [outer, &[length * (n + 1)]].concat())?;
    let before = if offset < 0 { (n - length) * n } else { n - length };
    let after = (square - n) as isize - (length * (n + 1) + before) as isize;
    let flat = pad(&flat, &[(before as isize, after)], PadMode::Constant(0.0))?;
    movedim(&reshape(&flat, [outer, &[n, n]].concat())?, &[-2, -1], &[first, second])
}

/// The diagonal of a matrix, or the matrix of a diagonal.
#[track_caller]
pub fn diag(x: &Tensor, offset: isize) -> Result<Tensor> {
    match x.ndim() {
        1 => diag_embed(x, offset, 0, 1),
        2 => diagonal(x, offset, 0, 1),
        _ => Err(Error::shape("diag", x.shape(), "it takes a vector or a matrix; see diagonal and diag_embed")),
    }
}

/// The sum of a matrix' diagonal.
#[track_caller]
pub fn trace(x: &Tensor) -> Result<Tensor> {
    if x.ndim() != 2 {
        return Err(Error::shape("trace", x.shape(), "it takes a matrix"));
    }
    sum(&diagonal(x, 0, 0, 1)?, (), false)
}

/// Tensors joined along their rows; numbers and vectors count as rows.
#[track_caller]
pub fn vstack(tensors: &[&Tensor]) -> Result<Tensor> {
    joined(tensors, 0, |x| match x.shape()[..] {
        [] | [_] => reshape(x, [1, x.size()]),
        _ => Ok(x.clone()),
    })
}

/// Tensors joined along their columns, vectors and numbers along their only axis.
#[track_caller]
pub fn hstack(tensors: &[&Tensor]) -> Result<Tensor> {
    let axis = if tensors.first().is_some_and(|x| x.ndim() > 1) { 1 } else { 0 };
    joined(tensors, axis, |x| if x.ndim() == 0 { reshape(x, [1]) } else { Ok(x.clone()) })
}

/// Tensors joined along their third axis, which matrices and vectors get.
#[track_caller]
pub fn dstack(tensors: &[&Tensor]) -> Result<Tensor> {
    joined(tensors, 2, |x| match x.shape()[..] {
        [] | [_] => reshape(x, [1, x.size(), 1]),
        [_, _] => unsqueeze(x, 2),
        _ => Ok(x.clone()),
    })
}

#[track_caller]
fn joined(tensors: &[&Tensor], axis: isize, raise: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let raised = tensors.iter().map(|tensor| raise(tensor)).collect::<Result<Vec<Tensor>>>()?;
    cat(&raised.iter().collect::<Vec<_>>(), axis)
}

/// Tensors expanded to the shape that they broadcast to, as views.
#[track_caller]
pub fn broadcast_tensors(tensors: &[&Tensor]) -> Result<Vec<Tensor>> {
    let mut shape = Shape::scalar();
    for tensor in tensors {
        shape = shape.broadcast("broadcast_tensors", tensor.shape())?;
    }
    tensors.iter().map(|tensor| expand(tensor, shape.clone())).collect()
}

/// One axis as several, of lengths whose product is its own; one of them may be -1.
#[track_caller]
pub fn unflatten(x: &Tensor, axis: isize, lengths: &[isize]) -> Result<Tensor> {
    let at = x.shape().axis("unflatten", axis)?;
    let length = x.shape()[at];
    let known = lengths.iter().filter(|&&part| part >= 0).try_fold(1usize, |all, &part| all.checked_mul(part as usize));
    let rest = known.filter(|&known| known > 0 && length.is_multiple_of(known)).map(|known| length / known);
    let open = lengths.iter().filter(|&&part| part < 0).count();
    let parts = lengths.iter().map(|&part| if part == -1 { rest } else { usize::try_from(part).ok() });
    let parts: Option<Vec<usize>> = parts.collect();
    let Some(parts) = parts.filter(|_| open == 1 || (open == 0 && known == Some(length))) else {
        return Err(Error::shape("unflatten", x.shape(), format!("its axis {axis} cannot be {lengths:?}")));
    };
    let mut shape = x.shape().to_vec();
    shape.splice(at..=at, parts);
    reshape(x, shape)
}
