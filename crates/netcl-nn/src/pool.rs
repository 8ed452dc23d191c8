//! Pooling.

use netcl_autograd::ops::pool::{self, Averaging, Window};
use netcl_autograd::{Result, Tensor};

use crate::Module;
use crate::settings::Settings;
use crate::size::Size;

macro_rules! max_pools {
    ($($(#[$doc:meta])* $name:ident<$axes:literal> = $function:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Module, Settings)]
        #[module(settings)]
        pub struct $name {
            /// The lengths of a window.
            #[setting(default = Size::All(2), least = 1)]
            pub kernel_size: Size<$axes>,
            /// The distances between windows; as long as a window where there is none.
            #[setting(default = Some(kernel_size), least = 1)]
            pub stride: Option<Size<$axes>>,
            /// Minus infinity on both sides: at most half a window.
            #[setting(default = Size::All(0))]
            pub padding: Size<$axes>,
            /// The distances between the elements of a window.
            #[setting(default = Size::All(1), least = 1)]
            pub dilation: Size<$axes>,
            /// Whether a last window that reaches beyond the end counts.
            #[setting(default = false)]
            pub ceil_mode: bool,
        }

        impl $name {
            /// Windows of this size, side by side.
            pub fn new(kernel_size: impl Into<Size<$axes>>) -> $name {
                let kernel_size = kernel_size.into();
                $name { kernel_size, stride: Some(kernel_size), ..Default::default() }
            }

            /// The result for an input.
            pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
                crate::scope::run(self, || {
                    let window = Window {
                        kernel: self.kernel_size.axes(),
                        stride: self.stride.unwrap_or(self.kernel_size).axes(),
                        padding: self.padding.axes(),
                        dilation: self.dilation.axes(),
                        ceil_mode: self.ceil_mode,
                    };
                    pool::$function(input, &window)
                })
            }
        }
    )*};
}

max_pools! {
    /// The largest element of each window of `[N, C, H, W]` (or `[C, H, W]`).
    ///
    /// ```
    /// use netcl_nn::autograd::{Tensor, manager};
    /// use netcl_nn::{MaxPool2d, Module};
    ///
    /// let x = Tensor::from_host(&manager().cpu().queue, &[0.5f32; 64], [1, 1, 8, 8])?;
    /// assert_eq!(MaxPool2d::new(2).forward(&x)?.shape()[..], [1, 1, 4, 4]);
    /// let halving = MaxPool2d { stride: Some(2.into()), padding: 1.into(), ..MaxPool2d::new(3) };
    /// assert_eq!(halving.forward(&x)?.shape()[..], [1, 1, 4, 4]);
    /// # Ok::<(), netcl_nn::autograd::Error>(())
    /// ```
    MaxPool2d<2> = max_pool2d;
    /// The largest element of each window of `[N, C, L]` (or `[C, L]`).
    MaxPool1d<1> = max_pool1d;
}

macro_rules! avg_pools {
    ($($(#[$doc:meta])* $name:ident<$axes:literal> = $function:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Module, Settings)]
        #[module(settings)]
        pub struct $name {
            /// The lengths of a window.
            #[setting(default = Size::All(2), least = 1)]
            pub kernel_size: Size<$axes>,
            /// The distances between windows; as long as a window where there is none.
            #[setting(default = Some(kernel_size), least = 1)]
            pub stride: Option<Size<$axes>>,
            /// Zeros on both sides: at most half a window.
            #[setting(default = Size::All(0))]
            pub padding: Size<$axes>,
            /// Whether a last window that reaches beyond the end counts.
            #[setting(default = false)]
            pub ceil_mode: bool,
            /// Whether the zeros of the padding count as elements.
            #[setting(default = true)]
            pub count_include_pad: bool,
            /// What sums are divided by instead of the number of elements.
            #[setting(default = None, least = 1)]
            pub divisor_override: Option<usize>,
        }

        impl $name {
            /// Windows of this size, side by side.
            pub fn new(kernel_size: impl Into<Size<$axes>>) -> $name {
                let kernel_size = kernel_size.into();
                $name { kernel_size, stride: Some(kernel_size), ..Default::default() }
            }

            /// The result for an input.
            pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
                crate::scope::run(self, || {
                    let kernel = self.kernel_size.axes();
                    let stride = self.stride.unwrap_or(self.kernel_size).axes();
                    let (padding, ceil_mode) = (self.padding.axes(), self.ceil_mode);
                    let averaging =
                        Averaging { count_include_pad: self.count_include_pad, divisor: self.divisor_override };
                    pool::$function(input, &Window { stride, padding, ceil_mode, ..Window::new(kernel) }, averaging)
                })
            }
        }
    )*};
}

