//! Quantised values and products: whole numbers, computed exactly on the host.

use netcl_nn::autograd::Result;

use super::conv::Geometry;
use super::linear::whole_product;
use super::{Op, Table, one};
use crate::array::{Array, axis, bad, count, product, strides};
use crate::kind::{Kind, Overflow};
use crate::run::Call;
use crate::value::Value;

pub(super) const TABLE: Table = &[
    ("ConvInteger", conv_integer as Op),
    ("DequantizeLinear", dequantize),
    ("DynamicQuantizeLinear", dynamic),
    ("MatMulInteger", matmul_integer),
    ("QLinearConv", conv_quantized),
    ("QLinearMatMul", matmul_quantized),
    ("QuantizeLinear", quantize),
];

/// One scale or zero point for each element of an array: for all, along an axis, or for blocks of an axis.
fn spread(call: &Call<'_>, small: &Array, shape: &[usize]) -> Result<Array> {
    if small.len() == 1 {
        return small.clone().reshaped(vec![])?.expanded(shape);
    }
    let at = axis(call.int("axis", 1), shape.len())?;
    if small.is_empty() {
        return Err(bad(format!("scales or zero points of shape {:?} are empty", small.shape)));
    }
    if small.shape.len() <= 1 {
        let mut to = vec![1; shape.len()];
        to[at] = small.len();
        return small.clone().reshaped(to)?.expanded(shape);
    }
    let block = usize::try_from(call.int("block_size", 0)).unwrap_or(0);
    let blocks = small.shape.get(at).copied().unwrap_or(0).max(1);
    let block = if block == 0 { shape[at].div_ceil(blocks) } else { block };
    let (own, steps) = (strides(shape), strides(&small.shape));
    let alike = small.shape.len() == shape.len() && (0..shape.len()).all(|d| d == at || small.shape[d] == shape[d]);
    if !alike || shape[at].div_ceil(block.max(1)) > blocks {
        return Err(bad(format!("scales of shape {:?} do not fit shape {shape:?}", small.shape)));
    }
    let place = |i: usize| {
        let index = |d: usize| i / own[d] % shape[d];
        (0..shape.len()).map(|d| if d == at { index(d) / block } else { index(d) } * steps[d]).sum()
    };
    small.take(&(0..count(shape)?).map(place).collect::<Vec<_>>(), shape.to_vec())
}

/// Whole numbers nearest to `x / scale + zero`, within the type's range.
fn rounded(kind: Kind, x: f64, scale: f64, zero: f64) -> i64 {
    let (low, high) = kind.range();
    kind.wrap(((x / scale).round_ties_even() + zero).clamp(low as f64, high as f64) as i128)
}

fn quantize(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    let scale = spread(call, &call.array(1)?, &x.shape)?;
    let zero = call.optional(2).map(Value::to_array).transpose()?;
    let code = call.int("output_dtype", 0);
    let kind = match (&zero, Kind::of_code(code)) {
        (_, Some(kind)) if code != 0 => kind,
        (Some(zero), _) => zero.kind,
        _ => Kind::U8,
    };
    let zeros = match zero {
        Some(zero) => spread(call, &zero, &x.shape)?.to_floats()?,
        None => vec![0.0; x.len()],
    };
    let precision =
        Kind::of_code(call.int("precision", 0)).unwrap_or(if scale.kind == Kind::F16 { Kind::F32 } else { scale.kind });
    let quotient = |(&x, &scale): (&f64, &f64)| precision.round(x / scale, Overflow::Infinite);
    let (values, scales) = (x.to_floats()?, scale.to_floats()?);
    let quotients = values.iter().zip(&scales).map(quotient).zip(&zeros);
    if kind.is_float() {
        let overflow = if call.int("saturate", 1) != 0 { Overflow::Saturate } else { Overflow::Infinite };
        return one(Array::floats(
            kind,
            x.shape.clone(),
            quotients.map(|(q, zero)| kind.round(q + zero, overflow)).collect(),
        ));
    }
    one(Array::ints(kind, x.shape.clone(), quotients.map(|(q, &zero)| rounded(kind, q, 1.0, zero)).collect()))
}

