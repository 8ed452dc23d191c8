//! Normalisation of rows: each is normalised by its own statistics.
//!
//! A row is all elements of the last axes (layer, root-mean-square) or of a group of channels of one sample (group).
//! Parameters belong to channels, which are `span` neighbouring elements each.

use netcl_core::backend::Queue;
use netcl_core::kernels::described::{Described, Meaning, RowNorm};
use netcl_core::kernels::launch::{self, Access};
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};

use super::{Affine, NormGradients, Normalized, Parameters, check_eps, checked, cost, cpu, opencl};
use crate::dense::{Args, Job};

/// How a tensor is cut into rows, and rows into channels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    pub(super) rows: usize,
    /// Elements of a row.
    pub(super) n: usize,
    /// Rows that differ in their parameters: row `r` uses those of group `r % groups`.
    pub(super) groups: usize,
    /// Channels of a row.
    pub(super) channels: usize,
    /// Neighbouring elements of a channel.
    pub(super) span: usize,
    /// Whether the mean is subtracted.
    pub(super) centred: bool,
}

impl Rows {
    /// Rows of the last `axes` axes, each element with parameters of its own.
    fn last(op: &'static str, x: &Tensor, axes: usize, centred: bool) -> Result<Rows> {
        x.check_float(op)?;
        if axes == 0 || axes > x.ndim() {
            let why = format!("the last {axes} axes are to be normalised; use 1 to {}", x.ndim());
            return Err(Error::Shape { op, shape: x.shape().clone(), why });
        }
        let (outer, inner) = x.shape().split_at(x.ndim() - axes);
        let n: usize = inner.iter().product();
        Ok(Rows { rows: outer.iter().product(), n, groups: 1, channels: n, span: 1, centred })
    }

    /// Groups of the channels of axis 1.
    fn groups(op: &'static str, x: &Tensor, groups: usize) -> Result<Rows> {
        x.check_float(op)?;
        let &[samples, channels, ref rest @ ..] = &x.shape()[..] else {
            let why = "it needs a batch axis and a channel axis".to_owned();
            return Err(Error::Shape { op, shape: x.shape().clone(), why });
        };
        if groups == 0 || !channels.is_multiple_of(groups) {
            let why = format!("its {channels} channels do not make {groups} groups of equal size");
            return Err(Error::Shape { op, shape: x.shape().clone(), why });
        }
        let (channels, span) = (channels / groups, rest.iter().product::<usize>());
        Ok(Rows { rows: samples * groups, n: channels * span, groups, channels, span, centred: true })
    }
}

/// Normalises the last `axes` axes to mean 0 and variance 1: `(x - mean) / sqrt(var + eps) * weight + bias`.
///
/// The parameters have the shape of those axes; the statistics have the shape of the others.
///
/// ```
/// use netcl_core::{device::manager, tensor::Tensor};
/// use netcl_ops::norm::{Affine, layer_norm};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32, 3.0, -2.0, 2.0], [2, 2])?;
/// let y = layer_norm(&x, 1, Affine::default(), 0.0)?;
/// assert_eq!(y.output.to_host::<f32>()?, [-1.0, 1.0, -1.0, 1.0]);
/// assert_eq!((y.mean.to_host::<f32>()?, y.rstd.to_host::<f32>()?), (vec![2.0, 0.0], vec![1.0, 0.5]));
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn layer_norm(x: &Tensor, axes: usize, affine: Affine<'_>, eps: f64) -> Result<Normalized> {
    let rows = Rows::last("layer_norm", x, axes, true)?;
    let (outer, inner) = x.shape().split_at(x.ndim() - axes);
    forward("layer_norm", x, rows, affine, inner, outer, eps)
}

