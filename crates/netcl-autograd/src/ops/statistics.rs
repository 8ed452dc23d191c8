//! What stands out of the elements of an axis: extremes with their places, order statistics, moments.

use netcl_core::index::IndexTensor;
use netcl_ops as ops;
use netcl_ops::Axes;

use super::elementwise::{add, cast, div, eq, floor, gt, maximum, mul, ne, sub, where_};
use super::indexing::gather;
use super::layout::{reshape, squeeze, stack};
use super::rearrange::narrow;
use super::reduce::{argmax, argmin, max, mean, min, norm, std, sum, var};
use super::scan::{along, counting, cummax, diff, positions, whole};
use super::sort::sort;
use crate::error::{Error, Result};
use crate::graph::no_grad;
use crate::tensor::Tensor;
use crate::trace;

/// The largest element along an axis and where it is, the first of equals. Its gradient goes to that element alone.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::statistics::max_along};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32, 4.0, 4.0], [3])?.with_grad();
/// let (value, index) = max_along(&x, 0, false)?;
/// assert_eq!((value.to_host::<f32>()?, index.to_host()?), (vec![4.0], vec![1]));
/// value.backward()?;
/// assert_eq!(x.grad().unwrap().to_host::<f32>()?, [0.0, 1.0, 0.0]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn max_along(x: &Tensor, axis: isize, keepdims: bool) -> Result<(Tensor, IndexTensor)> {
    taken(x, axis, keepdims, argmax)
}

/// The smallest element along an axis and where it is, the first of equals. Its gradient goes to that element alone.
#[track_caller]
pub fn min_along(x: &Tensor, axis: isize, keepdims: bool) -> Result<(Tensor, IndexTensor)> {
    taken(x, axis, keepdims, argmin)
}

#[track_caller]
fn taken(
    x: &Tensor,
    axis: isize,
    keepdims: bool,
    find: fn(&Tensor, Option<isize>, bool) -> Result<IndexTensor>,
) -> Result<(Tensor, IndexTensor)> {
    if x.ndim() == 0 {
        let (value, index) = taken(&reshape(x, [1])?, axis, true, find)?;
        return pair(&value, index, 0, false);
    }
    let index = find(x, Some(axis), true)?;
    pair(&gather(x, axis, &index)?, index, axis, keepdims)
}

/// Values and indices whose axis of length 1 stays or goes.
fn pair(values: &Tensor, indices: IndexTensor, axis: isize, keepdims: bool) -> Result<(Tensor, IndexTensor)> {
    if keepdims {
        return Ok((values.clone(), indices));
    }
    let without = ops::squeeze(indices.tensor(), &[axis])?;
    trace::note("reshape", [indices.tensor()], &[&without]);
    let indices = IndexTensor::from_tensor(without)?;
    Ok((squeeze(values, &[axis])?, indices))
}

/// The smallest and the largest value over some axes. Elements that are equal to one share its gradient.
#[track_caller]
pub fn aminmax<'a>(x: &Tensor, axes: impl Into<Axes<'a>>, keepdims: bool) -> Result<(Tensor, Tensor)> {
    let axes = axes.into();
    Ok((min(x, axes, keepdims)?, max(x, axes, keepdims)?))
}

/// The element that has `k - 1` smaller ones along an axis, and where it is.
///
/// # Errors
/// If `k` is 0 or longer than the axis.
#[track_caller]
pub fn kthvalue(x: &Tensor, k: usize, axis: isize, keepdims: bool) -> Result<(Tensor, IndexTensor)> {
    let length = x.shape()[x.shape().axis("kthvalue", axis)?];
    if k == 0 || k > length {
        return Err(Error::shape("kthvalue", x.shape(), format!("k is {k}; axis {axis} has {length} elements")));
    }
    let at = Tensor::full(x.queue(), one_along(x, axis)?, counting(length), (k - 1) as f64)?;
    order_statistic(x, axis, keepdims, |_| Ok(at))
}

/// The middle element along an axis, the lower of two, and where it is. NaN, where there is one.
#[track_caller]
pub fn median(x: &Tensor, axis: isize, keepdims: bool) -> Result<(Tensor, IndexTensor)> {
    middle("median", x, axis, keepdims, |sorted, last| {
        // NaN comes last in order.
        let end = narrow(sorted, axis, last as isize, 1)?;
        where_(&ne(&end, &end)?, &full_like(&end, last)?, (last / 2) as f64)
    })
}

