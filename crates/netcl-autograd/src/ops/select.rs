//! Elements chosen, written or counted by index, mask or value, composed of gather, scatter-add and sort: everything stays on the
//! device, in a fixed order, but for results whose shape depends on values, which read the host.

use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_core::shape::Shape;
use netcl_ops as ops;

use super::elementwise::{cast, div, floor, ge, le, maximum, minimum, mul, ne, sub, where_};
use super::indexing::{gather, index_select, scatter_add};
use super::layout::{cat, expand, reshape, transpose};
use super::pad::{PadMode, pad};
use super::rearrange::narrow;
use super::reduce::{cumsum, prod};
use super::scan::{along, counting, whole};
use super::whole as numbers;
use crate::error::{Error, Result};
use crate::graph::{grad_enabled, no_grad};
use crate::tensor::Tensor;

/// Indices expanded to a shape.
fn expand_indices(indices: &IndexTensor, shape: &Shape) -> Result<IndexTensor> {
    Ok(IndexTensor::from_tensor(indices.tensor().expand(shape)?)?)
}

/// `gather` with broadcasting beside the axis; without an axis, of the flattened tensors.
#[track_caller]
pub fn take_along_dim(x: &Tensor, indices: &IndexTensor, axis: Option<isize>) -> Result<Tensor> {
    let op = "take_along_dim";
    let Some(axis) = axis else {
        let flat = netcl_core::tensor::reshape(indices.tensor(), [indices.tensor().size()])?;
        return gather(&reshape(x, [x.size()])?, 0, &IndexTensor::from_tensor(flat)?);
    };
    let at = x.shape().axis(op, axis)?;
    if indices.tensor().ndim() != x.ndim() {
        return Err(Error::shape(op, indices.tensor().shape(), format!("the tensor has shape {}", x.shape())));
    }
    let alike = |shape: &Shape, length: usize| -> Shape {
        shape.iter().enumerate().map(|(axis, &n)| if axis == at { length } else { n }).collect()
    };
    let common = alike(x.shape(), 1).broadcast(op, &alike(indices.tensor().shape(), 1))?;
    let indices = expand_indices(indices, &alike(&common, indices.tensor().shape()[at]))?;
    gather(&expand(x, alike(&common, x.shape()[at]))?, axis, &indices)
}

/// What [`scatter`] writes: a tensor that reaches over the indices, or a number.
pub use super::elementwise::Operand as Source;

/// The part of a source that the indices reach.
fn reached(op: &'static str, source: &Tensor, indices: &IndexTensor) -> Result<Tensor> {
    let at = indices.tensor().shape();
    if source.ndim() != at.ndim() || source.shape().iter().zip(at.iter()).any(|(s, i)| s < i) {
        let why = format!("the source must reach over the indices, which have shape {at}");
        return Err(Error::shape(op, source.shape(), why));
    }
    let mut part = source.clone();
    for (axis, &length) in at.iter().enumerate() {
        part = narrow(&part, axis as isize, 0, length)?;
    }
    Ok(part)
}

/// How many sources go to each place of a shape.
fn arrivals(x: &Tensor, axis: isize, indices: &IndexTensor) -> Result<Tensor> {
    let dtype = counting(indices.tensor().size());
    let ones = Tensor::full(x.queue(), indices.tensor().shape().clone(), dtype, 1.0)?;
    scatter_add(&Tensor::from_shape(x.queue(), x.shape().clone(), dtype)?, axis, indices, &ones)
}

/// `x` with `out[index[i][j][k]][j][k] = source[i][j][k]` for axis 0, and likewise for others; of several that go to one place,
/// the last stays.
///
/// ```
/// use netcl_autograd::{IndexTensor, Tensor, manager, ops::select::scatter};
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::from_host(&queue, &[0.0f32, 0.0, 7.0], [3])?;
/// let at = IndexTensor::from_host(&queue, &[1i64, 0, 1], [3])?;
/// let source = Tensor::from_host(&queue, &[1.0f32, 2.0, 3.0], [3])?;
/// assert_eq!(scatter(&x, 0, &at, &source)?.to_host::<f32>()?, [2.0, 3.0, 7.0]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn scatter<'t>(x: &Tensor, axis: isize, indices: &IndexTensor, source: impl Into<Source<'t>>) -> Result<Tensor> {
    let source = source.into();
    if !x.dtype().is_float() {
        return numbers::through_floats(x, |x, wide| match source {
            Source::Tensor(source) => scatter(x, axis, indices, &cast(source, wide)?),
            number => scatter(x, axis, indices, number),
        });
    }
    let written = ne(&arrivals(&x.detach(), axis, indices)?, 0.0)?;
    match source {
        Source::Number(value) => where_(&written, value, x),
        Source::Whole(value) => where_(&written, value, x),
        Source::Tensor(source) => {
            let source = reached("scatter", source, indices)?;
            let values = last_of_place(x, axis, indices, &source, None)?;
            where_(&written, &values, x)
        }
    }
}

