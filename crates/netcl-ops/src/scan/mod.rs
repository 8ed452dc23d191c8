//! Running sums along any axis.

mod cpu;
mod opencl;

use netcl_core::Result;
use netcl_core::backend::Queue;
use netcl_core::kernels::launch::{self, Cost, Launch};
use netcl_core::tensor::Tensor;

use crate::lines::{Lines, check};

/// The running sum along an axis: element i of a line is the sum of its elements 0 to i.
///
/// Carried in float64 on the CPU and with a correction elsewhere; the same bits on every run.
///
/// ```
/// use netcl_core::{device::manager, tensor::Tensor};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
/// assert_eq!(netcl_ops::cumsum(&x, 1)?.to_host::<f32>()?, [1.0, 3.0, 3.0, 7.0]);
/// assert_eq!(netcl_ops::cumsum(&x, 0)?.to_host::<f32>()?, [1.0, 2.0, 4.0, 6.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn cumsum(x: &Tensor, axis: isize) -> Result<Tensor> {
    let axis = check("cumsum", x, axis)?;
    let out = Tensor::uninit(x.queue(), x.shape().clone(), x.dtype())?;
    if x.size() == 0 {
        return Ok(out);
    }
    let lines = Lines::new(x, &out, axis);
    let (name, (work, args)) = match x.queue() {
        Queue::Cpu(_) => ("cumsum", crate::lines::cpu_work("cumsum", cpu::Cumsum, lines, x, &out)?),
        Queue::OpenCl(stream) => opencl::work(stream, &lines, x, &out)?,
    };
    let cost = Cost { flops: x.size() as f64, bytes: (2 * x.size() * x.dtype().size()) as f64 };
    launch::submit(Launch { name: name.into(), queue: x.queue().clone(), work, args, cost })?;
    Ok(out)
}
