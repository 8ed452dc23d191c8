//! Normalisation of channels, over the batch or over each sample.

use std::sync::Arc;

use netcl_autograd::ops::layout::{squeeze, unsqueeze};
use netcl_autograd::ops::norm::{Running, batch_norm, batch_norm_eval, instance_norm, instance_norm_eval};
use netcl_autograd::{DType, Queue, Result, Tensor};

use crate::Module;
use crate::config::Build;
use crate::init::Init;
use crate::norm::takes;
use crate::settings::Settings;

/// How a [`BatchNorm1d`] or [`BatchNorm2d`] is made.
#[derive(Clone, Debug, Settings)]
pub struct BatchNormOptions {
    /// The number of channels.
    #[setting(least = 1)]
    pub num_features: usize,
    /// Added to variances.
    #[setting(default = 1e-5)]
    pub eps: f64,
    /// The share of a new batch in the running averages; `None` makes them the plain averages of all batches.
    #[setting(default = Some(0.1))]
    pub momentum: Option<f64>,
    /// Whether normalised values are scaled and shifted by parameters.
    #[setting(default = true)]
    pub affine: bool,
    /// Whether averages are kept; without them the batch's own statistics are used in evaluation, too.
    #[setting(default = true)]
    pub track_running_stats: bool,
}

/// How an [`InstanceNorm1d`] or [`InstanceNorm2d`] is made.
#[derive(Clone, Debug, Settings)]
pub struct InstanceNormOptions {
    /// The number of channels.
    #[setting(least = 1)]
    pub num_features: usize,
    /// Added to variances.
    #[setting(default = 1e-5)]
    pub eps: f64,
    /// The share of a new batch in the running averages; `None` leaves them as they are.
    #[setting(default = Some(0.1))]
    pub momentum: Option<f64>,
    /// Whether normalised values are scaled and shifted by parameters.
    #[setting(default = false)]
    pub affine: bool,
    /// Whether averages are kept, which then normalise in evaluation.
    #[setting(default = false)]
    pub track_running_stats: bool,
}

