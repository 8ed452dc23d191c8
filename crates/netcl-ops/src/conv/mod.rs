//! Convolutions of images, their gradients, and the transposed convolution.
//!
//! ```text
//!    x [N, C, H, W]                weight [F, C / groups, KH, KW]            out [N, F, OH, OW]
//!    +-----------+
//!    | +---+     |                   +---+                                    +---------+
//!    | |   |->   |       x           |   |   one for each of F      ->        | .       |   OH = (H + top + bottom
//!    | +---+     |                   +---+   filters                          |         |         - dilation * (KH - 1) - 1)
//!    +-----------+                                                            +---------+         / stride + 1
//! ```
//!
//! As everywhere in deep learning, filters are not flipped. A filter of group g sees the channels of group g only: `groups = C`
//! is a depthwise convolution. Tensors may have any strides, channels-last included; results are dense, and channels-last
//! where matrix units compute them: strides say so, shapes do not change. 16-bit floats are summed in float32.
//!
//! The two gradients are functions of their own. [`conv_transpose2d`] *is* the data gradient with the roles of input and output
//! exchanged, so that its gradients are the other two functions. Sequences are images of one row.
//!
//! | file | subject |
//! |---|---|
//! | `epilogue` | bias and epilogue as one expression |
//! | `prologue` | images that are computed while they are read |
//! | `cpu` | the native engine: shifted or packed products, whatever the stride or dilation |
//! | `opencl` | one way of computing per [`Variant`], each with its `.cl` file |
//! | `transposed` | the transposed convolution: a data gradient used forwards |

mod cpu;
mod epilogue;
mod fusable;
mod opencl;
mod prologue;
mod transposed;

use netcl_core::backend::Queue;
use netcl_core::conv::ConvGeometry;
use netcl_core::dtype::DType;
use netcl_core::kernel_selector::{ConvPass, KernelConfig, KernelVariant};
use netcl_core::kernels::described::CanFuse;
use netcl_core::kernels::launch;
use netcl_core::shape::Shape;
use netcl_core::tensor::{Tensor, reshape};
use netcl_core::{Error, Result};

use crate::matmul::{MatmulOptions, matmul_with};
use crate::norm::ChannelStatistics;
use crate::norm::statistics::Cut;
use crate::prologue::CheckedPrologue;
use epilogue::ConvEpilogue;

pub use netcl_core::conv::{ConvParams, symmetric};
pub use netcl_core::kernels::described::{Epilogue, Prologue};
pub use transposed::{conv_transpose2d, conv_transpose2d_backward_data, conv_transpose2d_backward_weight};

/// A way of computing on OpenCL devices. The native CPU has an engine of its own and takes no notice of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Variant {
    /// One work-item per result, no local memory: any geometry.
    Naive,
    /// Windows written out as a matrix, a few images at a time, for the matrix product: any geometry.
    Im2col,
    /// A matrix product that reads windows where they are: any geometry.
    ImplicitGemm,
    /// A part of the image in local memory, one pixel of several filters per work-item. Forward only.
    TiledLocal,
    /// F(2x2, 3x3): 2.25 times fewer multiplications. Filters of 3x3 with stride 1, no dilation, one group, float32; forward
    /// and data gradient.
    Winograd,
    /// Filters that see one channel each, with any number of them to a channel: every pixel is read once from memory.
    Depthwise,
    /// Hopper's matrix units read windows of channels-last images where they are: one group, 16-bit floats, or float32 as tf32.
    Units,
}

impl Variant {
    /// All of them.
    pub const ALL: [Variant; 7] = [
        Variant::Naive,
        Variant::Im2col,
        Variant::ImplicitGemm,
        Variant::TiledLocal,
        Variant::Winograd,
        Variant::Depthwise,
        Variant::Units,
    ];
}

