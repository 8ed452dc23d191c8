//! Resize, GridSample, AffineGrid: pixels at new places.

use netcl_nn::autograd::ops::grid::{GridMode, GridPadding, affine_grid, grid_sample};
use netcl_nn::autograd::{Result, Tensor};

use super::conv::bounded;
use super::layout::lengths;
use super::select::taken;
use super::{Op, Table, one};
use crate::array::{Array, axes as each_axis, bad, count, product, strides};
use crate::kind::{Kind, Overflow};
use crate::run::Call;
use crate::value::Value;

pub(super) const TABLE: Table = &[
    ("AffineGrid", affine as Op),
    ("Col2Im", col2im),
    ("GridSample", sample),
    ("Resize", resize),
    ("Upsample", resize),
];

/// How one axis is resized.
struct Axis {
    at: usize,
    length: usize,
    scale: f64,
    /// The part of the input that is looked at, from 0 to 1.
    region: (f64, f64),
}

/// Lengths and scales of the axes that change.
fn plan(call: &Call<'_>, shape: &[usize]) -> Result<Vec<Axis>> {
    let axes = match call.int_list("axes") {
        Some(axes) => each_axis(axes, shape.len())?,
        None => (0..shape.len()).collect(),
    };
    let floats = |i: usize| -> Result<Option<Vec<f64>>> {
        Ok(call.optional(i).map(|value| value.to_array()?.to_floats()).transpose()?.filter(|list| !list.is_empty()))
    };
    // Upsample and the first Resize have no region.
    let early = call.node.operator == "Upsample" || call.node.opset < 11;
    let scales = match call.float_list("scales") {
        Some(scales) => Some(scales.to_vec()),
        None => floats(if early { 1 } else { 2 })?,
    };
    let sizes = if early { None } else { floats(3)? };
    let regions = if early { None } else { floats(1)? };
    let given = sizes.as_ref().or(scales.as_ref()).ok_or_else(|| bad("scales and sizes are missing"))?;
    if given.len() != axes.len() || regions.as_ref().is_some_and(|list| list.len() != 2 * axes.len()) {
        return Err(bad(format!("{} numbers for {} axes", given.len(), axes.len())));
    }
    let mut ratios: Vec<f64> = match sizes.is_some() {
        true => given.iter().zip(&axes).map(|(size, &at)| size / shape[at] as f64).collect(),
        false => given.clone(),
    };
    let policy = call.text("keep_aspect_ratio_policy").unwrap_or("stretch");
    let together = match policy {
        "not_larger" => Some(ratios.iter().copied().fold(f64::INFINITY, f64::min)),
        "not_smaller" => Some(ratios.iter().copied().fold(0.0, f64::max)),
        _ => None,
    };
    let mut lengths = Vec::new();
    for (i, &at) in axes.iter().enumerate() {
        let n = shape[at] as f64;
        let length = match (&sizes, together) {
            (Some(_), Some(ratio)) => {
                ratios[i] = ratio;
                (ratio * n).round()
            }
            (Some(sizes), None) => sizes[i],
            _ => (n * ratios[i]).floor(),
        };
        if ratios[i].is_nan() || ratios[i] <= 0.0 || !(0.0..2e9).contains(&length) {
            return Err(bad(format!("axis {at} of length {n} cannot be resized to {length}")));
        }
        lengths.push(length as usize);
    }
    let region = |i: usize| regions.as_ref().map_or((0.0, 1.0), |list| (list[i], list[i + axes.len()]));
    let axes = axes.iter().enumerate();
    let axes = axes.map(|(i, &at)| Axis { at, length: lengths[i], scale: ratios[i], region: region(i) });
    // With a region an axis of the same length changes, too.
    let crops = call.text("coordinate_transformation_mode") == Some("tf_crop_and_resize");
    Ok(axes.filter(|axis| crops || axis.length != shape[axis.at] || axis.scale != 1.0).collect())
}

