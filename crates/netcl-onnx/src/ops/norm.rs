//! Normalisations.

use netcl_nn::autograd::ops::norm as ours;
use netcl_nn::autograd::{DType, Result, Tensor};

use super::layout::reshaped;
use super::{Op, Table, one};
use crate::array::{axis, bad};
use crate::kind::Kind;
use crate::run::Call;
use crate::value::Value;

pub(super) const TABLE: Table = &[
    ("BatchNormalization", batch as Op),
    ("GroupNormalization", group),
    ("InstanceNormalization", instance),
    ("LRN", local_response),
    ("LayerNormalization", layer),
    ("LpNormalization", lp),
    ("MeanVarianceNormalization", mean_variance),
    ("RMSNormalization", rms),
];

/// One number per channel, in the shape that broadcasts to `(N, C, ...)`.
fn per_channel(x: &Tensor, rank: usize) -> Result<Tensor> {
    let mut shape = vec![1; rank];
    shape[1] = x.size();
    netcl_nn::autograd::reshape(x, shape)
}

fn batch(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.tensor(0)?;
    let inputs = (1..5).map(|i| call.tensor(i)).collect::<Result<Vec<_>>>()?;
    let rank = x.shape().ndim();
    if rank < 2 {
        return Err(bad(format!("expected (N, C, ...), got {}", x.shape())));
    }
    let eps = call.float("epsilon", 1e-5);
    if !call.flag("training_mode") {
        let [weight, bias, mean, var] = &inputs[..] else { return Err(bad("inputs are missing")) };
        if [weight, bias, mean, var].iter().all(|tensor| tensor.dtype() == x.dtype()) {
            return one(ours::batch_norm_eval(&x, Some(weight), Some(bias), (mean.raw(), var.raw()), eps)?);
        }
        let scale = (weight / &(var + eps)?.sqrt()?)?;
        let shift = (bias - &(mean * &scale)?)?;
        let (scale, shift) = (per_channel(&scale.cast(x.dtype())?, rank)?, per_channel(&shift.cast(x.dtype())?, rank)?);
        return one(((x * scale)? + shift)?);
    }
    let axes: Vec<isize> = (0..rank as isize).filter(|&i| i != 1).collect();
    let momentum = call.float("momentum", 0.9);
    let (mean, var) = (x.mean(&axes[..], false)?, x.var(&axes[..], 0.0, false)?);
    let moved = |old: &Tensor, new: &Tensor| (old * momentum)? + &(new * (1.0 - momentum))?;
    let (running_mean, running_var) = (moved(&inputs[2], &mean)?, moved(&inputs[3], &var)?);
    let y = ours::batch_norm(&x, Some(&inputs[0]), Some(&inputs[1]), None, eps)?;
    Ok(vec![y.into(), running_mean.into(), running_var.into()])
}

fn instance(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, eps) = (call.tensor(0)?, call.float("epsilon", 1e-5));
    one(ours::instance_norm(&x, Some(&call.tensor(1)?), Some(&call.tensor(2)?), None, eps)?)
}

fn group(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, eps) = (call.tensor(0)?, call.float("epsilon", 1e-5));
    let groups = usize::try_from(call.int("num_groups", 1)).map_err(|_| bad("num_groups is negative"))?;
    let (scale, bias) = (call.tensor(1)?, call.tensor(2)?);
    let channels = x.shape().get(1).copied().unwrap_or(0);
    // Before opset 21 there is one number per group.
    let spread = |t: Tensor| match t.size() {
        n if n == channels || n == 0 => Ok(t),
        n => t.repeat_interleave(channels / n, Some(0)),
    };
    one(ours::group_norm(&x, groups, Some(&spread(scale)?), Some(&spread(bias)?), eps)?)
}

