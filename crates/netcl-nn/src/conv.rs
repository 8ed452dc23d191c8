//! Convolutions over sequences and images. What is said of one form holds for the other: sequences are images of one row.

use netcl_autograd::ops::conv::{ConvParams, conv_transpose1d, conv_transpose2d, conv1d, conv2d};
use netcl_autograd::ops::layout::{squeeze, unsqueeze};
use netcl_autograd::ops::pad::{PadMode, pad};
use netcl_autograd::{Error, Queue, Result, Tensor};

use crate::Module;
use crate::config::Build;
use crate::padding::circular;
use crate::settings::{Setting, Settings, Value, Wrong};
use crate::size::Size;

/// What is added around an input of `N` axes before it is convolved.
///
/// In Python and in files it is a number, one for each axis, two for each axis (before and after), `"same"` or `"valid"`, which is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padding<const N: usize> {
    /// As much as makes the result as large as the input. Where that is odd, there is one more after than before.
    Same,
    /// So much on both sides of each axis.
    Each([usize; N]),
    /// So much before and after each axis.
    Sides([[usize; 2]; N]),
}

impl<const N: usize> From<usize> for Padding<N> {
    fn from(width: usize) -> Self {
        Padding::Each([width; N])
    }
}

impl<const N: usize> From<[usize; N]> for Padding<N> {
    fn from(widths: [usize; N]) -> Self {
        Padding::Each(widths)
    }
}

impl<const N: usize> Setting for Padding<N> {
    fn wanted() -> String {
        let numbers = if N == 1 { "2 of them".to_owned() } else { format!("{N} or {} of them", 2 * N) };
        format!("a whole number, {numbers}, \"same\" or \"valid\"")
    }
    fn read(value: &Value) -> std::result::Result<Self, Wrong> {
        match value {
            Value::Text(text) if text == "same" => Ok(Padding::Same),
            Value::Text(text) if text == "valid" => Ok(Padding::from(0)),
            Value::Text(_) => Err(Wrong::Other(format!("is a number, \"same\" or \"valid\", not {value}"))),
            Value::List(sides) if sides.len() == 2 * N => {
                let sides = sides.chunks(2).map(|pair| Value::List(pair.to_vec())).collect();
                Setting::read(&Value::List(sides)).map(Padding::Sides)
            }
            _ => Setting::read(value).map(Padding::Each),
        }
    }
    fn write(&self) -> Value {
        match self {
            Padding::Same => Value::Text("same".to_owned()),
            Padding::Each(widths) => widths.write(),
            Padding::Sides(sides) => Value::List(sides.as_flattened().iter().map(usize::write).collect()),
        }
    }
}

crate::choices! {
    /// What stands in the padding.
    pub enum PaddingMode {
        /// Zeros.
        #[default]
        Zeros = "zeros",
        /// The input mirrored at its edge, which is not repeated.
        Reflect = "reflect",
        /// The edge, again and again.
        Replicate = "replicate",
        /// The other end of the input.
        Circular = "circular",
    }
}

/// How a [`Conv1d`] is made.
pub type Conv1dOptions = ConvOptions<1>;
/// How a [`Conv2d`] is made.
pub type Conv2dOptions = ConvOptions<2>;
/// How a [`ConvTranspose1d`] is made.
pub type ConvTranspose1dOptions = ConvTransposeOptions<1>;
/// How a [`ConvTranspose2d`] is made.
pub type ConvTranspose2dOptions = ConvTransposeOptions<2>;

/// How a convolution over `N` axes is made.
#[derive(Clone, Debug, Settings)]
#[settings(check = ConvOptions::check)]
pub struct ConvOptions<const N: usize> {
    /// The channels of the input.
    #[setting(least = 1)]
    pub in_channels: usize,
    /// The channels of the result: the number of filters.
    #[setting(least = 1)]
    pub out_channels: usize,
    /// The lengths of a filter.
    #[setting(least = 1)]
    pub kernel_size: Size<N>,
    /// The step along each axis.
    #[setting(default = [1; N], least = 1)]
    pub stride: [usize; N],
    /// What is added around the input.
    #[setting(default = Padding::from(0), name = "pad", alias = "padding")]
    pub padding: Padding<N>,
    /// The distance between the taps of a filter.
    #[setting(default = [1; N], least = 1, quiet)]
    pub dilation: [usize; N],
    /// Independent groups of channels.
    #[setting(default = 1, least = 1, quiet)]
    pub groups: usize,
    /// Whether a bias is added.
    #[setting(default = true)]
    pub bias: bool,
    /// What stands in the padding.
    #[setting(default, quiet)]
    pub padding_mode: PaddingMode,
}