/// Where in the input an element of the output lies; `None` outside of the region.
fn source(call: &Call<'_>, axis: &Axis, n: usize, i: usize) -> Result<Option<f64>> {
    let (x, scale, input) = (i as f64, axis.scale, n as f64);
    let output = scale * input;
    let early = call.node.operator == "Upsample" || call.node.opset < 11;
    let mode = call.text("coordinate_transformation_mode").unwrap_or(if early { "asymmetric" } else { "half_pixel" });
    Ok(Some(match mode {
        "align_corners" if output == 1.0 => 0.0,
        "align_corners" => x * (input - 1.0) / (output - 1.0),
        "asymmetric" => x / scale,
        "tf_crop_and_resize" => {
            let (start, end) = axis.region;
            let inside = match output == 1.0 {
                true => (end - start) * (input - 1.0) / 2.0,
                false => x * (end - start) * (input - 1.0) / (axis.length as f64 - 1.0),
            };
            let at = inside + start * (input - 1.0);
            return Ok((0.0..=input - 1.0).contains(&at).then_some(at));
        }
        "pytorch_half_pixel" if axis.length == 1 => -0.5,
        "half_pixel" | "pytorch_half_pixel" => (x + 0.5) / scale - 0.5,
        "half_pixel_symmetric" => {
            let offset = input / 2.0 * (1.0 - axis.length as f64 / output);
            offset + (x + 0.5) / scale - 0.5
        }
        _ => return Err(bad(format!("coordinate_transformation_mode {mode:?} does not exist"))),
    }))
}

/// The neighbours of a place with their shares, before those outside are dealt with.
fn shares(call: &Call<'_>, at: f64, scale: f64) -> Result<Vec<(i64, f64)>> {
    let stretch = if call.flag("antialias") { scale.min(1.0) } else { 1.0 };
    let a = call.float("cubic_coeff_a", -0.75);
    let weight = |distance: f64| {
        let x = (distance * stretch).abs();
        match call.text("mode") {
            Some("cubic") if x <= 1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
            Some("cubic") if x < 2.0 => ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a,
            Some("cubic") => 0.0,
            _ => (1.0 - x).max(0.0),
        }
    };
    let reach = if call.text("mode") == Some("cubic") { 2.0 } else { 1.0 } / stretch;
    let list: Vec<(i64, f64)> =
        ((at - reach).ceil() as i64..=(at + reach).floor() as i64).map(|i| (i, weight(at - i as f64))).collect();
    let all: f64 = list.iter().map(|(_, share)| share).sum();
    Ok(list.into_iter().map(|(i, share)| (i, share / all)).collect())
}

fn resize(call: &Call<'_>) -> Result<Vec<Value>> {
    let mut value = call.value(0)?.clone();
    let shape = value.shape()?;
    let plan = plan(call, &shape)?;
    let mut to = shape.clone();
    plan.iter().for_each(|axis| to[axis.at] = axis.length);
    if count(&to)? == 0 || shape.contains(&0) {
        return one(Array::full(value.kind()?, to, 0.0)?);
    }
    let nearest = call.text("mode").unwrap_or("nearest") == "nearest";
    let mut inside: Vec<(usize, Vec<f64>)> = Vec::new();
    for axis in &plan {
        let n = shape[axis.at];
        let places = (0..axis.length).map(|i| source(call, axis, n, i)).collect::<Result<Vec<_>>>()?;
        if places.contains(&None) {
            inside.push((axis.at, places.iter().map(|at| f64::from(u8::from(at.is_some()))).collect()));
        }
        let places: Vec<f64> = places.into_iter().map(|at| at.unwrap_or(0.0)).collect();
        value = if nearest { picked(call, &value, axis.at, &places)? } else { mixed(call, &value, axis, &places)? };
    }
    if inside.is_empty() {
        return one(value);
    }
    // Outside of the region lies a constant.
    let x = value.to_tensor(call.queue)?;
    let mut mask = Array::full(Kind::of_dtype(x.dtype()), vec![], 1.0)?.to_tensor(call.queue)?;
    for (at, flags) in inside {
        let mut shape = vec![1; to.len()];
        shape[at] = flags.len();
        mask = (mask * Array::floats(Kind::of_dtype(x.dtype()), shape, flags).to_tensor(call.queue)?)?;
    }
    let outside = ((1.0 - &mask)? * call.float("extrapolation_value", 0.0))?;
    one(((x * mask)? + outside)?)
}

