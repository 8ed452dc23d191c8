//! Normalisations: fused kernels both ways.

use std::sync::{Arc, LazyLock};

use netcl_core::kernels::expr::Graph;
use netcl_core::shape::Shape;
use netcl_core::tensor::{Tensor as Raw, reshape as raw_reshape};
use netcl_ops as ops;
use netcl_ops::norm as raw;
pub use netcl_ops::norm::Running;
use netcl_ops::norm::{Affine, NormGradients};
use smallvec::SmallVec;

use super::elementwise::{ExprOp, add, cast, mul, rsqrt, square, sub};
use super::fused::record_fused;
use super::layout::{reshape, squeeze, unsqueeze};
use super::pad::{PadMode, pad};
use super::pool::{Averaging, Window, avg_pool2d};
use super::reduce::{mean, var};
use crate::error::{Error, Result};
use crate::graph::Gradients;
use crate::tensor::Tensor;
use crate::trace::{self, Attr};
use crate::{autocast, constants};

/// The input and the parameters that are there.
struct Operands<'t> {
    x: &'t Tensor,
    weight: Option<&'t Tensor>,
    bias: Option<&'t Tensor>,
}

/// Which parameters an op had, so that its inputs can be told apart again.
#[derive(Clone, Copy)]
struct Present {
    weight: bool,
    bias: bool,
}

impl<'t> Operands<'t> {
    fn list(&self) -> SmallVec<[&'t Tensor; 3]> {
        [Some(self.x), self.weight, self.bias].into_iter().flatten().collect()
    }

    fn affine(&self) -> Affine<'t> {
        Affine { weight: self.weight.map(Tensor::raw), bias: self.bias.map(Tensor::raw) }
    }

    fn present(&self) -> Present {
        Present { weight: self.weight.is_some(), bias: self.bias.is_some() }
    }
}

impl Present {
    fn of(self, inputs: &[Tensor]) -> Operands<'_> {
        let weight = self.weight.then(|| &inputs[1]);
        let bias = self.bias.then(|| &inputs[1 + usize::from(self.weight)]);
        Operands { x: &inputs[0], weight, bias }
    }

    /// The settings that a trace notes.
    fn noted(self, eps: f64) -> [(&'static str, Attr); 3] {
        [("weight", self.weight.into()), ("bias", self.bias.into()), ("eps", eps.into())]
    }

    fn gradients(self, found: NormGradients) -> Gradients {
        let mut all: Gradients = smallvec::smallvec![Some(found.input.into())];
        if self.weight {
            all.push(found.weight.map(Tensor::from));
        }
        if self.bias {
            all.push(found.bias.map(Tensor::from));
        }
        all
    }
}

/// `normalised * weight + bias`, the parameters seen through a shape that broadcasts, in the dtype of the values.
fn scaled(normalised: Tensor, operands: &Operands<'_>, shape: &[usize]) -> Result<Tensor> {
    let mut out = normalised;
    if let Some(weight) = operands.weight {
        out = mul(&out, &cast(&reshape(weight, shape)?, out.dtype())?)?;
    }
    if let Some(bias) = operands.bias {
        out = add(&out, &cast(&reshape(bias, shape)?, out.dtype())?)?;
    }
    Ok(out)
}

/// `(x - mean) / sqrt(variance + eps)` over some axes.
fn standardised(x: &Tensor, axes: &[isize], eps: f64) -> Result<Tensor> {
    let centred = sub(x, &mean(x, axes, true)?)?;
    mul(&centred, &rsqrt(&add(&var(x, axes, 0.0, true)?, eps)?)?)
}

/// One per channel, seen from a tensor of so many axes.
fn per_channel(channels: usize, ndim: usize) -> Vec<usize> {
    (0..ndim).map(|axis| if axis == 1 { channels } else { 1 }).collect()
}

/// Normalises every channel (axis 1) over the batch and updates the running averages in place.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::norm::batch_norm};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32, 3.0], [2, 1])?.with_grad();
/// let y = batch_norm(&x, None, None, None, 0.0)?;
/// assert_eq!(y.to_host::<f32>()?, [-1.0, 1.0]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn batch_norm(
    x: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    running: Option<Running<'_>>,
    eps: f64,
) -> Result<Tensor> {
    let operands = Operands { x, weight, bias };
    let present = operands.present();
    let raw::Normalized { output, mean, rstd } = raw::batch_norm(x.raw(), operands.affine(), running, eps)?;
    let fast = move |inputs: &[Tensor], upstream: &Tensor| {
        let operands = present.of(inputs);
        let x = operands.x.raw();
        let found = raw::batch_norm_backward(upstream.raw(), x, operands.affine(), &mean, &rstd, true)?;
        Ok(present.gradients(found))
    };
    let composite = move |inputs: &[Tensor]| {
        let operands = present.of(inputs);
        let axes: Vec<isize> = (0..operands.x.ndim() as isize).filter(|&axis| axis != 1).collect();
        let normalised = standardised(operands.x, &axes, eps)?;
        scaled(normalised, &operands, &per_channel(operands.x.shape()[1], operands.x.ndim()))
    };
    record_fused("batch_norm", &operands.list(), output, fast, composite)
}

