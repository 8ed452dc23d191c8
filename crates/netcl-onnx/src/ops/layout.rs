//! Shapes and axes: Reshape, Transpose, Slice, Concat, Split, Pad, Expand and their like; constants and ranges.

use netcl_nn::autograd::ops::elementwise::{Operand, apply};
use netcl_nn::autograd::ops::layout as ours;
use netcl_nn::autograd::ops::pad::{PadMode, pad as pad_floats};
use netcl_nn::autograd::{Result, Slice, Tensor};

use super::{Op, Table, one};
use crate::array::{
    Array, axes as each_axis, axis, bad, broadcast, count, places, product, size as elements, strides, sum,
};
use crate::graph::Attribute;
use crate::kind::{Kind, Overflow};
use crate::run::Call;
use crate::value::Value;

pub(super) const TABLE: Table = &[
    ("CenterCropPad", center_crop_pad as Op),
    ("Concat", concat),
    ("Constant", constant),
    ("ConstantOfShape", constant_of_shape),
    ("DepthToSpace", depth_to_space),
    ("Expand", expand),
    ("EyeLike", eye_like),
    ("Flatten", flatten),
    ("Pad", pad),
    ("Range", range),
    ("Reshape", reshape),
    ("ReverseSequence", reverse_sequence),
    ("Shape", shape),
    ("Size", size),
    ("Slice", slice),
    ("SpaceToDepth", space_to_depth),
    ("Split", split),
    ("Squeeze", squeeze),
    ("Tile", tile),
    ("Transpose", transpose),
    ("Trilu", trilu),
    ("Unsqueeze", unsqueeze),
];

/// The same elements in another shape.
pub(super) fn reshaped(value: &Value, to: Vec<usize>) -> Result<Value> {
    Ok(match value {
        Value::Tensor(x) => {
            if elements(&to)? != x.size() {
                return Err(bad(format!("shape {} cannot become {to:?}", x.shape())));
            }
            ours::reshape(x, to)?.into()
        }
        value => value.to_array()?.reshaped(to)?.into(),
    })
}

pub(super) fn permuted(value: &Value, order: &[usize]) -> Result<Value> {
    Ok(match value {
        Value::Tensor(x) => x.permute(&order.iter().map(|&i| i as isize).collect::<Vec<_>>())?.into(),
        value => value.to_array()?.permuted(order)?.into(),
    })
}

/// Elements `start, start + step, ...` of an axis.
pub(super) fn sliced(value: &Value, axis: usize, start: usize, step: isize, length: usize) -> Result<Value> {
    // One element has no next one, however far that would be.
    let step = if length > 1 { step } else { 1 };
    let Value::Tensor(x) = value else {
        return Ok(value.to_array()?.sliced(axis, start, step, length)?.into());
    };
    if length == 0 {
        return Ok(x.narrow(axis as isize, 0, 0)?.into());
    }
    let stop = start as isize + step * (length as isize - 1) + step.signum();
    let part = Slice::new(Some(start as isize), Some(stop).filter(|&stop| stop >= 0), step);
    Ok(x.slice(axis as isize, part)?.into())
}

pub(super) fn joined(call: &Call<'_>, parts: &[Value], at: usize) -> Result<Value> {
    let on_device = parts.iter().any(|part| matches!(part, Value::Tensor(_)));
    if on_device && parts.iter().all(|part| part.kind().is_ok_and(|kind| kind.dtype().is_some())) {
        let tensors = parts.iter().map(|part| part.to_tensor(call.queue)).collect::<Result<Vec<_>>>()?;
        return Ok(ours::cat(&tensors.iter().collect::<Vec<_>>(), at as isize)?.into());
    }
    Ok(Array::joined(&parts.iter().map(Value::to_array).collect::<Result<Vec<_>>>()?, at)?.into())
}

