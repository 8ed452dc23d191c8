//! Random numbers and Dropout; a seed makes a node give the same numbers in every run.

use netcl_nn::autograd::ops::random as ours;
use netcl_nn::autograd::{DType, Generator, Result, Tensor};

use super::layout::lengths;
use super::{Op, Table, one};
use crate::array::{Array, bad, count};
use crate::kind::Kind;
use crate::run::Call;
use crate::value::Value;

pub(super) const TABLE: Table = &[
    ("Bernoulli", bernoulli as Op),
    ("Dropout", dropout),
    ("RandomNormal", numbers),
    ("RandomNormalLike", numbers),
    ("RandomUniform", numbers),
    ("RandomUniformLike", numbers),
];

fn generator(call: &Call<'_>) -> Option<Generator> {
    call.attribute("seed").map(|_| Generator::new(call.float("seed", 0.0).to_bits()))
}

fn dtype(call: &Call<'_>, otherwise: Option<Kind>) -> Result<Kind> {
    let code = call.int("dtype", 0);
    Kind::of_code(code).or(otherwise).ok_or_else(|| bad(format!("element type {code} is not supported")))
}

fn numbers(call: &Call<'_>) -> Result<Vec<Value>> {
    let (shape, kind) = match call.optional(0) {
        Some(like) => (like.shape()?, dtype(call, Some(like.kind()?))?),
        None => (lengths(call.int_list("shape").unwrap_or(&[]))?, dtype(call, Some(Kind::F32))?),
    };
    count(&shape)?;
    let dtype = kind.dtype().filter(|dtype| dtype.is_float()).ok_or_else(|| bad("random numbers are fractions"))?;
    let mut own = generator(call);
    let own = own.as_mut();
    one(if call.node.operator.starts_with("RandomNormal") {
        ours::normal(call.queue, shape, dtype, call.float("mean", 0.0), call.float("scale", 1.0), own)?
    } else {
        ours::uniform(call.queue, shape, dtype, call.float("low", 0.0), call.float("high", 1.0), own)?
    })
}

fn bernoulli(call: &Call<'_>) -> Result<Vec<Value>> {
    let p = call.tensor(0)?;
    let kind = dtype(call, Some(call.kind()?))?;
    let drawn = ours::bernoulli_of(&p, generator(call).as_mut())?;
    one(match kind.dtype() {
        Some(dtype) if dtype == drawn.dtype() => Value::from(drawn),
        Some(dtype) => drawn.cast(dtype)?.into(),
        None => Array::of_tensor(&drawn)?.cast(kind, crate::kind::Overflow::Saturate)?.into(),
    })
}

/// Drops nothing unless the file asks for training.
fn dropout(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.tensor(0)?;
    let training = call.optional_ints(2)?.is_some_and(|flag| flag.first().is_some_and(|&v| v != 0));
    let ratio = call.number(1)?.unwrap_or_else(|| call.float("ratio", 0.5));
    let wants_mask = call.node.outputs.get(1).is_some_and(|name| !name.is_empty());
    if !training || ratio == 0.0 {
        let shape = x.shape().to_vec();
        let mut results = vec![x.into()];
        if wants_mask {
            results.push(Array::full(Kind::Bool, shape, 1.0)?.into());
        }
        return Ok(results);
    }
    let mask: Tensor = ours::bernoulli(call.queue, x.shape(), x.dtype(), 1.0 - ratio, generator(call).as_mut())?;
    let y = ((&x * &mask)? / (1.0 - ratio))?;
    Ok(vec![y.into(), mask.cast(DType::U8)?.into()])
}
