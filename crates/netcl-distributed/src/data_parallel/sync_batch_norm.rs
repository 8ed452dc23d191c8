//! Batch normalisation by the statistics of all ranks' samples.

use std::sync::Arc;

use netcl_nn::autograd::function::{Function, call};
use netcl_nn::autograd::graph::{Gradients, RuleContext, grad_enabled};
use netcl_nn::autograd::ops::elementwise::{add, cast, mul, sub};
use netcl_nn::autograd::ops::layout::reshape;
use netcl_nn::autograd::ops::norm::Running;
use netcl_nn::autograd::ops::reduce::{mean, sum, var};
use netcl_nn::autograd::{DType, Error as AutogradError, Queue, RawTensor, Result as AutogradResult, Tensor};
use netcl_nn::autograd::{autocast, no_grad};
use netcl_nn::{BatchNorm1d, BatchNorm2d, Module};

use crate::error::{Error, Result};
use crate::group::Group;
use crate::reduction::Reduce;

const CALL: &str = "sync_batch_norm";

/// Makes all batch normalisation inside a model use the samples of all ranks in training. Names, parameters and files stay as they are.
///
/// All ranks must run the model forwards and backwards together, as often.
///
/// # Errors
/// What the model returns.
pub fn convert_sync_batchnorm(model: &mut dyn Module, group: &Group) -> Result<()> {
    Ok(model.apply(&mut |_, module| {
        let group = group.clone();
        let norm: netcl_nn::batch_norm::TrainingNorm = Arc::new(move |x, weight, bias, running, eps| {
            sync_batch_norm(&group, x, weight, bias, running, eps).map_err(into_autograd)
        });
        if let Some(layer) = module.downcast_mut::<BatchNorm2d>() {
            layer.set_training_norm(Some(norm));
        } else if let Some(layer) = module.downcast_mut::<BatchNorm1d>() {
            layer.set_training_norm(Some(norm));
        }
        Ok(())
    })?)
}

fn into_autograd(problem: Error) -> AutogradError {
    match problem {
        Error::Device(inner) => inner,
        other => AutogradError::argument(CALL, other.to_string()),
    }
}

/// Normalises every channel (axis 1) over the samples of all ranks, and updates the running averages in place, the same on all ranks.
///
/// Forwards the ranks exchange their numbers of samples, means and sums of squared differences, backwards two sums per channel. The
/// gradients of `weight` and `bias` are those of the rank's own samples: [`Group::sync_grads`] sums them as all others. Where ranks have
/// different numbers of samples the loss is a mean over the rank's own, and its share in `sync_grads` is its part of all samples.
///
/// # Errors
/// If ranks have different channels, or one is lost; for a tensor without channels.
pub fn sync_batch_norm(
    group: &Group,
    x: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    running: Option<Running<'_>>,
    eps: f64,
) -> Result<Tensor> {
    let shape = x.shape().to_vec();
    let &[_, channels, ..] = &shape[..] else {
        return Err(Error::argument(CALL, format!("a tensor of shape {} has no channels: (N, C, ...)", x.shape())));
    };
    for (what, one) in [("weight", weight), ("bias", bias)] {
        if let Some(one) = one.filter(|one| one.size() != channels) {
            let what = format!("{what} has {} elements for {channels} channels", one.size());
            return Err(Error::argument(CALL, what));
        }
    }
    let (function, output) = {
        let _plain = (no_grad(), autocast::suspend());
        let normalised = Normalised::new(group, x, running, eps)?;
        let mut output = normalised.standardised(x)?;
        if let Some(weight) = weight {
            output = mul(&output, &normalised.per_channel(weight)?)?;
        }
        if let Some(bias) = bias {
            output = add(&output, &normalised.per_channel(bias)?)?;
        }
        (normalised, cast(&output, x.dtype())?.raw().clone())
    };
    let inputs: Vec<&Tensor> = [Some(x), weight, bias].into_iter().flatten().collect();
    let recorded = Recorded { normalised: function, output, weight: weight.is_some(), bias: bias.is_some() };
    Ok(call(recorded, &inputs)?)
}

/// The statistics of all ranks.
struct Normalised {
    group: Group,
    /// How many elements each channel has on this rank, and on all.
    own: f64,
    count: f64,
    mean: Tensor,
    /// 1 / sqrt(variance + eps).
    scale: Tensor,
    shape: Vec<usize>,
    axes: Vec<isize>,
    /// Halves are normalised in single precision.
    dtype: DType,
}

