//! Elements by index: Gather, Scatter, NonZero, TopK, OneHot, Unique and their like.

use std::cmp::Ordering;

use netcl_nn::autograd::ops::elementwise::{Operand, apply};
use netcl_nn::autograd::ops::{indexing, layout, select as ours, sort};
use netcl_nn::autograd::{IndexTensor, Result, Tensor};

use super::layout::{lengths, reshaped};
use super::{Op, Table, one};
use crate::array::{Array, Data, axis, bad, count, product, strides, sum};
use crate::kind::{Kind, Overflow};
use crate::run::Call;
use crate::value::Value;

pub(super) const TABLE: Table = &[
    ("Compress", compress as Op),
    ("Gather", gather),
    ("GatherElements", gather_elements),
    ("GatherND", gather_nd),
    ("NonZero", non_zero),
    ("OneHot", one_hot),
    ("Scatter", scatter_elements),
    ("ScatterElements", scatter_elements),
    ("ScatterND", scatter_nd),
    ("TensorScatter", tensor_scatter),
    ("TopK", top_k),
    ("Unique", unique),
    ("ai.onnx.ml:ArrayFeatureExtractor", array_feature_extractor),
];

/// Elements at places of the flat values, in another shape.
pub(super) fn taken(call: &Call<'_>, value: &Value, places: &[usize], shape: Vec<usize>) -> Result<Value> {
    match value {
        Value::Tensor(x) if x.size() > 0 && !places.is_empty() => {
            let flat = layout::reshape(x, [x.size()])?;
            Ok(layout::reshape(&indexing::index_select(&flat, 0, &indices_of(call, places)?)?, shape)?.into())
        }
        value => Ok(value.to_array()?.take(places, shape)?.into()),
    }
}

fn indices_of(call: &Call<'_>, places: &[usize]) -> Result<IndexTensor> {
    let places: Vec<i64> = places.iter().map(|&at| at as i64).collect();
    Ok(IndexTensor::from_host(call.queue, &places, [places.len()])?)
}

/// An index that may count from the end.
fn index(at: i64, n: usize) -> Result<usize> {
    let from_start = if at < 0 { at + n as i64 } else { at };
    let found = usize::try_from(from_start).ok().filter(|&at| at < n);
    found.ok_or_else(|| bad(format!("index {at} is outside of {n} elements")))
}

fn gather(call: &Call<'_>) -> Result<Vec<Value>> {
    let (value, chosen) = (call.value(0)?, call.value(1)?);
    let (shape, inner) = (value.shape()?, chosen.shape()?);
    let at = axis(call.int("axis", 0), shape.len())?;
    let to = [&shape[..at], &inner, &shape[at + 1..]].concat();
    let n = shape[at];
    if let (Value::Tensor(x), Value::Tensor(indices)) = (value, chosen)
        && x.size() > 0
        && indices.size() > 0
    {
        // Indices that are known only when the model runs stay where they are.
        let negative = apply("lt", &[Operand::Tensor(indices), Operand::Whole(0)], &[])?.cast(indices.dtype())?;
        let shifted = apply("mul", &[Operand::Tensor(&negative), Operand::Whole(n as i64)], &[])?;
        let indices = apply("add", &[Operand::Tensor(indices), Operand::Tensor(&shifted)], &[])?;
        let flat = IndexTensor::from_tensor(layout::reshape(&indices, [indices.size()])?.raw().clone())?;
        return one(layout::reshape(&indexing::index_select(x, at as isize, &flat)?, to)?);
    }
    let indices = chosen.to_array()?.to_ints()?.into_iter().map(|i| index(i, n)).collect::<Result<Vec<_>>>()?;
    one(reshaped(&picked(call, value, at, &indices)?, to)?)
}

