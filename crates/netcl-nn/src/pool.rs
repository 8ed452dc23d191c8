//! Pooling.

use netcl_autograd::ops::pool;
pub use netcl_autograd::ops::pool::{Averaging, Window};
use netcl_autograd::{Result, Tensor};

use crate::module::{Module, print_as_module};
use crate::size::{Size, tuple};

fn window_arguments<const N: usize>(window: &Window<N>) -> String {
    let Window { kernel, stride, padding, dilation, ceil_mode } = window;
    let mut text = format!("kernel_size={}, stride={}, padding={}", tuple(kernel), tuple(stride), tuple(padding));
    if *dilation != [1; N] {
        text += &format!(", dilation={}", tuple(dilation));
    }
    text + &format!(", ceil_mode={ceil_mode}")
}

macro_rules! max_pools {
    ($($(#[$doc:meta])* $name:ident<$axes:literal> = $function:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub struct $name {
            /// Size, distance, padding and dilation of the windows.
            pub window: Window<$axes>,
        }

        impl $name {
            /// Windows of this size, side by side.
            pub fn new(kernel: impl Into<Size<$axes>>) -> $name {
                $name { window: Window::new(kernel.into().0) }
            }
        }

        impl Module for $name {
            fn forward(&self, input: &Tensor) -> Result<Tensor> {
                pool::$function(input, &self.window)
            }

            fn arguments(&self) -> String {
                window_arguments(&self.window)
            }
        }

        print_as_module!($name);
    )*};
}

max_pools! {
    /// The largest element of each window of `[N, C, H, W]` (or `[C, H, W]`).
    ///
    /// ```
    /// use netcl_nn::autograd::{Tensor, manager};
    /// use netcl_nn::pool::Window;
    /// use netcl_nn::{MaxPool2d, Module};
    ///
    /// let x = Tensor::from_host(&manager().cpu().queue, &[0.5f32; 64], [1, 1, 8, 8])?;
    /// assert_eq!(MaxPool2d::new(2).forward(&x)?.shape()[..], [1, 1, 4, 4]);
    /// let window = Window { stride: [2, 2], padding: [1, 1], ..Window::new([3, 3]) };
    /// assert_eq!(MaxPool2d { window }.forward(&x)?.shape()[..], [1, 1, 4, 4]);
    /// # Ok::<(), netcl_nn::autograd::Error>(())
    /// ```
    MaxPool2d<2> = max_pool2d;
    /// The largest element of each window of `[N, C, L]` (or `[C, L]`).
    MaxPool1d<1> = max_pool1d;
}

macro_rules! avg_pools {
    ($($(#[$doc:meta])* $name:ident<$axes:literal> = $function:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub struct $name {
            /// Size, distance and padding of the windows.
            pub window: Window<$axes>,
            /// What sums are divided by.
            pub averaging: Averaging,
        }

        impl $name {
            /// Windows of this size, side by side.
            pub fn new(kernel: impl Into<Size<$axes>>) -> $name {
                $name { window: Window::new(kernel.into().0), averaging: Averaging::default() }
            }
        }

        impl Module for $name {
            fn forward(&self, input: &Tensor) -> Result<Tensor> {
                pool::$function(input, &self.window, self.averaging)
            }

            fn arguments(&self) -> String {
                let mut text = window_arguments(&self.window);
                text += &format!(", count_include_pad={}", self.averaging.count_include_pad);
                if let Some(divisor) = self.averaging.divisor {
                    text += &format!(", divisor_override={divisor}");
                }
                text
            }
        }

        print_as_module!($name);
    )*};
}

avg_pools! {
    /// The mean of each window of `[N, C, H, W]` (or `[C, H, W]`).
    AvgPool2d<2> = avg_pool2d;
    /// The mean of each window of `[N, C, L]` (or `[C, L]`).
    AvgPool1d<1> = avg_pool1d;
}

macro_rules! adaptive_pools {
    ($($(#[$doc:meta])* $name:ident = $function:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub struct $name {
            /// The height and width of the result.
            pub output: [usize; 2],
        }

        impl $name {
            /// For results of this size.
            pub fn new(output: impl Into<Size<2>>) -> $name {
                $name { output: output.into().0 }
            }
        }

        impl Module for $name {
            fn forward(&self, input: &Tensor) -> Result<Tensor> {
                pool::$function(input, self.output)
            }

            fn arguments(&self) -> String {
                format!("output_size={}", tuple(&self.output))
            }
        }

        print_as_module!($name);
    )*};
}

adaptive_pools! {
    /// The mean of windows chosen so that the result has the given height and width, for `[N, C, H, W]` (or `[C, H, W]`).
    ///
    /// ```
    /// use netcl_nn::autograd::{Tensor, manager};
    /// use netcl_nn::{AdaptiveAvgPool2d, Module};
    ///
    /// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32, 2.0, 3.0, 6.0], [1, 1, 2, 2])?;
    /// assert_eq!(AdaptiveAvgPool2d::new(1).forward(&x)?.to_host::<f32>()?, [3.0]);
    /// # Ok::<(), netcl_nn::autograd::Error>(())
    /// ```
    AdaptiveAvgPool2d = adaptive_avg_pool2d;
    /// The largest element of windows chosen so that the result has the given height and width, for `[N, C, H, W]` (or
    /// `[C, H, W]`).
    AdaptiveMaxPool2d = adaptive_max_pool2d;
}