impl Normalised {
    fn new(group: &Group, x: &Tensor, running: Option<Running<'_>>, eps: f64) -> Result<Normalised> {
        let channels = x.shape()[1];
        let axes: Vec<isize> = (0..x.ndim() as isize).filter(|&axis| axis != 1).collect();
        let shape: Vec<usize> = (0..x.ndim()).map(|axis| if axis == 1 { channels } else { 1 }).collect();
        let dtype = if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let own = x.size() / channels.max(1);
        // The number of elements, the means, and the sums of squared differences from them.
        let mut facts = vec![own as f64];
        if own == 0 {
            facts.resize(1 + 2 * channels, 0.0);
        } else {
            let wide = cast(x, dtype)?;
            facts.extend(mean(&wide, &axes[..], false)?.to_f64_vec()?);
            facts.extend(var(&wide, &axes[..], 0.0, false)?.to_f64_vec()?.iter().map(|variance| variance * own as f64));
        }
        let host = netcl_nn::autograd::manager().cpu().queue;
        let all = group.all_gather(&RawTensor::from_host(&host, &facts, [1, facts.len()])?)?;
        let (mut count, mut means, mut squares) = (0.0, vec![0.0; channels], vec![0.0; channels]);
        for rank in all {
            let rank = rank.to_f64_vec()?;
            if rank[0] == 0.0 {
                continue;
            }
            let total = count + rank[0];
            for channel in 0..channels {
                let apart = rank[1 + channel] - means[channel];
                means[channel] += apart * rank[0] / total;
                squares[channel] += rank[1 + channels + channel] + apart * apart * count * rank[0] / total;
            }
            count = total;
        }
        if let Some(running) = running {
            average(&running, count, &means, &squares)?;
        }
        let scales: Vec<f64> = squares.iter().map(|squares| 1.0 / (squares / count + eps).sqrt()).collect();
        let there = |values: &[f64]| constant(x.queue(), values, dtype, &shape);
        let (mean, scale) = (there(&means)?, there(&scales)?);
        Ok(Normalised { group: group.clone(), own: own as f64, count, mean, scale, shape, axes, dtype })
    }

    fn standardised(&self, x: &Tensor) -> AutogradResult<Tensor> {
        mul(&sub(&cast(x, self.dtype)?, &self.mean)?, &self.scale)
    }

    /// One value per channel, so that it broadcasts.
    fn per_channel(&self, values: &Tensor) -> AutogradResult<Tensor> {
        cast(&reshape(values, self.shape.as_slice())?, self.dtype)
    }
}

/// Values per channel on a device.
fn constant(queue: &Queue, values: &[f64], dtype: DType, shape: &[usize]) -> Result<Tensor> {
    let options = netcl_nn::autograd::HostOptions { dtype: Some(dtype), ..Default::default() };
    Ok(Tensor::from_host_with(queue, values, shape, options)?)
}

/// Moves running averages towards the statistics of a batch; the variance is divided by n - 1, as in PyTorch.
fn average(running: &Running<'_>, count: f64, means: &[f64], squares: &[f64]) -> Result<()> {
    let mut share = running.momentum;
    if let Some(batches) = running.batches {
        let seen = batches.to_f64_vec()?[0] + 1.0;
        batches.fill(seen)?;
        share = share.or(Some(1.0 / seen));
    }
    let share = share.unwrap_or(0.0);
    let divisor = (count - 1.0).max(1.0);
    let variances: Vec<f64> = squares.iter().map(|squares| squares / divisor).collect();
    for (kept, batch) in [(running.mean, means), (running.var, &variances)] {
        let moved: Vec<f64> =
            kept.to_f64_vec()?.iter().zip(batch).map(|(old, new)| (1.0 - share) * old + share * new).collect();
        kept.write_bytes(bytemuck::cast_slice(&moved), DType::F64)?;
    }
    Ok(())
}

/// The whole as one recorded operation.
struct Recorded {
    normalised: Normalised,
    output: RawTensor,
    weight: bool,
    bias: bool,
}

impl Function for Recorded {
    fn name(&self) -> &'static str {
        CALL
    }

    fn forward(&self, _: &[&RawTensor]) -> AutogradResult<RawTensor> {
        Ok(self.output.clone())
    }

    fn backward(&self, context: &RuleContext<'_>, upstream: &Tensor) -> AutogradResult<Gradients> {
        if grad_enabled() {
            let what =
                "its gradient cannot be differentiated again (create_graph): use batch_norm on one rank for that";
            return Err(AutogradError::argument(CALL, what));
        }
        let own = &self.normalised;
        let (x, dy) = (context.input(0)?, cast(upstream, own.dtype)?);
        let standardised = own.standardised(&x)?;
        let total = |values: &Tensor| sum(values, &own.axes[..], false);
        let (shifts, scales) = (total(&dy)?, total(&mul(&dy, &standardised)?)?);
        let mut gradients = Gradients::new();
        gradients.push(if context.wants(0) {
            let channels = shifts.size();
            let mut sums = shifts.to_f64_vec()?;
            sums.extend(scales.to_f64_vec()?);
            // A rank's gradients count by its number of samples, here as in `sync_grads`, which multiplies by its share afterwards.
            sums.iter_mut().for_each(|sum| *sum *= own.own);
            let bytes = bytemuck::cast_slice_mut(&mut sums);
            own.group.all_reduce_bytes(CALL, bytes, DType::F64, Reduce::Sum).map_err(into_autograd)?;
            sums.iter_mut().for_each(|sum| *sum /= own.count * own.own.max(1.0));
            let there = |values: &[f64]| constant(x.queue(), values, own.dtype, &own.shape).map_err(into_autograd);
            let (shift, scale) = (there(&sums[..channels])?, there(&sums[channels..])?);
            let mut dx = mul(&sub(&sub(&dy, &shift)?, &mul(&standardised, &scale)?)?, &own.scale)?;
            if self.weight {
                dx = mul(&dx, &own.per_channel(&context.input(1)?)?)?;
            }
            Some(cast(&dx, x.dtype())?)
        } else {
            None
        });
        if self.weight {
            gradients.push(Some(cast(&scales, context.input(1)?.dtype())?));
        }
        if self.bias {
            let at = 1 + usize::from(self.weight);
            gradients.push(Some(cast(&shifts, context.input(at)?.dtype())?));
        }
        Ok(gradients)
    }
}