/// The parts of a value at places along an axis, one after the other.
fn picked(call: &Call<'_>, value: &Value, at: usize, chosen: &[usize]) -> Result<Value> {
    if let Value::Tensor(x) = value
        && x.size() > 0
        && !chosen.is_empty()
    {
        return Ok(indexing::index_select(x, at as isize, &indices_of(call, chosen)?)?.into());
    }
    let mut to = value.shape()?;
    let (outside, n, inside) = (product(&to[..at]), to[at], product(&to[at + 1..]));
    to[at] = chosen.len();
    let mut places = Vec::with_capacity(count(&to)?);
    for i in 0..if places.capacity() == 0 { 0 } else { outside } {
        for &j in chosen {
            places.extend((0..inside).map(|k| (i * n + j) * inside + k));
        }
    }
    taken(call, value, &places, to)
}

/// The flat place of each element of `indices`, which replace one coordinate.
fn along_axis(shape: &[usize], at: usize, indices: &Array) -> Result<Vec<usize>> {
    if indices.shape.len() != shape.len()
        || indices.shape.iter().zip(shape).enumerate().any(|(i, (a, b))| i != at && a > b)
    {
        return Err(bad(format!("indices of shape {:?} do not fit shape {shape:?}", indices.shape)));
    }
    let (own, steps) = (strides(&indices.shape), strides(shape));
    let place = |(i, chosen): (usize, i64)| {
        let rest = (0..shape.len()).filter(|&d| d != at).map(|d| i / own[d] % indices.shape[d] * steps[d]);
        Ok(rest.sum::<usize>() + index(chosen, shape[at])? * steps[at])
    };
    indices.to_ints()?.into_iter().enumerate().map(place).collect()
}

fn gather_elements(call: &Call<'_>) -> Result<Vec<Value>> {
    let (value, indices) = (call.value(0)?, call.array(1)?);
    let shape = value.shape()?;
    let places = along_axis(&shape, axis(call.int("axis", 0), shape.len())?, &indices)?;
    one(taken(call, value, &places, indices.shape)?)
}

/// The flat places where the rows of `indices` begin, and the number of neighbours that belong to each.
fn rows(shape: &[usize], batch: usize, indices: &Array) -> Result<(Vec<usize>, usize)> {
    let Some((&width, outer)) = indices.shape.split_last() else { return Err(bad("indices have no axes")) };
    if batch > outer.len() || sum([batch, width])? > shape.len() || outer[..batch] != shape[..batch] {
        return Err(bad(format!("indices of shape {:?} do not fit shape {shape:?}", indices.shape)));
    }
    let steps = strides(shape);
    let inner = product(&shape[batch + width..]);
    // Rows of no indices have no elements, but a place each.
    let (rows, per_batch) = (count(outer)?, product(&outer[batch..]).max(1));
    let whole = product(&shape[batch..]);
    let chosen = indices.to_ints()?;
    let place = |row: usize| -> Result<usize> {
        let mut at = row / per_batch * whole;
        for d in 0..width {
            at += index(chosen[row * width + d], shape[batch + d])? * steps[batch + d];
        }
        Ok(at)
    };
    Ok(((0..rows).map(place).collect::<Result<_>>()?, inner))
}

fn spread(starts: &[usize], inner: usize) -> Result<Vec<usize>> {
    count(&[starts.len(), inner])?;
    Ok(starts.iter().flat_map(|&start| start..start + inner).collect())
}

fn gather_nd(call: &Call<'_>) -> Result<Vec<Value>> {
    let (value, indices) = (call.value(0)?, call.array(1)?);
    let shape = value.shape()?;
    let batch = usize::try_from(call.int("batch_dims", 0)).map_err(|_| bad("batch_dims is negative"))?;
    let (starts, inner) = rows(&shape, batch, &indices)?;
    let width = indices.shape.last().copied().unwrap_or(0);
    let to = [&indices.shape[..indices.shape.len() - 1], &shape[batch + width..]].concat();
    one(taken(call, value, &spread(&starts, inner)?, to)?)
}