/// The middle element of those that are not NaN along an axis, the lower of two, and where it is.
#[track_caller]
pub fn nanmedian(x: &Tensor, axis: isize, keepdims: bool) -> Result<(Tensor, IndexTensor)> {
    middle("nanmedian", x, axis, keepdims, |sorted, last| {
        let there = cast(&where_(&eq(sorted, sorted)?, 1.0, 0.0)?, counting(last))?;
        floor(&mul(&maximum(&sub(&sum(&there, axis, true)?, 1.0)?, 0.0)?, 0.5)?)
    })
}

fn full_like(x: &Tensor, value: usize) -> Result<Tensor> {
    Tensor::full(x.queue(), x.shape().clone(), counting(value), value as f64)
}

#[track_caller]
fn middle(
    op: &'static str,
    x: &Tensor,
    axis: isize,
    keepdims: bool,
    at: impl FnOnce(&Tensor, usize) -> Result<Tensor>,
) -> Result<(Tensor, IndexTensor)> {
    let length = x.shape()[x.shape().axis(op, axis)?];
    let Some(last) = length.checked_sub(1) else {
        return Err(Error::shape(op, x.shape(), format!("its axis {axis} has no elements")));
    };
    order_statistic(x, axis, keepdims, |sorted| at(sorted, last))
}

/// The shape with one element along an axis.
fn one_along(x: &Tensor, axis: isize) -> Result<Vec<usize>> {
    let mut shape = x.shape().to_vec();
    shape[x.shape().axis("statistics", axis)?] = 1;
    Ok(shape)
}

/// The element at a place of the sorted axis, which may differ from line to line.
#[track_caller]
fn order_statistic(
    x: &Tensor,
    axis: isize,
    keepdims: bool,
    at: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<(Tensor, IndexTensor)> {
    let (sorted, order) = sort(x, axis, false)?;
    let indices = {
        let _off = no_grad();
        let at = whole(&at(&sorted)?)?;
        // Indices move as floats that are exact.
        let order: Tensor = order.tensor().cast(counting(x.size()))?.into();
        whole(&gather(&order, axis, &at)?)?
    };
    pair(&gather(x, axis, &indices)?, indices, axis, keepdims)
}

/// What [`quantile`] gives where the place is between two elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interpolation {
    /// A value on the line between them.
    #[default]
    Linear,
    /// The lower one.
    Lower,
    /// The higher one.
    Higher,
    /// The nearer one; the one at an even place, where both are.
    Nearest,
    /// Their mean.
    Midpoint,
}

impl Interpolation {
    /// The interpolation of a name.
    pub fn parse(name: &str) -> Result<Interpolation> {
        Ok(match name {
            "linear" => Interpolation::Linear,
            "lower" => Interpolation::Lower,
            "higher" => Interpolation::Higher,
            "nearest" => Interpolation::Nearest,
            "midpoint" => Interpolation::Midpoint,
            _ => {
                let what = format!("{name:?} is no interpolation: use linear, lower, higher, nearest or midpoint");
                return Err(Error::argument("quantile", what));
            }
        })
    }
}

/// For each of `q` the value that this share of the elements is below, along an axis; they are a new first axis. NaN, where there
/// is one.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::statistics::{Interpolation, quantile}};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[3.0f32, 1.0, 2.0, 5.0], [4])?;
/// let q = quantile(&x, &[0.0, 0.5], 0, false, Interpolation::Linear)?;
/// assert_eq!(q.to_host::<f32>()?, [1.0, 2.5]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn quantile(x: &Tensor, q: &[f64], axis: isize, keepdims: bool, how: Interpolation) -> Result<Tensor> {
    let op = "quantile";
    let length = x.shape()[x.shape().axis(op, axis)?];
    let Some(last) = length.checked_sub(1) else {
        return Err(Error::shape(op, x.shape(), format!("its axis {axis} has no elements")));
    };
    if let Some(wrong) = q.iter().find(|q| !(0.0..=1.0).contains(*q)) {
        return Err(Error::argument(op, format!("q is {wrong}; it is a share from 0 to 1")));
    }
    let (sorted, _) = sort(x, axis, false)?;
    let end = narrow(&sorted, axis, last as isize, 1)?;
    let nan = ne(&end.detach(), &end.detach())?;
    let one = |&q: &f64| {
        let place = q * last as f64;
        let (low, high) = (place.floor(), place.ceil());
        let (low, high, weight) = match how {
            Interpolation::Linear => (low, high, place - low),
            Interpolation::Lower => (low, low, 0.0),
            Interpolation::Higher => (high, high, 0.0),
            Interpolation::Nearest => (place.round_ties_even(), place.round_ties_even(), 0.0),
            Interpolation::Midpoint => (low, high, 0.5),
        };
        let at = |place: f64| narrow(&sorted, axis, place as isize, 1);
        let value = match low == high {
            true => at(low)?,
            false => {
                let low = at(low)?;
                add(&low, &mul(&sub(&at(high)?, &low)?, weight)?)?
            }
        };
        let value = where_(&nan, f64::NAN, &value)?;
        if keepdims { Ok(value) } else { squeeze(&value, &[axis]) }
    };
    let values = q.iter().map(one).collect::<Result<Vec<Tensor>>>()?;
    stack(&values.iter().collect::<Vec<_>>(), 0)
}

