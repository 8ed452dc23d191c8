//! Convolutions.

use netcl_autograd::ops::conv::{Convolution, conv_transpose2d, conv1d, conv2d, same};
use netcl_autograd::ops::layout::{squeeze, unsqueeze};
use netcl_autograd::{DType, Error, Generator, Queue, Result, Tensor};

use crate::init::{Init, weight_and_bias};
use crate::members;
use crate::module::{Module, print_as_module};
use crate::size::{Size, tuple};

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
/// let halving = Conv2dOptions { stride: [2, 2], padding: [1, 1], ..Default::default() };
/// let layer = Conv2d::new_with(&queue, 3, 8, 3, halving)?;
/// let y = layer.forward(&Tensor::from_host(&queue, &[0.5f32; 3 * 64], [1, 3, 8, 8])?)?;
/// assert_eq!(y.shape()[..], [1, 8, 4, 4]);
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
pub struct Conv2d {
    weight: Tensor,
    bias: Option<Tensor>,
    how: Convolution,
}

/// How [`Conv2d::new_with`] makes a layer.
#[derive(Debug)]
pub struct Conv2dOptions<'g> {
    /// Steps down and to the right.
    pub stride: [usize; 2],
    /// Zeros on both sides of the rows and of the columns.
    pub padding: [usize; 2],
    /// The distance between the taps of a filter.
    pub dilation: [usize; 2],
    /// Independent groups of channels.
    pub groups: usize,
    /// Whether a bias is added.
    pub bias: bool,
    /// The parameters' dtype.
    pub dtype: DType,
    /// Where the first weights come from; the process-wide generator where none is given.
    pub generator: Option<&'g mut Generator>,
}

impl Default for Conv2dOptions<'_> {
    fn default() -> Self {
        Conv2dOptions {
            stride: [1, 1],
            padding: [0, 0],
            dilation: [1, 1],
            groups: 1,
            bias: true,
            dtype: DType::F32,
            generator: None,
        }
    }
}

impl Conv2d {
    /// A float32 layer with a bias that moves by one pixel; the kernel is a number or `[height, width]`.
    pub fn new(queue: &Queue, in_channels: usize, out_channels: usize, kernel: impl Into<Size<2>>) -> Result<Conv2d> {
        Conv2d::new_with(queue, in_channels, out_channels, kernel, Conv2dOptions::default())
    }

    /// A layer with another stride, padding, dilation, number of groups, dtype or generator, or without a bias.
    ///
    /// # Errors
    /// If the groups do not divide both numbers of channels.
    pub fn new_with(
        queue: &Queue,
        in_channels: usize,
        out_channels: usize,
        kernel: impl Into<Size<2>>,
        options: Conv2dOptions<'_>,
    ) -> Result<Conv2d> {
        let Conv2dOptions { stride, padding, dilation, groups, bias, dtype, generator } = options;
        check_groups("Conv2d", in_channels, out_channels, groups)?;
        let Size([height, width]) = kernel.into();
        let shape = [out_channels, in_channels / groups, height, width];
        let (weight, bias) = weight_and_bias(queue, shape, bias.then_some(out_channels), dtype, generator)?;
        Conv2d::from_parameters(weight, bias, Convolution { stride, padding: same(padding), dilation, groups })
    }

    /// A layer over existing values: a weight of shape `[out_channels, in_channels / groups, height, width]` and a bias of
    /// `[out_channels]`.
    ///
    /// # Errors
    /// If the shapes do not fit.
    pub fn from_parameters(weight: Tensor, bias: Option<Tensor>, how: Convolution) -> Result<Conv2d> {
        let channels = weight.shape().first().copied().unwrap_or(0);
        check_parameters("Conv2d", &weight, 4, bias.as_ref(), channels, how.groups)?;
        Ok(Conv2d { weight: weight.with_grad(), bias: bias.map(Tensor::with_grad), how })
    }