/// Puts updates to flat places, or combines them with what is there.
pub(super) fn scattered(
    call: &Call<'_>,
    value: &Value,
    places: &[usize],
    updates: &Value,
    how: &str,
) -> Result<Vec<Value>> {
    let shape = value.shape()?;
    if product(&updates.shape()?) != places.len() {
        return Err(bad(format!("{} indices for updates of shape {:?}", places.len(), updates.shape()?)));
    }
    if places.is_empty() {
        return one(value.clone());
    }
    if matches!((value, updates), (Value::Tensor(_), _) | (_, Value::Tensor(_))) && value.kind()?.is_float() {
        let (x, source) = (value.to_tensor(call.queue)?, updates.to_tensor(call.queue)?);
        let (flat, source) = (layout::reshape(&x, [x.size()])?, layout::reshape(&source, [source.size()])?);
        let indices = indices_of(call, places)?;
        let reduce = |how| ours::scatter_reduce(&flat, 0, &indices, &source, how, true);
        let result = match how {
            "none" => ours::scatter(&flat, 0, &indices, &source)?,
            "add" => reduce(ours::ScatterReduction::Sum)?,
            "mul" => reduce(ours::ScatterReduction::Prod)?,
            "max" => reduce(ours::ScatterReduction::Amax)?,
            "min" => reduce(ours::ScatterReduction::Amin)?,
            _ => return Err(bad(format!("reduction {how:?} does not exist"))),
        };
        return one(layout::reshape(&result, shape)?);
    }
    let (mut out, updates) = (value.to_array()?, updates.to_array()?);
    let kind = out.kind;
    match (&mut out.data, &updates.data) {
        _ if how == "none" => out.put(places, &updates)?,
        (Data::Ints(data), Data::Ints(new)) => {
            for (&at, &new) in places.iter().zip(new) {
                let (old, new) = (kind.widen(data[at]), kind.widen(new));
                data[at] = kind.wrap(match how {
                    "add" => old + new,
                    "mul" => old.wrapping_mul(new),
                    "max" => old.max(new),
                    _ => old.min(new),
                });
            }
        }
        (Data::Floats(data), Data::Floats(new)) => {
            for (&at, &new) in places.iter().zip(new) {
                data[at] = kind.round(
                    match how {
                        "add" => data[at] + new,
                        "mul" => data[at] * new,
                        "max" => data[at].max(new),
                        _ => data[at].min(new),
                    },
                    Overflow::Infinite,
                );
            }
        }
        _ => return Err(bad("strings cannot be combined")),
    }
    one(out)
}

fn scatter_elements(call: &Call<'_>) -> Result<Vec<Value>> {
    let (value, indices) = (call.value(0)?, call.array(1)?);
    let shape = value.shape()?;
    let places = along_axis(&shape, axis(call.int("axis", 0), shape.len())?, &indices)?;
    scattered(call, value, &places, call.value(2)?, call.text("reduction").unwrap_or("none"))
}

fn scatter_nd(call: &Call<'_>) -> Result<Vec<Value>> {
    let (value, indices) = (call.value(0)?, call.array(1)?);
    let (starts, inner) = rows(&value.shape()?, 0, &indices)?;
    scattered(call, value, &spread(&starts, inner)?, call.value(2)?, call.text("reduction").unwrap_or("none"))
}

/// Writes new rows of a cache, each batch from its own place on.
fn tensor_scatter(call: &Call<'_>) -> Result<Vec<Value>> {
    let (value, updates) = (call.value(0)?, call.value(1)?);
    let (shape, new) = (value.shape()?, updates.shape()?);
    let at = axis(call.int("axis", -2), shape.len())?;
    let starts = match call.optional_ints(2)? {
        Some(starts) => starts,
        None => vec![0; count(&shape[..1.min(shape.len())])?],
    };
    let circular = call.text("mode") == Some("circular");
    let fits = new.len() == shape.len() && (0..new.len()).all(|d| d == at || new[d] == shape[d]);
    if at == 0 || !fits || starts.len() != new[0] {
        let starts = starts.len();
        return Err(bad(format!("updates of shape {new:?} with {starts} places do not fit shape {shape:?}")));
    }
    let (own, steps) = (strides(&new), strides(&shape));
    let place = |i: usize| {
        let index = |d: usize| i / own[d] % new[d];
        let row = index(at) as i128 + i128::from(starts[index(0)]);
        let row = if circular { row.rem_euclid(shape[at].max(1) as i128) } else { row };
        let row = usize::try_from(row).ok().filter(|&row| row < shape[at]);
        let row = row.ok_or_else(|| bad("the updates reach past the end"))?;
        Ok((0..new.len()).map(|d| if d == at { row } else { index(d) } * steps[d]).sum())
    };
    let places = (0..count(&new)?).map(place).collect::<Result<Vec<usize>>>()?;
    scattered(call, value, &places, updates, "none")
}

