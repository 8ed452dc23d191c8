//! How parameters start.

mod host;

use netcl_autograd::ops::random::{normal, uniform};
use netcl_autograd::{DType, Error, Generator, HostOptions, Queue, Result, Shape, Tensor};

/// A rule for the first values of a parameter. Random numbers come from netcl's Philox generator: a seed and a shape give the
/// same uniform bits on every device.
///
/// The fans of a shape `[out, in, k...]` are `in * k...` and `out * k...`.
///
/// ```
/// use netcl_nn::autograd::{DType, Generator, manager};
/// use netcl_nn::init::{Fan, Gain, Init};
///
/// let queue = manager().cpu().queue;
/// let law = Init::KaimingUniform { gain: Gain::Relu, fan: Fan::In };
/// let weight = law.tensor(&queue, [64, 6], DType::F32, Some(&mut Generator::new(1)))?;
/// assert!(weight.to_host::<f32>()?.iter().all(|w| w.abs() <= 1.0)); // sqrt(2) * sqrt(3 / 6)
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// One value everywhere.
    Constant(f64),
    /// Uniform in [low, high).
    Uniform {
        /// The lower bound.
        low: f64,
        /// The upper bound.
        high: f64,
    },
    /// Normal.
    Normal {
        /// The mean.
        mean: f64,
        /// The standard deviation.
        std: f64,
    },
    /// Normal, but only between two bounds.
    TruncNormal {
        /// The mean.
        mean: f64,
        /// The standard deviation before the tails are cut off.
        std: f64,
        /// The lower bound.
        low: f64,
        /// The upper bound.
        high: f64,
    },
    /// A random matrix with orthonormal rows, or columns where there are fewer of them (Saxe et al., 2013); axes from the second
    /// on count as one.
    Orthogonal {
        /// What the activation behind it does to the deviation.
        gain: Gain,
    },
    /// Uniform with the deviation `gain * sqrt(2 / (fan in + fan out))` (Glorot and Bengio, 2010).
    XavierUniform {
        /// What the activation behind it does to the deviation.
        gain: Gain,
    },
    /// The same, normal.
    XavierNormal {
        /// What the activation behind it does to the deviation.
        gain: Gain,
    },
    /// Uniform with the deviation `gain / sqrt(fan)` (He et al., 2015).
    KaimingUniform {
        /// What the activation behind it does to the deviation.
        gain: Gain,
        /// Which fan.
        fan: Fan,
    },
    /// The same, normal.
    KaimingNormal {
        /// What the activation behind it does to the deviation.
        gain: Gain,
        /// Which fan.
        fan: Fan,
    },
}

/// Which pass keeps its variance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fan {
    /// The forward pass: the number of inputs of an output.
    #[default]
    In,
    /// The backward pass: the number of outputs of an input.
    Out,
}

/// The factor by which weights must be larger for the activation behind them to keep the deviation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gain {
    /// 1: for linear layers, convolutions and sigmoids.
    Linear,
    /// 5/3.
    Tanh,
    /// sqrt(2).
    Relu,
    /// `sqrt(2 / (1 + slope^2))`, with the slope below 0.
    LeakyRelu(f64),
    /// 3/4.
    Selu,
    /// Any factor.
    Factor(f64),
}

impl Gain {
    /// The factor.
    pub fn factor(self) -> f64 {
        match self {
            Gain::Linear => 1.0,
            Gain::Tanh => 5.0 / 3.0,
            Gain::Relu => 2f64.sqrt(),
            Gain::LeakyRelu(slope) => (2.0 / (1.0 + slope * slope)).sqrt(),
            Gain::Selu => 0.75,
            Gain::Factor(factor) => factor,
        }
    }

    /// The gain of an activation by PyTorch's name for it; `slope` is for `"leaky_relu"`.
    pub fn parse(name: &str, slope: f64) -> Result<Gain> {
        match name {
            "linear" | "conv1d" | "conv2d" | "conv3d" | "sigmoid" => Ok(Gain::Linear),
            "tanh" => Ok(Gain::Tanh),
            "relu" => Ok(Gain::Relu),
            "leaky_relu" => Ok(Gain::LeakyRelu(slope)),
            "selu" => Ok(Gain::Selu),
            _ => {
                let what = format!(
                    "no gain is known for {name:?}; use \"linear\", \"conv1d\" to \"conv3d\", \"sigmoid\", \"tanh\", \
                     \"relu\", \"leaky_relu\" or \"selu\""
                );
                Err(Error::argument("init", what))
            }
        }
    }
}