    /// A layer without a bias whose weight follows a rule.
    pub(crate) fn with_init(
        queue: &Queue,
        shape: [usize; 4],
        how: Convolution,
        init: Init,
        dtype: DType,
        generator: Option<&mut Generator>,
    ) -> Result<Conv2d> {
        Conv2d::from_parameters(init.tensor(queue, shape, dtype, generator)?, None, how)
    }

    /// The filters.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// The bias, of shape `[out_channels]`.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// Stride, padding, dilation and groups.
    pub fn how(&self) -> &Convolution {
        &self.how
    }

    /// The channels of the input.
    pub fn in_channels(&self) -> usize {
        self.weight.shape()[1] * self.how.groups
    }

    /// The channels of the result: the number of filters.
    pub fn out_channels(&self) -> usize {
        self.weight.shape()[0]
    }
}

impl Module for Conv2d {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        batched(input, 3, |x| conv2d(x, &self.weight, self.bias.as_ref(), &self.how))
    }

    fn arguments(&self) -> String {
        let window = &self.weight.shape()[2..];
        arguments(self.in_channels(), self.out_channels(), window, &self.how, [0, 0], self.bias.is_some())
    }

    members! { parameters: weight, bias }
}

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
pub struct Conv1d {
    weight: Tensor,
    bias: Option<Tensor>,
    how: Convolution,
}

/// How [`Conv1d::new_with`] makes a layer.
#[derive(Debug)]
pub struct Conv1dOptions<'g> {
    /// The step.
    pub stride: usize,
    /// Zeros on both sides.
    pub padding: usize,
    /// The distance between the taps of a filter.
    pub dilation: usize,
    /// Independent groups of channels.
    pub groups: usize,
    /// Whether a bias is added.
    pub bias: bool,
    /// The parameters' dtype.
    pub dtype: DType,
    /// Where the first weights come from; the process-wide generator where none is given.
    pub generator: Option<&'g mut Generator>,
}

impl Default for Conv1dOptions<'_> {
    fn default() -> Self {
        let (dtype, generator) = (DType::F32, None);
        Conv1dOptions { stride: 1, padding: 0, dilation: 1, groups: 1, bias: true, dtype, generator }
    }
}

impl Conv1d {
    /// A float32 layer with a bias that moves by one element.
    pub fn new(queue: &Queue, in_channels: usize, out_channels: usize, kernel: usize) -> Result<Conv1d> {
        Conv1d::new_with(queue, in_channels, out_channels, kernel, Conv1dOptions::default())
    }

    /// A layer with another stride, padding, dilation, number of groups, dtype or generator, or without a bias.
    ///
    /// # Errors
    /// If the groups do not divide both numbers of channels.
    pub fn new_with(
        queue: &Queue,
        in_channels: usize,
        out_channels: usize,
        kernel: usize,
        options: Conv1dOptions<'_>,
    ) -> Result<Conv1d> {
        let Conv1dOptions { stride, padding, dilation, groups, bias, dtype, generator } = options;
        check_groups("Conv1d", in_channels, out_channels, groups)?;
        let shape = [out_channels, in_channels / groups, kernel];
        let (weight, bias) = weight_and_bias(queue, shape, bias.then_some(out_channels), dtype, generator)?;
        // Sequences are images of one row.
        let (stride, dilation) = ([1, stride], [1, dilation]);
        Conv1d::from_parameters(weight, bias, Convolution { stride, padding: same([0, padding]), dilation, groups })
    }

    /// A layer over existing values: a weight of shape `[out_channels, in_channels / groups, length]` and a bias of
    /// `[out_channels]`. Of the options, those for columns count.
    ///
    /// # Errors
    /// If the shapes do not fit.
    pub fn from_parameters(weight: Tensor, bias: Option<Tensor>, how: Convolution) -> Result<Conv1d> {
        let channels = weight.shape().first().copied().unwrap_or(0);
        check_parameters("Conv1d", &weight, 3, bias.as_ref(), channels, how.groups)?;
        Ok(Conv1d { weight: weight.with_grad(), bias: bias.map(Tensor::with_grad), how })
    }

