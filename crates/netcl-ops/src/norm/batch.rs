//! Batch normalisation: each channel (axis 1) by its statistics over all samples and places.

use netcl_core::backend::Queue;
use netcl_core::dtype::DType;
use netcl_core::kernels::launch::Access;
use netcl_core::shape::Layout;
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};

use super::rows::Saved;
use super::statistics::ChannelStatistics;
use super::{
    Affine, NormGradients, Normalized, Parameters, check_eps, check_like, checked, cost, cpu, opencl, pointwise,
};
use crate::dense::{Args, Job, as_images, check_shape, uninit_like};

/// Averages over past batches, which training updates in place: `new = (1 - momentum) * old + momentum * batch`.
#[derive(Clone, Copy, Debug)]
pub struct Running<'t> {
    /// The average of means, one per channel.
    pub mean: &'t Tensor,
    /// The average of variances (divided by n - 1, as in PyTorch), one per channel.
    pub var: &'t Tensor,
    /// The share of the new batch; `None` is one over the number of batches, so that all of them count alike.
    pub momentum: Option<f64>,
    /// The number of batches so far, one int64 on the device, which is raised by one. It is needed without a momentum.
    pub batches: Option<&'t Tensor>,
}

impl<'t> Running<'t> {
    /// Averages that move by a fixed share; nothing is counted.
    pub fn new(mean: &'t Tensor, var: &'t Tensor, momentum: f64) -> Self {
        Running { mean, var, momentum: Some(momentum), batches: None }
    }
}

/// A tensor seen as samples x channels x places.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planes {
    pub(super) samples: usize,
    pub(super) channels: usize,
    /// Elements of a channel of one sample, which lie side by side.
    pub(super) span: usize,
}

impl Planes {
    pub(super) fn new(op: &'static str, x: &Tensor) -> Result<Planes> {
        x.check_float(op)?;
        let &[samples, channels, ref rest @ ..] = &x.shape()[..] else {
            let why = "it needs a batch axis and a channel axis".to_owned();
            return Err(Error::Shape { op, shape: x.shape().clone(), why });
        };
        Ok(Planes { samples, channels, span: rest.iter().product() })
    }

    /// Elements of a channel.
    pub(super) fn count(self) -> usize {
        self.samples * self.span
    }

    /// What [`as_images`] gives as kernels read it: to them channels-last images on an OpenCL device are samples of one place each.
    pub(super) fn dense(self, x: &Tensor) -> Result<(Tensor, Planes)> {
        if !x.layout().is_channels_last() {
            return Ok((x.clone(), self));
        }
        let rows = Layout::contiguous([self.count(), self.channels].into()).shifted(x.layout().offset());
        Ok((x.with_layout(rows)?, Planes { samples: self.count(), span: 1, ..self }))
    }
}

/// Normalises every channel (axis 1) to mean 0 and variance 1 over the batch, and updates the running averages.
///
/// The parameters, the statistics and the averages have one element per channel.
///
/// ```
/// use netcl_core::{device::manager, dtype::DType, tensor::Tensor};
/// use netcl_ops::norm::{Affine, Running, batch_norm};
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::from_host(&queue, &[1.0f32, 10.0, 3.0, 30.0], [2, 2])?;
/// let (mean, var) = (Tensor::full(&queue, [2], DType::F32, 0.0)?, Tensor::full(&queue, [2], DType::F32, 1.0)?);
/// let running = Running::new(&mean, &var, 0.5);
/// let y = batch_norm(&x, Affine::default(), Some(running), 0.0)?;
/// assert_eq!(y.output.to_host::<f32>()?, [-1.0, -1.0, 1.0, 1.0]);
/// assert_eq!(mean.to_host::<f32>()?, [1.0, 10.0]);
/// assert_eq!(var.to_host::<f32>()?, [1.5, 100.5]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn batch_norm(x: &Tensor, affine: Affine<'_>, running: Option<Running<'_>>, eps: f64) -> Result<Normalized> {
    train("batch_norm", x, None, affine, running, eps)
}

