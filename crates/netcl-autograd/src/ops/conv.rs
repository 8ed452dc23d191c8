//! Convolutions.
//!
//! Three operations are each other's gradients: the convolution of an image with filters, the data gradient (of an output's
//! gradient and filters), and the weight gradient (of an output's gradient and an image). All are linear in both operands, so
//! any derivative is one of the three again.

use netcl_core::shape::Shape;
use netcl_ops::conv as raw;
pub use netcl_ops::conv::same;
use netcl_ops::norm::{Affine, Normalized, Running, batch_norm_backward, batch_norm_with};
use smallvec::{SmallVec, smallvec};

use super::fused;
use super::layout::{reshape, squeeze, unsqueeze};
use super::norm::batch_norm;
use super::reduce::sum;
use crate::autocast;
use crate::error::{Error, Result};
use crate::graph::{Gradients, RuleContext, Save, grad_enabled, record};
use crate::tensor::Tensor;

/// How filters move over images.
///
/// ```
/// use netcl_autograd::ops::conv::{Convolution, same};
///
/// let halving = Convolution { stride: [2, 2], padding: same([1, 1]), ..Default::default() };
/// assert_eq!(halving.padding, [1, 1, 1, 1]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Convolution {
    /// Steps down and to the right.
    pub stride: [usize; 2],
    /// Zeros at the top, bottom, left and right; [`same`] makes it from one number per axis.
    pub padding: [usize; 4],
    /// Distance between the taps of a filter.
    pub dilation: [usize; 2],
    /// Independent groups of channels.
    pub groups: usize,
}

impl Default for Convolution {
    fn default() -> Self {
        Convolution { stride: [1, 1], padding: [0; 4], dilation: [1, 1], groups: 1 }
    }
}

impl Convolution {
    fn options(&self) -> raw::ConvOptions<'static> {
        let Convolution { stride, padding, dilation, groups } = *self;
        raw::ConvOptions { stride, padding, dilation, groups, ..Default::default() }
    }

    /// What moves along the only row of a sequence.
    fn along_row(&self) -> Convolution {
        Convolution {
            stride: [1, self.stride[1]],
            padding: [0, 0, self.padding[2], self.padding[3]],
            dilation: [1, self.dilation[1]],
            groups: self.groups,
        }
    }

    /// The gradient of an image.
    #[track_caller]
    fn data_gradient(self, grad: &Tensor, weight: &Tensor, image: &Shape) -> Result<Tensor> {
        let output = raw::conv2d_backward_data(grad.raw(), weight.raw(), image, &self.options())?;
        let filters = weight.shape().clone();
        record("conv2d_backward_data", &[grad, weight], output, Save::INPUTS, || {
            Box::new(move |context, upstream| {
                let of_grad = || conv2d(upstream, &context.input(1)?, None, &self);
                let of_weight = || self.weight_gradient(&context.input(0)?, upstream, &filters);
                Ok(smallvec![context.if_wanted(0, of_grad)?, context.if_wanted(1, of_weight)?])
            })
        })
    }

    /// The gradient of filters.
    #[track_caller]
    fn weight_gradient(self, grad: &Tensor, image: &Tensor, filters: &Shape) -> Result<Tensor> {
        let output = raw::conv2d_backward_weight(grad.raw(), image.raw(), filters, &self.options())?;
        let shape = image.shape().clone();
        record("conv2d_backward_weight", &[grad, image], output, Save::INPUTS, || {
            Box::new(move |context, upstream| {
                let of_grad = || conv2d(&context.input(1)?, upstream, None, &self);
                let of_image = || self.data_gradient(&context.input(0)?, upstream, &shape);
                Ok(smallvec![context.if_wanted(0, of_grad)?, context.if_wanted(1, of_image)?])
            })
        })
    }
}

/// The gradients of an image, of filters and of a bias that may not be there.
fn with_bias(
    context: &RuleContext<'_>,
    upstream: &Tensor,
    biased: bool,
    of_image: impl FnOnce() -> Result<Tensor>,
    of_weight: impl FnOnce() -> Result<Tensor>,
) -> Result<Gradients> {
    let mut gradients: Gradients = smallvec![context.if_wanted(0, of_image)?, context.if_wanted(1, of_weight)?];
    if biased {
        gradients.push(context.if_wanted(2, || sum(upstream, &[0, 2, 3], false))?);
    }
    Ok(gradients)
}

