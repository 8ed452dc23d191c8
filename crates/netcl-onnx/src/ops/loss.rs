//! Losses over labels.

use netcl_nn::autograd::Result;
use netcl_nn::autograd::ops::indexing;
use netcl_nn::autograd::ops::layout::reshape;

use super::reduce::index_tensor;
use super::{Op, Table};
use crate::array::{Array, bad, product};
use crate::kind::Kind;
use crate::run::Call;
use crate::value::Value;

pub(super) const TABLE: Table = &[("NegativeLogLikelihoodLoss", loss as Op), ("SoftmaxCrossEntropyLoss", loss)];

fn loss(call: &Call<'_>) -> Result<Vec<Value>> {
    let scores = call.tensor(0)?;
    let shape = scores.shape().to_vec();
    let &[n, classes, ..] = &shape[..] else { return Err(bad(format!("expected (N, C, ...), got {shape:?}"))) };
    let logs = match call.node.operator.as_str() {
        "SoftmaxCrossEntropyLoss" => scores.log_softmax(1)?,
        _ => scores.clone(),
    };
    let labels = call.array(1)?;
    let rest = product(&shape[2..]);
    if labels.len() != n.saturating_mul(rest) {
        return Err(bad(format!("labels of shape {:?} do not fit scores of shape {shape:?}", labels.shape)));
    }
    let ignored = call.attribute("ignore_index").map(|_| call.int("ignore_index", 0));
    let weights = call.optional(2).map(|value| value.to_array()?.to_floats()).transpose()?;
    let (mut chosen, mut factors) = (Vec::new(), Vec::new());
    for label in labels.to_ints()? {
        let counts = ignored != Some(label);
        let class = match usize::try_from(label).ok().filter(|&class| class < classes) {
            Some(class) => class,
            None if !counts => 0,
            None => return Err(bad(format!("label {label} is none of {classes} classes"))),
        };
        chosen.push(class as i64);
        let weight = weights.as_ref().map_or(Some(1.0), |weights| weights.get(class).copied());
        let weight = weight.ok_or_else(|| bad("there are fewer weights than classes"))?;
        factors.push(if counts { weight } else { 0.0 });
    }
    let rows = reshape(&logs, [n, classes, rest])?;
    let chosen: Value = Array::ints(Kind::I64, vec![n, 1, rest], chosen).into();
    let picked = reshape(&indexing::gather(&rows, 1, &index_tensor(call, &chosen)?)?, &labels.shape[..])?;
    let all: f64 = factors.iter().sum();
    let factors = Array::floats(Kind::of_dtype(scores.dtype()), labels.shape.clone(), factors).to_tensor(call.queue)?;
    let losses = (-(picked * factors)?)?;
    let result = match call.text("reduction").unwrap_or("mean") {
        "none" => losses,
        "sum" => losses.sum((), false)?,
        _ => (losses.sum((), false)? / all)?,
    };
    Ok(vec![result.into(), logs.into()])
}