/// Zeros with the source at each place that comes last in an order along the axis, which is that of the axis where none is given.
#[track_caller]
fn last_of_place(
    x: &Tensor,
    axis: isize,
    indices: &IndexTensor,
    source: &Tensor,
    order: Option<IndexTensor>,
) -> Result<Tensor> {
    let zeros = Tensor::from_shape(x.queue(), x.shape().clone(), source.dtype())?;
    if source.size() == 0 {
        return Ok(zeros);
    }
    let stays = {
        let _off = no_grad();
        let n = source.shape()[source.shape().axis("scatter", axis)?];
        let at: Tensor = indices.tensor().cast(counting(x.size()))?.into();
        let at = order.as_ref().map_or_else(|| Ok(at.clone()), |order| gather(&at, axis, order))?;
        // Stable: sources of one place stay in order, and the last of them is followed by another place.
        let sorted = ops::sort(at.raw(), axis, false)?;
        let values: Tensor = sorted.values.into();
        let changes = where_(
            &ne(&narrow(&values, axis, 0, n - 1)?, &narrow(&values, axis, 1, n - 1)?)?,
            &Tensor::full(x.queue(), (), values.dtype(), 1.0)?,
            0.0,
        )?;
        let end = Tensor::full(x.queue(), narrow(&values, axis, 0, 1)?.shape().clone(), values.dtype(), 1.0)?;
        let last = cat(&[&changes, &end], axis)?;
        let back = |marks: &Tensor, order: &IndexTensor| {
            let zeros = Tensor::from_shape(x.queue(), marks.shape().clone(), marks.dtype())?;
            scatter_add(&zeros, axis, order, marks)
        };
        let stays = back(&last, &sorted.indices)?;
        order.as_ref().map_or_else(|| Ok(stays.clone()), |order| back(&stays, order))?
    };
    scatter_add(&zeros, axis, indices, &where_(&stays, source, 0.0)?)
}

/// How [`scatter_reduce`] puts together what goes to one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScatterReduction {
    /// Their sum.
    Sum,
    /// Their product. Takes memory for every pair of a source and a place along the axis.
    Prod,
    /// Their mean.
    Mean,
    /// The largest.
    Amax,
    /// The smallest.
    Amin,
}

impl ScatterReduction {
    /// The reduction of a name.
    pub fn parse(name: &str) -> Result<ScatterReduction> {
        Ok(match name {
            "sum" => ScatterReduction::Sum,
            "prod" => ScatterReduction::Prod,
            "mean" => ScatterReduction::Mean,
            "amax" => ScatterReduction::Amax,
            "amin" => ScatterReduction::Amin,
            _ => {
                let what = format!("{name:?} is no reduction: use sum, prod, mean, amax or amin");
                return Err(Error::argument("scatter_reduce", what));
            }
        })
    }
}

/// `x` with all sources of a place put together there: along axis 0, those with `index[i][j][k]` go to `out[index[i][j][k]][j][k]`.
/// With `include_self` the element of `x` is one of them; places to which no source goes keep it anyway.
#[track_caller]
pub fn scatter_reduce(
    x: &Tensor,
    axis: isize,
    indices: &IndexTensor,
    source: &Tensor,
    reduction: ScatterReduction,
    include_self: bool,
) -> Result<Tensor> {
    let op = "scatter_reduce";
    let source = &reached(op, source, indices)?;
    let count = arrivals(&x.detach(), axis, indices)?;
    let written = ne(&count, 0.0)?;
    let started = |neutral: f64| match include_self {
        true => Ok(x.clone()),
        false => where_(&written, neutral, x),
    };
    match reduction {
        ScatterReduction::Sum => scatter_add(&started(0.0)?, axis, indices, source),
        ScatterReduction::Mean => {
            let total = scatter_add(&started(0.0)?, axis, indices, source)?;
            let count = if include_self { count.add(1.0)? } else { maximum(&count, 1.0)? };
            div(&total, &cast(&count, total.dtype())?)
        }
        ScatterReduction::Prod => {
            let at = x.shape().axis(op, axis)? as isize;
            // Along the last axis: places times sources, where a source that goes elsewhere counts as 1.
            let hits = ops::one_hot(indices, x.shape()[at as usize], DType::F32)?;
            let hits = transpose(&hits.into(), at, -1)?;
            let raised = transpose(&source.unsqueeze(-1)?, at, -1)?;
            let products = prod(&where_(&hits, &expand(&raised, hits.shape())?, 1.0)?, -1, false)?;
            let pads = products.shape().iter().zip(x.shape().iter());
            let pads: Vec<(isize, isize)> = pads.map(|(&n, &full)| (0, (full - n) as isize)).collect();
            mul(&started(1.0)?, &pad(&products, &pads, PadMode::Constant(1.0))?)
        }
        ScatterReduction::Amax | ScatterReduction::Amin => {
            let largest = reduction == ScatterReduction::Amax;
            // The best of each place comes last, NaN after all.
            let order = match largest {
                true => ops::argsort(source.raw(), axis, false)?,
                false => ops::argsort(&ops::neg(source.raw())?, axis, false)?,
            };
            let best = last_of_place(x, axis, indices, source, Some(order))?;
            let joined = match (include_self, largest) {
                (false, _) => best,
                (true, true) => maximum(x, &best)?,
                (true, false) => minimum(x, &best)?,
            };
            where_(&written, &joined, x)
        }
    }
}