/// The parameters of a convolution, the expressions fused on it, and how it is computed.
///
/// ```
/// use netcl_ops::conv::{ConvOptions, ConvParams, Prologue, conv2d, symmetric};
/// use netcl_core::{device::manager, dtype::DType, kernels::expr::Graph, tensor::Tensor};
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::from_host(&queue, &[1.0f32, -2.0, 3.0], [1, 1, 1, 3])?;
/// let ones = Tensor::full(&queue, [1, 1, 1, 3], DType::F32, 1.0)?;
/// let g = Graph::new();
/// let relu_plus_one = g.finish(&[g.input(0).relu() + g.scalar(0)]);
/// let prologue = Prologue { operand: 0, expr: &relu_plus_one, inputs: vec![], scalars: vec![1.0.into()] };
/// let params = ConvParams { padding: symmetric([0, 1]), ..Default::default() };
/// let options = ConvOptions { params, prologue: Some(prologue), ..Default::default() };
/// assert_eq!(conv2d(&x, &ones, None, &options)?.to_host::<f32>()?, [3.0, 7.0, 5.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct ConvOptions<'e> {
    /// How the filters move over the image.
    pub params: ConvParams,
    /// Computes the images (operand 0) while they are read; zeros around them stay zeros. Gradients ignore it.
    pub prologue: Option<Prologue<'e>>,
    /// Applied to each element of the result, after the bias; its tensors broadcast to the result. Gradients ignore it.
    pub epilogue: Option<Epilogue<'e>>,
    /// How OpenCL devices compute, instead of what the geometry and the device suggest. One that cannot do a convolution is an
    /// error; one that has no gradient leaves that to the device.
    pub variant: Option<Variant>,
}

impl From<ConvParams> for ConvOptions<'_> {
    fn from(params: ConvParams) -> Self {
        ConvOptions { params, ..Default::default() }
    }
}

/// The convolution of images `[N, C, H, W]` with filters `[F, C / groups, KH, KW]`, plus a bias of F elements.
///
/// ```
/// use netcl_ops::conv::{ConvParams, conv2d, symmetric};
/// use netcl_core::{device::manager, dtype::DType, tensor::Tensor};
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::from_host(&queue, &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], [1, 1, 3, 3])?;
/// let box_filter = Tensor::full(&queue, [1, 1, 3, 3], DType::F32, 1.0)?;
/// let params = ConvParams { padding: symmetric([1, 1]), ..Default::default() };
/// let out = conv2d(&x, &box_filter, None, &params.into())?;
/// assert_eq!(out.to_host::<f32>()?, [12.0, 21.0, 16.0, 27.0, 45.0, 33.0, 24.0, 39.0, 28.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn conv2d(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, options: &ConvOptions<'_>) -> Result<Tensor> {
    conv2d_as("conv2d", x, weight, bias, options)
}

/// [`conv2d`], and the statistics of the result's channels that batch normalisation starts with.
///
/// The native CPU and the implicit product on OpenCL devices find them while the results are still at hand; other ways of
/// computing pass over the result once more.
///
/// ```
/// use netcl_ops::conv::{ConvOptions, conv2d_with_statistics};
/// use netcl_core::{device::manager, dtype::DType, tensor::Tensor};
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::full(&queue, [2, 3, 8, 8], DType::F32, 1.0)?;
/// let weight = Tensor::full(&queue, [4, 3, 3, 3], DType::F32, 0.5)?;
/// let (out, statistics) = conv2d_with_statistics(&x, &weight, None, &ConvOptions::default())?;
/// assert_eq!((statistics.channels(), statistics.count()), (4, 2 * 6 * 6));
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn conv2d_with_statistics(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    options: &ConvOptions<'_>,
) -> Result<(Tensor, ChannelStatistics)> {
    let (out, found) = convolve("conv2d_with_statistics", x, weight, bias, options, true)?;
    let statistics = match found {
        Some(found) => found,
        None => ChannelStatistics::of(&out)?,
    };
    Ok((out, statistics))
}