    /// The filters.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// The bias, of shape `[out_channels]`.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// Stride, padding, dilation (those of columns count) and groups.
    pub fn how(&self) -> &Convolution {
        &self.how
    }
}

impl Module for Conv1d {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        batched(input, 2, |x| conv1d(x, &self.weight, self.bias.as_ref(), &self.how))
    }

    fn arguments(&self) -> String {
        let (shape, how) = (self.weight.shape(), &self.how);
        arguments(shape[1] * how.groups, shape[0], &shape[2..], how, [0, 0], self.bias.is_some())
    }

    members! { parameters: weight, bias }
}

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
/// let doubling = ConvTranspose2dOptions { stride: [2, 2], ..Default::default() };
/// let layer = ConvTranspose2d::new_with(&queue, 3, 2, 2, doubling)?;
/// let y = layer.forward(&Tensor::from_host(&queue, &[0.5f32; 48], [1, 3, 4, 4])?)?;
/// assert_eq!(y.shape()[..], [1, 2, 8, 8]);
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
pub struct ConvTranspose2d {
    weight: Tensor,
    bias: Option<Tensor>,
    how: Convolution,
    output_padding: [usize; 2],
}

/// How [`ConvTranspose2d::new_with`] makes a layer.
#[derive(Debug)]
pub struct ConvTranspose2dOptions<'g> {
    /// The distance, in the result, of neighbouring pixels.
    pub stride: [usize; 2],
    /// Rows and columns cut off on both sides.
    pub padding: [usize; 2],
    /// Rows and columns added at the bottom and the right.
    pub output_padding: [usize; 2],
    /// The distance between the taps of a filter.
    pub dilation: [usize; 2],
    /// Independent groups of channels.
    pub groups: usize,
    /// Whether a bias is added.
    pub bias: bool,
    /// The parameters' dtype.
    pub dtype: DType,
    /// Where the first weights come from; the process-wide generator where none is given.
    pub generator: Option<&'g mut Generator>,
}

impl Default for ConvTranspose2dOptions<'_> {
    fn default() -> Self {
        ConvTranspose2dOptions {
            stride: [1, 1],
            padding: [0, 0],
            output_padding: [0, 0],
            dilation: [1, 1],
            groups: 1,
            bias: true,
            dtype: DType::F32,
            generator: None,
        }
    }
}

impl ConvTranspose2d {
    /// A float32 layer with a bias and stride 1; the kernel is a number or `[height, width]`.
    pub fn new(
        queue: &Queue,
        in_channels: usize,
        out_channels: usize,
        kernel: impl Into<Size<2>>,
    ) -> Result<ConvTranspose2d> {
        ConvTranspose2d::new_with(queue, in_channels, out_channels, kernel, ConvTranspose2dOptions::default())
    }

    /// A layer with another stride, padding, dilation, number of groups, dtype or generator, or without a bias.
    ///
    /// # Errors
    /// If the groups do not divide both numbers of channels.
    pub fn new_with(
        queue: &Queue,
        in_channels: usize,
        out_channels: usize,
        kernel: impl Into<Size<2>>,
        options: ConvTranspose2dOptions<'_>,
    ) -> Result<ConvTranspose2d> {
        let ConvTranspose2dOptions { stride, padding, output_padding, dilation, groups, bias, dtype, generator } =
            options;
        check_groups("ConvTranspose2d", in_channels, out_channels, groups)?;
        let Size([height, width]) = kernel.into();
        let shape = [in_channels, out_channels / groups, height, width];
        let (weight, bias) = weight_and_bias(queue, shape, bias.then_some(out_channels), dtype, generator)?;
        let how = Convolution { stride, padding: same(padding), dilation, groups };
        ConvTranspose2d::from_parameters(weight, bias, how, output_padding)
    }

