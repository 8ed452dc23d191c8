//! The mean cross-entropy of rows of logits in one launch, and its gradient in another: what the step of a classifier ends and
//! begins with. Neither the probabilities nor their logarithms are ever in memory.
//!
//! Not on the row engine (`core/kernels/region`): it has no gather of a row's label, and its softmax alone is slower (see `softmax/mod.rs`).

mod cpu;
mod opencl;
pub(crate) mod rows;

use netcl_core::backend::Queue;
use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_core::kernels::launch::{self, Access, Arg, Cost, Launch, Scalar};
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};
use smallvec::{SmallVec, smallvec};

/// Whether [`cross_entropy`] takes logits: float32 or float64 of shape `(N, C)`, and at least one.
pub fn cross_entropy_fits(logits: &Tensor) -> bool {
    let shape = logits.shape();
    matches!(logits.dtype(), DType::F32 | DType::F64)
        && shape.ndim() == 2
        && shape.size() > 0
        && shape.iter().all(|&n| n <= u32::MAX as usize / 2)
}

/// The mean over rows of the cross-entropy between logits `(N, C)` and class labels `(N,)`, without those that have the label
/// `ignore`; NaN if none is left, or if a label is no class.
///
/// With it comes what [`cross_entropy_backward`] needs: each row's maximum, the logarithm of its sum of powers beside that, and how
/// many rows count.
///
/// ```
/// use netcl_core::{device::manager, index::IndexTensor, tensor::Tensor};
/// use netcl_ops::{cross_entropy, cross_entropy_backward};
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::from_host(&queue, &[0.0f32, 0.0, 5.0, -5.0], [2, 2])?;
/// let labels = IndexTensor::from_host(&queue, &[1i64, -100], [2])?;
/// let (loss, stats) = cross_entropy(&x, &labels, Some(-100))?;
/// assert!((loss.item()? - 2f64.ln()).abs() < 1e-6);
/// assert_eq!(stats.to_host::<f32>()?[4], 1.0);
/// let one = Tensor::from_host(&queue, &[1.0f32], ())?;
/// let grad = cross_entropy_backward(&x, &labels, Some(-100), &stats, &one)?;
/// assert_eq!(grad.to_host::<f32>()?, [0.5, -0.5, 0.0, 0.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
///
/// # Errors
/// For logits that do not fit ([`cross_entropy_fits`]) and labels of another shape.
pub fn cross_entropy(logits: &Tensor, labels: &IndexTensor, ignore: Option<i64>) -> Result<(Tensor, Tensor)> {
    let problem = Problem::new("cross_entropy", logits, labels, ignore)?;
    let queue = logits.queue();
    let loss = Tensor::uninit(queue, (), logits.dtype())?;
    let stats = Tensor::uninit(queue, [2 * problem.rows + 1], logits.dtype())?;
    let mut args = problem.inputs();
    args.push(Arg::Buffer(loss.storage().clone(), Access::Write));
    args.push(Arg::Buffer(stats.storage().clone(), Access::Write));
    problem.submit("cross_entropy", args)?;
    Ok((loss, stats))
}

/// The gradient of [`cross_entropy`] for the logits, times an upstream number on the device.
///
/// # Errors
/// As [`cross_entropy`]; for statistics and an upstream gradient that are not its.
pub fn cross_entropy_backward(
    logits: &Tensor,
    labels: &IndexTensor,
    ignore: Option<i64>,
    stats: &Tensor,
    upstream: &Tensor,
) -> Result<Tensor> {
    const OP: &str = "cross_entropy_backward";
    let problem = Problem::new(OP, logits, labels, ignore)?;
    for (tensor, size) in [(stats, 2 * problem.rows + 1), (upstream, 1)] {
        logits.queue().check_same_device(OP, tensor.queue())?;
        if tensor.size() != size || tensor.dtype() != logits.dtype() {
            let why = format!("{size} numbers of {} are needed", logits.dtype());
            return Err(Error::Shape { op: OP, shape: tensor.shape().clone(), why });
        }
    }
    let stats = stats.contiguous()?;
    if stats.layout().offset() != 0 {
        return Err(Error::argument(OP, "the statistics are a tensor of their own"));
    }
    let grad = Tensor::uninit(logits.queue(), logits.shape().clone(), logits.dtype())?;
    let mut args = problem.inputs();
    args.push(Arg::Buffer(stats.storage().clone(), Access::Read));
    args.push(Arg::Buffer(upstream.storage().clone(), Access::Read));
    args.push(Arg::Scalar(Scalar::U64(upstream.layout().offset() as u64)));
    args.push(Arg::Buffer(grad.storage().clone(), Access::Write));
    problem.submit(OP, args)?;
    Ok(grad)
}

/// Dense logits and labels that fit.
struct Problem {
    logits: Tensor,
    labels: Tensor,
    rows: usize,
    classes: usize,
    ignore: Option<i64>,
}

impl Problem {
    fn new(op: &'static str, logits: &Tensor, labels: &IndexTensor, ignore: Option<i64>) -> Result<Problem> {
        if !cross_entropy_fits(logits) {
            let why = format!(
                "one launch takes float32 or float64 of shape (N, C), neither of them 0; this is {}",
                logits.dtype()
            );
            return Err(Error::Shape { op, shape: logits.shape().clone(), why });
        }
        let labels = labels.tensor();
        logits.queue().check_same_device(op, labels.queue())?;
        let (rows, classes) = (logits.shape()[0], logits.shape()[1]);
        if labels.shape()[..] != [rows] {
            let why = format!("labels of shape [{rows}] are needed beside logits of shape {}", logits.shape());
            return Err(Error::Shape { op, shape: labels.shape().clone(), why });
        }
        Ok(Problem { logits: logits.contiguous()?, labels: labels.contiguous()?, rows, classes, ignore })
    }

    /// The arguments that both launches begin with.
    fn inputs(&self) -> SmallVec<[Arg; 8]> {
        let at = |tensor: &Tensor| Arg::Scalar(Scalar::U64(tensor.layout().offset() as u64));
        smallvec![
            Arg::Buffer(self.logits.storage().clone(), Access::Read),
            at(&self.logits),
            Arg::Buffer(self.labels.storage().clone(), Access::Read),
            at(&self.labels),
        ]
    }

    /// The numbers that both launches end with.
    fn sizes(&self) -> [Arg; 4] {
        // A label that is ignored is told apart by a flag: every value of an i64 could be one.
        [
            Scalar::U32(self.rows as u32),
            Scalar::U32(self.classes as u32),
            Scalar::I64(self.ignore.unwrap_or_default()),
            Scalar::U32(self.ignore.is_some().into()),
        ]
        .map(Arg::Scalar)
    }

    fn submit(&self, name: &'static str, args: SmallVec<[Arg; 8]>) -> Result<()> {
        let dtype = self.logits.dtype();
        let queue = self.logits.queue();
        let (work, args) = match queue {
            Queue::Cpu(_) => (cpu::work(name, self), args),
            Queue::OpenCl(stream) => opencl::work(stream, name, self, args)?,
        };
        let elements = self.logits.size() as f64;
        let written = if name == "cross_entropy" { 1.0 } else { 2.0 };
        let cost = Cost { flops: 4.0 * elements, bytes: written * elements * dtype.size() as f64 };
        launch::submit(Launch { name: name.into(), queue: queue.clone(), work, args, cost })
    }
}
