//! Launches of `cross_entropy.cl`.

use netcl_core::Result;
use netcl_core::backend::opencl::{Grid, Source, Stream};
use netcl_core::kernels::launch::{Arg, Work};
use smallvec::SmallVec;

use super::Problem;

/// Work-items of the one group.
const GROUP: usize = 64;

pub(super) fn work(
    stream: &Stream,
    name: &'static str,
    problem: &Problem,
    args: &mut SmallVec<[Arg; 8]>,
) -> Result<Work> {
    let (real, label) = (problem.logits.dtype().cl_type(), problem.labels.dtype().cl_type());
    let kernel = stream.kernel(&format!("cross_entropy.cl:{name}:{real}:{label}"), || {
        let defines = format!("#define REAL {real}\n#define LABEL {label}\n");
        (Source::new(defines + include_str!("cross_entropy.cl"), ""), name)
    })?;
    let most = kernel.work_group_info()?.max_size;
    if name == "cross_entropy" {
        // A power of two, for the sums' tree.
        let local = 1 << most.clamp(1, GROUP).ilog2();
        args.push(Arg::Local(2 * local * problem.logits.dtype().size()));
        return Ok(Work::OpenCl(kernel, Grid::new([local]).local([local])));
    }
    let local = most.min(GROUP);
    Ok(Work::OpenCl(kernel, Grid::new([problem.logits.size().next_multiple_of(local)]).local([local])))
}