fn dequantize(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, scale) = (call.array(0)?, call.array(1)?);
    let kind = Kind::of_code(call.int("output_dtype", 0)).unwrap_or(scale.kind);
    let scales = spread(call, &scale, &x.shape)?.to_floats()?;
    let zeros = match call.optional(2) {
        Some(zero) => spread(call, &zero.to_array()?, &x.shape)?.to_floats()?,
        None => vec![0.0; x.len()],
    };
    let values = x.to_floats()?.into_iter().zip(zeros).zip(scales);
    let values = values.map(|((x, zero), scale)| kind.round((x - zero) * scale, Overflow::Infinite));
    let result = Array::floats(kind, x.shape.clone(), values.collect());
    match kind.dtype() {
        Some(_) if !call.on_host() || call.node.inputs.len() > 3 => one(result.to_tensor(call.queue)?),
        _ => one(result),
    }
}

fn dynamic(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    let values = x.to_floats()?;
    let round = |v: f64| Kind::F32.round(v, Overflow::Infinite);
    let (low, high) = values.iter().fold((0.0f64, 0.0f64), |(low, high), &v| (low.min(v), high.max(v)));
    let scale = round((high - low) / 255.0);
    let scale = if scale == 0.0 { 1.0 } else { scale };
    let zero = round(-low / scale).clamp(0.0, 255.0).round_ties_even();
    let data = values.iter().map(|&v| rounded(Kind::U8, round(v / scale), 1.0, zero)).collect();
    Ok(vec![
        Array::ints(Kind::U8, x.shape.clone(), data).into(),
        Array::floats(Kind::F32, vec![], vec![scale]).into(),
        Array::ints(Kind::U8, vec![], vec![zero as i64]).into(),
    ])
}

/// Numbers less their zero point, which may be one per row or column.
fn centred(x: &Array, zero: Option<&Value>, rows: bool) -> Result<Array> {
    let Some(zero) = zero else { return x.cast(Kind::I64, Overflow::Saturate) };
    let zero = zero.to_array()?;
    let zero = match (zero.shape.len(), rows) {
        (1, true) if zero.len() > 1 => zero.clone().reshaped(vec![zero.len(), 1])?,
        (1, false) if zero.len() == 1 => zero.reshaped(vec![])?,
        _ => zero,
    };
    let zeros = zero.expanded(&x.shape)?.to_ints()?;
    let data = x.to_ints()?.into_iter().zip(zeros).map(|(v, zero)| v.wrapping_sub(zero)).collect();
    Ok(Array::ints(Kind::I64, x.shape.clone(), data))
}

fn matmul_integer(call: &Call<'_>) -> Result<Vec<Value>> {
    let a = centred(&call.array(0)?, call.optional(2), true)?;
    let b = centred(&call.array(1)?, call.optional(3), false)?;
    one(whole_product(&a, &b, Kind::I32)?)
}

fn matmul_quantized(call: &Call<'_>) -> Result<Vec<Value>> {
    let scale = |i: usize| -> Result<Array> { call.array(i)?.cast(Kind::F64, Overflow::Infinite) };
    let a = centred(&call.array(0)?, call.optional(2), true)?;
    let b = centred(&call.array(3)?, call.optional(5), false)?;
    let product = whole_product(&a, &b, Kind::I64)?;
    let (a_scale, b_scale, y_scale) = (scale(1)?, scale(4)?, scale(6)?.to_floats()?);
    let zero = call.array(7)?;
    let kind = zero.kind;
    let along = |scale: &Array, rows: bool| -> Result<Vec<f64>> {
        let scale = match scale.len() {
            1 => scale.clone().reshaped(vec![])?,
            n if rows => scale.clone().reshaped(vec![n, 1])?,
            _ => scale.clone(),
        };
        scale.expanded(&product.shape)?.to_floats()
    };
    let (rows, columns) = (along(&a_scale, true)?, along(&b_scale, false)?);
    let (y, zero) = (only(&y_scale)?, only(&zero.to_floats()?)?);
    let data = product.to_ints()?.into_iter().zip(rows.into_iter().zip(columns));
    let data = data.map(|(v, (a, b))| rounded(kind, v as f64 * (a * b / y), 1.0, zero)).collect();
    one(Array::ints(kind, product.shape.clone(), data))
}

/// A scale or a zero point for all.
fn only(list: &[f64]) -> Result<f64> {
    list.first().copied().ok_or_else(|| bad("a scale or a zero point is empty"))
}