/// `x` with a value at indices of an axis.
#[track_caller]
pub fn index_fill(x: &Tensor, axis: isize, indices: &IndexTensor, value: f64) -> Result<Tensor> {
    let length = x.shape()[x.shape().axis("index_fill", axis)?];
    let line = Tensor::from_shape(x.queue(), [length], DType::F32)?;
    let written = arrivals(&line, 0, indices)?;
    where_(&along(&written, x, axis)?, value, x)
}

/// `x` with the slices of `source` at indices of an axis; of several that go to one place, the last stays.
#[track_caller]
pub fn index_copy(x: &Tensor, axis: isize, indices: &IndexTensor, source: &Tensor) -> Result<Tensor> {
    let op = "index_copy";
    let at = x.shape().axis(op, axis)?;
    let mut shape = vec![1; x.ndim()];
    shape[at] = indices.tensor().size();
    let mut wanted = x.shape().to_vec();
    wanted[at] = shape[at];
    if source.shape()[..] != wanted[..] {
        return Err(Error::shape(op, source.shape(), format!("the source must have shape {}", Shape::from(wanted))));
    }
    let indices = IndexTensor::from_tensor(netcl_core::tensor::reshape(indices.tensor(), shape)?)?;
    scatter(x, axis, &expand_indices(&indices, source.shape())?, source)
}

impl Tensor {
    /// [`index_copy`] in place: overwrites the slices at indices of an axis with those of `source`. Nothing is recorded, so neither
    /// may want gradients; [`Tensor::index_put_`] writes with gradients.
    #[track_caller]
    pub fn index_copy_(&mut self, axis: isize, indices: &IndexTensor, source: &Tensor) -> Result<()> {
        let op = "index_copy_";
        if grad_enabled() && (self.needs_grad() || source.needs_grad()) {
            return Err(Error::argument(op, "it records no gradients: use index_put_, or no_grad"));
        }
        self.overwrite(|raw| ops::index_put(raw, axis, indices, source.raw()))
    }
}

/// The places of elements that are not 0, in row-major order of the flattened tensor. Reads the host.
fn places(x: &Tensor) -> Result<Vec<i64>> {
    let values = x.raw().to_f64_vec()?;
    Ok(values.iter().enumerate().filter(|(_, value)| **value != 0.0).map(|(at, _)| at as i64).collect())
}

/// The elements of `x` where a mask is not 0, both broadcast together, as a vector.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::select::masked_select};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32, -2.0, 3.0], [3])?.with_grad();
/// let positive = masked_select(&x, &x.detach().gt(0.0)?)?;
/// assert_eq!(positive.to_host::<f32>()?, [1.0, 3.0]);
/// positive.sum((), false)?.backward()?;
/// assert_eq!(x.grad().unwrap().to_host::<f32>()?, [1.0, 0.0, 1.0]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn masked_select(x: &Tensor, mask: &Tensor) -> Result<Tensor> {
    let shape = x.shape().broadcast("masked_select", mask.shape())?;
    let at = places(&expand(&mask.detach(), shape.clone())?)?;
    let at = IndexTensor::from_host(x.queue(), &at, [at.len()])?;
    index_select(&reshape(&expand(x, shape.clone())?, [shape.size()])?, 0, &at)
}