fn compress(call: &Call<'_>) -> Result<Vec<Value>> {
    let (value, chosen) = (call.value(0)?, call.ints(1)?);
    let shape = value.shape()?;
    let (value, at) = match call.attribute("axis") {
        Some(_) => (value.clone(), axis(call.int("axis", 0), shape.len())?),
        None => (reshaped(value, vec![product(&shape)])?, 0),
    };
    let n = value.shape()?[at];
    let kept: Vec<usize> = (0..n.min(chosen.len())).filter(|&i| chosen[i] != 0).collect();
    one(picked(call, &value, at, &kept)?)
}

fn array_feature_extractor(call: &Call<'_>) -> Result<Vec<Value>> {
    let value = call.value(0)?;
    let shape = value.shape()?;
    let Some(&n) = shape.last() else { return Err(bad("expected at least one axis")) };
    let chosen = call.ints(1)?.into_iter().map(|i| index(i, n)).collect::<Result<Vec<_>>>()?;
    let rows = product(&shape[..shape.len() - 1]);
    let picked = picked(call, value, shape.len() - 1, &chosen)?;
    one(reshaped(&picked, vec![rows, chosen.len()])?)
}

fn non_zero(call: &Call<'_>) -> Result<Vec<Value>> {
    let array = call.array(0)?;
    let found: Vec<usize> = array.to_floats()?.iter().enumerate().filter(|(_, v)| **v != 0.0).map(|(i, _)| i).collect();
    let steps = strides(&array.shape);
    let coordinates = (0..steps.len()).flat_map(|d| {
        let (step, n) = (steps[d], array.shape[d]);
        found.iter().map(move |&i| (i / step % n) as i64).collect::<Vec<_>>()
    });
    one(Array::ints(Kind::I64, vec![steps.len(), found.len()], coordinates.collect()))
}

fn one_hot(call: &Call<'_>) -> Result<Vec<Value>> {
    let (indices, depth, values) = (call.array(0)?, call.ints(1)?, call.array(2)?);
    let depth = lengths(&depth)?.first().copied().ok_or_else(|| bad("depth is missing"))?;
    let rank = indices.shape.len();
    let at = axis(call.int("axis", -1), rank + 1)?;
    let mut shape = indices.shape.clone();
    shape.insert(at, depth);
    if values.len() != 2 {
        return Err(bad(format!("expected the values [off, on], got {} values", values.len())));
    }
    let (steps, all) = (strides(&shape), count(&shape)?);
    let inner = steps.get(at).copied().unwrap_or(1);
    let wanted: Vec<i64> = indices.to_floats()?.into_iter().map(|v| v as i64).collect();
    let chosen = (0..all).map(|i| {
        let (place, outside) = (i / inner % depth, i / (inner * depth));
        let wanted = wanted[outside * inner + i % inner];
        let wanted = if wanted < 0 { wanted + depth as i64 } else { wanted };
        usize::from(place as i64 == wanted)
    });
    let chosen: Vec<usize> = chosen.collect();
    one(values.take(&chosen, shape)?)
}

