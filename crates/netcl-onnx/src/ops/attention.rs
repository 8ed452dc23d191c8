//! Attention and rotary embeddings.

use netcl_nn::autograd::ops::attention::{Attention, scaled_dot_product_attention};
use netcl_nn::autograd::ops::layout::{cat, reshape, stack};
use netcl_nn::autograd::{Result, Tensor};

use super::{Op, Table, one};
use crate::array::{Array, bad, count};
use crate::kind::Kind;
use crate::run::Call;
use crate::value::Value;

pub(super) const TABLE: Table = &[("Attention", attention as Op), ("RotaryEmbedding", rotary)];

/// `(N, S, heads * width)` as `(N, heads, S, width)`.
fn heads(x: Tensor, heads: i64) -> Result<Tensor> {
    let &[n, s, width] = &x.shape()[..] else { return Ok(x) };
    match usize::try_from(heads).ok().filter(|&heads| heads > 0 && width % heads == 0) {
        Some(heads) => reshape(&x, [n, s, heads, width / heads])?.transpose(1, 2),
        None => Err(bad(format!("{width} cannot be shared by {heads} heads"))),
    }
}

/// What is added to the scores: masks, causality, and keys past the end of each row.
fn bias(call: &Call<'_>, q: &Tensor, keys: usize, past: usize) -> Result<Option<Tensor>> {
    let causal = call.flag("is_causal");
    let mask = call.optional(3).map(Value::to_array).transpose()?;
    let ends = call.optional_ints(6)?;
    if mask.is_none() && !causal && ends.is_none() {
        return Ok(None);
    }
    let (batch, queries) = (q.shape()[0], q.shape()[2]);
    let mut values = match &mask {
        Some(mask) => {
            let truth = mask.kind == Kind::Bool;
            let values = mask.to_floats()?;
            let values = values.into_iter().map(|v| {
                if !truth {
                    v
                } else if v != 0.0 {
                    0.0
                } else {
                    f64::NEG_INFINITY
                }
            });
            let mut shape = mask.shape.clone();
            let mask = Array::floats(Kind::F64, shape.clone(), values.collect());
            let Some(last) = shape.last_mut().filter(|last| **last <= keys) else {
                return Err(bad("the mask is too long"));
            };
            let missing = keys - *last;
            *last = missing;
            let rest = Array::full(Kind::F64, shape.clone(), f64::NEG_INFINITY)?;
            let at = shape.len() - 1;
            if missing > 0 { Array::joined(&[mask, rest], at)? } else { mask }
        }
        None => Array::full(Kind::F64, vec![queries, keys], 0.0)?,
    };
    let mut shape = crate::array::broadcast(&values.shape, &[queries, keys])?;
    if ends.is_some() {
        shape = crate::array::broadcast(&shape, &[batch, 1, 1, 1])?;
    }
    count(&shape)?;
    values = values.expanded(&shape)?;
    let mut data = values.to_floats()?;
    let per_batch = data.len() / batch.max(1);
    for (i, value) in data.iter_mut().enumerate() {
        let (query, key) = (i / keys % queries, i % keys);
        let hidden = (causal && key > query + past)
            || ends.as_ref().is_some_and(|ends| ends.get(i / per_batch).is_some_and(|&end| key as i64 >= end));
        if hidden {
            *value = f64::NEG_INFINITY;
        }
    }
    let kind = Kind::of_dtype(q.dtype());
    Ok(Some(Array::floats(kind, shape, data).to_tensor(call.queue)?))
}