fn conv2d_as(
    op: &'static str,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    options: &ConvOptions<'_>,
) -> Result<Tensor> {
    convolve(op, x, weight, bias, options, false).map(|(out, _)| out)
}

/// The convolution, and the statistics of its channels if they are wanted and cost less than a pass over the result.
fn convolve(
    op: &'static str,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    options: &ConvOptions<'_>,
    statistics: bool,
) -> Result<(Tensor, Option<ChannelStatistics>)> {
    check_operands(op, x, weight)?;
    let g = ConvGeometry::new(op, x.shape(), weight.shape(), &options.params)?;
    let epilogue = ConvEpilogue::new(op, x, bias, options.epilogue.as_ref(), &g.output_shape())?;
    let chosen = match x.queue() {
        Queue::OpenCl(stream) => {
            if let Some(variant) = options.variant {
                opencl::check(stream, op, variant, &g, x.dtype())?;
            }
            Some(opencl::choose(op, &g, x, ConvPass::Forward, options.variant)?)
        }
        Queue::Cpu(_) => None,
    };
    let out = result(x, g.output_shape(), epilogue.dtype, (&g, chosen.as_ref().map(|(variant, _)| *variant)))?;
    let mut found = None;
    let free = options.variant.is_none() && options.prologue.is_none();
    if !statistics && free && g.n > 0 && launch::has_sink() && fusable::offer(op, x, weight, bias, options, &out)? {
        return Ok((out, found));
    }
    let prologue = options.prologue.as_ref().map(|p| {
        if p.operand != 0 {
            let what = format!("a prologue computes the images, operand 0, not operand {}", p.operand);
            return Err(Error::argument(op, what));
        }
        CheckedPrologue::new(op, x, p.expr, &p.inputs, &p.scalars)
    });
    let prologue = prologue.transpose()?;
    if let Some(prologue) = &prologue
        && prologue::can_fuse(op, &g, [x, weight, &out], options.variant, prologue)? != CanFuse::Yes
    {
        let options = ConvOptions { prologue: None, ..options.clone() };
        return convolve(op, &prologue.computed()?, weight, bias, &options, statistics);
    }
    let prologue = prologue.as_ref();
    match (x.queue(), chosen) {
        _ if g.n == 0 => {}
        (Queue::OpenCl(stream), Some((variant, config))) => {
            if variant != Variant::Units && as_product(&g, options.variant, config.as_ref()) {
                product(&g, x, weight, &out, (prologue, &epilogue))?;
            } else {
                let chosen = (variant, config.as_ref());
                found = opencl::forward(stream, &g, [x, weight, &out], (prologue, &epilogue), chosen, statistics)?;
            }
        }
        _ if g.is_product() && (prologue.is_some() || !cpu::suits_product(&g, x)) => {
            product(&g, x, weight, &out, (prologue, &epilogue))?;
        }
        _ => {
            if statistics {
                let parts = Tensor::uninit(x.queue(), [out.shape()[1], 1, 2], out.dtype().accumulator())?;
                found = Some(ChannelStatistics { parts, cut: Cut::whole(g.n * g.pixels()) });
            }
            cpu::forward(&g, [x, weight, &out], (prologue, &epilogue), found.as_ref().map(|found| &found.parts))?;
        }
    }
    Ok((out, found))
}

/// A new tensor for what a variant computes of images, in the order of axes that it writes.
fn result(
    images: &Tensor,
    shape: Shape,
    dtype: DType,
    (g, variant): (&ConvGeometry, Option<Variant>),
) -> Result<Tensor> {
    match (images.queue(), variant) {
        (Queue::OpenCl(stream), Some(variant)) if opencl::writes_channels_last(stream, variant, g, images) => {
            Tensor::uninit_channels_last(images.queue(), shape, dtype)
        }
        _ => Tensor::uninit(images.queue(), shape, dtype),
    }
}