fn top_k(call: &Call<'_>) -> Result<Vec<Value>> {
    let value = call.value(0)?;
    let shape = value.shape()?;
    let at = axis(call.int("axis", -1), shape.len())?;
    let k = match call.optional_ints(1)? {
        Some(k) => lengths(&k)?.first().copied().unwrap_or(0),
        None => lengths(&[call.int("k", 0)])?[0],
    };
    let largest = call.int("largest", 1) != 0;
    if k > shape[at] {
        return Err(bad(format!("k = {k} of {} elements", shape[at])));
    }
    if let Value::Tensor(x) = value
        && value.kind()?.is_float()
        && k > 0
    {
        let (values, indices) = sort::topk(x, k, at as isize, largest)?;
        return Ok(vec![values.into(), Tensor::from(indices.tensor().clone()).into()]);
    }
    let array = value.to_array()?;
    let (inner, n) = (strides(&shape)[at], shape[at]);
    let order = ordering(&array)?;
    let mut to = shape.clone();
    to[at] = k;
    let mut places = vec![0; count(&to)?];
    let mut indices = vec![0; places.len()];
    for lane in 0..array.len() / n.max(1) {
        let start = lane / inner * inner * n + lane % inner;
        let mut sorted: Vec<usize> = (0..n).collect();
        sorted.sort_by(|&a, &b| {
            let order = order(start + a * inner, start + b * inner);
            if largest { order.reverse() } else { order }
        });
        for (i, &j) in sorted.iter().take(k).enumerate() {
            let target = lane / inner * inner * k + lane % inner + i * inner;
            (places[target], indices[target]) = (start + j * inner, j as i64);
        }
    }
    Ok(vec![array.take(&places, to.clone())?.into(), Array::ints(Kind::I64, to, indices).into()])
}

/// How two elements of an array compare.
fn ordering(array: &Array) -> Result<Box<dyn Fn(usize, usize) -> Ordering + '_>> {
    Ok(match &array.data {
        Data::Ints(data) => Box::new(|a, b| array.kind.widen(data[a]).cmp(&array.kind.widen(data[b]))),
        Data::Floats(data) => Box::new(|a, b| data[a].partial_cmp(&data[b]).unwrap_or(Ordering::Equal)),
        Data::Texts(data) => Box::new(|a, b| data[a].cmp(&data[b])),
    })
}

fn unique(call: &Call<'_>) -> Result<Vec<Value>> {
    let array = call.array(0)?;
    // Slices along the axis are rows of a table; without an axis every element is one.
    let at = call.attribute("axis").map(|_| axis(call.int("axis", 0), array.shape.len())).transpose()?;
    let (table, n) = match at {
        Some(at) => {
            let order: Vec<usize> = std::iter::once(at).chain((0..array.shape.len()).filter(|&d| d != at)).collect();
            (array.permuted(&order)?, array.shape[at])
        }
        None => (array.clone(), array.len()),
    };
    let width = table.len().checked_div(n).unwrap_or(1);
    // An axis may be long where another one has no elements.
    count(&[n])?;
    let cell = ordering(&table)?;
    let compare = |a: usize, b: usize| {
        (0..width).map(|i| cell(a * width + i, b * width + i)).find(|o| o.is_ne()).unwrap_or(Ordering::Equal)
    };
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&a, &b| compare(a, b));
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for row in order {
        match groups.last_mut().filter(|group| compare(group[0], row).is_eq()) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    if call.int("sorted", 1) == 0 {
        groups.sort_by_key(|group| group[0]);
    }
    let first: Vec<i64> = groups.iter().map(|group| group[0] as i64).collect();
    let counts = groups.iter().map(|group| group.len() as i64).collect();
    let mut inverse = vec![0; n];
    for (i, group) in groups.iter().enumerate() {
        group.iter().for_each(|&row| inverse[row] = i as i64);
    }
    let places: Vec<usize> = groups.iter().flat_map(|group| (0..width).map(|i| group[0] * width + i)).collect();
    let values = match at {
        Some(at) => {
            let mut shape = table.shape.clone();
            shape[0] = groups.len();
            let back: Vec<usize> = (0..shape.len())
                .map(|d| {
                    if d == at {
                        0
                    } else if d < at {
                        d + 1
                    } else {
                        d
                    }
                })
                .collect();
            table.take(&places, shape)?.permuted(&back)?
        }
        None => table.take(&places, vec![groups.len()])?,
    };
    Ok(vec![values.into(), Array::list(first).into(), Array::list(inverse).into(), Array::list(counts).into()])
}
