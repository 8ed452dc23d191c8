//! Normalisations that do not depend on other samples.

use netcl_autograd::ops::norm::{group_norm, layer_norm, rms_norm};
use netcl_autograd::{DType, Error, Queue, Result, Shape, Tensor};

use crate::members;
use crate::module::{Module, print_as_module};
use crate::size::tuple;

/// An error unless an input ends with the axes that are normalised.
fn check_ends_with(op: &'static str, input: &Tensor, shape: &Shape) -> Result<()> {
    if input.shape().ends_with(shape) {
        return Ok(());
    }
    let why = format!("it must end with the normalised shape {shape}");
    Err(Error::shape(op, input.shape(), why))
}

fn full(queue: &Queue, wanted: bool, shape: &Shape, dtype: DType, value: f64) -> Result<Option<Tensor>> {
    wanted.then(|| Ok(Tensor::full(queue, shape.clone(), dtype, value)?.with_grad())).transpose()
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
pub struct LayerNorm {
    weight: Option<Tensor>,
    bias: Option<Tensor>,
    shape: Shape,
    eps: f64,
}

/// How a [`LayerNorm`] is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerNormOptions {
    /// Added to variances.
    pub eps: f64,
    /// Whether normalised values are scaled by a parameter.
    pub affine: bool,
    /// Whether they are also shifted by one.
    pub bias: bool,
    /// The parameters' dtype.
    pub dtype: DType,
}

impl Default for LayerNormOptions {
    fn default() -> Self {
        LayerNormOptions { eps: 1e-5, affine: true, bias: true, dtype: DType::F32 }
    }
}

impl LayerNorm {
    /// A float32 layer over last axes of this shape.
    pub fn new(queue: &Queue, shape: impl Into<Shape>) -> Result<LayerNorm> {
        LayerNorm::new_with(queue, shape, LayerNormOptions::default())
    }

    /// A layer with other options. Scales start at 1, shifts at 0.
    pub fn new_with(queue: &Queue, shape: impl Into<Shape>, options: LayerNormOptions) -> Result<LayerNorm> {
        let LayerNormOptions { eps, affine, bias, dtype } = options;
        let shape = shape.into();
        let weight = full(queue, affine, &shape, dtype, 1.0)?;
        let bias = full(queue, affine && bias, &shape, dtype, 0.0)?;
        Ok(LayerNorm { weight, bias, shape, eps })
    }

    /// The scales.
    pub fn weight(&self) -> Option<&Tensor> {
        self.weight.as_ref()
    }

    /// The shifts.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// The axes that are normalised.
    pub fn normalized_shape(&self) -> &Shape {
        &self.shape
    }

    /// What is added to variances.
    pub fn eps(&self) -> f64 {
        self.eps
    }
}

impl Module for LayerNorm {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        check_ends_with("LayerNorm", input, &self.shape)?;
        layer_norm(input, self.shape.ndim(), self.weight.as_ref(), self.bias.as_ref(), self.eps)
    }

    fn arguments(&self) -> String {
        let (affine, bias) = (self.weight.is_some(), self.bias.is_some());
        let shape = tuple(&self.shape);
        format!("normalized_shape={shape}, eps={}, elementwise_affine={affine}, bias={bias}", self.eps)
    }

    members! { parameters: weight, bias }
}

/// Divides the last axes of each sample by the root of their mean square, then scales every element.
pub struct RMSNorm {
    weight: Option<Tensor>,
    shape: Shape,
    eps: f64,
}

/// How an [`RMSNorm`] is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RMSNormOptions {
    /// Added to mean squares; if not given, the distance from 1 to the next number of the dtype.
    pub eps: Option<f64>,
    /// Whether results are scaled by a parameter.
    pub affine: bool,
    /// The parameter's dtype.
    pub dtype: DType,
}

impl Default for RMSNormOptions {
    fn default() -> Self {
        RMSNormOptions { eps: None, affine: true, dtype: DType::F32 }
    }
}

impl RMSNorm {
    /// A float32 layer over last axes of this shape.
    pub fn new(queue: &Queue, shape: impl Into<Shape>) -> Result<RMSNorm> {
        RMSNorm::new_with(queue, shape, RMSNormOptions::default())
    }