/// The convolution of images `[N, C, H, W]` (or one image `[C, H, W]`) with filters `[F, C / groups, KH, KW]`, plus a bias of F
/// elements.
///
/// ```
/// use netcl_autograd::{DType, Tensor, manager, ops::conv::{Convolution, conv2d, same}};
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::full(&queue, [1, 1, 4, 4], DType::F32, 1.0)?;
/// let weight = Tensor::full(&queue, [2, 1, 3, 3], DType::F32, 0.5)?.with_grad();
/// let y = conv2d(&x, &weight, None, &Convolution { padding: same([1, 1]), ..Default::default() })?;
/// assert_eq!(y.shape().to_vec(), [1, 2, 4, 4]);
/// y.sum((), false)?.backward()?;
/// assert_eq!(weight.grad().unwrap().to_host::<f32>()?[..3], [9.0, 12.0, 9.0]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn conv2d(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, how: &Convolution) -> Result<Tensor> {
    if let Some(casts) = autocast::enter("conv2d", [x, weight].into_iter().chain(bias)) {
        return conv2d(&casts.of(x)?, &casts.of(weight)?, casts.given(bias)?.as_ref(), how);
    }
    if x.ndim() == 3 {
        return squeeze(&conv2d(&unsqueeze(x, 0)?, weight, bias, how)?, &[0]);
    }
    let output = raw::conv2d(x.raw(), weight.raw(), bias.map(Tensor::raw), &how.options())?;
    let (how, biased) = (*how, bias.is_some());
    let (image, filters) = (x.shape().clone(), weight.shape().clone());
    let inputs: SmallVec<[&Tensor; 3]> = [x, weight].into_iter().chain(bias).collect();
    record("conv2d", &inputs, output, Save { inputs: 0b011, output: false }, || {
        Box::new(move |context, upstream| {
            let of_image = || how.data_gradient(upstream, &context.input(1)?, &image);
            let of_weight = || how.weight_gradient(upstream, &context.input(0)?, &filters);
            with_bias(context, upstream, biased, of_image, of_weight)
        })
    })
}

/// The batch normalisation that follows a convolution in [`conv2d_batch_norm`].
#[derive(Clone, Copy, Debug)]
pub struct BatchNorm<'t> {
    /// What normalised values are multiplied by, one element per filter.
    pub weight: Option<&'t Tensor>,
    /// What is added to them afterwards.
    pub bias: Option<&'t Tensor>,
    /// The averages that training updates in place.
    pub running: Option<Running<'t>>,
    /// What is added to variances.
    pub eps: f64,
}

impl Default for BatchNorm<'_> {
    fn default() -> Self {
        BatchNorm { weight: None, bias: None, running: None, eps: 1e-5 }
    }
}

/// [`batch_norm`] of [`conv2d`], as training needs it: where the device can, the convolution finds the statistics of its channels
/// itself, which saves a pass over its result.
///
/// ```
/// use netcl_autograd::{DType, Tensor, manager, ops::conv::{BatchNorm, Convolution, conv2d_batch_norm}};
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::from_host(&queue, &[1.0f32, 3.0, 1.0, 3.0], [1, 1, 2, 2])?;
/// let weight = Tensor::full(&queue, [1, 1, 1, 1], DType::F32, 7.0)?.with_grad();
/// let norm = BatchNorm { eps: 0.0, ..Default::default() };
/// let y = conv2d_batch_norm(&x, &weight, None, &Convolution::default(), &norm)?;
/// assert_eq!(y.to_host::<f32>()?, [-1.0, 1.0, -1.0, 1.0]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn conv2d_batch_norm(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    how: &Convolution,
    norm: &BatchNorm<'_>,
) -> Result<Tensor> {
    // The parameters of the normalisation stay in float32.
    if let Some(casts) = autocast::enter("conv2d_batch_norm", [x, weight].into_iter().chain(bias)) {
        return conv2d_batch_norm(&casts.of(x)?, &casts.of(weight)?, casts.given(bias)?.as_ref(), how, norm);
    }
    let (convolved, statistics) =
        raw::conv2d_with_statistics(x.raw(), weight.raw(), bias.map(Tensor::raw), &how.options())?;
    let affine = Affine { weight: norm.weight.map(Tensor::raw), bias: norm.bias.map(Tensor::raw) };
    let Normalized { output, mean, rstd } = batch_norm_with(&convolved, &statistics, affine, norm.running, norm.eps)?;
    let (how, eps, image, filters) = (*how, norm.eps, x.shape().clone(), weight.shape().clone());
    let (biased, scaled) = (bias.is_some(), norm.weight.is_some());
    let inputs: SmallVec<[&Tensor; 5]> =
        [x, weight].into_iter().chain(bias).chain(norm.weight).chain(norm.bias).collect();
    let n = inputs.len();
    record("conv2d_batch_norm", &inputs, output, Save::INPUTS, || {
        Box::new(move |context, upstream| {
            let inputs = (0..n).map(|i| context.input(i)).collect::<Result<SmallVec<[Tensor; 5]>>>()?;
            if grad_enabled() {
                return fused::through(context, &inputs, upstream, |inputs| {
                    let mut rest = inputs[2..].iter();
                    let bias = if biased { rest.next() } else { None };
                    let out = conv2d(&inputs[0], &inputs[1], bias, &how)?;
                    let scale = if scaled { rest.next() } else { None };
                    batch_norm(&out, scale, rest.next(), None, eps)
                });
            }
            let mut rest = inputs[2 + usize::from(biased)..].iter().map(Tensor::raw);
            let weight = if scaled { rest.next() } else { None };
            let affine = Affine { weight, bias: rest.next() };
            let back = batch_norm_backward(upstream.raw(), &convolved, affine, &mean, &rstd, true)?;
            let grad = Tensor::from(back.input);
            let of_image = || how.data_gradient(&grad, &inputs[1], &image);
            let of_weight = || how.weight_gradient(&grad, &inputs[0], &filters);
            let mut gradients = with_bias(context, &grad, biased, of_image, of_weight)?;
            gradients.extend(back.weight.into_iter().chain(back.bias).map(|raw| Some(raw.into())));
            Ok(gradients)
        })
    })
}