fn reshape(call: &Call<'_>) -> Result<Vec<Value>> {
    let value = call.value(0)?;
    let from = value.shape()?;
    let wanted = match call.int_list("shape") {
        Some(shape) => shape.to_vec(),
        None => call.ints(1)?,
    };
    let keep_zeros = call.flag("allowzero");
    let known = |(i, &n): (usize, &i64)| match n {
        0 if !keep_zeros => {
            from.get(i).copied().ok_or_else(|| bad(format!("shape {wanted:?} copies axis {i} of {from:?}")))
        }
        -1 => Ok(1),
        n => usize::try_from(n).map_err(|_| bad(format!("shape {wanted:?} has a negative length"))),
    };
    let mut to = wanted.iter().enumerate().map(known).collect::<Result<Vec<usize>>>()?;
    let mut free = wanted.iter().enumerate().filter(|(_, n)| **n == -1).map(|(i, _)| i);
    if let Some(i) = free.next() {
        let (all, rest) = (product(&from), elements(&to)?);
        if free.next().is_some() || rest == 0 || all % rest != 0 {
            return Err(bad(format!("shape {from:?} cannot become {wanted:?}")));
        }
        to[i] = all / rest;
    }
    one(reshaped(value, to)?)
}

fn flatten(call: &Call<'_>) -> Result<Vec<Value>> {
    let value = call.value(0)?;
    let shape = value.shape()?;
    let at = call.int("axis", 1);
    let at = if at == shape.len() as i64 { shape.len() } else { axis(at, shape.len())? };
    one(reshaped(value, vec![product(&shape[..at]), product(&shape[at..])])?)
}

/// The axes of an attribute or an input.
fn axes(call: &Call<'_>, input: usize) -> Result<Option<Vec<i64>>> {
    match call.int_list("axes") {
        Some(axes) => Ok(Some(axes.to_vec())),
        None => call.optional_ints(input),
    }
}

fn squeeze(call: &Call<'_>) -> Result<Vec<Value>> {
    let value = call.value(0)?;
    let shape = value.shape()?;
    let gone = match axes(call, 1)? {
        Some(axes) => each_axis(&axes, shape.len())?,
        None => (0..shape.len()).filter(|&i| shape[i] == 1).collect(),
    };
    if let Some(i) = gone.iter().find(|&&i| shape[i] != 1) {
        return Err(bad(format!("axis {i} of shape {shape:?} has not length 1")));
    }
    one(reshaped(value, (0..shape.len()).filter(|i| !gone.contains(i)).map(|i| shape[i]).collect())?)
}

fn unsqueeze(call: &Call<'_>) -> Result<Vec<Value>> {
    let value = call.value(0)?;
    let shape = value.shape()?;
    let axes = axes(call, 1)?.ok_or_else(|| bad("axes are missing"))?;
    let rank = shape.len() + axes.len();
    let new = each_axis(&axes, rank)?;
    let mut rest = shape.iter().copied();
    one(reshaped(value, (0..rank).map(|i| if new.contains(&i) { 1 } else { rest.next().unwrap_or(1) }).collect())?)
}

fn transpose(call: &Call<'_>) -> Result<Vec<Value>> {
    let value = call.value(0)?;
    let rank = value.shape()?.len();
    let order = match call.int_list("perm") {
        Some(order) => each_axis(order, rank)?,
        None => (0..rank).rev().collect(),
    };
    if order.len() != rank {
        return Err(bad(format!("perm {order:?} is no order of {rank} axes")));
    }
    one(permuted(value, &order)?)
}

fn expand(call: &Call<'_>) -> Result<Vec<Value>> {
    let wanted = lengths(&call.ints(1)?)?;
    let value = call.value(0)?;
    let shape = broadcast(&value.shape()?, &wanted)?;
    count(&shape)?;
    one(match value {
        Value::Tensor(x) => Value::from(x.expand(shape)?),
        value => value.to_array()?.expanded(&shape)?.into(),
    })
}

pub(super) fn lengths(list: &[i64]) -> Result<Vec<usize>> {
    list.iter().map(|&n| usize::try_from(n).map_err(|_| bad(format!("{list:?} has a negative length")))).collect()
}

fn tile(call: &Call<'_>) -> Result<Vec<Value>> {
    let (value, times) = (call.value(0)?, lengths(&call.ints(1)?)?);
    let shape = value.shape()?;
    if times.len() != shape.len() {
        return Err(bad(format!("{} repeats for {} axes", times.len(), shape.len())));
    }
    count(&shape.iter().zip(&times).map(|(n, times)| n.saturating_mul(*times)).collect::<Vec<_>>())?;
    if let Value::Tensor(x) = value {
        return one(x.tile(&times)?);
    }
    one(value.to_array()?.tiled(&times)?)
}