/// Normalises every channel (axis 1) by given averages, as in evaluation.
#[track_caller]
pub fn batch_norm_eval(
    x: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    given: (&Raw, &Raw),
    eps: f64,
) -> Result<Tensor> {
    let operands = Operands { x, weight, bias };
    let present = operands.present();
    let raw::Normalized { output, mean, rstd } =
        raw::batch_norm_eval(x.raw(), operands.affine(), given.0, given.1, eps)?;
    let (centre, scale) = (given.0.clone(), rstd.clone());
    let fast = move |inputs: &[Tensor], upstream: &Tensor| {
        let operands = present.of(inputs);
        let x = operands.x.raw();
        let found = raw::batch_norm_backward(upstream.raw(), x, operands.affine(), &mean, &rstd, false)?;
        Ok(present.gradients(found))
    };
    let composite = move |inputs: &[Tensor]| {
        let operands = present.of(inputs);
        let shape = per_channel(operands.x.shape()[1], operands.x.ndim());
        let constant = |raw: &Raw| reshape(&raw.cast(operands.x.dtype())?.into(), shape.as_slice());
        let normalised = mul(&sub(operands.x, &constant(&centre)?)?, &constant(&scale)?)?;
        scaled(normalised, &operands, &shape)
    };
    trace::settings("batch_norm_eval", || {
        let [weight, bias, _] = present.noted(eps);
        [weight, bias, ("eps", eps.into()), ("mean", given.0.into()), ("var", given.1.into())]
    });
    record_fused("batch_norm_eval", &operands.list(), output, fast, composite)
}

/// Normalises over the last `axes` axes; the parameters have their shape.
#[track_caller]
pub fn layer_norm(x: &Tensor, axes: usize, weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f64) -> Result<Tensor> {
    let operands = Operands { x, weight, bias };
    let present = operands.present();
    let [own_weight, own_bias] =
        [constants::widened(weight.map(Tensor::raw))?, constants::widened(bias.map(Tensor::raw))?];
    let affine = operands.affine();
    let affine = Affine { weight: own_weight.as_ref().or(affine.weight), bias: own_bias.as_ref().or(affine.bias) };
    let raw::Normalized { output, mean, rstd } = raw::layer_norm(x.raw(), axes, affine, eps)?;
    let fast = move |inputs: &[Tensor], upstream: &Tensor| {
        let operands = present.of(inputs);
        let x = operands.x.raw();
        let found = raw::layer_norm_backward(upstream.raw(), x, axes, operands.affine(), &mean, &rstd)?;
        Ok(present.gradients(found))
    };
    let composite = move |inputs: &[Tensor]| {
        let operands = present.of(inputs);
        let shape = operands.x.shape();
        let inner = shape[shape.ndim() - axes..].to_vec();
        scaled(standardised(operands.x, &last(axes), eps)?, &operands, &inner)
    };
    trace::settings("layer_norm", || {
        let [weight, bias, eps] = present.noted(eps);
        [weight, bias, eps, ("axes", axes.into())]
    });
    record_fused("layer_norm", &operands.list(), output, fast, composite)
}

/// The last axes, counted from the end.
fn last(axes: usize) -> Vec<isize> {
    (1..=axes as isize).map(|axis| -axis).collect()
}

