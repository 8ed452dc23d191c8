//! Launches of `cross_entropy.cl`.

use netcl_core::Result;
use netcl_core::backend::opencl::{Grid, Stream};
use netcl_core::kernels::launch::{Access, Arg, Scalar, Work};
use netcl_core::tensor::Tensor;
use smallvec::SmallVec;

use super::Problem;
use crate::dense::group_size;
use crate::elements::kernel_source;

/// Elements of a row that each lane should have.
const PER_LANE: usize = 4;

/// The work, with the arguments that only these kernels have; `forward` takes the memory of the sums.
pub(super) fn work(
    stream: &Stream,
    name: &'static str,
    problem: &Problem,
    mut args: SmallVec<[Arg; 8]>,
) -> Result<(Work, SmallVec<[Arg; 8]>)> {
    let (dtype, label) = (problem.logits.dtype(), problem.labels.dtype().cl_type());
    let local = group_size(stream, dtype);
    let entry = format!("{name}_groups");
    let kernel = stream.kernel(&("cross_entropy.cl", &entry, dtype, label), || {
        let fence = stream.device_fence();
        let defines = format!("#define COMPUTE {}\n#define LABEL {label}\n#define FENCE {fence}\n", dtype.cl_type());
        (kernel_source(&defines, &[include_str!("cross_entropy.cl")]), &entry)
    })?;
    if name != "cross_entropy" {
        args.extend(problem.sizes());
        let items = problem.logits.size().next_multiple_of(local);
        return Ok((Work::OpenCl(kernel, Grid::new([items]).local([local])), args));
    }
    let lanes = problem.classes.div_ceil(PER_LANE).next_power_of_two().min(local);
    let groups = problem.rows.div_ceil(local / lanes);
    let partial = Tensor::uninit(problem.logits.queue(), [2 * groups], dtype)?;
    args.push(Arg::Buffer(partial.storage().clone(), Access::Write));
    args.push(Arg::Buffer(stream.counters()?, Access::Write));
    args.extend(problem.sizes());
    args.push(Arg::Scalar(Scalar::U32(lanes as u32)));
    args.push(Arg::Local(local * dtype.size()));
    Ok((Work::OpenCl(kernel, Grid::new([groups * local]).local([local])), args))
}
