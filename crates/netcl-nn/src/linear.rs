//! The fully connected layer.

use netcl_autograd::core::Error as CoreError;
use netcl_autograd::core::backend::Queue;
use netcl_autograd::core::dtype::DType;
use netcl_autograd::core::random::Generator;
use netcl_autograd::ops::matmul::linear;
use netcl_autograd::{Result, Tensor};

use crate::init::{Fan, Gain, Init};
use crate::members;
use crate::module::{Module, print_as_module};

/// `x @ weight.T + bias` over the last axis.
///
/// The weight has shape `[out_features, in_features]`. Both start uniform between plus and minus
/// `1 / sqrt(in_features)`, as in PyTorch, from netcl's own generator: one seed gives the same bits on every device.
///
/// ```
/// use netcl_nn::autograd::{Tensor, core::device::manager};
/// use netcl_nn::{Linear, Module};
///
/// let queue = manager().cpu().queue;
/// let layer = Linear::new(&queue, 3, 5)?;
/// let y = layer.forward(&Tensor::from_host(&queue, &[0.0f32; 6], [2, 3])?)?;
/// assert_eq!(y.shape()[..], [2, 5]);
/// assert_eq!(layer.to_string(), "Linear(in_features=3, out_features=5, bias=true)");
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
pub struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
}

/// How [`Linear::new_with`] makes a layer.
#[derive(Debug)]
pub struct LinearOptions<'g> {
    /// Whether a bias is added.
    pub bias: bool,
    /// The parameters' dtype.
    pub dtype: DType,
    /// Where the first weights come from; the process-wide generator where none is given.
    pub generator: Option<&'g mut Generator>,
}

impl Default for LinearOptions<'_> {
    fn default() -> Self {
        LinearOptions { bias: true, dtype: DType::F32, generator: None }
    }
}

impl Linear {
    /// A float32 layer with a bias.
    pub fn new(queue: &Queue, in_features: usize, out_features: usize) -> Result<Linear> {
        Linear::new_with(queue, in_features, out_features, LinearOptions::default())
    }

    /// A layer without a bias, of another dtype, or from a generator of its own.
    pub fn new_with(
        queue: &Queue,
        in_features: usize,
        out_features: usize,
        options: LinearOptions<'_>,
    ) -> Result<Linear> {
        let LinearOptions { bias, dtype, mut generator } = options;
        // With this slope kaiming's bound is 1 / sqrt(in_features).
        let law = Init::KaimingUniform { gain: Gain::LeakyRelu(5f64.sqrt()), fan: Fan::In };
        let weight = law.tensor(queue, [out_features, in_features], dtype, generator.as_deref_mut())?;
        let bound = if in_features == 0 { 0.0 } else { 1.0 / (in_features as f64).sqrt() };
        let law = Init::Uniform { low: -bound, high: bound };
        let bias = bias.then(|| law.tensor(queue, [out_features], dtype, generator)).transpose()?;
        Linear::from_parameters(weight, bias)
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
            return Err(CoreError::argument("Linear", what).into());
        }
        Ok(Linear { weight: weight.with_grad(), bias: bias.map(Tensor::with_grad) })
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
}

impl Module for Linear {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        linear(input, &self.weight, self.bias.as_ref())
    }

    fn arguments(&self) -> String {
        let (inputs, outputs, bias) = (self.in_features(), self.out_features(), self.bias.is_some());
        format!("in_features={inputs}, out_features={outputs}, bias={bias}")
    }

    members! { parameters: weight, bias }
}

print_as_module!(Linear);
