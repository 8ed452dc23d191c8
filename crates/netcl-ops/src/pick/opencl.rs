//! Launches of `pick.cl`.

use netcl_core::Result;
use netcl_core::backend::opencl::{Grid, Stream};
use netcl_core::dtype::DType;
use netcl_core::kernels::expr::opencl::bits_type;
use netcl_core::kernels::launch::Work;

use super::Plan;
use crate::elements::kernel_source;

pub(super) fn work(stream: &Stream, plan: &Plan, label: DType, n: usize) -> Result<Work> {
    // Types of one size share a program: their bits are moved, and the bits of a NaN are an argument.
    let bits = bits_type(plan.dtype.size());
    let label = label.cl_type();
    let kernel = stream.kernel(&("pick.cl", plan.op, bits, label), || {
        let defines = format!("#define BITS {bits}\n#define LABEL {label}\n");
        (kernel_source(&defines, &[include_str!("pick.cl")]), plan.op)
    })?;
    let local = kernel.group_up_to(256)?;
    Ok(Work::OpenCl(kernel, Grid::new([n.next_multiple_of(local)]).local([local])))
}
