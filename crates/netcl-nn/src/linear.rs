//! Fully connected layers.

use netcl_autograd::Queue;
use netcl_autograd::ops::matmul::{bilinear, linear};
use netcl_autograd::{Error, Result, Tensor};

use crate::Module;
use crate::config::Build;
use crate::init::Init;
use crate::settings::Settings;

/// `x @ weight.T + bias` over the last axis.
///
/// The weight has shape `[out_features, in_features]`. Both start uniform between plus and minus
/// `1 / sqrt(in_features)`, as in PyTorch, from netcl's own generator: one seed gives the same bits on every device.
///
/// ```
/// use netcl_nn::autograd::{Tensor, manager};
/// use netcl_nn::{Linear, Module};
///
/// let queue = manager().cpu().queue;
/// let layer = Linear::new(&queue, 3, 5)?;
/// let y = layer.forward(&Tensor::from_host(&queue, &[0.0f32; 6], [2, 3])?)?;
/// assert_eq!(y.shape()[..], [2, 5]);
/// assert_eq!(layer.to_string(), "Linear(in_features=3, out_features=5, bias=True)");
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
#[derive(Module)]
pub struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
    #[module(settings)]
    settings: LinearOptions,
}

/// How a [`Linear`] is made.
#[derive(Clone, Debug, Settings)]
pub struct LinearOptions {
    /// The length of the input's last axis.
    pub in_features: usize,
    /// The length of the result's last axis.
    pub out_features: usize,
    /// Whether a bias is added.
    #[setting(default = true)]
    pub bias: bool,
}

impl Linear {
    /// A float32 layer with a bias.
    pub fn new(queue: &Queue, in_features: usize, out_features: usize) -> Result<Linear> {
        Linear::new_with(queue, LinearOptions::new(in_features, out_features))
    }

    fn make(build: &mut Build<'_>, settings: LinearOptions) -> Result<Linear> {
        let LinearOptions { in_features, out_features, bias } = settings;
        let (weight, bias) = build.weight_and_bias([out_features, in_features], bias.then_some(out_features))?;
        Ok(Linear { weight, bias, settings })
    }

    /// A layer over existing values: a weight of shape `[out_features, in_features]` and a bias of `[out_features]`.
    ///
    /// # Errors
    /// If the shapes do not fit.
    pub fn from_parameters(weight: Tensor, bias: Option<Tensor>) -> Result<Linear> {
        let fits = weight.ndim() == 2 && bias.as_ref().is_none_or(|bias| **bias.shape() == weight.shape()[..1]);
        if !fits {
            let bias = bias.map_or_else(|| "none".to_owned(), |bias| bias.shape().to_string());
            let what = format!(
                "weight has shape {} and bias {bias}; use (out_features, in_features) and (out_features,)",
                weight.shape()
            );
            return Err(Error::argument("Linear", what));
        }
        let settings =
            LinearOptions { bias: bias.is_some(), ..LinearOptions::new(weight.shape()[1], weight.shape()[0]) };
        Ok(Linear { weight: weight.with_grad(), bias: bias.map(Tensor::with_grad), settings })
    }

    /// The weight, of shape `[out_features, in_features]`.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// The bias, of shape `[out_features]`.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// The length of the input's last axis.
    pub fn in_features(&self) -> usize {
        self.weight.shape()[1]
    }

    /// The length of the result's last axis.
    pub fn out_features(&self) -> usize {
        self.weight.shape()[0]
    }

    /// The result for an input.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || {
            let features = self.in_features();
            if input.shape().last() != Some(&features) {
                let layer = format!("Linear(in_features={features})");
                return Err(Error::input(layer, format!("(..., {features})"), input.shape()));
            }
            linear(input, &self.weight, self.bias.as_ref())
        })
    }
}

/// `x1 @ weight[i] @ x2 + bias[i]` for every output `i`, over the last axes of two inputs.
///
/// The weight has shape `[out_features, in1_features, in2_features]`; both start uniform between plus and minus
/// `1 / sqrt(in1_features)`, as in PyTorch.
#[derive(Module)]
#[module(no_forward)]
pub struct Bilinear {
    weight: Tensor,
    bias: Option<Tensor>,
    #[module(settings)]
    settings: BilinearOptions,
}

/// How a [`Bilinear`] is made.
#[derive(Clone, Debug, Settings)]
pub struct BilinearOptions {
    /// The length of the first input's last axis.
    #[setting(least = 1)]
    pub in1_features: usize,
    /// The length of the second input's last axis.
    #[setting(least = 1)]
    pub in2_features: usize,
    /// The length of the result's last axis.
    #[setting(least = 1)]
    pub out_features: usize,
    /// Whether a bias is added.
    #[setting(default = true)]
    pub bias: bool,
}

impl Bilinear {
    /// A float32 layer with a bias.
    pub fn new(queue: &Queue, in1_features: usize, in2_features: usize, out_features: usize) -> Result<Bilinear> {
        Bilinear::new_with(queue, BilinearOptions::new(in1_features, in2_features, out_features))
    }

    fn make(build: &mut Build<'_>, settings: BilinearOptions) -> Result<Bilinear> {
        let BilinearOptions { in1_features, in2_features, out_features, bias } = settings;
        let bound = 1.0 / (in1_features as f64).sqrt();
        let start = Init::Uniform { low: -bound, high: bound };
        let weight = build.parameter(start, [out_features, in1_features, in2_features])?;
        let bias = bias.then(|| build.parameter(start, [out_features])).transpose()?;
        Ok(Bilinear { weight, bias, settings })
    }

    /// The result for two inputs, whose axes but the last are the same.
    pub fn forward(&self, x1: &Tensor, x2: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || bilinear(x1, x2, &self.weight, self.bias.as_ref()))
    }
}
