//! Activations as modules: one line each, over the elementwise table.

use netcl_autograd::ops::layout::reshape;
use netcl_autograd::ops::{activation, elementwise, softmax};
use netcl_autograd::{Error, Queue, Result, Tensor};

use crate::Module;
use crate::config::Build;
use crate::init::Init;
use crate::settings::Settings;

/// A module from a function of the elementwise table; parameters become public fields with the table's defaults.
macro_rules! activations {
    ($($(#[$doc:meta])* $name:ident = $function:ident $({ $($(#[$field_doc:meta])* $field:ident = $default:expr),+ })?;)*) => {$(
        activations!(@type $(#[$doc])* $name $({ $($(#[$field_doc])* $field = $default),+ })?);

        impl $name {
            /// The result for an input.
            pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
                crate::scope::run(self, || {
                    elementwise::$function(input $($(, self.$field)+)?)
                })
            }
        }
    )*};
    (@type $(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Module, Settings)]
        #[module(settings)]
        pub struct $name;
    };
    (@type $(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident = $default:expr),+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Module, Settings)]
        #[module(settings)]
        pub struct $name {
            $($(#[$field_doc])* #[setting(default = $default)] pub $field: f64),+
        }
    };
}

activations! {
    /// `max(x, 0)`.
    ReLU = relu;
    /// `min(max(x, 0), 6)`.
    ReLU6 = relu6;
    /// `x` above 0, a multiple of it below.
    LeakyReLU = leaky_relu {
        /// The multiple.
        negative_slope = 0.01
    };
    /// `x` above 0, `alpha * (exp(x) - 1)` below.
    ELU = elu {
        /// Minus the limit far below 0.
        alpha = 1.0
    };
    /// `x` above 0, `alpha * (exp(x / alpha) - 1)` below: smooth at 0 for every `alpha`.
    CELU = celu {
        /// Minus the limit far below 0.
        alpha = 1.0
    };
    /// ELU with the two constants that keep mean 0 and variance 1.
    SELU = selu;
    /// `x * sigmoid(x)`.
    SiLU = silu;
    /// `x * tanh(softplus(x))`.
    Mish = mish;
    /// Hyperbolic tangent.
    Tanh = tanh;
    /// `1 / (1 + exp(-x))`.
    Sigmoid = sigmoid;
    /// `log(sigmoid(x))`.
    LogSigmoid = logsigmoid;
    /// `log(1 + exp(beta * x)) / beta`; linear where `beta * x` exceeds the threshold.
    Softplus = softplus {
        /// How sharp the bend is.
        beta = 1.0,
        /// Where it counts as linear.
        threshold = 20.0
    };
    /// `x / (1 + |x|)`.
    Softsign = softsign;
    /// 0 below -3, 1 above 3, a line between.
    Hardsigmoid = hardsigmoid;
    /// `x * hardsigmoid(x)`.
    Hardswish = hardswish;
    /// `x`, and 0 where `|x|` is at most `lambd`.
    Hardshrink = hardshrink {
        /// The bound.
        lambd = 0.5
    };
    /// `x` moved towards 0 by `lambd`, and 0 where `|x|` is at most `lambd`.
    Softshrink = softshrink {
        /// The bound.
        lambd = 0.5
    };
    /// `x - tanh(x)`.
    Tanhshrink = tanhshrink;
}

/// `x` between two bounds, constant outside.
#[derive(Clone, Copy, Module, Settings)]
#[module(settings)]
#[settings(check = Hardtanh::check_bounds)]
pub struct Hardtanh {
    /// The lower bound.
    #[setting(default = -1.0)]
    pub min_val: f64,
    /// The upper bound.
    #[setting(default = 1.0)]
    pub max_val: f64,
}

impl Hardtanh {
    fn check_bounds(&self, layer: &'static str) -> Result<()> {
        let Hardtanh { min_val, max_val } = self;
        if min_val <= max_val {
            return Ok(());
        }
        Err(Error::argument(layer, format!("min_val={min_val:?} is above max_val={max_val:?}")))
    }

    /// The result for an input.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || elementwise::hardtanh(input, self.min_val, self.max_val))
    }
}

crate::choices! {
    /// How [`GELU`] is computed.
    pub enum Approximation {
        /// Exactly.
        #[default]
        None = "none",
        /// By a hyperbolic tangent.
        Tanh = "tanh",
    }
}

