//! Margins around sequences and images.

use netcl_autograd::ops::pad::{PadMode, pad};
use netcl_autograd::{Result, Tensor};

use crate::module::{Module, print_as_module};

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

impl<const N: usize> Margins<N> {
    /// Before and after each axis, in the order of the axes.
    fn pairs(&self) -> Vec<(isize, isize)> {
        self.0.chunks_exact(2).rev().map(|pair| (pair[0], pair[1])).collect()
    }

    fn text(&self) -> String {
        let widths: Vec<String> = self.0.iter().map(isize::to_string).collect();
        format!("({})", widths.join(", "))
    }
}

macro_rules! paddings {
    ($($(#[$doc:meta])* $name:ident<$n:literal> = $mode:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub struct $name {
            margins: Margins<$n>,
        }

        impl $name {
            /// Margins of these widths, in PyTorch's order.
            pub fn new(margins: impl Into<Margins<$n>>) -> $name {
                $name { margins: margins.into() }
            }

            /// The widths of the margins.
            pub fn margins(&self) -> Margins<$n> {
                self.margins
            }
        }

        impl Module for $name {
            fn forward(&self, input: &Tensor) -> Result<Tensor> {
                pad(input, &self.margins.pairs(), $mode)
            }

            fn arguments(&self) -> String {
                format!("padding={}", self.margins.text())
            }
        }

        print_as_module!($name);
    )*};
}

paddings! {
    /// Zeros around the last axis; negative widths cut off.
    ZeroPad1d<2> = PadMode::Constant(0.0);
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
    ZeroPad2d<4> = PadMode::Constant(0.0);
    /// The last axis mirrored at its first and last element, which are not repeated.
    ReflectionPad1d<2> = PadMode::Reflect;
    /// The last two axes mirrored at their first and last elements, which are not repeated.
    ReflectionPad2d<4> = PadMode::Reflect;
    /// The first and last element of the last axis repeated.
    ReplicationPad1d<2> = PadMode::Replicate;
    /// The outermost elements of the last two axes repeated.
    ReplicationPad2d<4> = PadMode::Replicate;
}

macro_rules! constant_paddings {
    ($($(#[$doc:meta])* $name:ident<$n:literal>;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq)]
        pub struct $name {
            margins: Margins<$n>,
            value: f64,
        }

        impl $name {
            /// Margins of these widths, in PyTorch's order, filled with a value.
            pub fn new(margins: impl Into<Margins<$n>>, value: f64) -> $name {
                $name { margins: margins.into(), value }
            }

            /// The widths of the margins.
            pub fn margins(&self) -> Margins<$n> {
                self.margins
            }

            /// What they are filled with.
            pub fn value(&self) -> f64 {
                self.value
            }
        }

        impl Module for $name {
            fn forward(&self, input: &Tensor) -> Result<Tensor> {
                pad(input, &self.margins.pairs(), PadMode::Constant(self.value))
            }

            fn arguments(&self) -> String {
                format!("padding={}, value={}", self.margins.text(), self.value)
            }
        }

        print_as_module!($name);
    )*};
}

constant_paddings! {
    /// A value around the last axis; negative widths cut off.
    ConstantPad1d<2>;
    /// A value around the last two axes; negative widths cut off.
    ConstantPad2d<4>;
}