/// The gradient of a sum over [`conv2d`] with respect to its input: `grad` is the gradient of the output, `input_shape` the shape
/// of the input.
///
/// ```
/// use netcl_ops::conv::{ConvOptions, conv2d_backward_data};
/// use netcl_core::{device::manager, shape::Shape, tensor::Tensor};
///
/// let queue = manager().cpu().queue;
/// let weight = Tensor::from_host(&queue, &[1.0f32, 10.0], [1, 1, 1, 2])?;
/// let grad = Tensor::from_host(&queue, &[1.0f32, 2.0], [1, 1, 1, 2])?;
/// let dx = conv2d_backward_data(&grad, &weight, &Shape::from([1, 1, 1, 3]), &ConvOptions::default())?;
/// assert_eq!(dx.to_host::<f32>()?, [1.0, 12.0, 20.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn conv2d_backward_data(
    grad: &Tensor,
    weight: &Tensor,
    input_shape: &Shape,
    options: &ConvOptions<'_>,
) -> Result<Tensor> {
    const OP: &str = "conv2d_backward_data";
    check_operands(OP, grad, weight)?;
    let g = ConvGeometry::new(OP, input_shape, weight.shape(), &options.params)?;
    check_gradient(OP, grad, &g)?;
    data_gradient(OP, &g, grad, weight, &ConvEpilogue::plain(grad.dtype()), options.variant)
}

/// The data gradient of a checked convolution, with an end of its own.
fn data_gradient(
    op: &'static str,
    g: &ConvGeometry,
    grad: &Tensor,
    weight: &Tensor,
    epilogue: &ConvEpilogue,
    variant: Option<Variant>,
) -> Result<Tensor> {
    let chosen = match grad.queue() {
        Queue::OpenCl(_) => Some(opencl::choose_data(g, grad, variant)?),
        Queue::Cpu(_) => None,
    };
    // The others write a gradient row by row.
    let turned = chosen.filter(|variant| matches!(variant, Variant::Units | Variant::Depthwise));
    let out = result(grad, g.input_shape(), epilogue.dtype, (g, turned))?;
    // Kernels that write channels-last read an epilogue's tensors one element at a time: ResNet-50's step took 2 ms longer with ReLU's
    // gradient there than in a launch of its own.
    let free = variant.is_none() && epilogue.expr.is_none() && g.n > 0 && turned.is_none();
    if free && launch::has_sink() && fusable::offer_data_gradient(op, g, [grad, weight], &out)? {
        return Ok(out);
    }
    let as_product = g.is_product() && variant.is_none() && chosen != Some(Variant::Units);
    match (grad.queue(), chosen) {
        _ if g.n == 0 => {}
        _ if as_product => product(&g.swapped(), grad, &swapped(g, weight)?, &out, (None, epilogue))?,
        (Queue::OpenCl(stream), Some(chosen)) => {
            opencl::backward_data(stream, g, grad, weight, &out, epilogue, chosen)?;
        }
        _ => cpu::backward_data(g, grad, weight, &out, epilogue)?,
    }
    Ok(out)
}

/// The gradient of a sum over [`conv2d`] with respect to its weight, which has the shape `weight_shape`.
///
/// ```
/// use netcl_ops::conv::{ConvOptions, conv2d_backward_weight};
/// use netcl_core::{device::manager, shape::Shape, tensor::Tensor};
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::from_host(&queue, &[1.0f32, 2.0, 3.0], [1, 1, 1, 3])?;
/// let grad = Tensor::from_host(&queue, &[1.0f32, 10.0], [1, 1, 1, 2])?;
/// let dw = conv2d_backward_weight(&grad, &x, &Shape::from([1, 1, 1, 2]), &ConvOptions::default())?;
/// assert_eq!(dw.to_host::<f32>()?, [21.0, 32.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn conv2d_backward_weight(
    grad: &Tensor,
    x: &Tensor,
    weight_shape: &Shape,
    options: &ConvOptions<'_>,
) -> Result<Tensor> {
    weight_gradient("conv2d_backward_weight", grad, x, weight_shape, options)
}