/// What normalises a batch in training: input, scales, shifts, running averages to update, eps.
pub type TrainingNorm =
    Arc<dyn Fn(&Tensor, Option<&Tensor>, Option<&Tensor>, Option<Running<'_>>, f64) -> Result<Tensor> + Send + Sync>;

/// A layer for inputs of some numbers of axes, one of which (`alone`) may be that of a sample without a batch. Batches are counted
/// by batch normalisation only, as in PyTorch.
macro_rules! norms {
    ($($(#[$doc:meta])* $name:ident($options:ident) by $norm:ident, $eval:ident takes $axes:pat, alone $alone:expr, $layout:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Module)]
        pub struct $name {
            weight: Option<Tensor>,
            bias: Option<Tensor>,
            #[module(buffer)]
            running_mean: Option<Tensor>,
            #[module(buffer)]
            running_var: Option<Tensor>,
            // On the device, so that replays of a captured step count as well.
            #[module(buffer)]
            num_batches_tracked: Option<Tensor>,
            #[module(settings)]
            settings: $options,
            training: bool,
            #[module(skip)]
            training_norm: Option<TrainingNorm>,
        }

        impl $name {
            /// A float32 layer for so many channels.
            pub fn new(queue: &Queue, num_features: usize) -> Result<$name> {
                $name::new_with(queue, $options::new(num_features))
            }

            fn make(build: &mut Build<'_>, settings: $options) -> Result<$name> {
                let $options { num_features, affine, track_running_stats: track, .. } = settings;
                let mut full = |wanted: bool, value: f64| {
                    wanted.then(|| build.buffer(Init::Constant(value), [num_features])).transpose()
                };
                Ok($name {
                    weight: full(affine, 1.0)?.map(Tensor::with_grad),
                    bias: full(affine, 0.0)?.map(Tensor::with_grad),
                    running_mean: full(track, 0.0)?,
                    running_var: full(track, 1.0)?,
                    num_batches_tracked: track.then(|| Tensor::full(build.queue(), (), DType::I64, 0.0)).transpose()?,
                    settings,
                    training: true,
                    training_norm: None,
                })
            }

            /// The scales, one per channel.
            pub fn weight(&self) -> Option<&Tensor> {
                self.weight.as_ref()
            }

            /// The shifts, one per channel.
            pub fn bias(&self) -> Option<&Tensor> {
                self.bias.as_ref()
            }

            /// The running average of means, one per channel.
            pub fn running_mean(&self) -> Option<&Tensor> {
                self.running_mean.as_ref()
            }

            /// The running average of variances, one per channel.
            pub fn running_var(&self) -> Option<&Tensor> {
                self.running_var.as_ref()
            }

            /// The number of batches seen in training, one int64.
            pub fn num_batches_tracked(&self) -> Option<&Tensor> {
                self.num_batches_tracked.as_ref()
            }

            /// The number of channels.
            pub fn num_features(&self) -> usize {
                self.settings.num_features
            }

            /// What is added to variances.
            pub fn eps(&self) -> f64 {
                self.settings.eps
            }

            /// Normalises by another function where the batch's own statistics count: one that sees other ranks' samples.
            pub fn set_training_norm(&mut self, norm: Option<TrainingNorm>) {
                self.training_norm = norm;
            }

            fn by_batch(&self, x: &Tensor, running: Option<Running<'_>>) -> Result<Tensor> {
                let (weight, bias, eps) = (self.weight.as_ref(), self.bias.as_ref(), self.settings.eps);
                match &self.training_norm {
                    Some(norm) if self.training => norm(x, weight, bias, running, eps),
                    _ => $norm(x, weight, bias, running, eps),
                }
            }

            /// The result for an input.
            pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
                crate::scope::run(self, || {
                    let $options { num_features, eps, momentum, track_running_stats: track, .. } = self.settings;
                    let alone = $alone == Some(input.ndim());
                    let x = if alone { &unsqueeze(input, 0)? } else { input };
                    if !(matches!(x.ndim(), $axes) && x.shape()[1] == num_features) {
                        return Err(takes(stringify!($name), num_features, format!($layout, c = num_features), input));
                    }
                    let (weight, bias) = (self.weight.as_ref(), self.bias.as_ref());
                    let averages = self.running_mean.as_ref().zip(self.running_var.as_ref()).filter(|_| track);
                    let result = match averages {
                        None => self.by_batch(x, None),
                        Some((mean, var)) if !self.training => $eval(x, weight, bias, (mean.raw(), var.raw()), eps),
                        Some((mean, var)) => {
                            let (mean, var) = (mean.raw(), var.raw());
                            let running = match $alone {
                                None => {
                                    let batches = self.num_batches_tracked.as_ref().map(Tensor::raw);
                                    Running { mean, var, momentum, batches }
                                }
                                Some(_) => Running { mean, var, momentum: momentum.or(Some(0.0)), batches: None },
                            };
                            self.by_batch(x, Some(running))
                        }
                    }?;
                    if alone { squeeze(&result, &[0]) } else { Ok(result) }
                })
            }
        }
    )*};
}

norms! {
    /// [`BatchNorm2d`] of features `[N, C]` or sequences `[N, C, L]`.
    BatchNorm1d(BatchNormOptions) by batch_norm, batch_norm_eval takes 2 | 3, alone None::<usize>, "(N, {c}) or (N, {c}, L)";
    /// Normalises every channel of images `[N, C, H, W]`: in training by the mean and variance of the batch, in evaluation by
    /// their running averages.
    ///
    /// As in PyTorch the variance is divided by n where it normalises and by n - 1 where it is averaged, and
    /// `num_batches_tracked` counts the batches seen in training.
    ///
    /// ```
    /// use netcl_nn::autograd::{Tensor, manager};
    /// use netcl_nn::{BatchNorm2d, Module};
    ///
    /// let queue = manager().cpu().queue;
    /// let mut layer = BatchNorm2d::new(&queue, 1)?;
    /// let x = Tensor::from_host(&queue, &[1.0f32, 3.0, 1.0, 3.0], [1, 1, 2, 2])?;
    /// assert!((layer.forward(&x)?.to_host::<f32>()?[1] - 1.0).abs() < 1e-4);
    /// assert!((layer.running_mean().unwrap().item()? - 0.2).abs() < 1e-6);
    ///
    /// layer.eval(); // from now on by the averages, which stay as they are
    /// assert!(layer.forward(&x)?.to_host::<f32>()?[1] > 2.0);
    /// # Ok::<(), netcl_nn::autograd::Error>(())
    /// ```
    BatchNorm2d(BatchNormOptions) by batch_norm, batch_norm_eval takes 4, alone None::<usize>, "(N, {c}, H, W)";
    /// [`InstanceNorm2d`] of sequences `[N, C, L]` or `[C, L]`.
    InstanceNorm1d(InstanceNormOptions) by instance_norm, instance_norm_eval takes 3, alone Some(2), "(N, {c}, L) or ({c}, L)";
    /// Normalises every channel of each image of `[N, C, H, W]`, or of one `[C, H, W]`, by its own mean and variance.
    InstanceNorm2d(InstanceNormOptions) by instance_norm, instance_norm_eval takes 4, alone Some(3), "(N, {c}, H, W) or ({c}, H, W)";
}
