//! Launches of `reduce_groups.cl`: reductions along or across an axis that lies densely in memory.
//!
//! Every work-item reads 16 bytes at a time where the layout allows it. A few long reductions are cut into parts, as many as
//! keep all compute units busy; the group that finishes last adds the parts up, so that one launch does all.

use netcl_core::Result;
use netcl_core::backend::opencl::{COUNTERS, Grid, Stream};
use netcl_core::kernels::VECTOR_BYTES;
use netcl_core::kernels::expr::opencl::CType;
use netcl_core::kernels::group_limit::largest_group;
use netcl_core::kernels::launch::{self, Access, Arg, Scalar, Work};

use super::along::Along;
use super::engine::{Carry, Run};
use super::opencl::{FORCED, SEQUENTIAL_BELOW, Variant, WORKGROUP_FROM, Writer};
use crate::elements::kernel_source;

/// Work-items of a group.
const GROUP: usize = 256;
/// Groups for each compute unit when a reduction is cut into parts: all of them run at once.
const PER_UNIT: usize = 8;
/// The same for vectors of neighbouring results, whose sums take more registers.
const PER_UNIT_OF_COLUMNS: usize = 4;
/// Vectors of a row that each lane should have.
const PER_LANE: usize = 8;
/// Neighbouring vectors of results that a group handles.
const COLUMNS: usize = 32;
/// Rounds of its loop that a lane of a part should have at least.
const ROUNDS: usize = 2;

/// A reduction that runs in groups.
pub(super) struct Groups<'w>(Along<'w>);

impl<'w> Groups<'w> {
    /// `None` where no axis is dense in all inputs, and for positions of extrema.
    pub(super) fn new(writer: &'w Writer<'w>) -> Option<Self> {
        let run = writer.run;
        if !matches!(run.op.carry, Carry::Value(_)) {
            return None;
        }
        let repeats = Along::repeats(run)?;
        let largest = run.inputs.iter().map(|t| t.dtype().size()).max().unwrap_or(VECTOR_BYTES);
        let width = VECTOR_BYTES / largest;
        let aligned = aligned(run, &repeats, width);
        // Beside whole vectors there may be single elements at the end of a row, but not of several runs in one.
        let whole = run.plan.columns || run.plan.reduced.shape.len() > 1;
        let nest = if run.plan.columns { &run.plan.kept } else { &run.plan.reduced };
        let fits = aligned && (!whole || nest.inner().is_multiple_of(width));
        let ctype = CType::new(run.compute, if fits { width } else { 1 })?;
        Some(Groups(Along { writer, repeats, ctype }))
    }

    pub(super) fn launch(&self, stream: &Stream) -> Result<()> {
        let along = &self.0;
        let writer = along.writer;
        let run: &Run<'_> = writer.run;
        let width = along.ctype.width();
        let (results, n, columns) = (run.plan.kept.size(), run.plan.reduced.size(), run.plan.columns);
        let info = stream.device().info();
        let group = 1 << largest_group(stream.device()).min(GROUP).ilog2();
        // Units are what a lane works on: a row, or a vector of neighbouring results.
        let (units, together, per_round) = if columns {
            let units = results / width;
            (units, units.next_power_of_two().min(COLUMNS).min(group), 1)
        } else {
            let lanes = n.div_ceil(width * PER_LANE).next_power_of_two().min(group);
            (results, group / lanes, width)
        };
        let lanes = group / together;
        let groups = units.div_ceil(together);
        let busy = info.compute_units as usize * if columns { PER_UNIT_OF_COLUMNS } else { PER_UNIT };
        // By the elements that one group would have.
        let beside = together * if columns { width } else { 1 };
        let long = n.saturating_mul(beside) >= WORKGROUP_FROM && groups < busy;
        let variant = FORCED.get().unwrap_or(match n {
            ..SEQUENTIAL_BELOW => Variant::Sequential,
            _ if long => Variant::Workgroup,
            _ => Variant::Parallel,
        });
        let unroll = match width {
            1 => 8,
            _ if columns => 4,
            _ => 2,
        };
        let parts = match variant {
            Variant::Workgroup if groups <= COUNTERS => {
                // Never more groups than run at once: a few that come later would have the device to themselves.
                (busy / groups).min(n / (lanes * per_round * unroll * ROUNDS)).max(1)
            }
            _ => 1,
        };
        let kernel = writer.kernel(stream, (along.key(), parts > 1, group, columns), "reduce_groups", || {
            let more = format!(
                "#define GROUP {group}\n#define COLUMNS {}\n#define PARTIAL {}\n#define UNROLL {unroll}\n#define FENCE {}\n",
                u8::from(columns),
                u8::from(parts > 1),
                stream.device_fence(),
            );
            kernel_source(&along.defines(&more), &[include_str!("reduce_groups.cl")])
        })?;
        let accumulator = run.compute.size() * if columns { width } else { 1 };
        let mut args = writer.inputs();
        args.extend(writer.kept());
        args.extend(writer.outputs());
        if parts > 1 {
            let partial = launch::allocate(run.out.queue(), units * parts * accumulator, "reduce")?;
            args.push(Arg::Buffer(partial, Access::Write));
            args.push(Arg::Buffer(stream.counters()?, Access::Write));
        }
        args.extend([units, n].map(|v| writer.count(v)));
        args.push(Arg::Scalar(Scalar::U32(together as u32)));
        args.push(Arg::Local(group * accumulator));
        let grid = Grid::new([groups * group, parts]).local([group, 1]);
        run.submit(format!("{}_{}", run.op.name(), variant.name()), (Work::OpenCl(kernel, grid), args))
    }
}

/// Whether every vector of every input begins at a multiple of its length.
fn aligned(run: &Run<'_>, repeats: &[bool], width: usize) -> bool {
    let nests = [&run.plan.kept, &run.plan.reduced];
    let dense = if run.plan.columns { 0 } else { 1 };
    run.inputs.iter().enumerate().filter(|(i, _)| !repeats[*i]).all(|(i, input)| {
        let strides = nests.iter().enumerate().flat_map(|(which, nest)| {
            let steps = &nest.strides[i];
            let inner = usize::from(which == dense);
            nest.shape.iter().zip(steps).take(steps.len() - inner)
        });
        let of_steps = strides.filter(|(n, _)| **n > 1).all(|(_, s)| s.unsigned_abs().is_multiple_of(width));
        of_steps && input.layout().offset().is_multiple_of(width)
    })
}