fn concat(call: &Call<'_>) -> Result<Vec<Value>> {
    let parts = (0..call.inputs.len()).map(|i| call.value(i).cloned()).collect::<Result<Vec<_>>>()?;
    let at = axis(call.int("axis", 0), call.value(0)?.shape()?.len())?;
    one(joined(call, &parts, at)?)
}

fn slice(call: &Call<'_>) -> Result<Vec<Value>> {
    let mut value = call.value(0)?.clone();
    let shape = value.shape()?;
    let part = |name, input| match call.int_list(name) {
        Some(list) => Ok(Some(list.to_vec())),
        None => call.optional_ints(input),
    };
    let missing = || bad("starts or ends are missing");
    let (starts, ends) = (part("starts", 1)?.ok_or_else(missing)?, part("ends", 2)?.ok_or_else(missing)?);
    let axes = part("axes", 3)?.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let axes = each_axis(&axes, shape.len())?;
    let steps = part("steps", 4)?.unwrap_or_else(|| vec![1; starts.len()]);
    if ends.len() != starts.len() || axes.len() != starts.len() || steps.len() != starts.len() {
        return Err(bad("starts, ends, axes and steps have not the same length"));
    }
    for i in 0..starts.len() {
        let (at, step) = (axes[i], steps[i]);
        let n = shape[at] as i64;
        let (low, high) = match step {
            0 => return Err(bad("a step is 0")),
            1.. => (0, n),
            _ => (-1, n - 1),
        };
        let clamp = |at: i64, from: i64| if at < 0 { at.saturating_add(n).max(from) } else { at }.clamp(from, high);
        let (start, end) = (clamp(starts[i], low.max(0).min(high.max(0))), clamp(ends[i], low));
        let distance = if step > 0 { end - start } else { start - end };
        let length = if distance <= 0 { 0 } else { (distance as u64).div_ceil(step.unsigned_abs()) as usize };
        value = sliced(&value, at, start.max(0) as usize, step as isize, length)?;
    }
    one(value)
}

fn split(call: &Call<'_>) -> Result<Vec<Value>> {
    let value = call.value(0)?;
    let shape = value.shape()?;
    let at = axis(call.int("axis", 0), shape.len())?;
    let given = match call.int_list("split") {
        Some(list) => Some(list.to_vec()),
        None => call.optional_ints(1)?,
    };
    let lengths = match given {
        Some(given) => lengths(&given)?,
        None => {
            let parts = call.int("num_outputs", call.node.outputs.len() as i64).clamp(1, 1 << 16) as usize;
            let each = shape[at].div_ceil(parts);
            (0..parts).map(|i| each.min(shape[at].saturating_sub(each.saturating_mul(i)))).collect()
        }
    };
    if sum(lengths.iter().copied())? != shape[at] {
        return Err(bad(format!("{lengths:?} do not add up to {}", shape[at])));
    }
    let mut start = 0;
    lengths
        .into_iter()
        .map(|length| {
            start += length;
            sliced(value, at, start - length, 1, length)
        })
        .collect()
}

fn shape(call: &Call<'_>) -> Result<Vec<Value>> {
    let shape = call.value(0)?.shape()?;
    let n = shape.len() as i64;
    let clamp = |at: i64| (if at < 0 { at + n } else { at }).clamp(0, n) as usize;
    let (start, end) = (clamp(call.int("start", 0)), clamp(call.int("end", n)));
    one(Array::list(shape[start.min(end)..end].iter().map(|&n| n as i64).collect()))
}

fn size(call: &Call<'_>) -> Result<Vec<Value>> {
    one(Array::ints(Kind::I64, vec![], vec![product(&call.value(0)?.shape()?) as i64]))
}

