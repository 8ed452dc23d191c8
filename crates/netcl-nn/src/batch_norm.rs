//! Batch normalisation.

use std::ops::Deref;

use netcl_autograd::ops::norm::{Running, batch_norm, batch_norm_eval};
use netcl_autograd::{DType, Error, Queue, Result, Tensor};

use crate::members;
use crate::module::{Member, MemberMut, Module, print_as_module};

/// How a [`BatchNorm`] is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNormOptions {
    /// Added to variances.
    pub eps: f64,
    /// The share of a new batch in the running averages; `None` makes them the plain averages of all batches.
    pub momentum: Option<f64>,
    /// Whether normalised values are scaled and shifted by parameters.
    pub affine: bool,
    /// Whether averages are kept; without them the batch's own statistics are used in evaluation, too.
    pub track_running_stats: bool,
    /// The dtype of the parameters and averages.
    pub dtype: DType,
}

impl Default for BatchNormOptions {
    fn default() -> Self {
        BatchNormOptions { eps: 1e-5, momentum: Some(0.1), affine: true, track_running_stats: true, dtype: DType::F32 }
    }
}

/// Normalises every channel (axis 1): in training by the mean and variance of the batch, in evaluation by their running
/// averages. Any number of further axes; [`BatchNorm1d`] and [`BatchNorm2d`] check it.
///
/// As in PyTorch the variance is divided by n where it normalises and by n - 1 where it is averaged, and
/// `num_batches_tracked` counts the batches seen in training: on the device, so that replays of a captured step count as well.
pub struct BatchNorm {
    weight: Option<Tensor>,
    bias: Option<Tensor>,
    running_mean: Option<Tensor>,
    running_var: Option<Tensor>,
    num_batches_tracked: Option<Tensor>,
    features: usize,
    eps: f64,
    momentum: Option<f64>,
    training: bool,
}

impl BatchNorm {
    /// A float32 layer for so many channels.
    pub fn new(queue: &Queue, features: usize) -> Result<BatchNorm> {
        BatchNorm::new_with(queue, features, BatchNormOptions::default())
    }

    /// A layer with other options. Scales start at 1, shifts at 0, averages at mean 0 and variance 1.
    pub fn new_with(queue: &Queue, features: usize, options: BatchNormOptions) -> Result<BatchNorm> {
        let BatchNormOptions { eps, momentum, affine, track_running_stats: track, dtype } = options;
        let full = |wanted: bool, value| wanted.then(|| Tensor::full(queue, [features], dtype, value)).transpose();
        Ok(BatchNorm {
            weight: full(affine, 1.0)?.map(Tensor::with_grad),
            bias: full(affine, 0.0)?.map(Tensor::with_grad),
            running_mean: full(track, 0.0)?,
            running_var: full(track, 1.0)?,
            num_batches_tracked: track.then(|| Tensor::full(queue, (), DType::I64, 0.0)).transpose()?,
            features,
            eps,
            momentum,
            training: true,
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
        self.features
    }

    /// What is added to variances.
    pub fn eps(&self) -> f64 {
        self.eps
    }

    /// The share of a new batch in the running averages.
    pub fn momentum(&self) -> Option<f64> {
        self.momentum
    }
}

impl Module for BatchNorm {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let (weight, bias) = (self.weight.as_ref(), self.bias.as_ref());
        let averages = self.running_mean.as_ref().zip(self.running_var.as_ref());
        let Some((mean, var)) = averages else {
            return batch_norm(input, weight, bias, None, self.eps);
        };
        if !self.training {
            return batch_norm_eval(input, weight, bias, (mean.raw(), var.raw()), self.eps);
        }
        let batches = self.num_batches_tracked.as_ref().map(Tensor::raw);
        let running = Running { mean: mean.raw(), var: var.raw(), momentum: self.momentum, batches };
        batch_norm(input, weight, bias, Some(running), self.eps)
    }

    fn arguments(&self) -> String {
        let momentum = self.momentum.map_or_else(|| "none".to_owned(), |momentum| momentum.to_string());
        let (affine, track) = (self.weight.is_some(), self.running_mean.is_some());
        format!(
            "num_features={}, eps={}, momentum={momentum}, affine={affine}, track_running_stats={track}",
            self.features, self.eps
        )
    }

    members! {
        parameters: weight, bias;
        buffers: running_mean, running_var, num_batches_tracked;
        mode: training;
    }
}

/// A [`BatchNorm`] that takes inputs of certain numbers of axes only.
macro_rules! checked_by_axes {
    ($($(#[$doc:meta])* $name:ident: $axes:pat, $wanted:literal;)*) => {$(
        $(#[$doc])*
        pub struct $name {
            norm: BatchNorm,
        }

        impl $name {
            /// A float32 layer for so many channels.
            pub fn new(queue: &Queue, features: usize) -> Result<$name> {
                $name::new_with(queue, features, BatchNormOptions::default())
            }

            /// A layer with other options. Scales start at 1, shifts at 0, averages at mean 0 and variance 1.
            pub fn new_with(queue: &Queue, features: usize, options: BatchNormOptions) -> Result<$name> {
                Ok($name { norm: BatchNorm::new_with(queue, features, options)? })
            }
        }

        /// What all batch normalisations have.
        impl Deref for $name {
            type Target = BatchNorm;
            fn deref(&self) -> &BatchNorm {
                &self.norm
            }
        }

        impl Module for $name {
            fn forward(&self, input: &Tensor) -> Result<Tensor> {
                if !matches!(input.ndim(), $axes) {
                    let (shape, why) = (input.shape().clone(), concat!("it takes ", $wanted).to_owned());
                    return Err(Error::shape(stringify!($name), &shape, why));
                }
                self.norm.forward(input)
            }

            fn visit<'m>(&'m self, see: &mut dyn FnMut(&str, Member<'m>)) {
                self.norm.visit(see);
            }

            fn visit_mut<'m>(&'m mut self, see: &mut dyn FnMut(&str, MemberMut<'m>)) {
                self.norm.visit_mut(see);
            }

            fn arguments(&self) -> String {
                self.norm.arguments()
            }
        }

        print_as_module!($name);
    )*};
}

checked_by_axes! {
    /// [`BatchNorm`] of features `[N, C]` or sequences `[N, C, L]`.
    BatchNorm1d: 2 | 3, "[N, C] or [N, C, L]";
    /// [`BatchNorm`] of images `[N, C, H, W]`.
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
    BatchNorm2d: 4, "[N, C, H, W]";
}

print_as_module!(BatchNorm);
