//! Normalisations that do not depend on other samples.

use std::fmt::Display;

use netcl_autograd::ops::norm::{group_norm, layer_norm, rms_norm};
use netcl_autograd::{DType, Error, Queue, Result, Tensor};

use crate::Module;
use crate::config::Build;
use crate::init::Init;
use crate::settings::{Setting, Settings};

/// An input of a shape that a layer does not take.
pub(crate) fn takes(layer: &'static str, settings: impl Display, layout: impl Display, input: &Tensor) -> Error {
    Error::input(format!("{layer}({settings})"), layout.to_string(), input.shape())
}

/// An error unless an input ends with the axes that are normalised.
fn check_ends_with(layer: &'static str, input: &Tensor, shape: &[usize]) -> Result<()> {
    if input.shape().ends_with(shape) {
        return Ok(());
    }
    let why = format!("it must end with the normalized_shape {}", shape.to_vec().write());
    Err(Error::shape(layer, input.shape(), why))
}

/// Refuses a shape that names no axis.
macro_rules! check_axes {
    ($($options:ty),*) => {$(
        impl $options {
            fn check_axes(&self, layer: &'static str) -> Result<()> {
                if !self.normalized_shape.is_empty() {
                    return Ok(());
                }
                Err(Error::argument(layer, "normalized_shape names no axis; give the lengths of the last ones"))
            }
        }
    )*};
}
check_axes!(LayerNormOptions, RMSNormOptions);

/// Scales and shifts, where they are wanted.
fn scales(
    build: &mut Build<'_>,
    shape: &[usize],
    [weight, bias]: [bool; 2],
) -> Result<(Option<Tensor>, Option<Tensor>)> {
    let mut full = |wanted: bool, value| wanted.then(|| build.parameter(Init::Constant(value), shape)).transpose();
    Ok((full(weight, 1.0)?, full(bias, 0.0)?))
}

/// Normalises the last axes of each sample to mean 0 and variance 1, then scales and shifts every element.
///
/// ```
/// use netcl_nn::autograd::{Tensor, manager};
/// use netcl_nn::{LayerNorm, Module};
///
/// let queue = manager().cpu().queue;
/// let y = LayerNorm::new(&queue, [2])?.forward(&Tensor::from_host(&queue, &[1.0f32, 3.0, -2.0, 2.0], [2, 2])?)?;
/// assert!(y.to_host::<f32>()?.iter().zip([-1.0, 1.0, -1.0, 1.0]).all(|(y, e)| (y - e).abs() < 1e-4));
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
#[derive(Module)]
pub struct LayerNorm {
    weight: Option<Tensor>,
    bias: Option<Tensor>,
    #[module(settings)]
    settings: LayerNormOptions,
}

/// How a [`LayerNorm`] is made.
#[derive(Clone, Debug, Settings)]
#[settings(check = LayerNormOptions::check_axes)]
pub struct LayerNormOptions {
    /// The lengths of the last axes, which are normalised.
    #[setting(least = 1)]
    pub normalized_shape: Vec<usize>,
    /// Added to variances.
    #[setting(default = 1e-5)]
    pub eps: f64,
    /// Whether normalised values are scaled by a parameter.
    #[setting(default = true)]
    pub elementwise_affine: bool,
    /// Whether they are also shifted by one.
    #[setting(default = true)]
    pub bias: bool,
}

impl LayerNorm {
    /// A float32 layer over last axes of this shape.
    pub fn new(queue: &Queue, normalized_shape: impl Into<Vec<usize>>) -> Result<LayerNorm> {
        LayerNorm::new_with(queue, LayerNormOptions::new(normalized_shape))
    }

    fn make(build: &mut Build<'_>, settings: LayerNormOptions) -> Result<LayerNorm> {
        let LayerNormOptions { ref normalized_shape, elementwise_affine: affine, bias, .. } = settings;
        let (weight, bias) = scales(build, normalized_shape, [affine, affine && bias])?;
        Ok(LayerNorm { weight, bias, settings })
    }

    /// The scales.
    pub fn weight(&self) -> Option<&Tensor> {
        self.weight.as_ref()
    }

    /// The shifts.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// The result for an input.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || {
            let LayerNormOptions { normalized_shape, eps, .. } = &self.settings;
            check_ends_with("LayerNorm", input, normalized_shape)?;
            layer_norm(input, normalized_shape.len(), self.weight.as_ref(), self.bias.as_ref(), *eps)
        })
    }
}