fn constant(call: &Call<'_>) -> Result<Vec<Value>> {
    let Some((name, attribute)) = call.node.attributes.iter().next() else { return Err(bad("it has no value")) };
    let text =
        |texts: &[String], shape| Array { kind: Kind::Text, shape, data: crate::array::Data::Texts(texts.to_vec()) };
    one(match attribute {
        Attribute::Tensor(array) => array.clone(),
        Attribute::Int(v) => Array::ints(Kind::I64, vec![], vec![*v]),
        Attribute::Ints(list) => Array::list(list.clone()),
        Attribute::Float(v) => Array::floats(Kind::F32, vec![], vec![*v]),
        Attribute::Floats(list) => Array::floats(Kind::F32, vec![list.len()], list.clone()),
        Attribute::Text(v) => text(std::slice::from_ref(v), vec![]),
        Attribute::Texts(list) => text(list, vec![list.len()]),
        Attribute::Graph(_) => return Err(bad(format!("its value {name} is a graph"))),
    })
}

fn constant_of_shape(call: &Call<'_>) -> Result<Vec<Value>> {
    let shape = lengths(&call.ints(0)?)?;
    one(match call.attribute("value") {
        Some(Attribute::Tensor(value)) => value.clone().reshaped(vec![])?.expanded(&shape)?,
        _ => Array::full(Kind::F32, shape, 0.0)?,
    })
}

fn range(call: &Call<'_>) -> Result<Vec<Value>> {
    let kind = call.kind()?;
    let numbers = (0..3).map(|i| Ok(call.array(i)?.to_floats()?.first().copied().unwrap_or(f64::NAN)));
    let numbers = numbers.collect::<Result<Vec<f64>>>()?;
    let (start, stop, step) = (numbers[0], numbers[1], numbers[2]);
    if step == 0.0 || !(start.is_finite() && stop.is_finite() && step.is_finite()) {
        return Err(bad(format!("no range goes from {start} to {stop} in steps of {step}")));
    }
    let n = ((stop - start) / step).ceil().max(0.0) as usize;
    count(&[n])?;
    let values = (0..n).map(|i| start + step * i as f64);
    one(if kind.is_float() {
        Array::floats(kind, vec![n], values.map(|v| kind.round(v, Overflow::Infinite)).collect())
    } else {
        Array::ints(kind, vec![n], values.map(|v| kind.wrap(v as i128)).collect())
    })
}

fn eye_like(call: &Call<'_>) -> Result<Vec<Value>> {
    let shape = call.value(0)?.shape()?;
    let kind = match call.attribute("dtype") {
        Some(Attribute::Int(code)) => Kind::of_code(*code).ok_or_else(|| bad("its dtype is not supported"))?,
        _ => call.kind()?,
    };
    let &[rows, columns] = &shape[..] else { return Err(bad(format!("expected two axes, got {shape:?}"))) };
    let k = call.int("k", 0).clamp(-(rows as i64), columns as i64);
    let ones = (0..count(&shape)?).map(|i| f64::from(u8::from((i % columns) as i64 == (i / columns) as i64 + k)));
    one(Array::floats(Kind::F64, shape, ones.collect()).cast(kind, Overflow::Infinite)?)
}

fn trilu(call: &Call<'_>) -> Result<Vec<Value>> {
    let k = call.optional_ints(1)?.and_then(|k| k.first().copied()).unwrap_or(0);
    let upper = call.int("upper", 1) != 0;
    let value = call.value(0)?;
    let shape = value.shape()?;
    let &[.., rows, columns] = &shape[..] else { return Err(bad(format!("expected a matrix, got shape {shape:?}"))) };
    let k = k.clamp(-(rows as i64), columns as i64);
    if let Value::Tensor(x) = value
        && value.kind()?.is_float()
    {
        return one(if upper { ours::triu(x, k as isize)? } else { ours::tril(x, k as isize)? });
    }
    let array = value.to_array()?;
    let keep = |i: usize| {
        let (row, column) = ((i / columns % rows) as i64, (i % columns) as i64);
        if upper { column >= row + k } else { column <= row + k }
    };
    let hidden: Vec<usize> = (0..array.len()).filter(|&i| !keep(i)).collect();
    let mut out = array.clone();
    out.put(&hidden, &Array::full(array.kind, vec![hidden.len()], 0.0)?)?;
    one(out)
}

