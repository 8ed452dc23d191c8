//! Normalisations: fused kernels both ways.

use netcl_core::tensor::Tensor as Raw;
use netcl_ops::norm as raw;
pub use netcl_ops::norm::Running;
use netcl_ops::norm::{Affine, NormGradients};
use smallvec::SmallVec;

use super::elementwise::{add, mul, rsqrt, square, sub};
use super::fused::record_fused;
use super::layout::reshape;
use super::reduce::{mean, var};
use crate::error::Result;
use crate::graph::Gradients;
use crate::tensor::Tensor;

/// The input and the parameters that are there.
struct Operands<'t> {
    x: &'t Tensor,
    weight: Option<&'t Tensor>,
    bias: Option<&'t Tensor>,
}

/// Which parameters an op had, so that its inputs can be told apart again.
#[derive(Clone, Copy)]
struct Present {
    weight: bool,
    bias: bool,
}

impl<'t> Operands<'t> {
    fn list(&self) -> SmallVec<[&'t Tensor; 3]> {
        [Some(self.x), self.weight, self.bias].into_iter().flatten().collect()
    }

    fn affine(&self) -> Affine<'t> {
        Affine { weight: self.weight.map(Tensor::raw), bias: self.bias.map(Tensor::raw) }
    }

    fn present(&self) -> Present {
        Present { weight: self.weight.is_some(), bias: self.bias.is_some() }
    }
}

impl Present {
    fn of(self, inputs: &[Tensor]) -> Operands<'_> {
        let weight = self.weight.then(|| &inputs[1]);
        let bias = self.bias.then(|| &inputs[1 + usize::from(self.weight)]);
        Operands { x: &inputs[0], weight, bias }
    }

    fn gradients(self, found: NormGradients) -> Gradients {
        let mut all: Gradients = smallvec::smallvec![Some(found.input.into())];
        if self.weight {
            all.push(found.weight.map(Tensor::from));
        }
        if self.bias {
            all.push(found.bias.map(Tensor::from));
        }
        all
    }
}

/// `normalised * weight + bias`, the parameters seen through a shape that broadcasts.
fn scaled(normalised: Tensor, operands: &Operands<'_>, shape: &[usize]) -> Result<Tensor> {
    let mut out = normalised;
    if let Some(weight) = operands.weight {
        out = mul(&out, &reshape(weight, shape)?)?;
    }
    if let Some(bias) = operands.bias {
        out = add(&out, &reshape(bias, shape)?)?;
    }
    Ok(out)
}

/// `(x - mean) / sqrt(variance + eps)` over some axes.
fn standardised(x: &Tensor, axes: &[isize], eps: f64) -> Result<Tensor> {
    let centred = sub(x, &mean(x, axes, true)?)?;
    mul(&centred, &rsqrt(&add(&var(x, axes, 0.0, true)?, eps)?)?)
}

/// One per channel, seen from a tensor of so many axes.
fn per_channel(channels: usize, ndim: usize) -> Vec<usize> {
    (0..ndim).map(|axis| if axis == 1 { channels } else { 1 }).collect()
}

/// Normalises every channel (axis 1) over the batch and updates the running averages in place.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::norm::batch_norm};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32, 3.0], [2, 1])?.with_grad();
/// let y = batch_norm(&x, None, None, None, 0.0)?;
/// assert_eq!(y.to_host::<f32>()?, [-1.0, 1.0]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn batch_norm(
    x: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    running: Option<Running<'_>>,
    eps: f64,
) -> Result<Tensor> {
    let operands = Operands { x, weight, bias };
    let present = operands.present();
    let raw::Normalized { output, mean, rstd } = raw::batch_norm(x.raw(), operands.affine(), running, eps)?;
    let fast = move |inputs: &[Tensor], upstream: &Tensor| {
        let operands = present.of(inputs);
        let x = operands.x.raw();
        let found = raw::batch_norm_backward(upstream.raw(), x, operands.affine(), &mean, &rstd, true)?;
        Ok(present.gradients(found))
    };
    let composite = move |inputs: &[Tensor]| {
        let operands = present.of(inputs);
        let axes: Vec<isize> = (0..operands.x.ndim() as isize).filter(|&axis| axis != 1).collect();
        let normalised = standardised(operands.x, &axes, eps)?;
        scaled(normalised, &operands, &per_channel(operands.x.shape()[1], operands.x.ndim()))
    };
    record_fused("batch_norm", &operands.list(), output, fast, composite)
}

