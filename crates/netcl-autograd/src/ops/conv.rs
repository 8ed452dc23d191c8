//! Convolutions.
//!
//! Three operations are each other's gradients: the convolution of an image with filters, the data gradient (of an output's
//! gradient and filters), and the weight gradient (of an output's gradient and an image). All are linear in both operands, so
//! any derivative is one of the three again.

pub use netcl_core::conv::{ConvParams, symmetric};
use netcl_core::shape::Shape;
use netcl_ops::conv as raw;
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
use crate::trace::{self, Attr};

/// What moves along the only row of a sequence.
fn along_row(params: &ConvParams) -> ConvParams {
    let ([_, stride], [_, _, before, after], [_, dilation]) = (params.stride, params.padding, params.dilation);
    ConvParams { stride: [1, stride], padding: [0, 0, before, after], dilation: [1, dilation], ..*params }
}

/// The settings that a trace notes.
fn noted(params: ConvParams) -> [(&'static str, Attr); 4] {
    let ConvParams { stride, padding, dilation, groups } = params;
    [
        ("stride", stride[..].into()),
        ("padding", padding[..].into()),
        ("dilation", dilation[..].into()),
        ("groups", groups.into()),
    ]
}

/// The gradient of an image.
#[track_caller]
fn data_gradient(params: ConvParams, grad: &Tensor, weight: &Tensor, image: &Shape) -> Result<Tensor> {
    let output = raw::conv2d_backward_data(grad.raw(), weight.raw(), image, &params.into())?;
    let filters = weight.shape().clone();
    record("conv2d_backward_data", &[grad, weight], output, Save::INPUTS, || {
        Box::new(move |context, upstream| {
            let of_grad = || conv2d(upstream, &context.input(1)?, None, &params);
            let of_weight = || weight_gradient(params, &context.input(0)?, upstream, &filters);
            Ok(smallvec![context.if_wanted(0, of_grad)?, context.if_wanted(1, of_weight)?])
        })
    })
}

/// The gradient of filters.
#[track_caller]
fn weight_gradient(params: ConvParams, grad: &Tensor, image: &Tensor, filters: &Shape) -> Result<Tensor> {
    let output = raw::conv2d_backward_weight(grad.raw(), image.raw(), filters, &params.into())?;
    let shape = image.shape().clone();
    record("conv2d_backward_weight", &[grad, image], output, Save::INPUTS, || {
        Box::new(move |context, upstream| {
            let of_grad = || conv2d(&context.input(1)?, upstream, None, &params);
            let of_image = || data_gradient(params, &context.input(0)?, upstream, &shape);
            Ok(smallvec![context.if_wanted(0, of_grad)?, context.if_wanted(1, of_image)?])
        })
    })
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
/// use netcl_autograd::{DType, Tensor, manager, ops::conv::{ConvParams, conv2d, symmetric}};
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::full(&queue, [1, 1, 4, 4], DType::F32, 1.0)?;
/// let weight = Tensor::full(&queue, [2, 1, 3, 3], DType::F32, 0.5)?.with_grad();
/// let y = conv2d(&x, &weight, None, &ConvParams { padding: symmetric([1, 1]), ..Default::default() })?;
/// assert_eq!(y.shape().to_vec(), [1, 2, 4, 4]);
/// y.sum((), false)?.backward()?;
/// assert_eq!(weight.grad().unwrap().to_host::<f32>()?[..3], [9.0, 12.0, 9.0]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn conv2d(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, params: &ConvParams) -> Result<Tensor> {
    if let Some(casts) = autocast::enter("conv2d", [x, weight].into_iter().chain(bias)) {
        return conv2d(&casts.of(x)?, &casts.of(weight)?, casts.given(bias)?.as_ref(), params);
    }
    if x.ndim() == 3 {
        return squeeze(&conv2d(&unsqueeze(x, 0)?, weight, bias, params)?, &[0]);
    }
    let output = raw::conv2d(x.raw(), weight.raw(), bias.map(Tensor::raw), &(*params).into())?;
    let (params, biased) = (*params, bias.is_some());
    let (image, filters) = (x.shape().clone(), weight.shape().clone());
    let inputs: SmallVec<[&Tensor; 3]> = [x, weight].into_iter().chain(bias).collect();
    trace::settings("conv2d", || noted(params));
    record("conv2d", &inputs, output, Save { inputs: 0b011, output: false }, || {
        Box::new(move |context, upstream| {
            let of_image = || data_gradient(params, upstream, &context.input(1)?, &image);
            let of_weight = || weight_gradient(params, upstream, &context.input(0)?, &filters);
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
/// use netcl_autograd::{DType, Tensor, manager, ops::conv::{BatchNorm, ConvParams, conv2d_batch_norm}};
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::from_host(&queue, &[1.0f32, 3.0, 1.0, 3.0], [1, 1, 2, 2])?;
/// let weight = Tensor::full(&queue, [1, 1, 1, 1], DType::F32, 7.0)?.with_grad();
/// let norm = BatchNorm { eps: 0.0, ..Default::default() };
/// let y = conv2d_batch_norm(&x, &weight, None, &ConvParams::default(), &norm)?;
/// assert_eq!(y.to_host::<f32>()?, [-1.0, 1.0, -1.0, 1.0]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn conv2d_batch_norm(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    params: &ConvParams,
    norm: &BatchNorm<'_>,
) -> Result<Tensor> {
    // The parameters of the normalisation stay in float32.
    if let Some(casts) = autocast::enter("conv2d_batch_norm", [x, weight].into_iter().chain(bias)) {
        return conv2d_batch_norm(&casts.of(x)?, &casts.of(weight)?, casts.given(bias)?.as_ref(), params, norm);
    }
    let (convolved, statistics) =
        raw::conv2d_with_statistics(x.raw(), weight.raw(), bias.map(Tensor::raw), &(*params).into())?;
    let affine = Affine { weight: norm.weight.map(Tensor::raw), bias: norm.bias.map(Tensor::raw) };
    let Normalized { output, mean, rstd } = batch_norm_with(&convolved, &statistics, affine, norm.running, norm.eps)?;
    let (params, eps, image, filters) = (*params, norm.eps, x.shape().clone(), weight.shape().clone());
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
                    let out = conv2d(&inputs[0], &inputs[1], bias, &params)?;
                    let scale = if scaled { rest.next() } else { None };
                    batch_norm(&out, scale, rest.next(), None, eps)
                });
            }
            let mut rest = inputs[2 + usize::from(biased)..].iter().map(Tensor::raw);
            let weight = if scaled { rest.next() } else { None };
            let affine = Affine { weight, bias: rest.next() };
            let back = batch_norm_backward(upstream.raw(), &convolved, affine, &mean, &rstd, true)?;
            let grad = Tensor::from(back.input);
            let of_image = || data_gradient(params, &grad, &inputs[1], &image);
            let of_weight = || weight_gradient(params, &grad, &inputs[0], &filters);
            let mut gradients = with_bias(context, &grad, biased, of_image, of_weight)?;
            gradients.extend(back.weight.into_iter().chain(back.bias).map(|raw| Some(raw.into())));
            Ok(gradients)
        })
    })
}

