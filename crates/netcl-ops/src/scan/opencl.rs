//! Launches of `scan.cl`.

use netcl_core::Result;
use netcl_core::backend::opencl::{Grid, Stream};
use netcl_core::kernels::launch::{Arg, Work};
use netcl_core::tensor::Tensor;

use crate::elements::kernel_source;
use crate::lines::{Lines, Prepared};
use crate::lines_opencl::Access;

/// Lines shorter than this are not worth a work-group each.
const GROUP_FROM: usize = 256;
/// So many neighbouring lines keep a device busy with one work-item each.
const MANY_LINES: usize = 1 << 14;

pub(super) fn work(stream: &Stream, lines: &Lines, x: &Tensor, out: &Tensor) -> Result<(&'static str, Prepared)> {
    let access = Access::new(lines, x, out);
    let info = stream.device().info();
    let size = x.dtype().accumulator().size();
    let (count, n) = (lines.kept.size(), lines.len);
    let alone = n < GROUP_FROM || (lines.columns && count >= MANY_LINES);
    let name = if alone { "scan_sequential" } else { "scan_group" };
    let kernel = stream.kernel(&("scan.cl", name, access.key()), || {
        (kernel_source(&access.defines(), &[include_str!("scan.cl")]), name)
    })?;
    let mut args = access.args();
    args.extend([access.count(count), access.count(n)]);
    if alone {
        let group = info.max_work_group_size.min(64);
        let grid = Grid::new([count.next_multiple_of(group)]).local([group]);
        return Ok(("cumsum_sequential", (Work::OpenCl(kernel, grid), args)));
    }
    let group = 1 << info.max_work_group_size.min(256).min(info.local_mem_size as usize / size).max(1).ilog2();
    args.push(Arg::Local(group * size));
    let grid = Grid::new([count * group]).local([group]);
    Ok(("cumsum_group", (Work::OpenCl(kernel, grid), args)))
}