fn weight_gradient(
    op: &'static str,
    grad: &Tensor,
    x: &Tensor,
    weight_shape: &Shape,
    options: &ConvOptions<'_>,
) -> Result<Tensor> {
    check_operands(op, grad, x)?;
    let g = ConvGeometry::new(op, x.shape(), weight_shape, &options.params)?;
    check_gradient(op, grad, &g)?;
    if g.n == 0 {
        return Tensor::from_shape(x.queue(), weight_shape.clone(), x.dtype());
    }
    let out = Tensor::uninit(x.queue(), weight_shape.clone(), x.dtype())?;
    match x.queue() {
        Queue::Cpu(_) => cpu::backward_weight(&g, grad, x, &out)?,
        Queue::OpenCl(stream) => opencl::backward_weight(stream, &g, grad, x, &out, options.variant)?,
    }
    Ok(out)
}

/// Whether the convolution is a product of matrices as they lie: windows of single pixels, unless something else was asked for or
/// measured.
fn as_product(g: &ConvGeometry, forced: Option<Variant>, config: Option<&KernelConfig>) -> bool {
    let im2col = |config: &KernelConfig| config.variant == KernelVariant::Conv2dIm2col;
    forced.is_none() && g.is_product() && config.is_none_or(im2col)
}

/// A 1x1 convolution: for every image and group, filters x channels times channels x pixels.
fn product(
    g: &ConvGeometry,
    x: &Tensor,
    weight: &Tensor,
    out: &Tensor,
    (prologue, epilogue): (Option<&CheckedPrologue<'_>>, &ConvEpilogue),
) -> Result<()> {
    if g.n == 0 {
        return Ok(());
    }
    let (pixels, images) = (g.pixels(), prologue::image_shape(g));
    let x = reshape(x, images.clone())?;
    let prologue = match prologue {
        Some(&CheckedPrologue { expr, ref inputs, scalars, .. }) => {
            // Asked before: strides can say it.
            let inputs = inputs.iter().map(|input| reshape(input, images.clone())).collect::<Result<_>>()?;
            Some(Prologue { operand: 1, expr, inputs, scalars: scalars.to_vec() })
        }
        None => None,
    };
    let weight = reshape(weight, [g.groups, g.filters, g.channels])?;
    let result = [g.n, g.groups, g.filters, pixels];
    let inputs = epilogue.inputs.iter().map(|input| reshape(input, result)).collect::<Result<_>>()?;
    let out = reshape(out, result)?;
    let epilogue = epilogue.epilogue(inputs);
    let options = MatmulOptions { prologue, epilogue, out: Some(&out), ..Default::default() };
    matmul_with(&weight, &x, &options).map(|_| ())
}

/// The weight of the data gradient: in every group, filters become channels. A view where strides can say it.
fn swapped(g: &ConvGeometry, weight: &Tensor) -> Result<Tensor> {
    let [kh, kw] = g.kernel;
    let groups = reshape(weight, [g.groups, g.filters, g.channels, kh, kw])?.permute(&[0, 2, 1, 3, 4])?;
    reshape(&groups, [g.groups * g.channels, g.filters, kh, kw])
}

fn check_operands(op: &'static str, first: &Tensor, second: &Tensor) -> Result<()> {
    first.check_float(op)?;
    second.check_float(op)?;
    if first.dtype() != second.dtype() {
        return Err(Error::DtypeMismatch { op, lhs: first.dtype(), rhs: second.dtype() });
    }
    first.queue().check_same_device(op, second.queue())
}

fn check_gradient(op: &'static str, grad: &Tensor, g: &ConvGeometry) -> Result<()> {
    if grad.shape() == &g.output_shape() {
        return Ok(());
    }
    let why = format!(
        "the gradient of the output must have the output's shape, {} for an input of {} and a weight of {}",
        g.output_shape(),
        g.input_shape(),
        g.weight_shape()
    );
    Err(Error::Shape { op, shape: grad.shape().clone(), why })
}
