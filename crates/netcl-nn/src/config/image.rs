//! Convolutions, normalisations, pooling and dropout as data.

use netcl_autograd::core::dtype::DType;
use netcl_autograd::core::{Error as CoreError, Result as CoreResult};
use netcl_autograd::ops::conv::{Convolution, same};
use netcl_autograd::{Result, Tensor};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::built_in::{dtype_name, yes};
use super::{Build, Configured};
use crate::batch_norm::{BatchNorm, BatchNorm1d, BatchNorm2d, BatchNormOptions};
use crate::conv::{Conv1d, Conv1dOptions, Conv2d, Conv2dOptions, ConvTranspose2d, ConvTranspose2dOptions};
use crate::dropout::{Dropout, Dropout2d};
use crate::pool::*;

/// Lengths along axes: a number where they are equal, else a list.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Lengths<const N: usize>([usize; N]);

impl<const N: usize> Lengths<N> {
    fn zero() -> Self {
        Lengths([0; N])
    }

    fn one() -> Self {
        Lengths([1; N])
    }

    fn two() -> Self {
        Lengths([2; N])
    }
}

impl<const N: usize> Serialize for Lengths<N> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match &self.0[..] {
            [first, rest @ ..] if rest.iter().all(|other| other == first) => first.serialize(to),
            all => all.serialize(to),
        }
    }
}

impl<'de, const N: usize> Deserialize<'de> for Lengths<N> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected a number or a list of numbers, none below 0")]
        enum Given {
            One(usize),
            Each(Vec<usize>),
        }
        match Given::deserialize(from)? {
            Given::One(length) => Ok(Lengths([length; N])),
            Given::Each(lengths) => {
                let given = lengths.len();
                let wrong = || D::Error::custom(format!("expected a number or a list of {N} numbers, not of {given}"));
                Ok(Lengths(lengths.try_into().map_err(|_| wrong())?))
            }
        }
    }
}

/// The settings of a convolution.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConvSettings<const N: usize> {
    in_channels: usize,
    out_channels: usize,
    kernel_size: Lengths<N>,
    #[serde(default = "Lengths::one")]
    stride: Lengths<N>,
    #[serde(default = "Lengths::zero", alias = "padding")]
    pad: Lengths<N>,
    #[serde(default = "Lengths::one")]
    dilation: Lengths<N>,
    #[serde(default = "one")]
    groups: usize,
    #[serde(default = "yes")]
    bias: bool,
    #[serde(with = "dtype_name", default = "dtype_name::default", skip_serializing_if = "dtype_name::is_default")]
    dtype: DType,
}

fn one() -> usize {
    1
}

/// The zeros of rows and columns, if there are as many on both sides.
fn symmetric(kind: &'static str, how: &Convolution) -> CoreResult<[usize; 2]> {
    let [top, bottom, left, right] = how.padding;
    if how.padding == same([top, left]) {
        return Ok([top, left]);
    }
    let what = format!("the padding of {top} and {bottom} rows, {left} and {right} columns has no setting");
    Err(CoreError::argument(kind, what))
}

impl Configured for Conv2d {
    const KIND: &'static str = "Conv2d";
    type Settings = ConvSettings<2>;
    fn settings(&self) -> Result<ConvSettings<2>> {
        let (how, shape) = (self.how(), self.weight().shape());
        Ok(ConvSettings {
            in_channels: self.in_channels(),
            out_channels: self.out_channels(),
            kernel_size: Lengths([shape[2], shape[3]]),
            stride: Lengths(how.stride),
            pad: Lengths(symmetric(Self::KIND, how)?),
            dilation: Lengths(how.dilation),
            groups: how.groups,
            bias: self.bias().is_some(),
            dtype: self.weight().dtype(),
        })
    }
    fn build(settings: ConvSettings<2>, build: &Build<'_>) -> Result<Conv2d> {
        let ConvSettings { in_channels, out_channels, kernel_size, stride, pad, dilation, groups, bias, dtype } =
            settings;
        let (stride, padding, dilation) = (stride.0, pad.0, dilation.0);
        let options = Conv2dOptions { stride, padding, dilation, groups, bias, dtype, generator: None };
        Conv2d::new_with(build.queue(), in_channels, out_channels, kernel_size.0, options)
    }
}

impl Configured for Conv1d {
    const KIND: &'static str = "Conv1d";
    type Settings = ConvSettings<1>;
    fn settings(&self) -> Result<ConvSettings<1>> {
        let (how, shape) = (self.how(), self.weight().shape());
        Ok(ConvSettings {
            in_channels: shape[1] * how.groups,
            out_channels: shape[0],
            kernel_size: Lengths([shape[2]]),
            stride: Lengths([how.stride[1]]),
            pad: Lengths([symmetric(Self::KIND, how)?[1]]),
            dilation: Lengths([how.dilation[1]]),
            groups: how.groups,
            bias: self.bias().is_some(),
            dtype: self.weight().dtype(),
        })
    }
    fn build(settings: ConvSettings<1>, build: &Build<'_>) -> Result<Conv1d> {
        let ConvSettings { in_channels, out_channels, kernel_size, stride, pad, dilation, groups, bias, dtype } =
            settings;
        let (Lengths([stride]), Lengths([padding]), Lengths([dilation])) = (stride, pad, dilation);
        let options = Conv1dOptions { stride, padding, dilation, groups, bias, dtype, generator: None };
        Conv1d::new_with(build.queue(), in_channels, out_channels, kernel_size.0[0], options)
    }
}