/// Normalises groups of channels (axis 1) of each sample; the parameters have one element per channel.
#[track_caller]
pub fn group_norm(
    x: &Tensor,
    groups: usize,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor> {
    let normalized = raw::group_norm(x.raw(), groups, Operands { x, weight, bias }.affine(), eps)?;
    record_groups("group_norm", groups, Operands { x, weight, bias }, normalized, eps)
}

#[track_caller]
fn record_groups(
    op: &'static str,
    groups: usize,
    operands: Operands<'_>,
    normalized: raw::Normalized,
    eps: f64,
) -> Result<Tensor> {
    let present = operands.present();
    let raw::Normalized { output, mean, rstd } = normalized;
    let fast = move |inputs: &[Tensor], upstream: &Tensor| {
        let operands = present.of(inputs);
        let x = operands.x.raw();
        let found = raw::group_norm_backward(upstream.raw(), x, groups, operands.affine(), &mean, &rstd)?;
        Ok(present.gradients(found))
    };
    let composite = move |inputs: &[Tensor]| {
        let operands = present.of(inputs);
        let shape = operands.x.shape().clone();
        let lines = reshape(operands.x, [shape[0], groups, shape[1..].iter().product::<usize>() / groups.max(1)])?;
        let normalised = reshape(&standardised(&lines, &[2], eps)?, shape.clone())?;
        scaled(normalised, &operands, &per_channel(shape[1], shape.ndim()))
    };
    trace::settings(op, || {
        let [weight, bias, eps] = present.noted(eps);
        [weight, bias, eps, ("groups", groups.into())]
    });
    record_fused(op, &operands.list(), output, fast, composite)
}

/// Normalises each channel of each sample of `[N, C, L]`, `[N, C, H, W]` or one sample `[C, L]` (one image needs an axis of samples:
/// three axes are `[N, C, L]`), and moves the running averages by the mean of the samples' statistics. [`instance_norm_eval`]
/// normalises by the averages.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::norm::instance_norm};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32, 3.0, 10.0, 30.0], [1, 2, 2])?;
/// assert_eq!(instance_norm(&x, None, None, None, 0.0)?.to_host::<f32>()?, [-1.0, 1.0, -1.0, 1.0]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn instance_norm(
    x: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    running: Option<Running<'_>>,
    eps: f64,
) -> Result<Tensor> {
    let op = "instance_norm";
    if x.ndim() == 2 {
        return squeeze(&instance_norm(&unsqueeze(x, 0)?, weight, bias, running, eps)?, &[0]);
    }
    let &[samples, channels, ref places @ ..] = &x.shape()[..] else {
        return Err(Error::shape(op, x.shape(), "it takes [N, C, L], [N, C, H, W] or [C, L]"));
    };
    let places: usize = places.iter().product();
    if places == 1 {
        let why = "one value per channel of a sample has no variance; normalise by the running averages, or over larger inputs";
        return Err(Error::shape(op, x.shape(), why));
    }
    let operands = Operands { x, weight, bias };
    // Without channels there are no groups of them, and nothing to compute.
    let normalized = raw::group_norm(x.raw(), channels.max(1), operands.affine(), eps)?;
    if let Some(running) = running.filter(|_| x.size() > 0) {
        move_averages(op, running, &normalized, [samples, channels], places, eps)?;
    }
    record_groups(op, channels.max(1), operands, normalized, eps)
}

/// [`instance_norm`] by given averages instead of the samples' own statistics.
#[track_caller]
pub fn instance_norm_eval(
    x: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    averages: (&Raw, &Raw),
    eps: f64,
) -> Result<Tensor> {
    if x.ndim() == 2 {
        return squeeze(&batch_norm_eval(&unsqueeze(x, 0)?, weight, bias, averages, eps)?, &[0]);
    }
    batch_norm_eval(x, weight, bias, averages, eps)
}

/// Moves running averages by the mean over samples of means and (unbiased) variances.
fn move_averages(
    op: &'static str,
    running: Running<'_>,
    found: &raw::Normalized,
    [samples, channels]: [usize; 2],
    places: usize,
    eps: f64,
) -> Result<()> {
    /// The unbiased variance of `1 / sqrt(var + eps)`: what the subtraction loses is nothing beside eps, which is added again
    /// wherever the variance is used. Scalars: eps, n / (n - 1).
    static VARIANCE: LazyLock<Arc<ExprOp>> = LazyLock::new(|| {
        let g = Graph::new();
        let deviation = 1.0 / g.input(0);
        let variance = (deviation * deviation - g.scalar(0)).max(0.0) * g.scalar(1);
        ExprOp::new("instance_norm_variance", g.finish(&[variance]))
    });
    let Running { mean, var, momentum: Some(share), batches: None } = running else {
        return Err(Error::argument(op, "batches are not counted here: give a momentum and no number of batches"));
    };
    let unbiased = places as f64 / (places as f64 - 1.0);
    let variances = VARIANCE.apply(&[&Tensor::from(found.rstd.clone())], &[eps.into(), unbiased.into()])?;
    for (name, average, values) in [("running_mean", mean, &found.mean), ("running_var", var, variances.raw())] {
        found.mean.queue().check_same_device(op, average.queue())?;
        average.check_float(op)?;
        if *average.shape() != Shape::from([channels]) {
            return Err(Error::shape(
                op,
                average.shape(),
                format!("{name} has one element for each of {channels} channels"),
            ));
        }
        let now = ops::mean(&raw_reshape(values, [samples, channels])?, 0, false)?;
        let old = average.cast(now.dtype())?;
        average.assign(&ops::fma(&ops::sub(&now, &old)?, share, &old)?)?;
    }
    Ok(())
}