impl<const N: usize> ConvOptions<N> {
    fn check(&self, layer: &'static str) -> Result<()> {
        check_groups(layer, self.in_channels, self.out_channels, self.groups)?;
        if self.padding == Padding::Same && self.stride != [1; N] {
            let what = format!("padding=\"same\" needs a stride of 1, not {}", self.stride.write());
            return Err(Error::argument(layer, what));
        }
        Ok(())
    }

    fn filters(&mut self, build: &mut Build<'_>) -> Result<(Tensor, Option<Tensor>)> {
        let kernel = self.kernel_size.axes();
        self.kernel_size = kernel.into();
        let shape = [&[self.out_channels, self.in_channels / self.groups][..], &kernel].concat();
        build.weight_and_bias(shape, self.bias.then_some(self.out_channels))
    }

    fn apply(&self, layer: &str, input: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        batched::<N>(layer, self.in_channels, input, |x| {
            let sides = match self.padding {
                Padding::Sides(sides) => sides,
                Padding::Each(widths) => widths.map(|width| [width; 2]),
                Padding::Same => {
                    let taps = self.kernel_size.axes();
                    let span = |axis: usize| self.dilation[axis].saturating_mul(taps[axis] - 1);
                    std::array::from_fn(|axis| [span(axis) / 2, span(axis).div_ceil(2)])
                }
            };
            let pairs = sides.map(|[before, after]| (before as isize, after as isize));
            let (x, sides) = match self.padding_mode {
                PaddingMode::Zeros => (x, sides),
                PaddingMode::Reflect => (&pad(x, &pairs, PadMode::Reflect)?, [[0; 2]; N]),
                PaddingMode::Replicate => (&pad(x, &pairs, PadMode::Replicate)?, [[0; 2]; N]),
                PaddingMode::Circular => (&circular(x, &pairs)?, [[0; 2]; N]),
            };
            let params = plane(self.stride, sides, self.dilation, self.groups);
            if N == 1 { conv1d(x, weight, bias, &params) } else { conv2d(x, weight, bias, &params) }
        })
    }
}

/// How a [`DepthwiseConv2d`] is made.
#[derive(Clone, Debug, Settings)]
#[settings(check = DepthwiseConv2dOptions::check)]
pub struct DepthwiseConv2dOptions {
    /// The channels of input and result.
    #[setting(least = 1)]
    pub channels: usize,
    /// The height and width of a filter.
    #[setting(least = 1)]
    pub kernel_size: Size<2>,
    /// Steps down and to the right.
    #[setting(default = [1; 2], least = 1)]
    pub stride: [usize; 2],
    /// What is added around the input.
    #[setting(default = Padding::from(0), name = "pad", alias = "padding")]
    pub padding: Padding<2>,
    /// The distance between the taps of a filter.
    #[setting(default = [1; 2], least = 1, quiet)]
    pub dilation: [usize; 2],
    /// Whether a bias is added.
    #[setting(default = true)]
    pub bias: bool,
    /// What stands in the padding.
    #[setting(default, quiet)]
    pub padding_mode: PaddingMode,
}

impl DepthwiseConv2dOptions {
    /// The convolution that it is.
    fn grouped(&self) -> Conv2dOptions {
        let &DepthwiseConv2dOptions { channels, kernel_size, stride, padding, dilation, bias, padding_mode } = self;
        let (in_channels, out_channels, groups) = (channels, channels, channels);
        ConvOptions { in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode }
    }

    fn check(&self, layer: &'static str) -> Result<()> {
        self.grouped().check(layer)
    }

    fn filters(&mut self, build: &mut Build<'_>) -> Result<(Tensor, Option<Tensor>)> {
        self.kernel_size = self.kernel_size.axes().into();
        self.grouped().filters(build)
    }

    fn apply(&self, layer: &str, input: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        self.grouped().apply(layer, input, weight, bias)
    }
}

/// How a transposed convolution over `N` axes is made.
#[derive(Clone, Debug, Settings)]
#[settings(check = ConvTransposeOptions::check)]
pub struct ConvTransposeOptions<const N: usize> {
    /// The channels of the input.
    #[setting(least = 1)]
    pub in_channels: usize,
    /// The channels of the result.
    #[setting(least = 1)]
    pub out_channels: usize,
    /// The lengths of a filter.
    #[setting(least = 1)]
    pub kernel_size: Size<N>,
    /// The distance, in the result, of neighbouring elements.
    #[setting(default = [1; N], least = 1)]
    pub stride: [usize; N],
    /// What is cut off on both sides.
    #[setting(default = [0; N], name = "pad", alias = "padding")]
    pub padding: [usize; N],
    /// What is added at the end of each axis.
    #[setting(default = [0; N], quiet)]
    pub output_padding: [usize; N],
    /// Independent groups of channels.
    #[setting(default = 1, least = 1, quiet)]
    pub groups: usize,
    /// Whether a bias is added.
    #[setting(default = true)]
    pub bias: bool,
    /// The distance between the taps of a filter.
    #[setting(default = [1; N], least = 1, quiet)]
    pub dilation: [usize; N],
}

