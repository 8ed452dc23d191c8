//! Launches of `softmax_backward.cl`.

use netcl_core::Result;
use netcl_core::backend::opencl::Stream;

use super::Shape;
use crate::dense::{ClCode, Job, Number, group_size};
use crate::wide::Wide;

/// Elements of a row that each lane should have.
const PER_LANE: usize = 4;

pub(super) fn run(stream: &Stream, job: Job, shape: Shape, log: bool) -> Result<()> {
    let wide = Wide::for_rows(stream, job.dtype, shape.len, &job.args);
    let Shape { outer, len, inner } = shape;
    let code = ClCode {
        file: "softmax_backward.cl",
        text: include_str!("softmax_backward.cl"),
        kernel: "softmax_backward_rows",
        scalars: &[],
        items: 0,
        group: None,
        local: 0,
        wide: None,
    };
    let log = Number::Flag(usize::from(log));
    if inner > 1 {
        let scalars = [Number::Count(outer * inner), Number::Count(len), Number::Count(inner), log];
        let kernel = "softmax_backward_columns";
        return job.run_cl(stream, &ClCode { kernel, scalars: &scalars, items: outer * inner, ..code });
    }
    if let Some(wide) = wide {
        let scalars = [Number::Count(outer), Number::Count(len), log, Number::Flag(wide.lanes)];
        let kernel = "softmax_backward_registers";
        return job.run_cl(stream, &wide.code(ClCode { kernel, scalars: &scalars, ..code }, outer));
    }
    let group = group_size(stream, job.dtype);
    let lanes = len.div_ceil(PER_LANE).next_power_of_two().min(group);
    let items = outer.div_ceil(group / lanes) * group;
    let scalars = [Number::Count(outer), Number::Count(len), log, Number::Flag(lanes)];
    job.run_cl(stream, &ClCode { scalars: &scalars, items, group: Some(group), local: group, ..code })
}