/// The elements of `x` with those where a mask is not 0 taken from a vector, in order.
///
/// # Errors
/// If the vector is too short.
#[track_caller]
pub fn masked_scatter(x: &Tensor, mask: &Tensor, source: &Tensor) -> Result<Tensor> {
    let mask = mask.expand(x.shape().clone())?;
    let chosen = mask.raw().to_f64_vec()?;
    let mut next = -1i64;
    let places: Vec<i64> = chosen
        .iter()
        .map(|&chosen| {
            next += i64::from(chosen != 0.0);
            next.max(0)
        })
        .collect();
    if next >= source.size() as i64 {
        let why = format!("the mask chooses {} elements", next + 1);
        return Err(Error::shape("masked_scatter", source.shape(), why));
    }
    if next < 0 {
        return Ok(x.clone());
    }
    let at = IndexTensor::from_host(x.queue(), &places, [places.len()])?;
    let flat = reshape(source, [source.size()])?;
    let values = index_select(&flat, 0, &at)?;
    where_(&mask, &reshape(&values, x.shape().clone())?, x)
}

/// The indices of the elements that are not 0: a row for each, with a column for each axis.
pub fn nonzero(x: &Tensor) -> Result<IndexTensor> {
    let (places, axes) = (places(x)?, x.ndim());
    let mut rows = vec![0i64; places.len() * axes];
    for (row, &place) in places.iter().enumerate() {
        let mut rest = place;
        for axis in (0..axes).rev() {
            let length = x.shape()[axis] as i64;
            rows[row * axes + axis] = rest % length;
            rest /= length;
        }
    }
    Ok(IndexTensor::from_host(x.queue(), &rows, [places.len(), axes])?)
}

/// The different elements of a tensor.
#[derive(Clone, Debug)]
pub struct Unique {
    /// The elements in order, once each. The gradient goes to the first of equals.
    pub values: Tensor,
    /// For each element of the tensor, which of the values it is.
    pub inverse: IndexTensor,
    /// How often each value occurs.
    pub counts: IndexTensor,
}

/// The different elements in order, NaN last. Reads the host.
#[track_caller]
pub fn unique(x: &Tensor) -> Result<Unique> {
    // Keys that order as the values do; of floats, the bits with the sign turned into an order.
    let keys: Vec<i64> = match x.dtype() {
        DType::I32 | DType::I64 => IndexTensor::from_tensor(x.raw().clone())?.to_host()?,
        _ => {
            let key = |value: f64| {
                let bits = if value.is_nan() { f64::NAN.to_bits() } else { (value + 0.0).to_bits() } as i64;
                bits ^ (((bits >> 63) as u64) >> 1) as i64
            };
            x.raw().to_f64_vec()?.into_iter().map(key).collect()
        }
    };
    let mut order: Vec<usize> = (0..keys.len()).collect();
    order.sort_by_key(|&at| (keys[at], at));
    let (mut first, mut inverse, mut counts) = (Vec::new(), vec![0i64; keys.len()], Vec::new());
    let mut last = None;
    for at in order {
        if last != Some(keys[at]) {
            last = Some(keys[at]);
            first.push(at as i64);
            counts.push(0i64);
        }
        inverse[at] = first.len() as i64 - 1;
        if let Some(count) = counts.last_mut() {
            *count += 1;
        }
    }
    let index = |values: &[i64], shape: Shape| IndexTensor::from_host(x.queue(), values, shape);
    let at = index(&first, [first.len()].into())?;
    Ok(Unique {
        values: index_select(&reshape(x, [x.size()])?, 0, &at)?,
        inverse: index(&inverse, x.shape().clone())?,
        counts: index(&counts, [counts.len()].into())?,
    })
}