    /// A layer over existing values: a weight of shape `[in_channels, out_channels / groups, height, width]` and a bias of
    /// `[out_channels]`.
    ///
    /// # Errors
    /// If the shapes do not fit.
    pub fn from_parameters(
        weight: Tensor,
        bias: Option<Tensor>,
        how: Convolution,
        output_padding: [usize; 2],
    ) -> Result<ConvTranspose2d> {
        let channels = weight.shape().get(1).map_or(0, |per_group| per_group * how.groups);
        check_parameters("ConvTranspose2d", &weight, 4, bias.as_ref(), channels, how.groups)?;
        Ok(ConvTranspose2d { weight: weight.with_grad(), bias: bias.map(Tensor::with_grad), how, output_padding })
    }

    /// The filters.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// The bias, of shape `[out_channels]`.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// Stride, padding, dilation and groups.
    pub fn how(&self) -> &Convolution {
        &self.how
    }

    /// Rows and columns added at the bottom and the right.
    pub fn output_padding(&self) -> [usize; 2] {
        self.output_padding
    }
}

impl Module for ConvTranspose2d {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let bias = self.bias.as_ref();
        batched(input, 3, |x| conv_transpose2d(x, &self.weight, bias, &self.how, self.output_padding))
    }

    fn arguments(&self) -> String {
        let (shape, how) = (self.weight.shape(), &self.how);
        arguments(shape[0], shape[1] * how.groups, &shape[2..], how, self.output_padding, self.bias.is_some())
    }

    members! { parameters: weight, bias }
}

print_as_module!(Conv1d, Conv2d, ConvTranspose2d);

/// A function of a batch, applied to a batch or to a single sample of so many axes.
pub(crate) fn batched(x: &Tensor, axes: usize, function: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    if x.ndim() == axes { squeeze(&function(&unsqueeze(x, 0)?)?, &[0]) } else { function(x) }
}

fn check_groups(op: &'static str, inputs: usize, outputs: usize, groups: usize) -> Result<()> {
    if groups > 0 && inputs.is_multiple_of(groups) && outputs.is_multiple_of(groups) {
        return Ok(());
    }
    let what = format!("{inputs} and {outputs} channels cannot be divided into {groups} groups; use a common divisor");
    Err(Error::argument(op, what))
}

fn check_parameters(
    op: &'static str,
    weight: &Tensor,
    axes: usize,
    bias: Option<&Tensor>,
    channels: usize,
    groups: usize,
) -> Result<()> {
    let divisible = groups > 0 && weight.shape().first().is_some_and(|first| first.is_multiple_of(groups));
    if weight.ndim() == axes && divisible && bias.is_none_or(|bias| bias.shape()[..] == [channels]) {
        return Ok(());
    }
    let bias = bias.map_or_else(|| "none".to_owned(), |bias| bias.shape().to_string());
    let what = format!(
        "weight has shape {} and bias {bias} for {groups} groups; use {axes} axes, the first a multiple of the groups, and one \
         element of the bias per output channel",
        weight.shape()
    );
    Err(Error::argument(op, what))
}

/// What print-outs say of a convolution: what differs from the plain one is named.
fn arguments(
    inputs: usize,
    outputs: usize,
    window: &[usize],
    how: &Convolution,
    output_padding: [usize; 2],
    bias: bool,
) -> String {
    let axes = 2 - window.len();
    let Convolution { stride, padding: [top, bottom, left, right], dilation, groups } = *how;
    let mut text = format!("in_channels={inputs}, out_channels={outputs}, kernel_size={}", tuple(window));
    text += &format!(", stride={}", tuple(&stride[axes..]));
    if [top, bottom, left, right] != [0; 4] {
        let padding = if [top, left] == [bottom, right] { tuple(&[top, left][axes..]) } else { tuple(&how.padding) };
        text += &format!(", padding={padding}");
    }
    if output_padding != [0, 0] {
        text += &format!(", output_padding={}", tuple(&output_padding));
    }
    if dilation != [1, 1] {
        text += &format!(", dilation={}", tuple(&dilation[axes..]));
    }
    if groups != 1 {
        text += &format!(", groups={groups}");
    }
    text + &format!(", bias={bias}")
}
