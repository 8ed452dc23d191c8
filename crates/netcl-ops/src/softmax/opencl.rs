//! Launches of `softmax_registers.cl`, along dense axes.

use netcl_core::Result;
use netcl_core::backend::opencl::{Grid, Stream};
use netcl_core::kernels::launch::{Arg, Scalar, Work};
use netcl_core::tensor::Tensor;

use crate::elements::kernel_source;
use crate::lines::{Lines, Prepared};
use crate::lines_opencl::Access;
use crate::row_tile::RowTile;

/// The launch for lines that lie densely; `None` for others.
pub(super) fn in_registers(
    stream: &Stream,
    lines: &Lines,
    x: &Tensor,
    out: &Tensor,
    log: bool,
) -> Result<Option<Prepared>> {
    if lines.columns || lines.step != [1, 1] {
        return Ok(None);
    }
    let access = Access::new(lines, x, out);
    let (kept, n, dtype) = (&lines.kept, lines.len, x.dtype());
    let aligned = |width: usize| {
        let steps = kept.strides.iter().flat_map(|strides| kept.shape.iter().zip(strides));
        steps.filter(|(n, _)| **n > 1).all(|(_, s)| s.unsigned_abs().is_multiple_of(width))
            && [x, out].iter().all(|t| t.layout().offset().is_multiple_of(width))
    };
    let short = RowTile::new(stream, dtype, n, aligned).map(|wide| (wide, "softmax_registers"));
    let Some((wide, name)) =
        short.or_else(|| RowTile::long(stream, dtype, n, aligned).map(|wide| (wide, "softmax_long")))
    else {
        return Ok(None);
    };
    let kernel = stream.kernel(&(name, access.key(), log, wide), || {
        let (log, access, wide) = (u8::from(log), access.defines(), wide.defines(dtype));
        let defines = format!("#define LOG {log}\n#define KERNEL_{name}\n{access}{wide}");
        (kernel_source(&defines, &[include_str!("softmax_registers.cl")]), name)
    })?;
    let mut args = access.args();
    args.extend([access.count(kept.size()), access.count(n)]);
    args.push(Arg::Scalar(Scalar::U32(wide.lanes as u32)));
    args.push(Arg::Local(wide.group * dtype.accumulator().size()));
    Ok(Some((Work::OpenCl(kernel, Grid::new([wide.items(kept.size())]).local([wide.group])), args)))
}
