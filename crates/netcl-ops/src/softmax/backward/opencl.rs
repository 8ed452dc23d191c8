//! Launches of `softmax_backward.cl`.

use netcl_core::Result;
use netcl_core::backend::opencl::Stream;

use super::Shape;
use crate::dense::{ClCode, Job, Number};
use crate::row_tile::RowTile;

/// Runs the kernel for rows that fit registers; `false` for others, which are left to the row engine.
pub(super) fn in_registers(stream: &Stream, job: Job, shape: Shape, log: bool) -> Result<bool> {
    let Shape { outer, len, inner } = shape;
    let Some(wide) = RowTile::for_rows(stream, job.dtype, len, &job.args).filter(|_| inner == 1) else {
        return Ok(false);
    };
    let code = ClCode {
        file: "softmax_backward.cl",
        text: include_str!("softmax_backward.cl"),
        kernel: "softmax_backward_registers",
        scalars: &[Number::Count(outer), Number::Count(len), Number::Flag(log.into()), Number::Flag(wide.lanes)],
        items: 0,
        group: None,
        local: 0,
        wide: None,
    };
    job.run_cl(stream, &wide.code(code, outer)).map(|()| true)
}