/// Normalises every channel (axis 1) by given averages, as in evaluation.
#[track_caller]
pub fn batch_norm_eval(
    x: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    (mean, var): (&Raw, &Raw),
    eps: f64,
) -> Result<Tensor> {
    let operands = Operands { x, weight, bias };
    let present = operands.present();
    let raw::Normalized { output, mean, rstd } = raw::batch_norm_eval(x.raw(), operands.affine(), mean, var, eps)?;
    let (centre, scale) = (mean.clone(), rstd.clone());
    let fast = move |inputs: &[Tensor], upstream: &Tensor| {
        let operands = present.of(inputs);
        let x = operands.x.raw();
        let found = raw::batch_norm_backward(upstream.raw(), x, operands.affine(), &mean, &rstd, false)?;
        Ok(present.gradients(found))
    };
    let composite = move |inputs: &[Tensor]| {
        let operands = present.of(inputs);
        let shape = per_channel(operands.x.shape()[1], operands.x.ndim());
        let constant = |raw: &Raw| reshape(&raw.cast(operands.x.dtype())?.into(), shape.as_slice());
        let normalised = mul(&sub(operands.x, &constant(&centre)?)?, &constant(&scale)?)?;
        scaled(normalised, &operands, &shape)
    };
    record_fused("batch_norm_eval", &operands.list(), output, fast, composite)
}

/// Normalises over the last `axes` axes; the parameters have their shape.
#[track_caller]
pub fn layer_norm(x: &Tensor, axes: usize, weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f64) -> Result<Tensor> {
    let operands = Operands { x, weight, bias };
    let present = operands.present();
    let raw::Normalized { output, mean, rstd } = raw::layer_norm(x.raw(), axes, operands.affine(), eps)?;
    let fast = move |inputs: &[Tensor], upstream: &Tensor| {
        let operands = present.of(inputs);
        let x = operands.x.raw();
        let found = raw::layer_norm_backward(upstream.raw(), x, axes, operands.affine(), &mean, &rstd)?;
        Ok(present.gradients(found))
    };
    let composite = move |inputs: &[Tensor]| {
        let operands = present.of(inputs);
        let shape = operands.x.shape();
        let inner = shape[shape.ndim() - axes..].to_vec();
        scaled(standardised(operands.x, &last(axes), eps)?, &operands, &inner)
    };
    record_fused("layer_norm", &operands.list(), output, fast, composite)
}

/// The last axes, counted from the end.
fn last(axes: usize) -> Vec<isize> {
    (1..=axes as isize).map(|axis| -axis).collect()
}

/// Normalises groups of channels (axis 1) of each sample; the parameters have one element per channel.
#[track_caller]
pub fn group_norm(
    x: &Tensor,
    groups: usize,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor> {
    let operands = Operands { x, weight, bias };
    let present = operands.present();
    let raw::Normalized { output, mean, rstd } = raw::group_norm(x.raw(), groups, operands.affine(), eps)?;
    let fast = move |inputs: &[Tensor], upstream: &Tensor| {
        let operands = present.of(inputs);
        let x = operands.x.raw();
        let found = raw::group_norm_backward(upstream.raw(), x, groups, operands.affine(), &mean, &rstd)?;
        Ok(present.gradients(found))
    };
    let composite = move |inputs: &[Tensor]| {
        let operands = present.of(inputs);
        let shape = operands.x.shape().clone();
        let lines = reshape(operands.x, [shape[0], groups, shape[1..].iter().product::<usize>() / groups.max(1)])?;
        let normalised = reshape(&standardised(&lines, &[2], eps)?, shape.clone())?;
        scaled(normalised, &operands, &per_channel(shape[1], shape.ndim()))
    };
    record_fused("group_norm", &operands.list(), output, fast, composite)
}

/// Divides by the root of the mean square over the last `axes` axes; the weight has their shape.
#[track_caller]
pub fn rms_norm(x: &Tensor, axes: usize, weight: Option<&Tensor>, eps: f64) -> Result<Tensor> {
    let operands = Operands { x, weight, bias: None };
    let present = operands.present();
    let raw::Normalized { output, rstd, .. } = raw::rms_norm(x.raw(), axes, weight.map(Tensor::raw), eps)?;
    let fast = move |inputs: &[Tensor], upstream: &Tensor| {
        let operands = present.of(inputs);
        let weight = operands.weight.map(Tensor::raw);
        let found = raw::rms_norm_backward(upstream.raw(), operands.x.raw(), axes, weight, &rstd)?;
        Ok(present.gradients(found))
    };
    let composite = move |inputs: &[Tensor]| {
        let operands = present.of(inputs);
        let scale = rsqrt(&add(&mean(&square(operands.x)?, last(axes).as_slice(), true)?, eps)?)?;
        let shape = operands.x.shape();
        let inner = shape[shape.ndim() - axes..].to_vec();
        scaled(mul(operands.x, &scale)?, &operands, &inner)
    };
    record_fused("rms_norm", &operands.list(), output, fast, composite)
}
