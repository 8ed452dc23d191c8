//! Launches of `reduce_vector.cl`: reductions on processors that are OpenCL devices.
//!
//! Kernels for work-groups leave a processor's vector units idle. Where an axis lies densely in memory, these here run
//! instead, under the names of the variants that the other kernels would have had.

use netcl_core::Result;
use netcl_core::backend::opencl::{Grid, Source, Stream};
use netcl_core::kernels::expr::opencl::CType;
use netcl_core::kernels::form::Form;
use netcl_core::kernels::launch::{self, Access, Arg, Work};

use super::along::Along;
use super::engine::{Args, Carry, Run};
use super::opencl::{FORCED, SEQUENTIAL_BELOW, Variant, WORKGROUP_FROM, Writer};

/// Vectors of a tile of columns: `TILE` of the kernel.
const TILE: usize = 8;
/// Work-items per compute unit: enough that one which starts late leaves little to wait for.
const PER_UNIT: usize = 4;
/// Bytes of a vector: float16 or double8, which compilers split for narrower registers.
const VECTOR_BYTES: usize = 64;

/// Whether and how a reduction runs in vectors.
pub(super) struct Vectors<'w>(Along<'w>);

impl<'w> Vectors<'w> {
    /// `None` where the device is no processor, or no axis is dense in all inputs.
    pub(super) fn new(writer: &'w Writer<'w>, stream: &Stream) -> Option<Self> {
        let run = writer.run;
        if Form::of(stream.device()) != Form::Items || !matches!(run.op.carry, Carry::Value(_)) {
            return None;
        }
        let ctype = CType::new(run.compute, VECTOR_BYTES / run.compute.size())?;
        let nest = if run.plan.columns { &run.plan.kept } else { &run.plan.reduced };
        let repeats = Along::repeats(run).filter(|_| nest.inner() >= ctype.width())?;
        Some(Vectors(Along { writer, repeats, ctype, aligned: false }))
    }

    pub(super) fn launch(&self, stream: &Stream) -> Result<()> {
        let writer = self.0.writer;
        let run: &Run<'_> = writer.run;
        let (results, n, columns) = (run.plan.kept.size(), run.plan.reduced.size(), run.plan.columns);
        let (dense, units, breadth) = if columns {
            let inner = run.plan.kept.inner();
            let tile = TILE * self.0.ctype.width();
            (inner, results / inner * inner.div_ceil(tile), tile)
        } else {
            (run.plan.reduced.inner(), results, 1)
        };
        let items = stream.device().info().compute_units as usize * PER_UNIT;
        let variant = FORCED.get().unwrap_or(if n < SEQUENTIAL_BELOW {
            Variant::Sequential
        } else if n.saturating_mul(breadth) < WORKGROUP_FROM || units >= items {
            Variant::Parallel
        } else {
            Variant::Workgroup
        });
        // Whole rounds of eight vectors in every part but the last.
        let round = if columns { 8 } else { 8 * self.0.ctype.width() };
        let wanted = if variant == Variant::Workgroup { items.div_ceil(units) } else { 1 };
        let part = n.div_ceil(wanted).next_multiple_of(round).min(n);
        let parts = n.div_ceil(part);
        let partial = variant == Variant::Workgroup;
        let per = units.div_ceil(items);
        let kernel = |name: &str| {
            let key = format!("reduce_vector.cl:{partial}:{}", self.0.key());
            writer.kernel(stream, &key, name, || {
                let more = format!("#define PARTIAL {}\n", u8::from(partial));
                Source::new(self.0.source(&more, include_str!("reduce_vector.cl")), "")
            })
        };
        let mut args = writer.inputs();
        args.extend(writer.kept());
        let target = partial.then(|| launch::allocate(run.out.queue(), results * parts * run.compute.size(), "reduce"));
        let target = target.transpose()?;
        match &target {
            Some(target) => args.push(Arg::Buffer(target.clone(), Access::Write)),
            None => args.extend(writer.outputs()),
        }
        args.extend([results, n, dense, part, per].map(|v| writer.count(v)));
        let grid = Grid::new([units.div_ceil(per), parts]).local([1, 1]);
        let work = Work::OpenCl(kernel(if columns { "reduce_columns" } else { "reduce_rows" })?, grid);
        run.submit(format!("{}_{}", run.op.name(), variant.name()), (work, args))?;
        let Some(target) = target else { return Ok(()) };
        let per = results.div_ceil(items);
        let mut args = Args::new();
        args.push(Arg::Buffer(target, Access::Read));
        args.extend(writer.kept());
        args.extend(writer.outputs());
        args.extend([results, parts, per].map(|v| writer.count(v)));
        let work = Work::OpenCl(kernel("reduce_join")?, Grid::new([results.div_ceil(per)]).local([1]));
        run.submit(format!("{}_finish", run.op.name()), (work, args))
    }
}
