//! Launches of `softmax.cl`; of `softmax_vector.cl` on processors and `softmax_registers.cl` on GPUs, along dense axes.

use netcl_core::Result;
use netcl_core::backend::opencl::{Grid, Source, Stream};
use netcl_core::device::DeviceType;
use netcl_core::dtype::DType;
use netcl_core::kernels::launch::{Arg, Scalar, Work};
use netcl_core::tensor::Tensor;

use crate::lines::{Lines, Prepared};
use crate::lines_opencl::Access;
use crate::wide::{ITEMS_PER_UNIT, Wide, vector_width};

/// Neighbouring lines that make reads coalesced when the axis is not the innermost.
const COLUMNS: usize = 32;
/// Local memory that a work-group may fill: enough for lines of 8192 floats, little enough for several groups at once.
const CACHE_BYTES: usize = 32 << 10;

pub(super) fn work(stream: &Stream, lines: &Lines, x: &Tensor, out: &Tensor, log: bool) -> Result<Prepared> {
    let access = Access::new(lines, x, out);
    let info = stream.device().info();
    let size = x.dtype().accumulator().size();
    let (count, n) = (lines.kept.size(), lines.len);
    let processor = stream.device().device_type() == DeviceType::Cpu;
    if let Some(prepared) = in_registers(stream, lines, &access, x, out, log)? {
        return Ok(prepared);
    }
    if processor && let Some(prepared) = in_vectors(stream, lines, &access, x, log)? {
        return Ok(prepared);
    }
    // A processor's core works through a group alone: few work-items keep its reads close together.
    let most = if processor { 16 } else { 256 };
    let group = 1 << info.max_work_group_size.min(most).min(info.local_mem_size as usize / size).max(1).ilog2();
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

/// The launch for GPUs; `None` for processors and where lines do not lie densely.
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

/// Vectors of a tile of lines: `TILE` of the kernel.
const TILE: usize = 4;

/// The launch for processors; `None` where no axis lies densely in memory.
fn in_vectors(stream: &Stream, lines: &Lines, access: &Access<'_>, x: &Tensor, log: bool) -> Result<Option<Prepared>> {
    let (kept, dtype) = (&lines.kept, x.dtype());
    let inner = kept.inner();
    let steps = if lines.columns { [kept.inner_stride(0), kept.inner_stride(1)] } else { lines.step };
    if steps != [1, 1] || (lines.columns && inner < vector_width(dtype)) {
        return Ok(None);
    }
    let units =
        if lines.columns { kept.size() / inner * inner.div_ceil(TILE * vector_width(dtype)) } else { kept.size() };
    let per = units.div_ceil(stream.device().info().compute_units as usize * ITEMS_PER_UNIT);
    let name = if lines.columns { "softmax_columns" } else { "softmax_rows" };
    let key = format!("softmax_vector.cl:{name}:{}:{log}", access.key());
    let kernel = stream.kernel(&key, || {
        let keep = !log && matches!(dtype, DType::F32 | DType::F64);
        // Only f32 has a polynomial of our own.
        let own = if dtype == DType::F64 { "#define OWN_EXP 0" } else { "#define OWN_EXP 1\n#define VINT int16" };
        let source = format!(
            "#define LOG {}\n#define KEEP {}\n{own}\n{}{}{}",
            u8::from(log),
            u8::from(keep),
            access.defines(),
            access.vector_defines(),
            include_str!("softmax_vector.cl")
        );
        (Source::new(source, ""), name)
    })?;
    let mut args = access.args();
    args.extend([kept.size(), lines.len, per].map(|v| access.count(v)));
    if lines.columns {
        args.push(access.count(inner));
    }
    Ok(Some((Work::OpenCl(kernel, Grid::new([units.div_ceil(per)]).local([1])), args)))
}
