//! Batch normalisation by the statistics of all ranks' samples.

use std::sync::{Arc, Mutex, PoisonError};

use netcl_nn::autograd::function::{Function, call};
use netcl_nn::autograd::graph::{Gradients, RuleContext, grad_enabled};
use netcl_nn::autograd::ops::elementwise::{add, cast, mul, sub};
use netcl_nn::autograd::ops::layout::reshape;
use netcl_nn::autograd::ops::norm::Running;
use netcl_nn::autograd::ops::reduce::{mean, sum, var};
use netcl_nn::autograd::{DType, Error as AutogradError, RawTensor, Result as AutogradResult, Tensor};
use netcl_nn::autograd::{autocast, no_grad};
use netcl_nn::batch_norm::TrainingNorm;
use netcl_nn::{BatchNorm1d, BatchNorm2d, Module};

use crate::error::{Error, Result};
use crate::group::Group;
use crate::reduction::Reduce;
use crate::transfer::on_host;

const CALL: &str = "sync_batch_norm";

/// Makes all batch normalisation inside a model use the samples of all ranks in training. Names, parameters and files stay as they are.
///
/// All ranks must run the model forwards and backwards together, as often.
///
/// # Errors
/// What the model returns.
pub fn convert_sync_batchnorm(model: &mut dyn Module, group: &Group) -> Result<()> {
    let group = group.clone();
    set_training_norm(
        model,
        Arc::new(move |x, weight, bias, running, eps| {
            sync_batch_norm(&group, x, weight, bias, running, eps).map_err(Error::into_autograd)
        }),
    )
}

/// Makes all batch normalisation inside a model use a function in training.
pub(super) fn set_training_norm(model: &mut dyn Module, norm: TrainingNorm) -> Result<()> {
    Ok(model.apply(&mut |_, module| {
        let norm = norm.clone();
        if let Some(layer) = module.downcast_mut::<BatchNorm2d>() {
            layer.set_training_norm(Some(norm));
        } else if let Some(layer) = module.downcast_mut::<BatchNorm1d>() {
            layer.set_training_norm(Some(norm));
        }
        Ok(())
    })?)
}

/// Normalises every channel (axis 1) over the samples of all ranks, and updates the running averages in place, the same on all ranks.
///
/// Forwards the ranks exchange their numbers of samples, means and sums of squared differences, backwards two sums per channel; a captured
/// step repeats that. The gradients of `weight` and `bias` are those of the rank's own samples: [`Group::sync_grads`] sums them as all
/// others. Where ranks have different numbers of samples the loss is a mean over the rank's own, and its share in `sync_grads` is its part
/// of all samples.
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
    /// How many elements each channel has on this rank.
    own: f64,
    /// How many it has on all, which the work of the host in a forward pass finds and that of the backward pass needs.
    count: Arc<Mutex<f64>>,
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
        let own = (x.size() / channels.max(1)) as f64;
        let wide = cast(x, dtype)?;
        let own_statistics = match own == 0.0 {
            true => {
                [Tensor::from_shape(x.queue(), [channels], dtype)?, Tensor::from_shape(x.queue(), [channels], dtype)?]
            }
            false => [mean(&wide, &axes[..], false)?, var(&wide, &axes[..], 0.0, false)?],
        };
        let there = || Ok::<_, Error>(Tensor::from(RawTensor::uninit(x.queue(), shape.as_slice(), dtype)?));
        let (mean, scale, count) = (there()?, there()?, Arc::new(Mutex::new(0.0)));
        let mut writes = vec![mean.raw(), scale.raw()];
        let momentum = running.as_ref().map(|running| running.momentum);
        if let Some(running) = &running {
            writes.extend([running.mean, running.var].into_iter().chain(running.batches));
        }
        let (ranks, total) = (group.clone(), count.clone());
        on_host(CALL, x.queue(), &own_statistics.each_ref().map(Tensor::raw), &writes, move |reads, writes| {
            let all = Statistics::of_all(&ranks, own, &reads[0], &reads[1])?;
            *total.lock().unwrap_or_else(PoisonError::into_inner) = all.count;
            write(&writes[0], &all.means)?;
            write(&writes[1], &all.squares.iter().map(|s| 1.0 / (s / all.count + eps).sqrt()).collect::<Vec<f64>>())?;
            match (momentum, &writes[2..]) {
                (Some(momentum), [mean, var, batches @ ..]) => {
                    average(&Running { mean, var, momentum, batches: batches.first() }, &all)
                }
                _ => Ok(()),
            }
        })?;
        Ok(Normalised { group: group.clone(), own, count, mean, scale, shape, axes, dtype })
    }

    fn standardised(&self, x: &Tensor) -> AutogradResult<Tensor> {
        mul(&sub(&cast(x, self.dtype)?, &self.mean)?, &self.scale)
    }

    /// One value per channel, so that it broadcasts.
    fn per_channel(&self, values: &Tensor) -> AutogradResult<Tensor> {
        cast(&reshape(values, self.shape.as_slice())?, self.dtype)
    }
}