/// The settings of a [`ConvTranspose2d`].
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConvTransposeSettings {
    in_channels: usize,
    out_channels: usize,
    kernel_size: Lengths<2>,
    #[serde(default = "Lengths::one")]
    stride: Lengths<2>,
    #[serde(default = "Lengths::zero", alias = "padding")]
    pad: Lengths<2>,
    #[serde(default = "Lengths::zero")]
    output_padding: Lengths<2>,
    #[serde(default = "Lengths::one")]
    dilation: Lengths<2>,
    #[serde(default = "one")]
    groups: usize,
    #[serde(default = "yes")]
    bias: bool,
    #[serde(with = "dtype_name", default = "dtype_name::default", skip_serializing_if = "dtype_name::is_default")]
    dtype: DType,
}

impl Configured for ConvTranspose2d {
    const KIND: &'static str = "ConvTranspose2d";
    type Settings = ConvTransposeSettings;
    fn settings(&self) -> Result<ConvTransposeSettings> {
        let (how, shape) = (self.how(), self.weight().shape());
        Ok(ConvTransposeSettings {
            in_channels: shape[0],
            out_channels: shape[1] * how.groups,
            kernel_size: Lengths([shape[2], shape[3]]),
            stride: Lengths(how.stride),
            pad: Lengths(symmetric(Self::KIND, how)?),
            output_padding: Lengths(self.output_padding()),
            dilation: Lengths(how.dilation),
            groups: how.groups,
            bias: self.bias().is_some(),
            dtype: self.weight().dtype(),
        })
    }
    fn build(settings: ConvTransposeSettings, build: &Build<'_>) -> Result<ConvTranspose2d> {
        let options = ConvTranspose2dOptions {
            stride: settings.stride.0,
            padding: settings.pad.0,
            output_padding: settings.output_padding.0,
            dilation: settings.dilation.0,
            groups: settings.groups,
            bias: settings.bias,
            dtype: settings.dtype,
            generator: None,
        };
        let (inputs, outputs, kernel) = (settings.in_channels, settings.out_channels, settings.kernel_size.0);
        ConvTranspose2d::new_with(build.queue(), inputs, outputs, kernel, options)
    }
}

/// The settings of a batch normalisation.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchNormSettings {
    num_features: usize,
    #[serde(default = "default_eps")]
    eps: f64,
    #[serde(default = "default_momentum")]
    momentum: Option<f64>,
    #[serde(default = "yes")]
    affine: bool,
    #[serde(default = "yes")]
    track_running_stats: bool,
    #[serde(with = "dtype_name", default = "dtype_name::default", skip_serializing_if = "dtype_name::is_default")]
    dtype: DType,
}

fn default_eps() -> f64 {
    BatchNormOptions::default().eps
}

fn default_momentum() -> Option<f64> {
    BatchNormOptions::default().momentum
}

impl BatchNormSettings {
    fn of(norm: &BatchNorm) -> BatchNormSettings {
        BatchNormSettings {
            num_features: norm.num_features(),
            eps: norm.eps(),
            momentum: norm.momentum(),
            affine: norm.weight().is_some(),
            track_running_stats: norm.running_mean().is_some(),
            // Without any tensor there is no dtype to speak of.
            dtype: norm.weight().or(norm.running_mean()).map_or(DType::F32, |tensor: &Tensor| tensor.dtype()),
        }
    }

    fn options(&self) -> BatchNormOptions {
        let &BatchNormSettings { eps, momentum, affine, track_running_stats, dtype, .. } = self;
        BatchNormOptions { eps, momentum, affine, track_running_stats, dtype }
    }
}

macro_rules! batch_norms {
    ($($layer:ident)*) => {$(
        impl Configured for $layer {
            const KIND: &'static str = stringify!($layer);
            type Settings = BatchNormSettings;
            fn settings(&self) -> Result<BatchNormSettings> {
                Ok(BatchNormSettings::of(self))
            }
            fn build(settings: BatchNormSettings, build: &Build<'_>) -> Result<Self> {
                $layer::new_with(build.queue(), settings.num_features, settings.options())
            }
        }
    )*};
}

batch_norms! { BatchNorm BatchNorm1d BatchNorm2d }