/// The convolution of sequences `[N, C, L]` (or one sequence `[C, L]`) with filters `[F, C / groups, K]`, plus a bias of F
/// elements. Of the options, those for columns count.
#[track_caller]
pub fn conv1d(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, how: &Convolution) -> Result<Tensor> {
    if let Some(casts) = autocast::enter("conv1d", [x, weight].into_iter().chain(bias)) {
        return conv1d(&casts.of(x)?, &casts.of(weight)?, casts.given(bias)?.as_ref(), how);
    }
    let (rows, filters) = as_rows("conv1d", x, weight)?;
    without_row(&conv2d(&rows, &filters, bias, &how.along_row())?, x.ndim())
}

/// Sequences and the filters for them as images and filters of one row.
#[track_caller]
fn as_rows(op: &'static str, x: &Tensor, weight: &Tensor) -> Result<(Tensor, Tensor)> {
    let rows = match x.shape()[..] {
        [n, channels, length] => reshape(x, [n, channels, 1, length])?,
        [channels, length] => reshape(x, [1, channels, 1, length])?,
        _ => return Err(Error::shape(op, x.shape(), "sequences have three axes, [N, C, L], or two, [C, L]")),
    };
    let [first, second, length] = weight.shape()[..] else {
        return Err(Error::shape(op, weight.shape(), "filters have three axes, of which the last is their length"));
    };
    Ok((rows, reshape(weight, [first, second, 1, length])?))
}

/// Images of one row as sequences, or as one sequence.
#[track_caller]
fn without_row(out: &Tensor, axes: usize) -> Result<Tensor> {
    squeeze(out, if axes == 2 { &[0, 2] } else { &[2] })
}

/// The transposed convolution of `[N, C, H, W]` (or `[C, H, W]`) with `[C, F / groups, KH, KW]`, plus a bias of F elements: each
/// pixel adds a scaled filter to the result, `stride` apart. `output_padding` rows and columns are added at the bottom and the right.
#[track_caller]
pub fn conv_transpose2d(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    how: &Convolution,
    output_padding: [usize; 2],
) -> Result<Tensor> {
    if let Some(casts) = autocast::enter("conv_transpose2d", [x, weight].into_iter().chain(bias)) {
        let (x, weight, bias) = (casts.of(x)?, casts.of(weight)?, casts.given(bias)?);
        return conv_transpose2d(&x, &weight, bias.as_ref(), how, output_padding);
    }
    if x.ndim() == 3 {
        return squeeze(&conv_transpose2d(&unsqueeze(x, 0)?, weight, bias, how, output_padding)?, &[0]);
    }
    let Convolution { stride, padding, dilation, groups } = *how;
    let options = raw::ConvTransposeOptions { stride, padding, output_padding, dilation, groups, ..Default::default() };
    let output = raw::conv_transpose2d(x.raw(), weight.raw(), bias.map(Tensor::raw), &options)?;
    let (how, biased, filters) = (*how, bias.is_some(), weight.shape().clone());
    let inputs: SmallVec<[&Tensor; 3]> = [x, weight].into_iter().chain(bias).collect();
    record("conv_transpose2d", &inputs, output, Save { inputs: 0b011, output: false }, || {
        Box::new(move |context, upstream| {
            let of_input = || conv2d(upstream, &context.input(1)?, None, &how);
            let of_weight = || how.weight_gradient(&context.input(0)?, upstream, &filters);
            with_bias(context, upstream, biased, of_input, of_weight)
        })
    })
}

/// The transposed convolution of sequences `[N, C, L]` (or `[C, L]`) with filters `[C, F / groups, K]`, plus a bias of F elements.
/// Of the options, those for columns count.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::conv::{Convolution, conv_transpose1d}};
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::from_host(&queue, &[1.0f32, 2.0], [1, 2])?;
/// let weight = Tensor::from_host(&queue, &[1.0f32, 10.0], [1, 1, 2])?;
/// let how = Convolution { stride: [1, 2], ..Default::default() };
/// assert_eq!(conv_transpose1d(&x, &weight, None, &how, 0)?.to_host::<f32>()?, [1.0, 10.0, 2.0, 20.0]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn conv_transpose1d(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    how: &Convolution,
    output_padding: usize,
) -> Result<Tensor> {
    if let Some(casts) = autocast::enter("conv_transpose1d", [x, weight].into_iter().chain(bias)) {
        let (x, weight, bias) = (casts.of(x)?, casts.of(weight)?, casts.given(bias)?);
        return conv_transpose1d(&x, &weight, bias.as_ref(), how, output_padding);
    }
    let (rows, filters) = as_rows("conv_transpose1d", x, weight)?;
    let out = conv_transpose2d(&rows, &filters, bias, &how.along_row(), [0, output_padding])?;
    without_row(&out, x.ndim())
}