/// Divides each element by a power of the mean square of its `size` neighbours along the channels (axis 1):
/// `x / (k + alpha * mean)^beta`, where channels outside count as zeros.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::norm::{LocalResponse, local_response_norm}};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[3.0f32, 0.0, 0.0], [1, 3, 1])?;
/// let how = LocalResponse { alpha: 1.0, beta: 1.0, k: 0.0, ..LocalResponse::new(3) };
/// assert_eq!(local_response_norm(&x, &how)?.to_host::<f32>()?[0], 1.0);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn local_response_norm(x: &Tensor, how: &LocalResponse) -> Result<Tensor> {
    /// Inputs: x, the mean of squares. Scalars: alpha, beta, k.
    static OP: LazyLock<Arc<ExprOp>> = LazyLock::new(|| {
        let g = Graph::new();
        let [alpha, beta, k] = std::array::from_fn(|i| g.scalar(i));
        ExprOp::new("local_response_norm", g.finish(&[g.input(0) / (g.input(1) * alpha + k).pow(beta)]))
    });
    let op = "local_response_norm";
    if let Some(casts) = autocast::enter(op, [x]) {
        return local_response_norm(&casts.of(x)?, how);
    }
    let LocalResponse { size, alpha, beta, k } = *how;
    let &[samples, channels, ref places @ ..] = &x.shape()[..] else {
        return Err(Error::shape(op, x.shape(), "it takes [N, C, ...]"));
    };
    if size == 0 {
        return Err(Error::argument(op, "size is 0, but at least one channel must be looked at"));
    }
    if x.size() == 0 {
        return mul(x, 1.0);
    }
    let planes = reshape(&square(x)?, [samples, channels, places.iter().product()])?;
    // An even number of neighbours has one more before the channel than after it.
    let planes = pad(&planes, &[((size / 2) as isize, ((size - 1) / 2) as isize), (0, 0)], PadMode::Constant(0.0))?;
    let window = Window { stride: [1, 1], ..Window::new([size, 1]) };
    let means = reshape(&avg_pool2d(&planes, &window, Averaging::default())?, x.shape().clone())?;
    OP.apply(&[x, &means], &[alpha.into(), beta.into(), k.into()])
}

/// How [`local_response_norm`] divides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocalResponse {
    /// The number of neighbouring channels, the element's own included.
    pub size: usize,
    /// The factor of the mean of squares.
    pub alpha: f64,
    /// The exponent.
    pub beta: f64,
    /// What is added to the mean.
    pub k: f64,
}

impl LocalResponse {
    /// PyTorch's defaults beside a number of channels: alpha 1e-4, beta 0.75, k 1.
    pub fn new(size: usize) -> Self {
        LocalResponse { size, alpha: 1e-4, beta: 0.75, k: 1.0 }
    }
}

/// Divides by the root of the mean square over the last `axes` axes; the weight has their shape.
#[track_caller]
pub fn rms_norm(x: &Tensor, axes: usize, weight: Option<&Tensor>, eps: f64) -> Result<Tensor> {
    let operands = Operands { x, weight, bias: None };
    let present = operands.present();
    let own = constants::widened(weight.map(Tensor::raw))?;
    let raw::Normalized { output, rstd, .. } =
        raw::rms_norm(x.raw(), axes, own.as_ref().or(weight.map(Tensor::raw)), eps)?;
    let fast = move |inputs: &[Tensor], upstream: &Tensor| {
        let operands = present.of(inputs);
        let weight = operands.weight.map(Tensor::raw);
        let found = raw::rms_norm_backward(upstream.raw(), operands.x.raw(), axes, weight, &rstd)?;
        Ok(present.gradients(found))
    };
    let composite = move |inputs: &[Tensor]| {
        let operands = present.of(inputs);
        let scale = rsqrt(&add(&mean(&square(operands.x)?, last(axes).as_slice(), true)?, eps)?)?;
        let shape = operands.x.shape();
        let inner = shape[shape.ndim() - axes..].to_vec();
        scaled(mul(operands.x, &scale)?, &operands, &inner)
    };
    trace::settings("rms_norm", || {
        let [weight, bias, eps] = present.noted(eps);
        [weight, bias, eps, ("axes", axes.into())]
    });
    record_fused("rms_norm", &operands.list(), output, fast, composite)
}
