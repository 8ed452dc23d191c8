//! Sums and maxima of stretches of rows, whose lengths the device knows: bags of embeddings.
//!
//! Stretch b of a `[n, width]` tensor is the rows from offset b up to the next one, the last up to the end. Offsets are not read on
//! the host, so that captured steps see those of each replay; what lies outside the rows is left out.

mod cpu;

use netcl_core::backend::Queue;
use netcl_core::backend::opencl::Stream;
use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_core::kernels::launch::Cost;
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};

use crate::dense::{Args, ClCode, Job, Number};

/// Rows, their width and the number of stretches.
#[derive(Clone, Copy, Debug)]
struct Stretches {
    rows: usize,
    width: usize,
    count: usize,
}

/// The sum of each stretch of rows that begins at an offset; an empty one gives zeros.
///
/// ```
/// use netcl_core::{device::manager, index::IndexTensor, tensor::Tensor};
/// use netcl_ops::segment::{segment_argmax, segment_sum};
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::from_host(&queue, &[1.0f32, 5.0, 3.0], [3, 1])?;
/// let offsets = IndexTensor::from_host(&queue, &[0i64, 1, 1], [3])?;
/// assert_eq!(segment_sum(&x, &offsets)?.to_host::<f32>()?, [1.0, 0.0, 8.0]);
/// assert_eq!(segment_argmax(&x, &offsets)?.to_host()?, [0, 0, 1]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn segment_sum(x: &Tensor, offsets: &IndexTensor) -> Result<Tensor> {
    let op = "segment_sum";
    let stretches = Stretches::new(op, x, offsets)?;
    let out = Tensor::uninit(x.queue(), [stretches.count, stretches.width], x.dtype())?;
    if x.size() == 0 {
        out.fill(0.0)?;
    } else {
        run(op, x, offsets, &out, stretches)?;
    }
    Ok(out)
}

/// For each stretch and column, the row of the largest element: the first of equals, the first NaN if there is one, and row 0 where
/// the stretch is empty.
pub fn segment_argmax(x: &Tensor, offsets: &IndexTensor) -> Result<IndexTensor> {
    let op = "segment_argmax";
    let stretches = Stretches::new(op, x, offsets)?;
    let out = Tensor::uninit(x.queue(), [stretches.count, stretches.width], DType::I64)?;
    if x.size() == 0 {
        out.fill(0.0)?;
    } else {
        run(op, x, offsets, &out, stretches)?;
    }
    IndexTensor::from_tensor(out)
}

impl Stretches {
    fn new(op: &'static str, x: &Tensor, offsets: &IndexTensor) -> Result<Stretches> {
        x.check_float(op)?;
        x.queue().check_same_device(op, offsets.tensor().queue())?;
        let [rows, width] = x.shape()[..] else { return Err(Error::shape(op, x.shape(), "it takes rows: two axes")) };
        let [count] = offsets.tensor().shape()[..] else {
            return Err(Error::shape(op, offsets.tensor().shape(), "offsets have one axis: where each stretch begins"));
        };
        Ok(Stretches { rows, width, count })
    }
}

fn run(op: &'static str, x: &Tensor, offsets: &IndexTensor, out: &Tensor, stretches: Stretches) -> Result<()> {
    if out.size() == 0 {
        return Ok(());
    }
    let (x, offsets) = (x.contiguous()?, offsets.tensor().cast(DType::I64)?.contiguous()?);
    let bytes = x.size() * x.dtype().size() + out.size() * out.dtype().size();
    let args = Args::default().read(&x).read(&offsets).write(out);
    let cost = Cost { flops: x.size() as f64, bytes: bytes as f64 };
    let job = Job { name: op, queue: x.queue().clone(), dtype: x.dtype(), cost, args };
    match x.queue() {
        Queue::Cpu(_) if out.dtype().is_float() => cpu::sum(job, stretches),
        Queue::Cpu(_) => cpu::argmax(job, stretches),
        Queue::OpenCl(stream) => on_device(stream, job, stretches),
    }
}

fn on_device(stream: &Stream, job: Job, stretches: Stretches) -> Result<()> {
    let Stretches { rows, width, count } = stretches;
    let code = ClCode {
        file: "segment.cl",
        text: include_str!("segment.cl"),
        kernel: job.name,
        scalars: &[count, width, rows].map(Number::Count),
        items: count * width,
        group: None,
        local: 0,
        wide: None,
    };
    job.run_cl(stream, &code)
}