/// Where values would go into a sorted last axis: before its first element that is not smaller, or with `right` after its last
/// element that is not larger. A vector serves for values of any shape; otherwise all axes but the last are equal.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::select::searchsorted};
///
/// let queue = manager().cpu().queue;
/// let sorted = Tensor::from_host(&queue, &[1.0f32, 3.0, 5.0], [3])?;
/// let values = Tensor::from_host(&queue, &[0.0f32, 3.0, 9.0], [3])?;
/// assert_eq!(searchsorted(&sorted, &values, false)?.to_host()?, [0, 1, 3]);
/// assert_eq!(searchsorted(&sorted, &values, true)?.to_host()?, [0, 2, 3]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
pub fn searchsorted(sorted: &Tensor, values: &Tensor, right: bool) -> Result<IndexTensor> {
    let op = "searchsorted";
    let _off = no_grad();
    let shape = values.shape().clone();
    let (sorted, values) = match sorted.ndim() {
        0 => return Err(Error::shape(op, sorted.shape(), "the sorted tensor has at least one axis")),
        1 => (sorted.detach(), reshape(&values.detach(), [values.size()])?),
        n if values.ndim() != n || sorted.shape()[..n - 1] != shape[..n - 1] => {
            let why = format!("the sorted tensor has shape {}; all axes but the last must be equal", sorted.shape());
            return Err(Error::shape(op, &shape, why));
        }
        _ => (sorted.detach(), values.detach()),
    };
    let (known, asked) = (sorted.shape()[sorted.ndim() - 1], values.shape()[values.ndim() - 1]);
    if shape.size() == 0 {
        return Ok(IndexTensor::from_tensor(netcl_core::tensor::Tensor::from_shape(
            values.queue(),
            shape,
            DType::I64,
        )?)?);
    }
    // Sorted together, with ties in favour of whichever comes first: a value's answer is the number of sorted elements before it.
    let merged = if right { cat(&[&sorted, &values], -1)? } else { cat(&[&values, &sorted], -1)? };
    let order = ops::argsort(merged.raw(), -1, false)?;
    let dtype = counting(known + asked);
    let place: Tensor = order.tensor().cast(dtype)?.into();
    let is_known = if right { ops::lt(place.raw(), known as f64)? } else { ops::ge(place.raw(), asked as f64)? };
    let is_known: Tensor = is_known.cast(dtype)?.into();
    let before = cumsum(&is_known, -1)?;
    let zeros = Tensor::from_shape(before.queue(), before.shape().clone(), dtype)?;
    let before = scatter_add(&zeros, -1, &order, &before)?;
    let of_values = narrow(&before, -1, if right { known as isize } else { 0 }, asked)?;
    whole(&reshape(&of_values, shape)?)
}

/// How often each whole number from 0 on occurs in a vector, up to its largest or to `minlength`; with weights, their sums.
/// Reads the host for the largest.
pub fn bincount(indices: &IndexTensor, weights: Option<&Tensor>, minlength: usize) -> Result<Tensor> {
    let op = "bincount";
    if indices.tensor().ndim() != 1 {
        return Err(Error::shape(op, indices.tensor().shape(), "it counts the elements of a vector"));
    }
    let values = indices.to_host()?;
    if let Some(wrong) = values.iter().find(|value| **value < 0) {
        return Err(Error::argument(op, format!("there is no bin for the negative value {wrong}")));
    }
    let bins = values.iter().max().map_or(0, |&largest| largest as usize + 1).max(minlength);
    let queue = indices.tensor().queue();
    match weights {
        Some(weights) => scatter_add(&Tensor::from_shape(queue, [bins], weights.dtype())?, 0, indices, weights),
        None => arrivals(&Tensor::from_shape(queue, [bins], DType::F32)?, 0, indices),
    }
}

/// How many elements lie in each of `bins` parts of equal width between two bounds; those outside are not counted. Bounds that are
/// equal stand for the smallest and the largest element.
pub fn histc(x: &Tensor, bins: usize, low: f64, high: f64) -> Result<Tensor> {
    let op = "histc";
    let _off = no_grad();
    if bins == 0 || !low.is_finite() || !high.is_finite() || low > high {
        let what = format!("{bins} bins from {low} to {high}: at least one bin, finite bounds in order");
        return Err(Error::argument(op, what));
    }
    let x = reshape(&x.detach(), [x.size()])?;
    // Before anything walks over the elements: there may be more than memory holds, of an expanded tensor.
    let ones = Tensor::full(x.queue(), [x.size()], x.dtype(), 1.0)?;
    let (mut low, mut high) = (low, high);
    if low == high && x.size() > 0 {
        (low, high) = (ops::min(x.raw(), (), false)?.to_f64_vec()?[0], ops::max(x.raw(), (), false)?.to_f64_vec()?[0]);
        if !low.is_finite() || !high.is_finite() {
            return Err(Error::argument(op, format!("the elements lie between {low} and {high}; give finite bounds")));
        }
    }
    if low == high {
        (low, high) = (low - 1.0, high + 1.0);
    }
    let share = mul(&sub(&x, low)?, bins as f64 / (high - low))?;
    // The upper bound belongs to the last bin; NaN and what is outside go to one more, which is dropped.
    let bin = minimum(&floor(&share)?, bins as f64 - 1.0)?;
    let bin = where_(&ge(&x, low)?, &bin, bins as f64)?;
    let bin = where_(&le(&x, high)?, &bin, bins as f64)?;
    let counts = scatter_add(&Tensor::from_shape(x.queue(), [bins + 1], x.dtype())?, 0, &whole(&bin)?, &ones)?;
    narrow(&counts, 0, 0, bins)
}
