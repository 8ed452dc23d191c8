//! Reductions and running sums; ArgMax and ArgMin.

use netcl_nn::autograd::ops::reduce as ours;
use netcl_nn::autograd::{DType, IndexTensor, Result, Tensor};

use super::{Op, Table, one};
use crate::array::{Array, axes as each_axis, axis, bad, count, product, strides};
use crate::kind::{Kind, Overflow};
use crate::run::Call;
use crate::value::Value;

pub(super) const TABLE: Table = &[
    ("ArgMax", arg as Op),
    ("ArgMin", arg),
    ("CumProd", running),
    ("CumSum", running),
    ("ReduceL1", reduce),
    ("ReduceL2", reduce),
    ("ReduceLogSum", reduce),
    ("ReduceLogSumExp", reduce),
    ("ReduceMax", reduce),
    ("ReduceMean", reduce),
    ("ReduceMin", reduce),
    ("ReduceProd", reduce),
    ("ReduceSum", reduce),
    ("ReduceSumSquare", reduce),
];

fn reduce(call: &Call<'_>) -> Result<Vec<Value>> {
    let value = call.value(0)?;
    let shape = value.shape()?;
    let given = match call.int_list("axes") {
        Some(axes) => Some(axes.to_vec()),
        None => call.optional_ints(1)?,
    };
    let given = given.filter(|axes| !axes.is_empty());
    let axes = match given {
        Some(axes) => each_axis(&axes, shape.len())?,
        None if call.flag("noop_with_empty_axes") => Vec::new(),
        None => (0..shape.len()).collect(),
    };
    let keep = call.int("keepdims", 1) != 0;
    let name = call.node.operator.as_str();
    let empty = axes.iter().any(|&at| shape[at] == 0);
    match value {
        Value::Tensor(x) if value.kind()?.is_float() && !empty => one(on_device(name, x, &axes, keep)?),
        value => one(on_host(name, &value.to_array()?, &axes, keep)?),
    }
}

fn on_device(name: &str, x: &Tensor, axes: &[usize], keep: bool) -> Result<Tensor> {
    let axes: Vec<isize> = axes.iter().map(|&at| at as isize).collect();
    let axes = &axes[..];
    if axes.is_empty() {
        // Only what happens to each element by itself remains.
        return match name {
            "ReduceL1" | "ReduceL2" => x.abs(),
            "ReduceSumSquare" => x.square(),
            "ReduceLogSum" => x.log(),
            _ => Ok(x.clone()),
        };
    }
    match name {
        "ReduceSum" => x.sum(axes, keep),
        "ReduceMean" => x.mean(axes, keep),
        "ReduceMax" => x.max(axes, keep),
        "ReduceMin" => x.min(axes, keep),
        "ReduceProd" => x.prod(axes, keep),
        "ReduceL1" => x.abs()?.sum(axes, keep),
        "ReduceL2" => x.square()?.sum(axes, keep)?.sqrt(),
        "ReduceSumSquare" => x.square()?.sum(axes, keep),
        "ReduceLogSum" => x.sum(axes, keep)?.log(),
        "ReduceLogSumExp" => x.logsumexp(axes, keep),
        _ => Err(bad(format!("{name} is no reduction"))),
    }
}

/// Lanes of elements that become one each, and the shape of the results.
fn lanes(array: &Array, axes: &[usize], keep: bool) -> Result<(Array, usize, Vec<usize>)> {
    let rest = (0..array.shape.len()).filter(|i| !axes.contains(i));
    let order: Vec<usize> = rest.chain(axes.iter().copied()).collect();
    let shape = array.shape.iter().enumerate().filter_map(|(i, &n)| match axes.contains(&i) {
        true if keep => Some(1),
        true => None,
        false => Some(n),
    });
    let shape: Vec<usize> = shape.collect();
    // What reduces an axis of no elements makes some.
    count(&shape)?;
    let reduced: Vec<usize> = axes.iter().map(|&at| array.shape[at]).collect();
    Ok((array.permuted(&order)?, product(&reduced), shape))
}

