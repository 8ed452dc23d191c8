//! Dropout.

use netcl_autograd::ops::dropout::dropout;
use netcl_autograd::ops::elementwise::mul;
use netcl_autograd::{Error, Result, Tensor};

use crate::Module;
use crate::settings::{Settings, probability};

/// A module of a probability that passes everything in evaluation.
macro_rules! dropouts {
    ($($(#[$doc:meta])* $name:ident = $function:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Module, Settings)]
        #[module(settings)]
        #[settings(check = $name::check)]
        pub struct $name {
            #[setting(default = 0.5)]
            p: f64,
            #[setting(skip = true)]
            training: bool,
        }

        impl $name {
            /// Drops with this probability.
            ///
            /// # Errors
            /// If it is not a number from 0 to 1.
            pub fn new(p: f64) -> Result<$name> {
                let layer = $name { p, training: true };
                layer.check(stringify!($name))?;
                Ok(layer)
            }

            fn check(&self, layer: &'static str) -> Result<()> {
                probability(layer, "p", self.p)
            }

            /// The probability with which something is dropped.
            pub fn p(&self) -> f64 {
                self.p
            }

            /// The result for an input.
            pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
                if !self.training || self.p == 0.0 {
                    return Ok(input.clone());
                }
                let function: fn(&Tensor, f64) -> Result<Tensor> = $function;
                function(input, self.p)
            }
        }
    )*};
}

dropouts! {
    /// In training sets elements to zero with probability `p` and divides the others by `1 - p`; in evaluation passes
    /// everything. Random numbers come from the process-wide generator
    /// ([`manual_seed`](netcl_autograd::manual_seed)).
    ///
    /// ```
    /// use netcl_nn::autograd::{Tensor, manager};
    /// use netcl_nn::{Dropout, Module};
    ///
    /// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32; 100], [100])?;
    /// let mut layer = Dropout::new(0.5)?;
    /// assert!(layer.forward(&x)?.to_host::<f32>()?.iter().all(|&y| y == 0.0 || y == 2.0));
    /// layer.eval();
    /// assert_eq!(layer.forward(&x)?.to_host::<f32>()?, [1.0; 100]);
    /// # Ok::<(), netcl_nn::autograd::Error>(())
    /// ```
    Dropout = |x, p| dropout(x, p, None);
    /// [`Dropout`] of whole channels of `[N, C, ...]`: neighbouring pixels are too alike for single ones to matter.
    Dropout2d = |x, p| {
        let &[samples, channels, ref places @ ..] = &x.shape()[..] else {
            let why = "it takes [N, C, ...]".to_owned();
            return Err(Error::shape("Dropout2d", x.shape(), why));
        };
        let mut shape = vec![1; 2 + places.len()];
        shape[..2].copy_from_slice(&[samples, channels]);
        mul(x, &dropout(&Tensor::full(x.queue(), shape, x.dtype(), 1.0)?, p, None)?)
    };
}