/// [`batch_norm`] of a tensor whose statistics are known: no pass over the tensor is needed to find them.
///
/// ```
/// use netcl_ops::conv::{ConvOptions, conv2d_with_statistics};
/// use netcl_core::{device::manager, dtype::DType, tensor::Tensor};
/// use netcl_ops::norm::{Affine, batch_norm_with};
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::from_host(&queue, &[1.0f32, 2.0, 3.0, 2.0], [1, 1, 2, 2])?;
/// let double = Tensor::full(&queue, [1, 1, 1, 1], DType::F32, 2.0)?;
/// let (y, statistics) = conv2d_with_statistics(&x, &double, None, &ConvOptions::default())?;
/// let normal = batch_norm_with(&y, &statistics, Affine::default(), None, 0.0)?;
/// assert_eq!(normal.mean.to_host::<f32>()?, [4.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn batch_norm_with(
    x: &Tensor,
    statistics: &ChannelStatistics,
    affine: Affine<'_>,
    running: Option<Running<'_>>,
    eps: f64,
) -> Result<Normalized> {
    train("batch_norm_with", x, Some(statistics), affine, running, eps)
}

fn train(
    op: &'static str,
    x: &Tensor,
    statistics: Option<&ChannelStatistics>,
    affine: Affine<'_>,
    running: Option<Running<'_>>,
    eps: f64,
) -> Result<Normalized> {
    let planes = Planes::new(op, x)?;
    check_eps(op, eps)?;
    let channels = [planes.channels];
    let Parameters { weight, bias } = affine.prepare(op, x, &channels)?;
    if let Some(running) = &running {
        check_running(op, x, running.mean, running.var, &channels)?;
        check_momentum(op, x, running)?;
    }
    if planes.count() == 1 && planes.channels > 0 {
        let why = "one value per channel has no variance; train with larger batches, or normalise by the running averages \
                   with eval()";
        return Err(Error::Shape { op, shape: x.shape().clone(), why: why.to_owned() });
    }
    if let Some(statistics) = statistics {
        check_statistics(op, x, statistics, planes)?;
    }
    let images = as_images(x)?;
    let output = uninit_like(&images, images.shape().clone(), images.dtype())?;
    let (x, planes) = planes.dense(&images)?;
    let make = || Tensor::uninit(x.queue(), channels, x.dtype().accumulator());
    let (mean, rstd) = (make()?, make()?);
    let batches = running.and_then(|r| r.batches);
    // Every channel reads the number of batches for its share: it is raised before. Otherwise the kernel that moves the averages
    // raises it, and no launch is added.
    let counted = match running {
        Some(Running { momentum: None, batches: Some(batches), .. }) => Some(batches),
        _ => batches.filter(|_| x.size() == 0),
    };
    if let Some(batches) = counted {
        count(op, batches)?;
    }
    if x.size() == 0 {
        mean.fill(f64::NAN)?;
        rstd.fill(f64::NAN)?;
        return Ok(Normalized { output, mean, rstd });
    }
    // The kernels update averages of the type they compute in; others through a copy.
    let own = |t: &Tensor| t.cast(x.dtype().accumulator())?.contiguous();
    let averages = running.map(|r| Ok::<_, Error>((own(r.mean)?, own(r.var)?))).transpose()?;
    let share = running.map_or(Some(0.0), |r| r.momentum);
    let forward = Forward {
        x: &x,
        weight: weight.as_ref(),
        bias: bias.as_ref(),
        output: &output,
        mean: &mean,
        rstd: &rstd,
        running: averages.as_ref().map(|(mean, var)| [mean, var]),
        batches,
    };
    match (x.queue(), statistics) {
        (Queue::Cpu(_), None) => cpu::batch::forward(forward.job(op), planes, share, eps)?,
        (Queue::Cpu(_), Some(given)) => {
            let job = forward.finish(op, &given.parts);
            cpu::statistics::finish(job, planes.channels, given.cut, share, eps)?;
            cpu::batch::apply(forward.apply(op), planes)?;
        }
        (Queue::OpenCl(stream), given) => {
            let found = match given {
                Some(_) => None,
                None => Some(opencl::statistics(stream, op, &x, planes)?),
            };
            if let Some(statistics) = given.or(found.as_ref()) {
                opencl::finish(stream, op, &forward, statistics, share, eps)?;
            }
            pointwise::apply(&images, forward.parameters(), [&mean, &rstd], &output)?;
        }
    }
    if let (Some(running), Some((mean, var))) = (running, averages) {
        for (target, new) in [(running.mean, mean), (running.var, var)] {
            if !target.shares_storage(&new) {
                target.assign(&new)?;
            }
        }
    }
    Ok(Normalized { output, mean, rstd })
}