impl Fan {
    /// `"fan_in"` or `"fan_out"`.
    pub fn parse(name: &str) -> Result<Fan> {
        match name {
            "fan_in" => Ok(Fan::In),
            "fan_out" => Ok(Fan::Out),
            _ => {
                let what = format!("there is no mode {name:?}; use \"fan_in\" or \"fan_out\"");
                Err(Error::argument("init", what))
            }
        }
    }
}

/// What a rule comes down to for one shape.
enum Law {
    Constant(f64),
    Uniform(f64, f64),
    Normal(f64, f64),
    Truncated { law: (f64, f64), bounds: (f64, f64) },
    Orthogonal { rows: usize, columns: usize, factor: f64 },
}

impl Init {
    /// A new tensor with these values; the process-wide generator is used and moved on where none is given.
    ///
    /// # Errors
    /// For rules with fans and a shape of less than two axes, and for bounds that are not numbers in order.
    pub fn tensor(
        self,
        queue: &Queue,
        shape: impl Into<Shape>,
        dtype: DType,
        generator: Option<&mut Generator>,
    ) -> Result<Tensor> {
        let shape = shape.into();
        shape.nbytes("init", dtype)?;
        match self.law(&shape)? {
            Law::Constant(value) => Tensor::full(queue, shape, dtype, value),
            Law::Uniform(low, high) => uniform(queue, shape, dtype, low, high, generator),
            Law::Normal(mean, std) => normal(queue, shape, dtype, mean, std, generator),
            Law::Truncated { law, bounds } => {
                let values = host::truncated(shape.size(), law, bounds, generator)?;
                from_values(queue, &values, shape, dtype)
            }
            Law::Orthogonal { rows, columns, factor } => {
                let values = host::orthogonal(rows, columns, factor, generator)?;
                from_values(queue, &values, shape, dtype)
            }
        }
    }

    /// Overwrites a tensor with these values, unrecorded.
    pub fn fill(self, tensor: &Tensor, generator: Option<&mut Generator>) -> Result<()> {
        let values = self.tensor(tensor.queue(), tensor.shape().clone(), tensor.dtype(), generator)?;
        Ok(tensor.assign(&values)?)
    }

    fn law(self, shape: &Shape) -> Result<Law> {
        let even = |deviation: f64| Law::Uniform(-deviation * 3f64.sqrt(), deviation * 3f64.sqrt());
        let bell = |deviation: f64| Law::Normal(0.0, deviation);
        Ok(match self {
            Init::Constant(value) => Law::Constant(value),
            Init::Uniform { low, high } => Law::Uniform(low, high),
            Init::Normal { mean, std } => Law::Normal(mean, std),
            Init::TruncNormal { mean, std, low, high } => Law::Truncated { law: (mean, std), bounds: (low, high) },
            Init::Orthogonal { gain } => {
                let &[rows, ref rest @ ..] = &shape[..] else { return Err(too_flat(shape)) };
                if rest.is_empty() {
                    return Err(too_flat(shape));
                }
                Law::Orthogonal { rows, columns: rest.iter().product(), factor: gain.factor() }
            }
            Init::XavierUniform { gain } => even(xavier(gain, shape)?),
            Init::XavierNormal { gain } => bell(xavier(gain, shape)?),
            Init::KaimingUniform { gain, fan } => even(kaiming(gain, fan, shape)?),
            Init::KaimingNormal { gain, fan } => bell(kaiming(gain, fan, shape)?),
        })
    }
}

fn from_values(queue: &Queue, values: &[f64], shape: Shape, dtype: DType) -> Result<Tensor> {
    Tensor::from_host_with(queue, values, shape, HostOptions { dtype: Some(dtype), ..Default::default() })
}

fn too_flat(shape: &Shape) -> Error {
    let why = "the rule is for weights of shape (out, in, ...): at least two axes are needed".to_owned();
    Error::shape("init", shape, why)
}

/// The number of inputs of an output and of outputs of an input.
fn fans(shape: &Shape) -> Result<(f64, f64)> {
    let [out, input, window @ ..] = &shape[..] else { return Err(too_flat(shape)) };
    let window: usize = window.iter().product();
    Ok(((input * window) as f64, (out * window) as f64))
}

fn xavier(gain: Gain, shape: &Shape) -> Result<f64> {
    let (input, out) = fans(shape)?;
    // A tensor without elements has no deviation to speak of.
    Ok(gain.factor() * (2.0 / (input + out).max(1.0)).sqrt())
}

fn kaiming(gain: Gain, fan: Fan, shape: &Shape) -> Result<f64> {
    let (input, out) = fans(shape)?;
    let fan = match fan {
        Fan::In => input,
        Fan::Out => out,
    };
    Ok(gain.factor() / fan.max(1.0).sqrt())
}
