//! Softmax and its logarithm along any axis.
//!
//! The row engine (`core/kernels/region`), which compiles the same expressions, reaches 0.59 to 1.06 of these kernels' speed forward on an
//! H200 and 0.35 to 0.78 both ways, on the native CPU 0.4 to 1.0 and 0.2 to 0.75 (`benches/row_engine.py`): what it saves is not
//! worth that.

mod backward;
pub(crate) mod cpu;
mod opencl;
mod rows;

use netcl_core::Result;
use netcl_core::backend::Queue;
use netcl_core::kernels::described::{AlongAxis, Described, Meaning};
use netcl_core::kernels::launch::{self, Cost, Launch};
use netcl_core::tensor::Tensor;

pub use backward::{log_softmax_backward, softmax_backward};

use crate::lines::{Lines, check};

/// `exp(x) / sum(exp(x))` along an axis, computed without overflow for any finite input.
///
/// As in PyTorch, entries of minus infinity give 0, and a line of nothing but minus infinity gives NaN.
///
/// ```
/// use netcl_core::{device::manager, tensor::Tensor};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[1e4f32, 1e4, f32::NEG_INFINITY], [3])?;
/// assert_eq!(netcl_ops::softmax(&x, -1)?.to_host::<f32>()?, [0.5, 0.5, 0.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn softmax(x: &Tensor, axis: isize) -> Result<Tensor> {
    run("softmax", x, axis, false)
}

/// `log(softmax(x))` along an axis, exact also where the softmax itself is 0.
pub fn log_softmax(x: &Tensor, axis: isize) -> Result<Tensor> {
    run("log_softmax", x, axis, true)
}

fn run(op: &'static str, x: &Tensor, axis: isize, log: bool) -> Result<Tensor> {
    let axis = check(op, x, axis)?;
    let out = Tensor::uninit(x.queue(), x.shape().clone(), x.dtype())?;
    if x.size() == 0 {
        return Ok(out);
    }
    let along = if log { AlongAxis::LogSoftmax } else { AlongAxis::Softmax };
    let meaning = Meaning::AlongAxis(axis, along);
    if launch::offer(&Described { inputs: &[x], outputs: &[&out], meaning })? {
        return Ok(out);
    }
    let lines = Lines::new(x, &out, axis);
    let (work, args) = match x.queue() {
        Queue::Cpu(_) => crate::lines::cpu_work(op, cpu::Softmax { log }, lines, x, &out)?,
        Queue::OpenCl(stream) => match opencl::in_registers(stream, &lines, x, &out, log)? {
            Some(prepared) => prepared,
            None => return rows::run(along, axis, &[x], &out).map(|()| out),
        },
    };
    // A subtraction, an exponential (counted as one), an addition and a product each.
    let cost = Cost { flops: 4.0 * x.size() as f64, bytes: (2 * x.size() * x.dtype().size()) as f64 };
    launch::submit(Launch { name: op.into(), queue: x.queue().clone(), work, args, cost })?;
    Ok(out)
}