fn pad(call: &Call<'_>) -> Result<Vec<Value>> {
    let value = call.value(0)?;
    let shape = value.shape()?;
    let rank = shape.len();
    let pads = match call.int_list("pads") {
        Some(pads) => pads.to_vec(),
        None => call.ints(1)?,
    };
    let axes = match call.optional_ints(3)? {
        Some(axes) => each_axis(&axes, rank)?,
        None => (0..rank).collect(),
    };
    if pads.len() != 2 * axes.len() {
        return Err(bad(format!("{} pads for {} axes", pads.len(), axes.len())));
    }
    let mut sides = vec![(0, 0); rank];
    for (i, &at) in axes.iter().enumerate() {
        sides[at] = (pads[i], pads[i + axes.len()]);
    }
    let fill = call.number(2)?.unwrap_or_else(|| call.float("value", 0.0));
    padded(value, &sides, call.text("mode").unwrap_or("constant"), fill)
}

/// Pads, or crops where a number is negative.
fn padded(value: &Value, sides: &[(i64, i64)], mode: &str, fill: f64) -> Result<Vec<Value>> {
    let from = value.shape()?;
    // Far below zero and far above it could add up to a small length.
    let grown = |(&n, &(a, b)): (&usize, &(i64, i64))| {
        [a, b].iter().all(|side| side.unsigned_abs() <= 1 << 48).then(|| n as i64 + a + b)
    };
    let shape = from.iter().zip(sides).map(|side| grown(side).and_then(|n| usize::try_from(n).ok()));
    let shape = shape.collect::<Option<Vec<_>>>();
    let shape = shape.ok_or_else(|| bad(format!("pads {sides:?} do not fit shape {from:?}")))?;
    let all = count(&shape)?;
    if let Value::Tensor(x) = value
        && value.kind()?.is_float()
        && sides.iter().all(|&(a, b)| a >= 0 && b >= 0)
    {
        let mode = match mode {
            "constant" => PadMode::Constant(fill),
            "reflect" => PadMode::Reflect,
            "edge" => PadMode::Replicate,
            "wrap" => PadMode::Circular,
            _ => return Err(bad(format!("mode {mode:?} does not exist"))),
        };
        // Ours pads the last axes, in order.
        let sides: Vec<(isize, isize)> = sides.iter().map(|&(a, b)| (a as isize, b as isize)).collect();
        return one(pad_floats(x, &sides, mode)?);
    }
    let array = value.to_array()?;
    let (to, from) = (strides(&shape), strides(&array.shape));
    let mut out = Array::full(array.kind, shape.clone(), fill)?;
    let (mut targets, mut sources) = (Vec::new(), Vec::new());
    'elements: for i in 0..all {
        let mut source = 0;
        for d in 0..shape.len() {
            let n = array.shape[d] as i64;
            let at = (i / to[d] % shape[d]) as i64 - sides[d].0;
            let at = match mode {
                _ if (0..n).contains(&at) => at,
                _ if n == 0 || mode == "constant" => continue 'elements,
                "edge" => at.clamp(0, n - 1),
                "wrap" => at.rem_euclid(n),
                "reflect" => {
                    let period = (2 * (n - 1)).max(1);
                    let at = at.rem_euclid(period);
                    if at < n { at } else { period - at }
                }
                _ => return Err(bad(format!("mode {mode:?} does not exist"))),
            };
            source += at as usize * from[d];
        }
        targets.push(i);
        sources.push(source);
    }
    out.put(&targets, &array.take(&sources, vec![sources.len()])?)?;
    one(out)
}