/// The gradients of [`layer_norm`], from the gradient of its output and the statistics it returned.
pub fn layer_norm_backward(
    grad: &Tensor,
    x: &Tensor,
    axes: usize,
    affine: Affine<'_>,
    mean: &Tensor,
    rstd: &Tensor,
) -> Result<NormGradients> {
    let op = "layer_norm_backward";
    let rows = Rows::last(op, x, axes, true)?;
    let (outer, inner) = x.shape().split_at(x.ndim() - axes);
    backward(op, grad, x, rows, affine, inner, outer, Some(mean), rstd)
}

/// Normalises each sample's channels (axis 1) in groups, over the channels of a group and all further axes.
///
/// The parameters have one element per channel; the statistics have shape (samples, groups).
///
/// ```
/// use netcl_core::{device::manager, tensor::Tensor};
/// use netcl_ops::norm::{Affine, group_norm};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32, 3.0, 5.0, 9.0], [1, 4, 1])?;
/// let y = group_norm(&x, 2, Affine::default(), 0.0)?;
/// assert_eq!(y.output.to_host::<f32>()?, [-1.0, 1.0, -1.0, 1.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn group_norm(x: &Tensor, groups: usize, affine: Affine<'_>, eps: f64) -> Result<Normalized> {
    let rows = Rows::groups("group_norm", x, groups)?;
    forward("group_norm", x, rows, affine, &[x.shape()[1]], &[x.shape()[0], groups], eps)
}

/// The gradients of [`group_norm`].
pub fn group_norm_backward(
    grad: &Tensor,
    x: &Tensor,
    groups: usize,
    affine: Affine<'_>,
    mean: &Tensor,
    rstd: &Tensor,
) -> Result<NormGradients> {
    let op = "group_norm_backward";
    let rows = Rows::groups(op, x, groups)?;
    backward(op, grad, x, rows, affine, &[x.shape()[1]], &[x.shape()[0], groups], Some(mean), rstd)
}

/// Divides the last `axes` axes by their root mean square: `x / sqrt(mean(x^2) + eps) * weight`.
///
/// ```
/// use netcl_core::{device::manager, tensor::Tensor};
/// use netcl_ops::norm::rms_norm;
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[3.0f32, -3.0, 1.0, 1.0], [2, 2])?;
/// assert_eq!(rms_norm(&x, 1, None, 0.0)?.output.to_host::<f32>()?, [1.0, -1.0, 1.0, 1.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
///
/// The `mean` of the result is zero everywhere; only `rstd` is needed for [`rms_norm_backward`].
pub fn rms_norm(x: &Tensor, axes: usize, weight: Option<&Tensor>, eps: f64) -> Result<Normalized> {
    let rows = Rows::last("rms_norm", x, axes, false)?;
    let (outer, inner) = x.shape().split_at(x.ndim() - axes);
    forward("rms_norm", x, rows, Affine { weight, bias: None }, inner, outer, eps)
}

/// The gradients of [`rms_norm`].
pub fn rms_norm_backward(
    grad: &Tensor,
    x: &Tensor,
    axes: usize,
    weight: Option<&Tensor>,
    rstd: &Tensor,
) -> Result<NormGradients> {
    let op = "rms_norm_backward";
    let rows = Rows::last(op, x, axes, false)?;
    let (outer, inner) = x.shape().split_at(x.ndim() - axes);
    backward(op, grad, x, rows, Affine { weight, bias: None }, inner, outer, None, rstd)
}