    /// A layer with other options. Scales start at 1.
    pub fn new_with(queue: &Queue, shape: impl Into<Shape>, options: RMSNormOptions) -> Result<RMSNorm> {
        let RMSNormOptions { eps, affine, dtype } = options;
        let shape = shape.into();
        let eps = eps.unwrap_or(match dtype {
            DType::F64 => f64::EPSILON,
            DType::F16 => 2f64.powi(-10),
            DType::BF16 => 2f64.powi(-7),
            _ => f64::from(f32::EPSILON),
        });
        Ok(RMSNorm { weight: full(queue, affine, &shape, dtype, 1.0)?, shape, eps })
    }

    /// The scales.
    pub fn weight(&self) -> Option<&Tensor> {
        self.weight.as_ref()
    }

    /// The axes that are normalised.
    pub fn normalized_shape(&self) -> &Shape {
        &self.shape
    }

    /// What is added to mean squares.
    pub fn eps(&self) -> f64 {
        self.eps
    }
}

impl Module for RMSNorm {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        check_ends_with("RMSNorm", input, &self.shape)?;
        rms_norm(input, self.shape.ndim(), self.weight.as_ref(), self.eps)
    }

    fn arguments(&self) -> String {
        let affine = self.weight.is_some();
        format!("normalized_shape={}, eps={}, elementwise_affine={affine}", tuple(&self.shape), self.eps)
    }

    members! { parameters: weight }
}

/// Normalises groups of channels (axis 1) of each sample, then scales and shifts every channel.
pub struct GroupNorm {
    weight: Option<Tensor>,
    bias: Option<Tensor>,
    groups: usize,
    channels: usize,
    eps: f64,
}

/// How a [`GroupNorm`] is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupNormOptions {
    /// Added to variances.
    pub eps: f64,
    /// Whether normalised values are scaled and shifted by parameters.
    pub affine: bool,
    /// The parameters' dtype.
    pub dtype: DType,
}

impl Default for GroupNormOptions {
    fn default() -> Self {
        GroupNormOptions { eps: 1e-5, affine: true, dtype: DType::F32 }
    }
}

impl GroupNorm {
    /// A float32 layer for so many groups of so many channels in all.
    ///
    /// # Errors
    /// If the groups do not divide the channels.
    pub fn new(queue: &Queue, groups: usize, channels: usize) -> Result<GroupNorm> {
        GroupNorm::new_with(queue, groups, channels, GroupNormOptions::default())
    }

    /// A layer with other options. Scales start at 1, shifts at 0.
    ///
    /// # Errors
    /// If the groups do not divide the channels.
    pub fn new_with(queue: &Queue, groups: usize, channels: usize, options: GroupNormOptions) -> Result<GroupNorm> {
        let GroupNormOptions { eps, affine, dtype } = options;
        if groups == 0 || !channels.is_multiple_of(groups) {
            let what = format!("{channels} channels cannot be divided into {groups} groups; use a divisor");
            return Err(Error::argument("GroupNorm", what));
        }
        let shape = Shape::from([channels]);
        let (weight, bias) = (full(queue, affine, &shape, dtype, 1.0)?, full(queue, affine, &shape, dtype, 0.0)?);
        Ok(GroupNorm { weight, bias, groups, channels, eps })
    }

    /// The scales, one per channel.
    pub fn weight(&self) -> Option<&Tensor> {
        self.weight.as_ref()
    }

    /// The shifts, one per channel.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// The number of groups.
    pub fn num_groups(&self) -> usize {
        self.groups
    }

    /// The number of channels.
    pub fn num_channels(&self) -> usize {
        self.channels
    }

    /// What is added to variances.
    pub fn eps(&self) -> f64 {
        self.eps
    }
}

impl Module for GroupNorm {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        if input.shape().get(1) != Some(&self.channels) {
            let why = format!("it takes [N, {}, ...]", self.channels);
            return Err(Error::shape("GroupNorm", input.shape(), why));
        }
        group_norm(input, self.groups, self.weight.as_ref(), self.bias.as_ref(), self.eps)
    }

    fn arguments(&self) -> String {
        let affine = self.weight.is_some();
        format!("num_groups={}, num_channels={}, eps={}, affine={affine}", self.groups, self.channels, self.eps)
    }

    members! { parameters: weight, bias }
}

print_as_module!(LayerNorm, RMSNorm, GroupNorm);