/// What is known of every channel.
pub(super) struct Statistics {
    pub(super) count: f64,
    pub(super) means: Vec<f64>,
    /// Sums of squared differences from the means.
    pub(super) squares: Vec<f64>,
}

impl Statistics {
    /// Those of all ranks together, from the number of elements, means and variances of each.
    fn of_all(group: &Group, own: f64, means: &RawTensor, variances: &RawTensor) -> Result<Statistics> {
        let channels = means.size();
        let mut facts = vec![own];
        facts.extend(means.to_f64_vec()?);
        facts.extend(variances.to_f64_vec()?.iter().map(|variance| variance * own));
        let host = netcl_nn::autograd::manager().cpu().queue;
        let parts = group.all_gather(&RawTensor::from_host(&host, &facts, [1, facts.len()])?)?;
        let mut all = Statistics { count: 0.0, means: vec![0.0; channels], squares: vec![0.0; channels] };
        for part in parts {
            let part = part.to_f64_vec()?;
            if part[0] == 0.0 {
                continue;
            }
            let total = all.count + part[0];
            for channel in 0..channels {
                let apart = part[1 + channel] - all.means[channel];
                all.means[channel] += apart * part[0] / total;
                all.squares[channel] += part[1 + channels + channel] + apart * apart * all.count * part[0] / total;
            }
            all.count = total;
        }
        Ok(all)
    }
}

/// Overwrites a tensor.
fn write(tensor: &RawTensor, values: &[f64]) -> Result<()> {
    Ok(tensor.write_bytes(bytemuck::cast_slice(values), DType::F64)?)
}

/// Moves running averages towards the statistics of a batch; the variance is divided by n - 1, as in PyTorch.
pub(super) fn average(running: &Running<'_>, batch: &Statistics) -> Result<()> {
    let mut share = running.momentum;
    if let Some(batches) = running.batches {
        let seen = batches.to_f64_vec()?[0] + 1.0;
        batches.fill(seen)?;
        share = share.or(Some(1.0 / seen));
    }
    let share = share.unwrap_or(0.0);
    let divisor = (batch.count - 1.0).max(1.0);
    let variances: Vec<f64> = batch.squares.iter().map(|squares| squares / divisor).collect();
    for (kept, batch) in [(running.mean, &batch.means), (running.var, &variances)] {
        let moved: Vec<f64> =
            kept.to_f64_vec()?.iter().zip(batch).map(|(old, new)| (1.0 - share) * old + share * new).collect();
        write(kept, &moved)?;
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
            let there = || Tensor::from_shape(x.queue(), own.shape.as_slice(), own.dtype);
            let (shift, scale) = (there()?, there()?);
            let (ranks, samples, count) = (own.group.clone(), own.own, own.count.clone());
            let (reads, writes) = ([shifts.raw(), scales.raw()], [shift.raw(), scale.raw()]);
            on_host(CALL, x.queue(), &reads, &writes, move |reads, writes| {
                let mut sums = reads[0].to_f64_vec()?;
                let channels = sums.len();
                sums.extend(reads[1].to_f64_vec()?);
                // A rank's gradients count by its number of samples, here as in `sync_grads`, which multiplies by its share afterwards.
                sums.iter_mut().for_each(|sum| *sum *= samples);
                ranks.all_reduce_bytes(CALL, bytemuck::cast_slice_mut(&mut sums), DType::F64, Reduce::Sum)?;
                let count = *count.lock().unwrap_or_else(PoisonError::into_inner);
                sums.iter_mut().for_each(|sum| *sum /= count * samples.max(1.0));
                write(&writes[0], &sums[..channels])?;
                write(&writes[1], &sums[channels..])
            })
            .map_err(Error::into_autograd)?;
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