/// The convolution of sequences `[N, C, L]` (or one sequence `[C, L]`) with filters `[F, C / groups, K]`, plus a bias of F
/// elements. Of the options, those for columns count.
#[track_caller]
pub fn conv1d(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, params: &ConvParams) -> Result<Tensor> {
    if let Some(casts) = autocast::enter("conv1d", [x, weight].into_iter().chain(bias)) {
        return conv1d(&casts.of(x)?, &casts.of(weight)?, casts.given(bias)?.as_ref(), params);
    }
    let (rows, filters) = as_rows("conv1d", x, weight)?;
    without_row(&conv2d(&rows, &filters, bias, &along_row(params))?, x.ndim())
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
    params: &ConvParams,
    output_padding: [usize; 2],
) -> Result<Tensor> {
    if let Some(casts) = autocast::enter("conv_transpose2d", [x, weight].into_iter().chain(bias)) {
        let (x, weight, bias) = (casts.of(x)?, casts.of(weight)?, casts.given(bias)?);
        return conv_transpose2d(&x, &weight, bias.as_ref(), params, output_padding);
    }
    if x.ndim() == 3 {
        return squeeze(&conv_transpose2d(&unsqueeze(x, 0)?, weight, bias, params, output_padding)?, &[0]);
    }
    let bias_raw = bias.map(Tensor::raw);
    let output = raw::conv_transpose2d(x.raw(), weight.raw(), bias_raw, &(*params).into(), output_padding)?;
    let (params, biased, filters) = (*params, bias.is_some(), weight.shape().clone());
    let inputs: SmallVec<[&Tensor; 3]> = [x, weight].into_iter().chain(bias).collect();
    trace::settings("conv_transpose2d", || noted(params));
    record("conv_transpose2d", &inputs, output, Save { inputs: 0b011, output: false }, || {
        Box::new(move |context, upstream| {
            let of_input = || conv2d(upstream, &context.input(1)?, None, &params);
            let of_weight = || weight_gradient(params, &context.input(0)?, upstream, &filters);
            with_bias(context, upstream, biased, of_input, of_weight)
        })
    })
}

/// The transposed convolution of sequences `[N, C, L]` (or `[C, L]`) with filters `[C, F / groups, K]`, plus a bias of F elements.
/// Of the options, those for columns count.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::conv::{ConvParams, conv_transpose1d}};
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::from_host(&queue, &[1.0f32, 2.0], [1, 2])?;
/// let weight = Tensor::from_host(&queue, &[1.0f32, 10.0], [1, 1, 2])?;
/// let params = ConvParams { stride: [1, 2], ..Default::default() };
/// assert_eq!(conv_transpose1d(&x, &weight, None, &params, 0)?.to_host::<f32>()?, [1.0, 10.0, 2.0, 20.0]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn conv_transpose1d(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    params: &ConvParams,
    output_padding: usize,
) -> Result<Tensor> {
    if let Some(casts) = autocast::enter("conv_transpose1d", [x, weight].into_iter().chain(bias)) {
        let (x, weight, bias) = (casts.of(x)?, casts.of(weight)?, casts.given(bias)?);
        return conv_transpose1d(&x, &weight, bias.as_ref(), params, output_padding);
    }
    let (rows, filters) = as_rows("conv_transpose1d", x, weight)?;
    let out = conv_transpose2d(&rows, &filters, bias, &along_row(params), [0, output_padding])?;
    without_row(&out, x.ndim())
}
