//! Activations as modules: one line each, over the elementwise table.

use netcl_autograd::ops::{elementwise, softmax};
use netcl_autograd::{Result, Tensor};

use crate::module::{Module, print_as_module};

/// A module from a function of the elementwise table; parameters become public fields with the table's defaults.
macro_rules! activations {
    ($($(#[$doc:meta])* $name:ident = $function:ident $({ $($(#[$field_doc:meta])* $field:ident = $default:expr),+ })?;)*) => {$(
        activations!(@type $(#[$doc])* $name $({ $($(#[$field_doc])* $field = $default),+ })?);

        impl Module for $name {
            fn forward(&self, input: &Tensor) -> Result<Tensor> {
                elementwise::$function(input $($(, self.$field)+)?)
            }

            $(fn arguments(&self) -> String {
                [$(format!("{}={}", stringify!($field), self.$field)),+].join(", ")
            })?
        }

        print_as_module!($name);
    )*};
    (@type $(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default)]
        pub struct $name;
    };
    (@type $(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident = $default:expr),+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: f64),+
        }

        impl Default for $name {
            fn default() -> Self {
                $name { $($field: $default),+ }
            }
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
    /// ELU with the two constants that keep mean 0 and variance 1.
    SELU = selu;
    /// `x * normcdf(x)`, exactly.
    GELU = gelu;
    /// GELU in its tanh approximation.
    GELUTanh = gelu_tanh;
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
    /// `x` between two bounds, constant outside.
    Hardtanh = hardtanh {
        /// The lower bound.
        min_val = -1.0,
        /// The upper bound.
        max_val = 1.0
    };
    /// 0 below -3, 1 above 3, a line between.
    Hardsigmoid = hardsigmoid;
    /// `x * hardsigmoid(x)`.
    Hardswish = hardswish;
}

/// A module from a softmax along an axis.
macro_rules! along_an_axis {
    ($($(#[$doc:meta])* $name:ident = $function:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub struct $name {
            /// The axis.
            pub axis: isize,
        }

        impl Default for $name {
            fn default() -> Self {
                $name { axis: -1 }
            }
        }

        impl Module for $name {
            fn forward(&self, input: &Tensor) -> Result<Tensor> {
                softmax::$function(input, self.axis)
            }

            fn arguments(&self) -> String {
                format!("axis={}", self.axis)
            }
        }

        print_as_module!($name);
    )*};
}

along_an_axis! {
    /// `exp(x) / sum(exp(x))` along an axis; the last one unless told otherwise.
    Softmax = softmax;
    /// `log(softmax(x))` along an axis; the last one unless told otherwise.
    LogSoftmax = log_softmax;
}
