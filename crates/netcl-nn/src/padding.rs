//! Margins around sequences and images.

use netcl_autograd::ops::pad::{PadMode, pad};
use netcl_autograd::{Error, Result, Tensor};

use crate::Module;
use crate::settings::{Setting, Settings, Value, Wrong};

/// The widths of margins in PyTorch's order: left, right, and top, bottom for images. A single number is all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Margins<const N: usize>(pub [isize; N]);

impl<const N: usize> From<isize> for Margins<N> {
    fn from(width: isize) -> Self {
        Margins([width; N])
    }
}

impl<const N: usize> From<[isize; N]> for Margins<N> {
    fn from(widths: [isize; N]) -> Self {
        Margins(widths)
    }
}

impl<const N: usize> Setting for Margins<N> {
    fn wanted() -> String {
        let order = if N == 2 { "(left, right)" } else { "(left, right, top, bottom)" };
        format!("{}, {order}", <[isize; N]>::wanted())
    }
    fn read(value: &Value) -> std::result::Result<Self, Wrong> {
        <[isize; N]>::read(value).map(Margins)
    }
    fn write(&self) -> Value {
        self.0.write()
    }
}

impl<const N: usize> Margins<N> {
    /// Margins around the last axes of an input of at least one more.
    fn around(
        &self,
        layer: &str,
        input: &Tensor,
        fill: impl FnOnce(&Tensor, &[(isize, isize)]) -> Result<Tensor>,
    ) -> Result<Tensor> {
        if input.ndim() <= N / 2 {
            return Err(Error::input(layer, if N == 2 { "(..., L)" } else { "(..., H, W)" }, input.shape()));
        }
        // Before and after each axis, in the order of the axes.
        let pairs: Vec<_> = self.0.chunks_exact(2).rev().map(|pair| (pair[0], pair[1])).collect();
        fill(input, &pairs)
    }
}

/// The last axes continued with what stands at their other end, as if they were circles.
pub(crate) fn circular(x: &Tensor, pairs: &[(isize, isize)]) -> Result<Tensor> {
    for (axis, &(before, after)) in (-(pairs.len() as isize)..).zip(pairs) {
        let length = x.shape()[x.ndim().wrapping_add_signed(axis)] as isize;
        if before.min(after) < 0 || before.max(after) > length {
            let what =
                format!("an axis of length {length} can be continued by 0 to {length}, not by {before} and {after}");
            return Err(Error::argument("pad", what));
        }
    }
    pad(x, pairs, PadMode::Circular)
}

macro_rules! paddings {
    ($($(#[$doc:meta])* $name:ident<$n:literal> = $fill:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Module, Settings)]
        #[module(settings)]
        pub struct $name {
            /// The widths of the margins, in PyTorch's order.
            pub padding: Margins<$n>,
        }

        impl $name {
            /// The result for an input.
            pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
                crate::scope::run(self, || {
                    self.padding.around(stringify!($name), input, $fill)
                })
            }
        }
    )*};
}

paddings! {
    /// Zeros around the last axis; negative widths cut off.
    ZeroPad1d<2> = |x, pairs| pad(x, pairs, PadMode::Constant(0.0));
    /// Zeros around the last two axes; negative widths cut off.
    ///
    /// ```
    /// use netcl_nn::autograd::{Tensor, manager};
    /// use netcl_nn::{Module, ZeroPad2d};
    ///
    /// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32, 2.0], [1, 1, 1, 2])?;
    /// // One column to the left, one row below.
    /// assert_eq!(ZeroPad2d::new([1, 0, 0, 1]).forward(&x)?.to_host::<f32>()?, [0.0, 1.0, 2.0, 0.0, 0.0, 0.0]);
    /// # Ok::<(), netcl_nn::autograd::Error>(())
    /// ```
    ZeroPad2d<4> = |x, pairs| pad(x, pairs, PadMode::Constant(0.0));
    /// The last axis mirrored at its first and last element, which are not repeated.
    ReflectionPad1d<2> = |x, pairs| pad(x, pairs, PadMode::Reflect);
    /// The last two axes mirrored at their first and last elements, which are not repeated.
    ReflectionPad2d<4> = |x, pairs| pad(x, pairs, PadMode::Reflect);
    /// The first and last element of the last axis repeated.
    ReplicationPad1d<2> = |x, pairs| pad(x, pairs, PadMode::Replicate);
    /// The outermost elements of the last two axes repeated.
    ReplicationPad2d<4> = |x, pairs| pad(x, pairs, PadMode::Replicate);
    /// The last axis continued with its other end.
    CircularPad1d<2> = circular;
    /// The last two axes continued with their other ends.
    CircularPad2d<4> = circular;
}

macro_rules! constant_paddings {
    ($($(#[$doc:meta])* $name:ident<$n:literal>;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Module, Settings)]
        #[module(settings)]
        pub struct $name {
            /// The widths of the margins, in PyTorch's order.
            pub padding: Margins<$n>,
            /// What they are filled with.
            pub value: f64,
        }

        impl $name {
            /// The result for an input.
            pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
                crate::scope::run(self, || {
                    let fill = PadMode::Constant(self.value);
                    self.padding.around(stringify!($name), input, |x, pairs| pad(x, pairs, fill))
                })
            }
        }
    )*};
}

constant_paddings! {
    /// A value around the last axis; negative widths cut off.
    ConstantPad1d<2>;
    /// A value around the last two axes; negative widths cut off.
    ConstantPad2d<4>;
}
