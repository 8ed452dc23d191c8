//! Launches of `quantized.cl`.

use netcl_core::Result;
use netcl_core::backend::opencl::{Grid, Kernel, Stream};
use netcl_core::dtype::DType;
use netcl_core::kernels::group_limit::largest_group;
use netcl_core::kernels::launch::{self, Arg, Launch, Scalar, Work};

use super::Lengths;
use crate::dense::Job;
use crate::elements::{element_defines, kernel_source, load_aligned};

/// Work-items of a group: few, so that a layer of a few thousand features has groups for all compute units.
const GROUP: usize = 64;
/// As in the kernel: rows of the weight that a group multiplies.
const COLS: usize = 4;
/// Rows of x that a group multiplies at most.
const MOST_ROWS: usize = 8;

/// Tensors: packed weight, scale, result.
pub(super) fn dequantize(stream: &Stream, job: Job, lengths: Lengths) -> Result<()> {
    let Lengths { n, k, .. } = lengths;
    let kernel = kernel(stream, "dequantize", job.dtype, &lengths, "")?;
    let group = largest_group(stream.device()).min(256);
    submit(job, kernel, Grid::new([(n * k).next_multiple_of(group)]).local([group]), &[n, k], &lengths, None)
}

/// Tensors: x, packed weight, scale, bias, result.
pub(super) fn multiply(stream: &Stream, job: Job, lengths: Lengths) -> Result<()> {
    let Lengths { m, n, k, .. } = lengths;
    let rows = m.next_power_of_two().min(MOST_ROWS);
    let slot = rows * COLS * job.dtype.accumulator().size();
    let room = stream.device().info().local_mem_size as usize / slot;
    let group = 1 << largest_group(stream.device()).min(GROUP).min(room).max(1).ilog2();
    // The offset of x is even in fours where it is a tensor of its own.
    let aligned = k.is_multiple_of(4) && job.args.aligned_at(0, 4);
    let load4 = if aligned { load_aligned(job.dtype, "(p) + (i)", 4) } else { LOAD_EACH.to_owned() };
    let compute = job.dtype.accumulator().cl_type();
    let defines = format!("#define ROWS {rows}\n#define COMPUTE4 {compute}4\n#define LOAD4(p, i) ({load4})\n");
    let kernel = kernel(stream, "quantized_linear", job.dtype, &lengths, &defines)?;
    let grid = Grid::new([n.div_ceil(COLS) * m.div_ceil(rows) * group]).local([group]);
    submit(job, kernel, grid, &[m, n, k], &lengths, Some(Arg::Local(group * slot)))
}

const LOAD_EACH: &str = "(COMPUTE4)(LOAD(p, i), LOAD(p, (i) + 1), LOAD(p, (i) + 2), LOAD(p, (i) + 3))";

fn kernel(stream: &Stream, name: &'static str, dtype: DType, lengths: &Lengths, more: &str) -> Result<Kernel> {
    let bits = lengths.packing.bits;
    stream.kernel(&("quantized.cl", name, dtype, bits, more), || {
        let elements = element_defines(dtype);
        let defines = format!("{elements}#define BITS {bits}\n#define KERNEL_{name}\n{more}");
        (kernel_source(&defines, &[include_str!("quantized.cl")]), name)
    })
}

fn submit(
    mut job: Job,
    kernel: Kernel,
    grid: Grid,
    counts: &[usize],
    lengths: &Lengths,
    local: Option<Arg>,
) -> Result<()> {
    let Lengths { k, packing, .. } = *lengths;
    let shift = packing.group.map_or(0, usize::ilog2) as usize;
    let flags = [packing.words(k), packing.scales(k), shift].map(|flag| Arg::Scalar(Scalar::U32(flag as u32)));
    let counts = counts.iter().map(|&count| Arg::Scalar(Scalar::U64(count as u64)));
    job.args.extend(counts.chain(flags).chain(local));
    let Job { name, queue, cost, args, .. } = job;
    let work = Work::OpenCl(kernel, grid);
    launch::submit(Launch { name: name.into(), queue, work, args: args.into_list(), cost })
}