/// Normalises in the type that `stash_type` names, as ONNX asks for.
fn stashed(call: &Call<'_>, x: &Tensor) -> Result<Tensor> {
    match Kind::of_code(call.int("stash_type", 1)).and_then(Kind::dtype) {
        Some(DType::F32) if matches!(x.dtype(), DType::F16 | DType::BF16) => x.cast(DType::F32),
        _ => Ok(x.clone()),
    }
}

fn layer(call: &Call<'_>) -> Result<Vec<Value>> {
    let given = call.tensor(0)?;
    let x = stashed(call, &given)?;
    let rank = x.shape().ndim();
    let axes: Vec<isize> = (axis(call.int("axis", -1), rank)? as isize..rank as isize).collect();
    let eps = call.float("epsilon", 1e-5);
    let mean = x.mean(&axes[..], true)?;
    let scale = (x.var(&axes[..], 0.0, true)? + eps)?.rsqrt()?;
    let weight = call.optional_tensor(1)?;
    let bias = call.optional_tensor(2)?;
    let fits = weight.as_ref().is_none_or(|weight| weight.shape()[..] == x.shape()[axes[0] as usize..]);
    let alike = [&weight, &bias].iter().all(|tensor| tensor.as_ref().is_none_or(|tensor| tensor.dtype() == x.dtype()));
    if fits && alike && bias.as_ref().is_none_or(|bias| bias.shape()[..] == x.shape()[axes[0] as usize..]) {
        let y = ours::layer_norm(&x, axes.len(), weight.as_ref(), bias.as_ref(), eps)?;
        return Ok(vec![y.into(), mean.into(), scale.into()]);
    }
    let mut y = ((&x - &mean)? * &scale)?.cast(given.dtype())?;
    if let Some(weight) = weight {
        y = (y * weight)?;
    }
    if let Some(bias) = bias {
        y = (y + bias)?;
    }
    Ok(vec![y.into(), mean.into(), scale.into()])
}

fn rms(call: &Call<'_>) -> Result<Vec<Value>> {
    let given = call.tensor(0)?;
    let x = stashed(call, &given)?;
    let rank = x.shape().ndim();
    let axes: Vec<isize> = (axis(call.int("axis", -1), rank)? as isize..rank as isize).collect();
    let scale = (x.square()?.mean(&axes[..], true)? + call.float("epsilon", 1e-5))?.rsqrt()?;
    one(((x * scale)?.cast(given.dtype())? * call.tensor(1)?)?)
}

fn local_response(call: &Call<'_>) -> Result<Vec<Value>> {
    let size = usize::try_from(call.int("size", 1)).ok().filter(|&n| n > 0).ok_or_else(|| bad("size is 1 or more"))?;
    let how = ours::LocalResponse {
        size,
        alpha: call.float("alpha", 1e-4),
        beta: call.float("beta", 0.75),
        k: call.float("bias", 1.0),
    };
    if size % 2 == 1 {
        return one(ours::local_response_norm(&call.tensor(0)?, &how)?);
    }
    Err(bad("an even size is not supported"))
}

fn lp(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.tensor(0)?;
    let at = axis(call.int("axis", -1), x.shape().ndim())? as isize;
    let p = call.int("p", 2) as f64;
    let norm = x.norm(p, at, true)?;
    // A row of zeros stays one.
    let zero = netcl_nn::autograd::ops::elementwise::apply("eq", &[(&norm).into(), 0.0.into()], &[])?;
    let norm = (norm + super::layout::as_floats(&zero, &x)?)?;
    one((x / norm)?)
}

fn mean_variance(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.tensor(0)?;
    let axes: Vec<isize> = call.int_list("axes").unwrap_or(&[0, 2, 3]).iter().map(|&at| at as isize).collect();
    let centred = (&x - &x.mean(&axes[..], true)?)?;
    let deviation = centred.square()?.mean(&axes[..], true)?.sqrt()?;
    let shape = x.shape().to_vec();
    one(reshaped(&(centred / (deviation + 1e-9)?)?.into(), shape)?)
}
