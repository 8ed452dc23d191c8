//! Dropout.

use netcl_autograd::ops::dropout::{Dropped, alpha_dropout, dropout};
use netcl_autograd::ops::elementwise::mul;
use netcl_autograd::{Error, Generator, Result, Tensor};

use crate::Module;
use crate::settings::{Settings, probability};

/// A module of a probability that passes everything in evaluation.
macro_rules! dropouts {
    ($($(#[$doc:meta])* $name:ident $(<$axes:literal>)? $(= $dropped:ident)?;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Module, Settings)]
        #[module(settings)]
        #[settings(check = $name::check)]
        pub struct $name {
            #[setting(default = 0.5)]
            p: f64,
            #[setting(default = None, quiet)]
            seed: Option<usize>,
            #[setting(skip = true)]
            training: bool,
        }

        impl $name {
            /// Drops with this probability.
            ///
            /// # Errors
            /// If it is not a number from 0 to 1.
            pub fn new(p: f64) -> Result<$name> {
                let layer = $name { p, seed: None, training: true };
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

            /// Drops the same places in every call.
            pub fn seeded(self, seed: usize) -> $name {
                $name { seed: Some(seed), ..self }
            }

            /// The result for an input.
            pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
                crate::scope::run(self, || {
                    $(channels(stringify!($name), input, $axes)?;)?
                    if !self.training || self.p == 0.0 {
                        return Ok(input.clone());
                    }
                    let mut generator = self.seed.map(|seed| Generator::new(seed as u64));
                    dropouts!(@drop input, self.p, generator.as_mut() $(, $axes)? $(, $dropped)?)
                })
            }
        }
    )*};
    (@drop $x:expr, $p:expr, $generator:expr) => { dropout($x, $p, $generator) };
    (@drop $x:expr, $p:expr, $generator:expr, $dropped:ident) => {
        alpha_dropout($x, $p, Dropped::$dropped, $generator)
    };
    (@drop $x:expr, $p:expr, $generator:expr, $axes:literal) => {{
        let mut shape = [1; $axes];
        shape[..2].copy_from_slice(&$x.shape()[..2]);
        mul($x, &dropout(&Tensor::full($x.queue(), shape, $x.dtype(), 1.0)?, $p, $generator)?)
    }};
}

/// Refuses what has no channels to drop.
fn channels(layer: &str, x: &Tensor, axes: usize) -> Result<()> {
    let takes = if axes == 3 { "(N, C, L)" } else { "(N, C, H, W)" };
    if x.ndim() == axes { Ok(()) } else { Err(Error::input(layer, takes, x.shape())) }
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
    Dropout;
    /// [`Dropout`] of whole channels of sequences `[N, C, L]`.
    Dropout1d<3>;
    /// [`Dropout`] of whole channels of images `[N, C, H, W]`: neighbouring pixels are too alike for single ones to matter.
    Dropout2d<4>;
    /// [`Dropout`] for networks of [`SELU`](crate::SELU): what is dropped gets its lowest value, and a scale and a shift keep mean
    /// 0 and variance 1.
    AlphaDropout = Elements;
    /// [`AlphaDropout`] of whole channels of `[N, C, ...]`.
    FeatureAlphaDropout = Channels;
}