/// Normalises every channel with given averages instead of the batch's statistics.
///
/// The returned statistics are those averages in the type of the computation, as [`batch_norm_backward`] takes them.
pub fn batch_norm_eval(x: &Tensor, affine: Affine<'_>, mean: &Tensor, var: &Tensor, eps: f64) -> Result<Normalized> {
    let op = "batch_norm_eval";
    let planes = Planes::new(op, x)?;
    check_eps(op, eps)?;
    let channels = [planes.channels];
    let Parameters { weight, bias } = affine.prepare(op, x, &channels)?;
    check_running(op, x, mean, var, &channels)?;
    let compute = x.dtype().accumulator();
    let mean = mean.cast(compute)?.contiguous()?;
    let rstd = crate::rsqrt(&crate::add(&var.cast(compute)?, eps)?)?.contiguous()?;
    let x = as_images(x)?;
    let output = uninit_like(&x, x.shape().clone(), x.dtype())?;
    match x.queue() {
        _ if x.size() == 0 => {}
        Queue::Cpu(_) => {
            let args = Args::default()
                .read(&x)
                .maybe(weight.as_ref(), Access::Read)
                .maybe(bias.as_ref(), Access::Read)
                .write(&output)
                .read(&mean)
                .read(&rstd);
            let job = Job { name: op, queue: x.queue().clone(), dtype: x.dtype(), cost: cost(&x, 2, 2), args };
            cpu::batch::apply(job, planes)?;
        }
        Queue::OpenCl(_) => pointwise::apply(&x, [weight.as_ref(), bias.as_ref()], [&mean, &rstd], &output)?,
    }
    Ok(Normalized { output, mean, rstd })
}

/// The gradients of [`batch_norm`] (`training`), or of [`batch_norm_eval`], whose statistics do not depend on the input.
pub fn batch_norm_backward(
    grad: &Tensor,
    x: &Tensor,
    affine: Affine<'_>,
    mean: &Tensor,
    rstd: &Tensor,
    training: bool,
) -> Result<NormGradients> {
    let op = "batch_norm_backward";
    let planes = Planes::new(op, x)?;
    let channels = [planes.channels];
    let Parameters { weight, .. } = affine.prepare(op, x, &channels)?;
    check_like(op, "the output's gradient", grad, x, x.shape(), x.dtype())?;
    let mean = checked(op, "mean", mean, x, &channels, true)?;
    let rstd = checked(op, "rstd", rstd, x, &channels, true)?;
    let images = as_images(x)?;
    let upstream = if images.layout().is_channels_last() { grad.channels_last()? } else { grad.contiguous()? };
    let ((x, planes), (grad, _)) = (planes.dense(&images)?, planes.dense(&upstream)?);
    let input = uninit_like(&images, images.shape().clone(), x.dtype())?;
    let make = || Tensor::uninit(x.queue(), channels, x.dtype().accumulator());
    let (d_weight, d_bias) = (make()?, make()?);
    if x.size() == 0 {
        d_weight.fill(0.0)?;
        d_bias.fill(0.0)?;
        return affine.finish(input, d_weight, d_bias);
    }
    let saved = Saved { grad: &grad, x: &x, weight: weight.as_ref(), mean: Some(&mean), rstd: &rstd };
    match x.queue() {
        Queue::Cpu(_) => {
            let args = saved.args().write(&input).write(&d_weight).write(&d_bias);
            let job = Job { name: op, queue: x.queue().clone(), dtype: x.dtype(), cost: cost(&x, 3, 10), args };
            cpu::batch::backward(job, planes, training)?;
        }
        Queue::OpenCl(stream) => {
            opencl::batch_sums(stream, op, &saved, planes, [&d_weight, &d_bias])?;
            let sums =
                training.then_some(pointwise::Sums { of_products: &d_weight, plain: &d_bias, count: planes.count() });
            pointwise::backward(&upstream, &images, weight.as_ref(), [&mean, &rstd], sums, &input)?;
        }
    }
    affine.finish(input, d_weight, d_bias)
}