fn picked(call: &Call<'_>, value: &Value, at: usize, places: &[f64]) -> Result<Value> {
    let shape = value.shape()?;
    let early = call.node.operator == "Upsample" || call.node.opset < 11;
    let mode = call.text("nearest_mode").unwrap_or(if early { "floor" } else { "round_prefer_floor" });
    let round = |place: f64| {
        let nearest = match mode {
            "floor" => place.floor(),
            "ceil" => place.ceil(),
            "round_prefer_ceil" => (place + 0.5).floor(),
            _ => (place - 0.5).ceil(),
        };
        nearest.clamp(0.0, shape[at] as f64 - 1.0) as usize
    };
    let chosen: Vec<usize> = places.iter().map(|&place| round(place)).collect();
    let inner = strides(&shape)[at];
    let outer = product(&shape[..at]);
    let mut to = shape.clone();
    to[at] = chosen.len();
    let mut flat = Vec::with_capacity(count(&to)?);
    for i in 0..outer {
        for &j in &chosen {
            flat.extend((0..inner).map(|k| (i * shape[at] + j) * inner + k));
        }
    }
    taken(call, value, &flat, to)
}

/// A product with the matrix of shares.
fn mixed(call: &Call<'_>, value: &Value, axis: &Axis, places: &[f64]) -> Result<Value> {
    let kind = value.kind()?;
    let n = value.shape()?[axis.at];
    let mut matrix = vec![0.0; count(&[n, places.len()])?];
    for (i, &at) in places.iter().enumerate() {
        let mut list = shares(call, at, axis.scale)?;
        if call.flag("exclude_outside") {
            list.retain(|&(j, _)| (0..n as i64).contains(&j));
            let all: f64 = list.iter().map(|(_, share)| share).sum();
            list.iter_mut().for_each(|(_, share)| *share /= all);
        }
        for (j, share) in list {
            matrix[j.clamp(0, n as i64 - 1) as usize * places.len() + i] += share;
        }
    }
    let whole = !kind.is_float();
    let x = if whole {
        value.to_array()?.cast(Kind::F32, Overflow::Saturate)?.to_tensor(call.queue)?
    } else {
        value.to_tensor(call.queue)?
    };
    let matrix = Array::floats(Kind::of_dtype(x.dtype()), vec![n, places.len()], matrix).to_tensor(call.queue)?;
    let y =
        x.movedim(&[axis.at as isize], &[-1])?.contiguous()?.matmul(&matrix)?.movedim(&[-1], &[axis.at as isize])?;
    if whole {
        let (low, high) = kind.range();
        let y = Array::of_tensor(&y)?.map_floats(|v| v.clamp(low as f64, high as f64))?;
        return Ok(y.cast(kind, Overflow::Saturate)?.into());
    }
    Ok(y.into())
}

fn sample(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, grid) = (call.tensor(0)?, call.tensor(1)?);
    let mode = match call.text("mode").unwrap_or("linear") {
        "nearest" => GridMode::Nearest,
        "linear" | "bilinear" => GridMode::Bilinear,
        "cubic" | "bicubic" => GridMode::Bicubic,
        other => return Err(bad(format!("mode {other:?} does not exist"))),
    };
    let padding = match call.text("padding_mode").unwrap_or("zeros") {
        "border" => GridPadding::Border,
        "reflection" => GridPadding::Reflection,
        _ => GridPadding::Zeros,
    };
    one(grid_sample(&x, &grid, mode, padding, call.flag("align_corners"))?)
}