/// The settings of pooling by a window.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MaxPoolSettings<const N: usize> {
    #[serde(default = "Lengths::two")]
    kernel_size: Lengths<N>,
    /// The size of the window unless given.
    #[serde(default)]
    stride: Option<Lengths<N>>,
    #[serde(default = "Lengths::zero")]
    padding: Lengths<N>,
    #[serde(default = "Lengths::one")]
    dilation: Lengths<N>,
    #[serde(default)]
    ceil_mode: bool,
}

/// The settings of [`AvgPool1d`] and [`AvgPool2d`].
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AvgPoolSettings<const N: usize> {
    #[serde(default = "Lengths::two")]
    kernel_size: Lengths<N>,
    /// The size of the window unless given.
    #[serde(default)]
    stride: Option<Lengths<N>>,
    #[serde(default = "Lengths::zero")]
    padding: Lengths<N>,
    #[serde(default)]
    ceil_mode: bool,
    #[serde(default = "yes")]
    count_include_pad: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    divisor_override: Option<usize>,
}

macro_rules! pools {
    ($($max:ident $average:ident $axes:literal;)*) => {$(
        impl Configured for $max {
            const KIND: &'static str = stringify!($max);
            type Settings = MaxPoolSettings<$axes>;
            fn settings(&self) -> Result<Self::Settings> {
                let Window { kernel, stride, padding, dilation, ceil_mode } = self.window;
                let (kernel_size, stride) = (Lengths(kernel), Some(Lengths(stride)));
                let (padding, dilation) = (Lengths(padding), Lengths(dilation));
                Ok(MaxPoolSettings { kernel_size, stride, padding, dilation, ceil_mode })
            }
            fn build(settings: Self::Settings, _build: &Build<'_>) -> Result<Self> {
                let MaxPoolSettings { kernel_size, stride, padding, dilation, ceil_mode } = settings;
                let (kernel, stride) = (kernel_size.0, stride.unwrap_or(kernel_size).0);
                let (padding, dilation) = (padding.0, dilation.0);
                Ok($max { window: Window { kernel, stride, padding, dilation, ceil_mode } })
            }
        }

        impl Configured for $average {
            const KIND: &'static str = stringify!($average);
            type Settings = AvgPoolSettings<$axes>;
            fn settings(&self) -> Result<Self::Settings> {
                let Window { kernel, stride, padding, ceil_mode, .. } = self.window;
                let (kernel_size, stride, padding) = (Lengths(kernel), Some(Lengths(stride)), Lengths(padding));
                let Averaging { count_include_pad, divisor: divisor_override } = self.averaging;
                Ok(AvgPoolSettings { kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override })
            }
            fn build(settings: Self::Settings, _build: &Build<'_>) -> Result<Self> {
                let AvgPoolSettings { kernel_size, stride, padding, ceil_mode, .. } = settings;
                let (stride, padding) = (stride.unwrap_or(kernel_size).0, padding.0);
                let (count_include_pad, divisor) = (settings.count_include_pad, settings.divisor_override);
                Ok($average {
                    window: Window { stride, padding, ceil_mode, ..Window::new(kernel_size.0) },
                    averaging: Averaging { count_include_pad, divisor },
                })
            }
        }
    )*};
}

pools! {
    MaxPool1d AvgPool1d 1;
    MaxPool2d AvgPool2d 2;
}

/// The settings of pooling to a size.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdaptivePoolSettings {
    output_size: Lengths<2>,
}

/// The settings of [`Dropout`] and [`Dropout2d`].
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DropoutSettings {
    #[serde(default = "half")]
    p: f64,
    /// In the published format; only null can be honoured here.
    #[serde(default, skip_serializing)]
    seed: Option<u64>,
}

fn half() -> f64 {
    0.5
}

macro_rules! simple {
    ($($adaptive:ident $dropout:ident;)*) => {$(
        impl Configured for $adaptive {
            const KIND: &'static str = stringify!($adaptive);
            type Settings = AdaptivePoolSettings;
            fn settings(&self) -> Result<AdaptivePoolSettings> {
                Ok(AdaptivePoolSettings { output_size: Lengths(self.output) })
            }
            fn build(settings: AdaptivePoolSettings, _build: &Build<'_>) -> Result<Self> {
                Ok($adaptive { output: settings.output_size.0 })
            }
        }

        impl Configured for $dropout {
            const KIND: &'static str = stringify!($dropout);
            type Settings = DropoutSettings;
            fn settings(&self) -> Result<DropoutSettings> {
                Ok(DropoutSettings { p: self.p(), seed: None })
            }
            fn build(settings: DropoutSettings, _build: &Build<'_>) -> Result<Self> {
                if let Some(seed) = settings.seed {
                    let what = format!("a seed of its own ({seed}) cannot be set; seed the process-wide generator");
                    return Err(CoreError::argument(Self::KIND, what).into());
                }
                $dropout::new(settings.p)
            }
        }
    )*};
}

simple! {
    AdaptiveAvgPool2d Dropout;
    AdaptiveMaxPool2d Dropout2d;
}