fn check_statistics(op: &'static str, x: &Tensor, statistics: &ChannelStatistics, planes: Planes) -> Result<()> {
    x.queue().check_same_device(op, statistics.parts.queue())?;
    let given = (statistics.channels(), statistics.count());
    if given != (planes.channels, planes.count()) {
        let why = format!(
            "the statistics are those of {} channels with {} values each; give those of this tensor",
            given.0, given.1
        );
        return Err(Error::Shape { op, shape: x.shape().clone(), why });
    }
    match statistics.parts.dtype() == x.dtype().accumulator() {
        true => Ok(()),
        false => Err(Error::DtypeMismatch { op, lhs: x.dtype(), rhs: statistics.parts.dtype() }),
    }
}

/// An error unless the share of a batch is a number, or follows from a number of batches.
fn check_momentum(op: &'static str, x: &Tensor, running: &Running<'_>) -> Result<()> {
    if let Some(batches) = running.batches {
        x.queue().check_same_device(op, batches.queue())?;
        if batches.dtype() != DType::I64 || batches.size() != 1 {
            let expected = "one int64 for the number of batches".to_owned();
            return Err(Error::Dtype { op, expected, got: batches.dtype() });
        }
    }
    match (running.momentum, running.batches) {
        (Some(momentum), _) if !momentum.is_finite() => {
            Err(Error::argument(op, format!("momentum is {momentum}; use a number such as 0.1")))
        }
        (None, None) => {
            Err(Error::argument(op, "without a momentum the number of batches is needed; give one of them"))
        }
        _ => Ok(()),
    }
}

/// Raises the number of batches by one.
fn count(op: &'static str, batches: &Tensor) -> Result<()> {
    let args = Args::default().write(batches);
    let job = Job { name: op, queue: batches.queue().clone(), dtype: DType::F32, cost: cost(batches, 2, 1), args };
    match batches.queue() {
        Queue::Cpu(_) => cpu::batch::count(job),
        Queue::OpenCl(stream) => opencl::count(stream, job),
    }
}

fn check_running(op: &'static str, x: &Tensor, mean: &Tensor, var: &Tensor, channels: &[usize]) -> Result<()> {
    for (what, t) in [("the running mean", mean), ("the running variance", var)] {
        t.check_float(op)?;
        x.queue().check_same_device(op, t.queue())?;
        check_shape(op, what, t, channels)?;
    }
    Ok(())
}

/// The tensors of a training step.
pub(super) struct Forward<'t> {
    pub(super) x: &'t Tensor,
    pub(super) weight: Option<&'t Tensor>,
    pub(super) bias: Option<&'t Tensor>,
    pub(super) output: &'t Tensor,
    pub(super) mean: &'t Tensor,
    pub(super) rstd: &'t Tensor,
    /// Mean and variance.
    pub(super) running: Option<[&'t Tensor; 2]>,
    /// The number of batches.
    pub(super) batches: Option<&'t Tensor>,
}

impl Forward<'_> {
    fn job(&self, op: &'static str) -> Job {
        let args = Args::default()
            .read(self.x)
            .maybe(self.weight, Access::Read)
            .maybe(self.bias, Access::Read)
            .write(self.output)
            .write(self.mean)
            .write(self.rstd)
            .maybe(self.running.map(|r| r[0]), Access::Write)
            .maybe(self.running.map(|r| r[1]), Access::Write)
            .maybe(self.batches, Access::Write);
        Job { name: op, queue: self.x.queue().clone(), dtype: self.x.dtype(), cost: cost(self.x, 2, 8), args }
    }

    /// What becomes of statistics: means, scales and averages.
    pub(super) fn finish(&self, op: &'static str, statistics: &Tensor) -> Job {
        let args = Args::default()
            .read(statistics)
            .write(self.mean)
            .write(self.rstd)
            .maybe(self.running.map(|r| r[0]), Access::Write)
            .maybe(self.running.map(|r| r[1]), Access::Write)
            .maybe(self.batches, Access::Write);
        Job { name: op, queue: self.x.queue().clone(), dtype: self.x.dtype(), cost: cost(statistics, 1, 2), args }
    }

    fn parameters(&self) -> [Option<&Tensor>; 2] {
        [self.weight, self.bias]
    }

    /// What becomes of the values once the statistics are known.
    fn apply(&self, op: &'static str) -> Job {
        let args = Args::default()
            .read(self.x)
            .maybe(self.weight, Access::Read)
            .maybe(self.bias, Access::Read)
            .write(self.output)
            .read(self.mean)
            .read(self.rstd);
        Job { name: op, queue: self.x.queue().clone(), dtype: self.x.dtype(), cost: cost(self.x, 2, 2), args }
    }
}