fn attention(call: &Call<'_>) -> Result<Vec<Value>> {
    let flat = call.value(0)?.shape()?.len() == 3;
    let (own, shared) = (call.int("q_num_heads", 0), call.int("kv_num_heads", 0));
    let q = heads(call.tensor(0)?, own)?;
    let (mut k, mut v) = (heads(call.tensor(1)?, shared)?, heads(call.tensor(2)?, shared)?);
    if [&q, &k, &v].iter().any(|tensor| tensor.shape().ndim() != 4) {
        return Err(bad("expected inputs of three or four axes"));
    }
    let mut before = 0;
    for (input, name, new) in [(4, "past_key", &mut k), (5, "past_value", &mut v)] {
        let Some(past) = call.optional_tensor(input)? else { continue };
        let &[_, _, length, _] = &past.shape()[..] else {
            return Err(bad(format!("{name}: expected (N, heads, length, width), got {}", past.shape())));
        };
        before = before.max(length);
        *new = cat(&[&past, new], 2)?;
    }
    let (present_k, present_v) = (k.clone(), v.clone());
    let width = q.shape()[3] as f64;
    let scale = call.attribute("scale").map_or(1.0 / width.sqrt(), |_| call.float("scale", 1.0));
    let softcap = call.float("softcap", 0.0);
    let bias = bias(call, &q, k.shape()[2], before)?;
    let wants_scores = call.node.outputs.get(3).is_some_and(|name| !name.is_empty());
    let (y, scores) = if softcap == 0.0 && !wants_scores {
        let how = Attention {
            scale: Some(scale),
            mask: bias.as_ref(),
            grouped: q.shape()[1] != k.shape()[1],
            ..Default::default()
        };
        (scaled_dot_product_attention(&q, &k, &v, &how, None)?, None)
    } else {
        let times = q.shape()[1] / k.shape()[1].max(1);
        if times > 1 {
            (k, v) = (k.repeat_interleave(times, Some(1))?, v.repeat_interleave(times, Some(1))?);
        }
        let mut scores = (q.matmul(&k.transpose(2, 3)?)? * scale)?;
        if softcap != 0.0 {
            scores = ((scores / softcap)?.tanh()? * softcap)?;
        }
        let masked = match &bias {
            Some(bias) => (&scores + bias)?,
            None => scores.clone(),
        };
        let weights = masked.softmax(-1)?;
        let shown = match call.int("qk_matmul_output_mode", 0) {
            2 => masked,
            3 => weights.clone(),
            _ => scores,
        };
        (weights.matmul(&v)?, Some(shown))
    };
    let y = if flat {
        let &[n, h, s, width] = &y.shape()[..] else { return Err(bad("the result has not four axes")) };
        reshape(&y.transpose(1, 2)?, [n, s, h * width])?
    } else {
        y
    };
    let mut results: Vec<Value> = vec![y.into(), present_k.into(), present_v.into()];
    results.extend(scores.map(Value::from));
    Ok(results)
}

fn rotary(call: &Call<'_>) -> Result<Vec<Value>> {
    let given = call.tensor(0)?;
    let flat = given.shape().ndim() == 3;
    let x = heads(given, call.int("num_heads", 0))?;
    let &[n, h, s, width] = &x.shape()[..] else { return Err(bad("expected an input of three or four axes")) };
    let rotated = match usize::try_from(call.int("rotary_embedding_dim", 0)) {
        Ok(rotated) if rotated > 0 && rotated <= width => rotated,
        _ => width,
    };
    let half = rotated / 2;
    let table = |i: usize| -> Result<Tensor> {
        let table = call.tensor(i)?;
        let rows = match call.optional_ints(3)? {
            Some(ids) => {
                let ids = Array::list(ids).to_tensor(call.queue)?;
                let ids = netcl_nn::autograd::IndexTensor::from_tensor(ids.raw().clone())?;
                netcl_nn::autograd::ops::indexing::index_select(&table, 0, &ids)?
            }
            None => table,
        };
        let batch = rows.size() / (s * half).max(1);
        reshape(&rows, [batch, 1, s, half])
    };
    let (cos, sin) = (table(1)?, table(2)?);
    let part = x.narrow(3, 0, rotated)?;
    let interleaved = call.flag("interleaved");
    let (a, b) = if interleaved {
        let pairs = reshape(&part, [n, h, s, half, 2])?;
        (pairs.select(4, 0)?, pairs.select(4, 1)?)
    } else {
        (part.narrow(3, 0, half)?, part.narrow(3, half as isize, half)?)
    };
    let real = ((&cos * &a)? - (&sin * &b)?)?;
    let imaginary = ((&sin * &a)? + (&cos * &b)?)?;
    let turned = if interleaved {
        reshape(&stack(&[&real, &imaginary], 4)?, [n, h, s, rotated])?
    } else {
        cat(&[&real, &imaginary], 3)?
    };
    let y =
        if rotated < width { cat(&[&turned, &x.narrow(3, rotated as isize, width - rotated)?], 3)? } else { turned };
    one(if flat { reshape(&y.transpose(1, 2)?, [n, s, h * width])? } else { y })
}