/// A convolution of whole numbers of any number of axes.
fn convolved(call: &Call<'_>, x: &Array, w: &Array) -> Result<Array> {
    let (shape, kernel) = (&x.shape, &w.shape);
    if shape.len() < 3 || kernel.len() != shape.len() {
        return Err(bad(format!("input {shape:?} and weight {kernel:?} do not fit")));
    }
    let geometry = Geometry::of(call, &shape[2..], Some(&kernel[2..]))?;
    let groups = usize::try_from(call.int("group", 1)).unwrap_or(1).max(1);
    if shape[1] != kernel[1].saturating_mul(groups) || kernel[0] % groups != 0 {
        return Err(bad(format!("input {shape:?} and weight {kernel:?} do not fit {groups} groups")));
    }
    let rank = shape.len() - 2;
    let out = [vec![shape[0], kernel[0]], geometry.windows(&shape[2..])?].concat();
    let all = count(&out)?;
    if x.is_empty() || w.is_empty() {
        return Array::full(Kind::I64, out, 0.0);
    }
    let (xs, ws, steps, taps, own) = (x.to_ints()?, w.to_ints()?, strides(shape), strides(kernel), strides(&out));
    let per_filter = product(&kernel[1..]);
    let value = |i: usize| {
        let (image, filter) = (i / own[0], i / own[1] % out[1]);
        let first = filter / (kernel[0] / groups) * kernel[1];
        (0..per_filter)
            .map(|tap| {
                let channel = first + tap / taps[1] % kernel[1];
                let at = (0..rank).try_fold(image * steps[0] + channel * steps[1], |at, d| {
                    let start = i / own[d + 2] % out[d + 2] * geometry.stride[d];
                    let place = start + tap / taps[d + 2] % kernel[d + 2] * geometry.dilation[d];
                    let place = place.checked_sub(geometry.pads[d].0).filter(|&place| place < shape[d + 2])?;
                    Some(at + place * steps[d + 2])
                });
                at.map_or(0, |at| xs[at].wrapping_mul(ws[filter * per_filter + tap]))
            })
            .fold(0i64, i64::wrapping_add)
    };
    Ok(Array::ints(Kind::I64, out.clone(), (0..all).map(value).collect()))
}

/// Filters less their zero point, which may be one per filter.
fn filters(w: &Array, zero: Option<&Value>) -> Result<Array> {
    let Some(zero) = zero else { return centred(w, None, false) };
    let zero = zero.to_array()?;
    let mut to = vec![1; w.shape.len()];
    *to.first_mut().ok_or_else(|| bad("expected a weight of three or more axes"))? = zero.len();
    centred(w, Some(&zero.reshaped(to)?.into()), false)
}

fn conv_integer(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = centred(&call.array(0)?, call.optional(2), false)?;
    one(convolved(call, &x, &filters(&call.array(1)?, call.optional(3))?)?.cast(Kind::I32, Overflow::Saturate)?)
}

fn conv_quantized(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = centred(&call.array(0)?, call.optional(2), false)?;
    let out = convolved(call, &x, &filters(&call.array(3)?, call.optional(5))?)?;
    let scale = |i: usize| call.array(i)?.to_floats();
    let (x_scale, w_scale, y_scale, zero) = (scale(1)?, scale(4)?, scale(6)?, call.array(7)?);
    let bias = call.optional_ints(8)?;
    let (inside, channels) = (product(&out.shape[2..]), out.shape[1]);
    if w_scale.len() != 1 && w_scale.len() != channels {
        return Err(bad(format!("{} scales for {channels} filters", w_scale.len())));
    }
    let (x_scale, y_scale, offset) = (only(&x_scale)?, only(&y_scale)?, only(&zero.to_floats()?)?);
    let value = |(i, v): (usize, i64)| {
        let channel = i / inside.max(1) % channels;
        let v: i64 = v;
        let v = v.wrapping_add(bias.as_ref().and_then(|bias| bias.get(channel).copied()).unwrap_or(0));
        let w = w_scale[if w_scale.len() == 1 { 0 } else { channel }];
        rounded(zero.kind, v as f64 * (x_scale * w / y_scale), 1.0, offset)
    };
    one(Array::ints(zero.kind, out.shape.clone(), out.to_ints()?.into_iter().enumerate().map(value).collect()))
}
