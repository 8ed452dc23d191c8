//! Gradients of softmax and its logarithm in one pass over memory: a line stays close between its sum and its result.

mod cpu;
mod opencl;

use netcl_core::backend::Queue;
use netcl_core::kernels::described::{AlongAxis, Described, Meaning};
use netcl_core::kernels::launch::{self, Cost};
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};

use super::rows;
use crate::dense::{Args, Job, check_shape};
use crate::lines::check;

/// The gradient of `x` for `y = softmax(x)`: `y * (upstream - sum(upstream * y))` along the axis.
///
/// ```
/// use netcl_core::{device::manager, tensor::Tensor};
///
/// let queue = manager().cpu().queue;
/// let y = Tensor::from_host(&queue, &[0.25f32, 0.75], [2])?;
/// let upstream = Tensor::from_host(&queue, &[1.0f32, 3.0], [2])?;
/// let gradient = netcl_ops::softmax_backward(&upstream, &y, 0)?;
/// assert_eq!(gradient.to_host::<f32>()?, [0.25 * (1.0 - 2.5), 0.75 * (3.0 - 2.5)]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn softmax_backward(upstream: &Tensor, y: &Tensor, axis: isize) -> Result<Tensor> {
    run("softmax_backward", upstream, y, axis, false)
}

/// The gradient of `x` for `y = log_softmax(x)`: `upstream - exp(y) * sum(upstream)` along the axis.
pub fn log_softmax_backward(upstream: &Tensor, y: &Tensor, axis: isize) -> Result<Tensor> {
    run("log_softmax_backward", upstream, y, axis, true)
}

/// Dense tensors as `outer * len * inner` elements; the lines run along the middle.
#[derive(Clone, Copy, Debug)]
struct Shape {
    outer: usize,
    len: usize,
    inner: usize,
}

fn run(op: &'static str, upstream: &Tensor, y: &Tensor, axis: isize, log: bool) -> Result<Tensor> {
    let axis = check(op, y, axis)?;
    check_shape(op, "the gradient of the result", upstream, y.shape())?;
    if upstream.dtype() != y.dtype() {
        return Err(Error::Dtype { op, expected: format!("{}, as the result has", y.dtype()), got: upstream.dtype() });
    }
    let out = Tensor::uninit(y.queue(), y.shape().clone(), y.dtype())?;
    if y.size() == 0 {
        return Ok(out);
    }
    let along = if log { AlongAxis::LogSoftmaxBackward } else { AlongAxis::SoftmaxBackward };
    let meaning = Meaning::AlongAxis(axis, along);
    if launch::offer(&Described { inputs: &[upstream, y], outputs: &[&out], meaning })? {
        return Ok(out);
    }
    let (upstream, y) = (upstream.contiguous()?, y.contiguous()?);
    let lengths = y.shape();
    let (outer, inner) = (lengths[..axis].iter().product(), lengths[axis + 1..].iter().product());
    let shape = Shape { outer, len: lengths[axis], inner };
    let job = Job {
        name: op,
        queue: y.queue().clone(),
        dtype: y.dtype(),
        // A product and a sum, a difference and a product; two tensors read, one written.
        cost: Cost { flops: 4.0 * y.size() as f64, bytes: (3 * y.size() * y.dtype().size()) as f64 },
        args: Args::default().read(&upstream).read(&y).write(&out),
    };
    match y.queue() {
        Queue::Cpu(_) => cpu::run(job, shape, log)?,
        Queue::OpenCl(stream) => {
            if !opencl::in_registers(stream, job, shape, log)? {
                rows::run(along, axis, &[&upstream, &y], &out)?;
            }
        }
    }
    Ok(out)
}