avg_pools! {
    /// The mean of each window of `[N, C, H, W]` (or `[C, H, W]`).
    AvgPool2d<2> = avg_pool2d;
    /// The mean of each window of `[N, C, L]` (or `[C, L]`).
    AvgPool1d<1> = avg_pool1d;
}

macro_rules! norm_pools {
    ($($(#[$doc:meta])* $name:ident<$axes:literal> = $function:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Module, Settings)]
        #[module(settings)]
        pub struct $name {
            /// Which norm: the `p` of the sum of `p`th powers.
            pub norm_type: f64,
            /// The lengths of a window.
            #[setting(least = 1)]
            pub kernel_size: Size<$axes>,
            /// The distances between windows; as long as a window where there is none.
            #[setting(default = Some(kernel_size), least = 1)]
            pub stride: Option<Size<$axes>>,
            /// Whether a last window that reaches beyond the end counts.
            #[setting(default = false)]
            pub ceil_mode: bool,
        }

        impl $name {
            /// The result for an input.
            pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
                crate::scope::run(self, || {
                    let stride = self.stride.unwrap_or(self.kernel_size).axes();
                    let window = Window { stride, ceil_mode: self.ceil_mode, ..Window::new(self.kernel_size.axes()) };
                    pool::$function(input, self.norm_type, &window)
                })
            }
        }
    )*};
}

norm_pools! {
    /// The p-norm of each window of `[N, C, H, W]` (or `[C, H, W]`).
    ///
    /// ```
    /// use netcl_nn::autograd::{Tensor, manager};
    /// use netcl_nn::{LPPool2d, Module};
    ///
    /// let x = Tensor::from_host(&manager().cpu().queue, &[3.0f32, 4.0, 0.0, 0.0], [1, 1, 2, 2])?;
    /// assert_eq!(LPPool2d::new(2.0, 2).forward(&x)?.to_host::<f32>()?, [5.0]);
    /// # Ok::<(), netcl_nn::autograd::Error>(())
    /// ```
    LPPool2d<2> = lp_pool2d;
    /// The p-norm of each window of `[N, C, L]` (or `[C, L]`).
    LPPool1d<1> = lp_pool1d;
}

macro_rules! adaptive_pools {
    ($($(#[$doc:meta])* $name:ident<$axes:literal> = $function:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Module, Settings)]
        #[module(settings)]
        pub struct $name {
            /// The lengths of the result; none for an axis that stays as it is.
            #[setting(default = Size::All(Some(1)))]
            pub output_size: Size<$axes, Option<usize>>,
        }

        impl $name {
            /// For results of this size.
            pub fn new(output_size: impl Into<Size<$axes>>) -> $name {
                $name { output_size: Size::Each(output_size.into().axes().map(Some)) }
            }

            /// The result for an input.
            pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
                crate::scope::run(self, || {
                    // The lengths of an input of too few axes do not matter: it is refused.
                    let own = |from_end: usize| input.shape().iter().rev().nth(from_end).map_or(1, |length| *length);
                    let output = self.output_size.axes();
                    let output = std::array::from_fn(|axis| output[axis].unwrap_or_else(|| own($axes - 1 - axis)));
                    let function: fn(&Tensor, [usize; $axes]) -> Result<Tensor> = $function;
                    function(input, output)
                })
            }
        }
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
    AdaptiveAvgPool2d<2> = pool::adaptive_avg_pool2d;
    /// The mean of windows chosen so that the result has the given length, for `[N, C, L]` (or `[C, L]`).
    AdaptiveAvgPool1d<1> = |x, [length]| pool::adaptive_avg_pool1d(x, length);
    /// The largest element of windows chosen so that the result has the given height and width, for `[N, C, H, W]` (or
    /// `[C, H, W]`).
    AdaptiveMaxPool2d<2> = pool::adaptive_max_pool2d;
    /// The largest element of windows chosen so that the result has the given length, for `[N, C, L]` (or `[C, L]`).
    AdaptiveMaxPool1d<1> = |x, [length]| pool::adaptive_max_pool1d(x, length);
}

/// The mean of each channel: `[N, C, H, W]` to `[N, C, 1, 1]`.
#[derive(Clone, Copy, Module, Settings)]
#[module(settings)]
pub struct GlobalAvgPool2d;

impl GlobalAvgPool2d {
    /// The result for an input.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || pool::adaptive_avg_pool2d(input, [1, 1]))
    }
}
