//! Launches of `softmax_registers.cl` along dense axes, and of `softmax.cl` along others.

use netcl_core::Result;
use netcl_core::backend::opencl::{Grid, Source, Stream};
use netcl_core::kernels::group_limit::largest_group;
use netcl_core::kernels::launch::{Arg, Scalar, Work};
use netcl_core::tensor::Tensor;

use crate::lines::{Lines, Prepared};
use crate::lines_opencl::Access;
use crate::wide::Wide;

/// Neighbouring lines that make reads coalesced when the axis is not the innermost.
const COLUMNS: usize = 32;
/// Work-items of a group at most.
const GROUP: usize = 256;
/// Local memory that a work-group may fill: enough for lines of 8192 floats, little enough for several groups at once.
const CACHE_BYTES: usize = 32 << 10;

pub(super) fn work(stream: &Stream, lines: &Lines, x: &Tensor, out: &Tensor, log: bool) -> Result<Prepared> {
    let access = Access::new(lines, x, out);
    let info = stream.device().info();
    let size = x.dtype().accumulator().size();
    let (count, n) = (lines.kept.size(), lines.len);
    if let Some(prepared) = in_registers(stream, lines, &access, x, out, log)? {
        return Ok(prepared);
    }
    let group = 1 << largest_group(stream.device()).min(GROUP).min(info.local_mem_size as usize / size).max(1).ilog2();
    // Four elements for each work-item at least; what is left of the group takes further lines.
    let lanes = if lines.columns { group / COLUMNS.min(group) } else { n.div_ceil(4).next_power_of_two().min(group) };
    let together = group / lanes;
    let cache = n.div_ceil(lanes) * group * size;
    let room = CACHE_BYTES.min(info.local_mem_size as usize / 2).saturating_sub(group * size);
    // Worth it also where local memory is ordinary memory: every exponential is computed once instead of twice.
    let cached = cache <= room;
    let key = format!("softmax.cl:{}:{log}", access.key());
    let kernel = stream.kernel(&key, || {
        let source = format!("#define LOG {}\n{}{}", u8::from(log), access.defines(), include_str!("softmax.cl"));
        (Source::new(source, ""), "softmax_group")
    })?;
    let mut args = access.args();
    let (line_step, lane_step) = if lines.columns { (1, together) } else { (lanes, 1) };
    args.extend([access.count(count), access.count(n)]);
    args.extend([together, line_step, lane_step, usize::from(cached)].map(|v| Arg::Scalar(Scalar::U32(v as u32))));
    args.push(Arg::Local(group * size + if cached { cache } else { 0 }));
    let grid = Grid::new([count.div_ceil(together) * group]).local([group]);
    Ok((Work::OpenCl(kernel, grid), args))
}

/// The launch for lines that lie densely; `None` for others.
fn in_registers(
    stream: &Stream,
    lines: &Lines,
    access: &Access<'_>,
    x: &Tensor,
    out: &Tensor,
    log: bool,
) -> Result<Option<Prepared>> {
    if lines.columns || lines.step != [1, 1] {
        return Ok(None);
    }
    let (kept, n, dtype) = (&lines.kept, lines.len, x.dtype());
    let aligned = |width: usize| {
        let steps = kept.strides.iter().flat_map(|strides| kept.shape.iter().zip(strides));
        steps.filter(|(n, _)| **n > 1).all(|(_, s)| s.unsigned_abs().is_multiple_of(width))
            && [x, out].iter().all(|t| t.layout().offset().is_multiple_of(width))
    };
    let short = Wide::new(stream, dtype, n, aligned).map(|wide| (wide, "softmax_registers"));
    let Some((wide, name)) = short.or_else(|| Wide::long(stream, dtype, n, aligned).map(|wide| (wide, "softmax_long")))
    else {
        return Ok(None);
    };
    let key = format!("softmax_registers.cl:{name}:{}:{log}{}", access.key(), wide.key());
    let kernel = stream.kernel(&key, || {
        let source = format!(
            "#define LOG {}\n#define KERNEL_{name}\n{}{}{}",
            u8::from(log),
            access.defines(),
            wide.defines(dtype),
            include_str!("softmax_registers.cl")
        );
        (Source::new(source, ""), name)
    })?;
    let mut args = access.args();
    args.extend([access.count(kept.size()), access.count(n)]);
    args.push(Arg::Scalar(Scalar::U32(wide.lanes as u32)));
    args.push(Arg::Local(wide.group * dtype.accumulator().size()));
    Ok(Some((Work::OpenCl(kernel, Grid::new([wide.items(kept.size())]).local([wide.group])), args)))
}