/// The most frequent value along an axis, the smallest of several, and where it is last.
#[track_caller]
pub fn mode(x: &Tensor, axis: isize, keepdims: bool) -> Result<(Tensor, IndexTensor)> {
    middle("mode", x, axis, keepdims, |sorted, last| {
        let sorted = sorted.detach();
        let place = along(&positions(x, last + 1)?, &sorted, axis)?;
        if last == 0 {
            return narrow(&place, axis, 0, 1);
        }
        // Where a run of equals starts; the place of the last start so far says how long the run is at each element.
        let new = where_(&ne(&diff(&sorted, 1, axis)?, 0.0)?, &narrow(&place, axis, 1, last)?, 0.0)?;
        let starts = super::layout::cat(&[&narrow(&place, axis, 0, 1)?, &new], axis)?;
        let length = sub(&place, &cummax(&starts, axis)?.0)?;
        let at = ops::argmax(length.raw(), Some(axis), true)?;
        Ok(at.tensor().cast(counting(last))?.into())
    })
}

/// The variance and the mean over some axes; `correction` is subtracted from the count.
#[track_caller]
pub fn var_mean<'a>(
    x: &Tensor,
    axes: impl Into<Axes<'a>>,
    correction: f64,
    keepdims: bool,
) -> Result<(Tensor, Tensor)> {
    let axes = axes.into();
    Ok((var(x, axes, correction, keepdims)?, mean(x, axes, keepdims)?))
}

/// The standard deviation and the mean over some axes; `correction` is subtracted from the count.
#[track_caller]
pub fn std_mean<'a>(
    x: &Tensor,
    axes: impl Into<Axes<'a>>,
    correction: f64,
    keepdims: bool,
) -> Result<(Tensor, Tensor)> {
    let axes = axes.into();
    Ok((std(x, axes, correction, keepdims)?, mean(x, axes, keepdims)?))
}

/// The sum over some axes of the elements that are not NaN.
#[track_caller]
pub fn nansum<'a>(x: &Tensor, axes: impl Into<Axes<'a>>, keepdims: bool) -> Result<Tensor> {
    sum(&where_(&ne(&x.detach(), &x.detach())?, 0.0, x)?, axes, keepdims)
}

/// The mean over some axes of the elements that are not NaN.
#[track_caller]
pub fn nanmean<'a>(x: &Tensor, axes: impl Into<Axes<'a>>, keepdims: bool) -> Result<Tensor> {
    let axes = axes.into();
    let total = nansum(x, axes, keepdims)?;
    let there = cast(&where_(&eq(&x.detach(), &x.detach())?, 1.0, 0.0)?, total.dtype())?;
    div(&total, &sum(&there, axes, keepdims)?)
}

/// The number of elements over some axes that are not 0.
pub fn count_nonzero<'a>(x: &Tensor, axes: impl Into<Axes<'a>>, keepdims: bool) -> Result<IndexTensor> {
    let _off = no_grad();
    let there = cast(&where_(&ne(&x.detach(), 0.0)?, 1.0, 0.0)?, counting(x.size()))?;
    whole(&sum(&there, axes, keepdims)?)
}

/// The slices of an axis, scaled down to a p-norm of `limit` where theirs is larger.
#[track_caller]
pub fn renorm(x: &Tensor, p: f64, axis: isize, limit: f64) -> Result<Tensor> {
    let at = x.shape().axis("renorm", axis)?;
    let others: Vec<isize> = (0..x.ndim()).filter(|&other| other != at).map(|other| other as isize).collect();
    let norms = norm(x, p, others.as_slice(), true)?;
    let factor = div(limit, &add(&norms, 1e-7)?)?;
    mul(x, &where_(&gt(&norms.detach(), limit)?, &factor, 1.0)?)
}