/// `x * normcdf(x)`, exactly or in its tanh approximation.
#[derive(Clone, Copy, Module, Settings)]
#[module(settings)]
pub struct GELU {
    /// How it is computed.
    #[setting(default)]
    pub approximate: Approximation,
}

impl GELU {
    /// The result for an input.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || match self.approximate {
            Approximation::None => elementwise::gelu(input),
            Approximation::Tanh => elementwise::gelu_tanh(input),
        })
    }
}

/// `x` above 0, elsewhere a multiple of it: in training a random one for each element, else the mean of the bounds.
#[derive(Clone, Copy, Module, Settings)]
#[module(settings)]
pub struct RReLU {
    /// The smallest multiple.
    #[setting(default = 1.0 / 8.0)]
    pub lower: f64,
    /// The largest multiple.
    #[setting(default = 1.0 / 3.0)]
    pub upper: f64,
    #[setting(skip = true)]
    training: bool,
}

impl RReLU {
    /// The result for an input.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || activation::rrelu(input, self.lower, self.upper, self.training, None))
    }
}

/// `x` above the threshold, another value elsewhere.
#[derive(Clone, Copy, Module, Settings)]
#[module(settings)]
pub struct Threshold {
    /// The threshold.
    pub threshold: f64,
    /// What takes the place of numbers up to it.
    pub value: f64,
}

impl Threshold {
    /// The result for an input.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || elementwise::threshold(input, self.threshold, self.value))
    }
}

/// A module from a function along an axis.
macro_rules! along_an_axis {
    ($($(#[$doc:meta])* $name:ident = $function:path;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Module, Settings)]
        #[module(settings)]
        pub struct $name {
            /// The axis.
            #[setting(default = -1, alias = "dim")]
            pub axis: isize,
        }

        impl $name {
            /// The result for an input.
            pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
                crate::scope::run(self, || {
                    $function(input, self.axis)
                })
            }
        }
    )*};
}

along_an_axis! {
    /// `exp(x) / sum(exp(x))` along an axis; the last one unless told otherwise.
    Softmax = softmax::softmax;
    /// `log(softmax(x))` along an axis; the last one unless told otherwise.
    LogSoftmax = softmax::log_softmax;
    /// `softmax(-x)` along an axis; the last one unless told otherwise.
    Softmin = softmax::softmin;
    /// `a * sigmoid(b)` of the two halves `a` and `b` of an axis; the last one unless told otherwise.
    GLU = activation::glu;
}

/// [`Softmax`] over the channels of images `[N, C, H, W]` or `[C, H, W]`.
#[derive(Clone, Copy, Module, Settings)]
#[module(settings)]
pub struct Softmax2d;

impl Softmax2d {
    /// The result for an input.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || {
            if !matches!(input.ndim(), 3 | 4) {
                return Err(Error::shape("Softmax2d", input.shape(), "it takes (N, C, H, W) or (C, H, W)"));
            }
            softmax::softmax(input, -3)
        })
    }
}

/// `x` above 0, a learned multiple of it below.
#[derive(Module)]
pub struct PReLU {
    weight: Tensor,
    #[module(settings)]
    settings: PReLUOptions,
}

/// How a [`PReLU`] is made.
#[derive(Clone, Debug, Settings)]
pub struct PReLUOptions {
    /// The number of multiples: one for all elements, or one for each channel (axis 1).
    #[setting(default = 1, least = 1)]
    pub num_parameters: usize,
    /// What they start as.
    #[setting(default = 0.25)]
    pub init: f64,
}

impl PReLU {
    /// A float32 layer with one multiple for all elements.
    pub fn new(queue: &Queue) -> Result<PReLU> {
        PReLU::new_with(queue, PReLUOptions::default())
    }

    fn make(build: &mut Build<'_>, settings: PReLUOptions) -> Result<PReLU> {
        let weight = build.parameter(Init::Constant(settings.init), [settings.num_parameters])?;
        Ok(PReLU { weight, settings })
    }

    /// The multiples.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// The result for an input.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || {
            let count = self.weight.size();
            if count == 1 {
                return elementwise::prelu(input, &self.weight);
            }
            if input.shape().get(1) != Some(&count) {
                let shape = input.shape();
                let what = format!("PReLU has {count} slopes, one for each channel; the input has shape {shape}");
                return Err(Error::argument("PReLU", what));
            }
            let mut shape = vec![1; input.ndim() - 1];
            shape[0] = count;
            elementwise::prelu(input, &reshape(&self.weight, shape)?)
        })
    }
}