/// Divides the last axes of each sample by the root of their mean square, then scales every element.
#[derive(Module)]
pub struct RMSNorm {
    weight: Option<Tensor>,
    #[module(settings)]
    settings: RMSNormOptions,
}

/// How an [`RMSNorm`] is made.
#[derive(Clone, Debug, Settings)]
#[settings(check = RMSNormOptions::check_axes)]
pub struct RMSNormOptions {
    /// The lengths of the last axes, which are normalised.
    #[setting(least = 1)]
    pub normalized_shape: Vec<usize>,
    /// Added to mean squares; `None` is the distance from 1 to the next number of the input's dtype.
    #[setting(default = Some(1e-6))]
    pub eps: Option<f64>,
    /// Whether results are scaled by a parameter.
    #[setting(default = true)]
    pub elementwise_affine: bool,
}

impl RMSNorm {
    /// A float32 layer over last axes of this shape.
    pub fn new(queue: &Queue, normalized_shape: impl Into<Vec<usize>>) -> Result<RMSNorm> {
        RMSNorm::new_with(queue, RMSNormOptions::new(normalized_shape))
    }

    fn make(build: &mut Build<'_>, settings: RMSNormOptions) -> Result<RMSNorm> {
        let (weight, _) = scales(build, &settings.normalized_shape, [settings.elementwise_affine, false])?;
        Ok(RMSNorm { weight, settings })
    }

    /// The scales.
    pub fn weight(&self) -> Option<&Tensor> {
        self.weight.as_ref()
    }

    /// The result for an input.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || {
            let RMSNormOptions { normalized_shape, eps, .. } = &self.settings;
            check_ends_with("RMSNorm", input, normalized_shape)?;
            let eps = eps.unwrap_or(match input.dtype() {
                DType::F64 => f64::EPSILON,
                DType::F16 => 2f64.powi(-10),
                DType::BF16 => 2f64.powi(-7),
                _ => f64::from(f32::EPSILON),
            });
            rms_norm(input, normalized_shape.len(), self.weight.as_ref(), eps)
        })
    }
}

/// Normalises groups of channels (axis 1) of each sample, then scales and shifts every channel.
#[derive(Module)]
pub struct GroupNorm {
    weight: Option<Tensor>,
    bias: Option<Tensor>,
    #[module(settings)]
    settings: GroupNormOptions,
}

/// How a [`GroupNorm`] is made.
#[derive(Clone, Debug, Settings)]
#[settings(check = GroupNormOptions::check_groups)]
pub struct GroupNormOptions {
    /// The number of groups.
    #[setting(least = 1)]
    pub num_groups: usize,
    /// The number of channels in all.
    #[setting(least = 1)]
    pub num_channels: usize,
    /// Added to variances.
    #[setting(default = 1e-5)]
    pub eps: f64,
    /// Whether normalised values are scaled and shifted by parameters.
    #[setting(default = true)]
    pub affine: bool,
}

impl GroupNormOptions {
    fn check_groups(&self, layer: &'static str) -> Result<()> {
        let GroupNormOptions { num_groups: groups, num_channels: channels, .. } = self;
        if channels.is_multiple_of(*groups) {
            return Ok(());
        }
        Err(Error::argument(layer, format!("num_groups={groups} must divide num_channels={channels}")))
    }
}

impl GroupNorm {
    /// A float32 layer for so many groups of so many channels in all.
    ///
    /// # Errors
    /// If the groups do not divide the channels.
    pub fn new(queue: &Queue, num_groups: usize, num_channels: usize) -> Result<GroupNorm> {
        GroupNorm::new_with(queue, GroupNormOptions::new(num_groups, num_channels))
    }

    fn make(build: &mut Build<'_>, settings: GroupNormOptions) -> Result<GroupNorm> {
        let (weight, bias) = scales(build, &[settings.num_channels], [settings.affine; 2])?;
        Ok(GroupNorm { weight, bias, settings })
    }

    /// The scales, one per channel.
    pub fn weight(&self) -> Option<&Tensor> {
        self.weight.as_ref()
    }

    /// The shifts, one per channel.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// The result for an input.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || {
            let GroupNormOptions { num_groups, num_channels: channels, eps, .. } = self.settings;
            if input.shape().get(1) != Some(&channels) {
                let settings = format!("num_channels={channels}");
                return Err(takes("GroupNorm", settings, format!("(N, {channels}, ...)"), input));
            }
            group_norm(input, num_groups, self.weight.as_ref(), self.bias.as_ref(), eps)
        })
    }
}