impl<const N: usize> ConvTransposeOptions<N> {
    fn check(&self, layer: &'static str) -> Result<()> {
        check_groups(layer, self.in_channels, self.out_channels, self.groups)
    }

    fn filters(&mut self, build: &mut Build<'_>) -> Result<(Tensor, Option<Tensor>)> {
        let kernel = self.kernel_size.axes();
        self.kernel_size = kernel.into();
        let shape = [&[self.in_channels, self.out_channels / self.groups][..], &kernel].concat();
        build.weight_and_bias(shape, self.bias.then_some(self.out_channels))
    }

    fn apply(&self, layer: &str, input: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        batched::<N>(layer, self.in_channels, input, |x| {
            let sides = self.padding.map(|width| [width; 2]);
            let params = plane(self.stride, sides, self.dilation, self.groups);
            let extra = rows(self.output_padding, 0);
            match N {
                1 => conv_transpose1d(x, weight, bias, &params, extra[1]),
                _ => conv_transpose2d(x, weight, bias, &params, extra),
            }
        })
    }
}

/// A layer of filters and a bias that its options make and apply.
macro_rules! convolutions {
    ($($(#[$doc:meta])* $name:ident<$n:literal> = $options:ident($($channels:ident),+) $set:tt;)*) => {$(
        $(#[$doc])*
        #[derive(Module)]
        pub struct $name {
            weight: Tensor,
            bias: Option<Tensor>,
            #[module(settings, set $set)]
            settings: $options,
        }

        impl $name {
            /// A float32 layer with a bias and stride 1; the kernel is a number, or one for each axis.
            pub fn new(queue: &Queue, $($channels: usize,)+ kernel_size: impl Into<Size<$n>>) -> Result<$name> {
                $name::new_with(queue, $options::new($($channels,)+ kernel_size))
            }

            fn make(build: &mut Build<'_>, mut settings: $options) -> Result<$name> {
                let (weight, bias) = settings.filters(build)?;
                Ok($name { weight, bias, settings })
            }

            /// The filters.
            pub fn weight(&self) -> &Tensor {
                &self.weight
            }

            /// The bias, one element per channel of the result.
            pub fn bias(&self) -> Option<&Tensor> {
                self.bias.as_ref()
            }

            /// The result for an input.
            pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
                crate::scope::run(self, || {
                    // Setters do not check: a stride of 0 is refused here.
                    Settings::check(&self.settings, stringify!($name))?;
                    self.settings.apply(stringify!($name), input, &self.weight, self.bias.as_ref())
                })
            }
        }
    )*};
}

convolutions! {
    /// The convolution of images `[N, C, H, W]` (or one image `[C, H, W]`) with filters, plus a bias per filter.
    ///
    /// The weight has shape `[out_channels, in_channels / groups, height, width]`. Both parameters start uniform between plus and
    /// minus `1 / sqrt(inputs of an output)`, as in PyTorch.
    ///
    /// ```
    /// use netcl_nn::autograd::{Tensor, manager};
    /// use netcl_nn::{Conv2d, Conv2dOptions, Module};
    ///
    /// let queue = manager().cpu().queue;
    /// let layer = Conv2d::new(&queue, 3, 8, 3)?.stride(2).padding(1);
    /// let grouped = Conv2d::new_with(&queue, Conv2dOptions::new(4, 8, 3).groups(2).bias(false))?; // of what weights depend on
    /// let y = layer.forward(&Tensor::from_host(&queue, &[0.5f32; 3 * 64], [1, 3, 8, 8])?)?;
    /// assert_eq!(y.shape()[..], [1, 8, 4, 4]);
    /// # Ok::<(), netcl_nn::autograd::Error>(())
    /// ```
    Conv2d<2> = Conv2dOptions(in_channels, out_channels)
        (stride: [usize; 2], padding: Padding<2>, dilation: [usize; 2], padding_mode: PaddingMode);
    /// The convolution of sequences `[N, C, L]` (or one sequence `[C, L]`) with filters, plus a bias per filter.
    ///
    /// The weight has shape `[out_channels, in_channels / groups, length]`; the start values are [`Conv2d`]'s.
    ///
    /// ```
    /// use netcl_nn::autograd::{Tensor, manager};
    /// use netcl_nn::{Conv1d, Module};
    ///
    /// let queue = manager().cpu().queue;
    /// let y = Conv1d::new(&queue, 2, 4, 3)?.forward(&Tensor::from_host(&queue, &[0.5f32; 16], [1, 2, 8])?)?;
    /// assert_eq!(y.shape()[..], [1, 4, 6]);
    /// # Ok::<(), netcl_nn::autograd::Error>(())
    /// ```
    Conv1d<1> = Conv1dOptions(in_channels, out_channels)
        (stride: [usize; 1], padding: Padding<1>, dilation: [usize; 1], padding_mode: PaddingMode);
    /// One filter for each channel of images: a [`Conv2d`] of as many groups as channels.
    DepthwiseConv2d<2> = DepthwiseConv2dOptions(channels)
        (stride: [usize; 2], padding: Padding<2>, dilation: [usize; 2], padding_mode: PaddingMode);
    /// The transposed convolution of images `[N, C, H, W]` (or one image `[C, H, W]`): each pixel adds a scaled filter to the
    /// result, `stride` apart.
    ///
    /// The weight has shape `[in_channels, out_channels / groups, height, width]`; the start values are as in PyTorch.
    ///
    /// ```
    /// use netcl_nn::autograd::{Tensor, manager};
    /// use netcl_nn::{ConvTranspose2d, ConvTranspose2dOptions, Module};
    ///
    /// let queue = manager().cpu().queue;
    /// let doubling = ConvTranspose2dOptions { stride: [2, 2], ..ConvTranspose2dOptions::new(3, 2, 2) };
    /// let layer = ConvTranspose2d::new_with(&queue, doubling)?;
    /// let y = layer.forward(&Tensor::from_host(&queue, &[0.5f32; 48], [1, 3, 4, 4])?)?;
    /// assert_eq!(y.shape()[..], [1, 2, 8, 8]);
    /// # Ok::<(), netcl_nn::autograd::Error>(())
    /// ```
    ConvTranspose2d<2> = ConvTranspose2dOptions(in_channels, out_channels)
        (stride: [usize; 2], padding: [usize; 2], output_padding: [usize; 2], dilation: [usize; 2]);
    /// [`ConvTranspose2d`] for sequences `[N, C, L]` (or one sequence `[C, L]`), with a weight of shape
    /// `[in_channels, out_channels / groups, length]`.
    ConvTranspose1d<1> = ConvTranspose1dOptions(in_channels, out_channels)
        (stride: [usize; 1], padding: [usize; 1], output_padding: [usize; 1], dilation: [usize; 1]);
}

impl Conv2d {
    /// A layer over existing values, which fit the settings.
    pub(crate) fn of(weight: Tensor, bias: Option<Tensor>, settings: Conv2dOptions) -> Conv2d {
        let settings = Conv2dOptions { bias: bias.is_some(), ..settings };
        Conv2d { weight: weight.with_grad(), bias: bias.map(Tensor::with_grad), settings }
    }
}

/// A function of a batch, applied to a batch or to a single sample.
fn batched<const N: usize>(
    layer: &str,
    channels: usize,
    x: &Tensor,
    function: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let alone = x.ndim() == N + 1;
    if !(alone || x.ndim() == N + 2) || x.shape()[x.ndim() - N - 1] != channels {
        let places = if N == 1 { "L" } else { "H, W" };
        let takes = format!("(N, {channels}, {places})");
        return Err(Error::input(format!("{layer}(in_channels={channels})"), takes, x.shape()));
    }
    if alone { squeeze(&function(&unsqueeze(x, 0)?)?, &[0]) } else { function(x) }
}

/// Numbers of the rows and columns of images.
fn rows<const N: usize, T: Copy>(numbers: [T; N], row: T) -> [T; 2] {
    match numbers[..] {
        [height, width] => [height, width],
        _ => [row, numbers[0]],
    }
}

fn plane<const N: usize>(
    stride: [usize; N],
    sides: [[usize; 2]; N],
    dilation: [usize; N],
    groups: usize,
) -> ConvParams {
    let [[top, bottom], [left, right]] = rows(sides, [0; 2]);
    ConvParams { stride: rows(stride, 1), padding: [top, bottom, left, right], dilation: rows(dilation, 1), groups }
}

fn check_groups(layer: &'static str, inputs: usize, outputs: usize, groups: usize) -> Result<()> {
    if inputs.is_multiple_of(groups) && outputs.is_multiple_of(groups) {
        return Ok(());
    }
    let what = format!("groups={groups} must divide in_channels={inputs} and out_channels={outputs}");
    Err(Error::argument(layer, what))
}