fn affine(call: &Call<'_>) -> Result<Vec<Value>> {
    let (theta, size) = (call.tensor(0)?, lengths(&call.ints(1)?)?);
    let align = call.flag("align_corners");
    count(&size)?;
    match size[..] {
        [_, _, h, w] => one(affine_grid(&theta, [h, w], align)?),
        [n, _, d, h, w] => {
            let steps = |n: usize| {
                (0..n).map(move |i| match align {
                    true if n > 1 => 2.0 * i as f64 / (n - 1) as f64 - 1.0,
                    true => 0.0,
                    false => (2.0 * i as f64 + 1.0) / n as f64 - 1.0,
                })
            };
            count(&[d, h, w, 4])?;
            let mut places = Vec::new();
            for z in steps(d) {
                for y in steps(h) {
                    places.extend(steps(w).flat_map(|x| [x, y, z, 1.0]));
                }
            }
            let kind = Kind::of_dtype(theta.dtype());
            let places = Array::floats(kind, vec![1, d * h * w, 4], places).to_tensor(call.queue)?;
            let grid: Tensor = places.matmul(&theta.transpose(1, 2)?)?;
            one(netcl_nn::autograd::reshape(&grid, [n, d, h, w, 3])?)
        }
        _ => Err(bad(format!("size {size:?} is neither that of images nor of volumes"))),
    }
}

/// Columns of patches put back and added up, over any number of axes.
fn col2im(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.tensor(0)?;
    let (image, block) = (lengths(&call.ints(1)?)?, lengths(&call.ints(2)?)?);
    let rank = image.len();
    let list = |name: &str, n: usize, default: usize| match call.int_list(name) {
        Some(list) if list.len() == n => lengths(list),
        Some(_) => Err(bad(format!("{name} has not {n} numbers"))),
        None => Ok(vec![default; n]),
    };
    let (stride, dilation, pads) = (list("strides", rank, 1)?, list("dilations", rank, 1)?, list("pads", 2 * rank, 0)?);
    for (name, list) in [
        ("image_shape", &image),
        ("block_shape", &block),
        ("strides", &stride),
        ("dilations", &dilation),
        ("pads", &pads),
    ] {
        bounded(name, list, 1 << 24)?;
    }
    let taps = product(&block);
    let &[n, rows, columns] = &x.shape()[..] else {
        return Err(bad(format!("expected three axes, got {}", x.shape())));
    };
    if block.len() != rank || taps == 0 || rows % taps != 0 || stride.contains(&0) {
        return Err(bad("image_shape, block_shape and the input do not fit"));
    }
    let counts = (0..rank).map(|d| {
        (image[d] + pads[d] + pads[d + rank])
            .checked_sub((block[d] - 1) * dilation[d] + 1)
            .map(|room| room / stride[d] + 1)
    });
    let counts = counts.collect::<Option<Vec<usize>>>().filter(|counts| product(counts) == columns);
    let counts = counts.ok_or_else(|| bad(format!("{columns} columns do not fit image_shape {image:?}")))?;
    let (own, inner, to) = (strides(&counts), strides(&block), strides(&image));
    let plane = count(&image)?;
    let channels = rows / taps;
    // Each element goes to one pixel, those in the padding to none: a product would be larger than the sum.
    let (mut places, mut from) = (Vec::new(), Vec::new());
    for i in 0..count(&[n, rows, columns])? {
        let (column, row) = (i % columns, i / columns % rows);
        let pixel = (0..rank).try_fold(0, |sum, d| {
            let at = column / own[d] % counts[d] * stride[d] + row % taps / inner[d] % block[d] * dilation[d];
            at.checked_sub(pads[d]).filter(|&at| at < image[d]).map(|at| sum + at * to[d])
        });
        if let Some(pixel) = pixel {
            places.push((i / (rows * columns) * channels + row / taps) * plane + pixel);
            from.push(i);
        }
    }
    let source = taken(call, &x.clone().into(), &from, vec![from.len()])?;
    let zeros = Array::full(Kind::of_dtype(x.dtype()), [&[n, channels], &image[..]].concat(), 0.0)?;
    super::select::scattered(call, &zeros.into(), &places, &source, "add")
}