fn center_crop_pad(call: &Call<'_>) -> Result<Vec<Value>> {
    let value = call.value(0)?;
    let shape = value.shape()?;
    let wanted = call.ints(1)?;
    let axes = match call.int_list("axes") {
        Some(axes) => each_axis(axes, shape.len())?,
        None => (0..shape.len()).collect(),
    };
    if lengths(&wanted)?.len() != axes.len() {
        return Err(bad(format!("{} lengths for {} axes", wanted.len(), axes.len())));
    }
    let mut sides = vec![(0, 0); shape.len()];
    for (&at, &to) in axes.iter().zip(&wanted) {
        let more = to - shape[at] as i64;
        // The odd element is added, or cut, at the end.
        let before = if more >= 0 { more / 2 } else { -((-more) / 2) };
        sides[at] = (before, more - before);
    }
    let grow: Vec<_> = sides.iter().map(|&(a, b)| (a.max(0), b.max(0))).collect();
    let mut value = padded(value, &grow, "constant", 0.0)?.remove(0);
    for (i, &(a, b)) in sides.iter().enumerate().filter(|(_, side)| side.0 < 0 || side.1 < 0) {
        let length =
            usize::try_from(shape[i] as i64 + a + b).map_err(|_| bad(format!("shape {wanted:?} is negative")))?;
        value = sliced(&value, i, (-a).max(0) as usize, 1, length)?;
    }
    one(value)
}

fn block(call: &Call<'_>) -> Result<(Value, [usize; 4], usize)> {
    let value = call.value(0)?.clone();
    let shape = value.shape()?;
    // Its square and the lengths times it stay within range.
    let size = usize::try_from(call.int("blocksize", 0)).ok().filter(|size| (1..=1 << 16).contains(size));
    match (&shape[..], size) {
        (&[n, c, h, w], Some(size)) => Ok((value, [n, c, h, w], size)),
        _ => Err(bad(format!(
            "expected (N, C, H, W) and a blocksize from 1 to 65536, got shape {shape:?} and {}",
            call.int("blocksize", 0)
        ))),
    }
}

fn depth_to_space(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, [n, c, h, w], b) = block(call)?;
    if c % (b * b) != 0 {
        return Err(bad(format!("{c} channels cannot be blocks of {b} by {b}")));
    }
    let c = c / (b * b);
    let (split, order) = match call.text("mode") {
        Some("CRD") => (vec![n, c, b, b, h, w], [0, 1, 4, 2, 5, 3]),
        _ => (vec![n, b, b, c, h, w], [0, 3, 4, 1, 5, 2]),
    };
    one(reshaped(&permuted(&reshaped(&x, split)?, &order)?, vec![n, c, h.saturating_mul(b), w.saturating_mul(b)])?)
}

fn space_to_depth(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, [n, c, h, w], b) = block(call)?;
    if h % b != 0 || w % b != 0 {
        return Err(bad(format!("{h} by {w} cannot be cut into blocks of {b} by {b}")));
    }
    let cut = permuted(&reshaped(&x, vec![n, c, h / b, b, w / b, b])?, &[0, 3, 5, 1, 2, 4])?;
    one(reshaped(&cut, vec![n, c.saturating_mul(b * b), h / b, w / b])?)
}

fn reverse_sequence(call: &Call<'_>) -> Result<Vec<Value>> {
    let value = call.value(0)?;
    let (shape, lengths) = (value.shape()?, lengths(&call.ints(1)?)?);
    let (batch, time) = (axis(call.int("batch_axis", 1), shape.len())?, axis(call.int("time_axis", 0), shape.len())?);
    if lengths.len() != shape[batch] || lengths.iter().any(|&n| n > shape[time]) {
        return Err(bad(format!("lengths {lengths:?} do not fit shape {shape:?}")));
    }
    let steps = strides(&shape);
    let signed: Vec<isize> = steps.iter().map(|&s| s as isize).collect();
    let reversed = places(&shape, &signed, 0)?.into_iter().map(|i| {
        let (at, n) = (i / steps[time] % shape[time], lengths[i / steps[batch] % shape[batch]]);
        if at < n { i - at * steps[time] + (n - 1 - at) * steps[time] } else { i }
    });
    let reversed: Vec<usize> = reversed.collect();
    one(super::select::taken(call, value, &reversed, shape.clone())?)
}

/// Whether an operation on truth values is meant: kept for masks made of tensors.
pub(super) fn as_floats(x: &Tensor, like: &Tensor) -> Result<Tensor> {
    if x.dtype() == like.dtype() {
        Ok(x.clone())
    } else {
        apply("cast", &[Operand::Tensor(x)], &[])?.cast(like.dtype())
    }
}