fn forward(
    op: &'static str,
    x: &Tensor,
    rows: Rows,
    affine: Affine<'_>,
    parameters: &[usize],
    statistics: &[usize],
    eps: f64,
) -> Result<Normalized> {
    check_eps(op, eps)?;
    let Parameters { weight, bias } = affine.prepare(op, x, parameters)?;
    let x = x.contiguous()?;
    let output = Tensor::uninit(x.queue(), x.shape().clone(), x.dtype())?;
    let make = || Tensor::uninit(x.queue(), statistics, x.dtype().accumulator());
    let (mean, rstd) = (make()?, make()?);
    if x.size() == 0 {
        // Rows of nothing have no statistics.
        mean.fill(f64::NAN)?;
        rstd.fill(f64::NAN)?;
        return Ok(Normalized { output, mean, rstd });
    }
    // Of groups of channels rows have parameters in common.
    if launch::has_sink() && rows.groups == 1 && rows.span == 1 {
        let norm = RowNorm { eps, centred: rows.centred, weight: weight.clone(), bias: bias.clone() };
        let meaning = Meaning::RowNorm(&norm);
        launch::offer(&Described { inputs: &[&x], outputs: &[&output, &mean, &rstd], meaning })?;
    }
    let args = Args::default()
        .read(&x)
        .maybe(weight.as_ref(), Access::Read)
        .maybe(bias.as_ref(), Access::Read)
        .write(&output)
        .write(&mean)
        .write(&rstd);
    let job = Job { name: op, queue: x.queue().clone(), dtype: x.dtype(), cost: cost(&x, 2, 8), args };
    match x.queue() {
        Queue::Cpu(_) => cpu::rows::forward(job, rows, eps)?,
        Queue::OpenCl(stream) => opencl::rows_forward(stream, job, rows, eps)?,
    }
    Ok(Normalized { output, mean, rstd })
}

#[expect(clippy::too_many_arguments, reason = "the tensors of the three public functions, passed on")]
fn backward(
    op: &'static str,
    grad: &Tensor,
    x: &Tensor,
    rows: Rows,
    affine: Affine<'_>,
    parameters: &[usize],
    statistics: &[usize],
    mean: Option<&Tensor>,
    rstd: &Tensor,
) -> Result<NormGradients> {
    let Parameters { weight, .. } = affine.prepare(op, x, parameters)?;
    let grad = checked(op, "the output's gradient", grad, x, x.shape(), false)?;
    let mean = mean.map(|mean| checked(op, "mean", mean, x, statistics, true)).transpose()?;
    let rstd = checked(op, "rstd", rstd, x, statistics, true)?;
    let x = x.contiguous()?;
    let input = Tensor::uninit(x.queue(), x.shape().clone(), x.dtype())?;
    let size = rows.groups * rows.channels;
    if x.size() == 0 {
        let zeros = Tensor::from_shape(x.queue(), [size], x.dtype().accumulator())?;
        return affine.finish(input, zeros.clone(), zeros.duplicate()?);
    }
    let wanted = affine.weight.is_some() || affine.bias.is_some();
    let make = || Tensor::uninit(x.queue(), [if wanted { size } else { 0 }], x.dtype().accumulator());
    let saved = Saved { grad: &grad, x: &x, weight: weight.as_ref(), mean: mean.as_ref(), rstd: &rstd };
    match x.queue() {
        Queue::Cpu(_) => {
            let (d_weight, d_bias) = (make()?, make()?);
            let args = saved.args().write(&input).write(&d_weight).write(&d_bias);
            let job = Job { name: op, queue: x.queue().clone(), dtype: x.dtype(), cost: cost(&x, 3, 16), args };
            cpu::rows::backward(job, rows, wanted)?;
            affine.finish(input, d_weight, d_bias)
        }
        Queue::OpenCl(stream) => match opencl::rows_backward(stream, op, &saved, rows, &input, wanted)? {
            Some([d_weight, d_bias]) => affine.finish(input, d_weight, d_bias),
            None => affine.finish(input, make()?, make()?),
        },
    }
}

/// What a backward pass reads.
pub(super) struct Saved<'t> {
    pub(super) grad: &'t Tensor,
    pub(super) x: &'t Tensor,
    pub(super) weight: Option<&'t Tensor>,
    pub(super) mean: Option<&'t Tensor>,
    pub(super) rstd: &'t Tensor,
}

impl Saved<'_> {
    /// The first arguments of every backward kernel.
    pub(super) fn args(&self) -> Args {
        Args::default()
            .read(self.grad)
            .read(self.x)
            .maybe(self.weight, Access::Read)
            .maybe(self.mean, Access::Read)
            .read(self.rstd)
    }
}