fn on_host(name: &str, array: &Array, axes: &[usize], keep: bool) -> Result<Array> {
    let (sorted, n, shape) = lanes(array, axes, keep)?;
    let (kind, all) = (array.kind, product(&shape));
    if !kind.is_float() {
        let data = sorted.to_ints()?;
        let lane = |i: usize| data[i * n..(i + 1) * n].iter().map(|&v| kind.widen(v));
        let (low, high) = kind.range();
        let whole = |i: usize| -> Option<i128> {
            Some(match name {
                "ReduceSum" => lane(i).sum(),
                "ReduceMean" => lane(i).sum::<i128>() / (n.max(1) as i128),
                "ReduceMax" => lane(i).max().unwrap_or(low),
                "ReduceMin" => lane(i).min().unwrap_or(high),
                "ReduceProd" => lane(i).fold(1, i128::wrapping_mul),
                "ReduceL1" => lane(i).map(i128::abs).sum(),
                "ReduceSumSquare" => lane(i).map(|v| v.wrapping_mul(v)).fold(0, i128::wrapping_add),
                _ => return None,
            })
        };
        if let Some(values) = (0..all).map(whole).collect::<Option<Vec<_>>>() {
            return Ok(Array::ints(kind, shape, values.into_iter().map(|v| kind.wrap(v)).collect()));
        }
    }
    let data = sorted.to_floats()?;
    let value = |i: usize| {
        let lane = data[i * n..(i + 1) * n].iter().copied();
        match name {
            "ReduceSum" => lane.sum::<f64>(),
            "ReduceMean" => lane.sum::<f64>() / n as f64,
            "ReduceMax" => lane.fold(f64::NEG_INFINITY, f64::max),
            "ReduceMin" => lane.fold(f64::INFINITY, f64::min),
            "ReduceProd" => lane.product(),
            "ReduceL1" => lane.map(f64::abs).sum(),
            "ReduceL2" => lane.map(|v| v * v).sum::<f64>().sqrt(),
            "ReduceSumSquare" => lane.map(|v| v * v).sum(),
            "ReduceLogSum" => lane.sum::<f64>().ln(),
            _ => {
                let top = lane.clone().fold(f64::NEG_INFINITY, f64::max);
                if top.is_finite() { top + lane.map(|v| (v - top).exp()).sum::<f64>().ln() } else { top }
            }
        }
    };
    Array::floats(Kind::F64, shape, (0..all).map(value).collect()).cast(kind, Overflow::Infinite)
}

fn arg(call: &Call<'_>) -> Result<Vec<Value>> {
    let value = call.value(0)?;
    let at = axis(call.int("axis", 0), value.shape()?.len())?;
    let (keep, largest) = (call.int("keepdims", 1) != 0, call.node.operator == "ArgMax");
    let last = call.flag("select_last_index");
    if let Value::Tensor(x) = value
        && value.kind()?.is_float()
        && !last
    {
        let find = if largest { ours::argmax } else { ours::argmin };
        return one(Tensor::from(find(x, Some(at as isize), keep)?.tensor().cast(DType::I64)?));
    }
    let (sorted, n, shape) = lanes(&value.to_array()?, &[at], keep)?;
    let data = sorted.to_floats()?;
    let best = |lane: &[f64]| {
        let mut best = 0;
        for (i, &v) in lane.iter().enumerate() {
            let better = if largest { v > lane[best] } else { v < lane[best] };
            if better || (last && v == lane[best]) {
                best = i;
            }
        }
        best as i64
    };
    if n == 0 {
        return Err(bad("an axis without elements has no largest one"));
    }
    one(Array::ints(Kind::I64, shape, data.chunks(n).map(best).collect()))
}

fn running(call: &Call<'_>) -> Result<Vec<Value>> {
    let value = call.value(0)?;
    let shape = value.shape()?;
    let given = call.ints(1)?.first().copied().ok_or_else(|| bad("axis is missing"))?;
    let at = axis(given, shape.len())?;
    let (exclusive, reverse) = (call.flag("exclusive"), call.flag("reverse"));
    let product = call.node.operator == "CumProd";
    if let Value::Tensor(x) = value
        && value.kind()?.is_float()
        && !exclusive
    {
        let axis = at as isize;
        let x = if reverse { x.flip(&[axis])? } else { x.clone() };
        let sums = if product { x.cumprod(axis)? } else { x.cumsum(axis)? };
        return one(if reverse { sums.flip(&[axis])? } else { sums });
    }
    let array = value.to_array()?;
    let (kind, n, inner) = (array.kind, shape[at], strides(&shape)[at]);
    let (mut ints, mut floats) = (Vec::new(), Vec::new());
    if kind.is_float() {
        floats = array.to_floats()?
    } else {
        ints = array.to_ints()?
    }
    for lane in 0..array.len() / n.max(1) {
        let start = lane / inner * inner * n + lane % inner;
        let (mut whole, mut float) = if product { (1, 1.0) } else { (0, 0.0) };
        for i in 0..n {
            let place = start + if reverse { n - 1 - i } else { i } * inner;
            if kind.is_float() {
                let next = if product { float * floats[place] } else { float + floats[place] };
                floats[place] = kind.round(if exclusive { float } else { next }, Overflow::Infinite);
                float = next;
            } else {
                let v = kind.widen(ints[place]);
                let next = if product { i128::wrapping_mul(whole, v) } else { whole + v };
                ints[place] = kind.wrap(if exclusive { whole } else { next });
                whole = next;
            }
        }
    }
    one(if kind.is_float() { Array::floats(kind, shape, floats) } else { Array::ints(kind, shape, ints) })
}

/// Labels or indices on the device, whichever way they came.
pub(super) fn index_tensor(call: &Call<'_>, value: &Value) -> Result<IndexTensor> {
    Ok(IndexTensor::from_tensor(value.to_tensor(call.queue)?.raw().clone())?)
}
