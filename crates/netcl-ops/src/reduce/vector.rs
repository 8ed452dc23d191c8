//! Launches of `reduce_vector.cl`: reductions on processors that are OpenCL devices.
//!
//! Kernels for work-groups leave a processor's vector units idle. Where an axis lies densely in memory, these here run
//! instead, under the names of the variants that the other kernels would have had.

use std::fmt::Write as _;

use netcl_core::Result;
use netcl_core::backend::opencl::{Grid, Source, Stream};
use netcl_core::device::DeviceType;
use netcl_core::dtype::DType;
use netcl_core::kernels::expr::opencl::{CType, Helper};
use netcl_core::kernels::launch::{self, Access, Arg, Work};

use super::engine::{Args, Carry, Run};
use super::opencl::{
    BF16_BITS, FORCED, SEQUENTIAL_BELOW, Variant, WORKGROUP_FROM, Writer, indices, load, load_vector, terms,
};

/// Vectors of a tile of columns: `TILE` of the kernel.
const TILE: usize = 8;
/// Work-items per compute unit: enough that one which starts late leaves little to wait for.
const PER_UNIT: usize = 4;
/// Bytes of a vector: float16 or double8, which compilers split for narrower registers.
const VECTOR_BYTES: usize = 64;

/// Whether and how a reduction runs in vectors.
pub(super) struct Vectors<'w> {
    writer: &'w Writer<'w>,
    /// Per input: whether it repeats one element along the dense axis.
    repeats: Vec<bool>,
    ctype: CType,
}

impl<'w> Vectors<'w> {
    /// `None` where the device is no processor, or no axis is dense in all inputs.
    pub(super) fn new(writer: &'w Writer<'w>, stream: &Stream) -> Option<Self> {
        let run = writer.run;
        if stream.device().device_type() != DeviceType::Cpu || !matches!(run.op.carry, Carry::Value(_)) {
            return None;
        }
        let ctype = CType::new(run.compute, VECTOR_BYTES / run.compute.size())?;
        let nest = if run.plan.columns { &run.plan.kept } else { &run.plan.reduced };
        let strides: Vec<isize> = (0..run.inputs.len()).map(|i| nest.inner_stride(i)).collect();
        let fits = nest.inner() >= ctype.width() && strides.contains(&1) && strides.iter().all(|s| matches!(s, 0 | 1));
        fits.then(|| Vectors { writer, repeats: strides.iter().map(|&s| s == 0).collect(), ctype })
    }

    pub(super) fn launch(&self, stream: &Stream) -> Result<()> {
        let writer = self.writer;
        let run: &Run<'_> = writer.run;
        let (results, n, columns) = (run.plan.kept.size(), run.plan.reduced.size(), run.plan.columns);
        let (dense, units, breadth) = if columns {
            let inner = run.plan.kept.inner();
            let tile = TILE * self.ctype.width();
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
        let round = if columns { 8 } else { 8 * self.ctype.width() };
        let wanted = if variant == Variant::Workgroup { items.div_ceil(units) } else { 1 };
        let part = n.div_ceil(wanted).next_multiple_of(round).min(n);
        let parts = n.div_ceil(part);
        let partial = variant == Variant::Workgroup;
        let per = units.div_ceil(items);
        let kernel = |name: &str| {
            let repeats: String = self.repeats.iter().map(|&r| if r { '0' } else { '1' }).collect();
            let key = format!("reduce_vector.cl:{partial}:{repeats}");
            writer.kernel(stream, &key, name, || Source::new(self.source(partial), ""))
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

    fn source(&self, partial: bool) -> String {
        let writer = self.writer;
        let mut helpers: Vec<Helper> = Vec::new();
        let (uint, int) = writer.types();
        let run = writer.run;
        let mut place = indices(uint, "r", "r_i", &run.plan.reduced);
        for (i, input) in run.inputs.iter().enumerate() {
            let sum = terms(int, "r", &format!("x{i}_r"), &run.plan.reduced);
            let _ = write!(place, "__global const {} *x{i}_p = x{i}_o + ({sum}); ", input.dtype().cl_type());
        }
        let one = self.value(&mut helpers, writer.ctype);
        let vector = self.value(&mut helpers, self.ctype);
        let mut defines = String::new();
        let macros: [(&str, &str); 6] = [
            ("VCOMPUTE", &self.ctype.name()),
            ("WIDTH", &self.ctype.width().to_string()),
            ("PARTIAL", if partial { "1" } else { "0" }),
            ("PLACE(r_i)", &place),
            ("VALUE(v_, d_)", &one),
            ("VVALUE(v_, d_)", &vector),
        ];
        for (name, body) in macros {
            let _ = writeln!(defines, "#define {name} {body}");
        }
        let bits = if run.out.dtype() == DType::BF16 { BF16_BITS } else { "" };
        let shared = writer.defines(&mut helpers);
        let helpers: String = helpers.into_iter().map(|h| h.text).collect();
        let contract = "#pragma OPENCL FP_CONTRACT OFF\n";
        format!("{contract}{bits}{helpers}{shared}{defines}{}", include_str!("reduce_vector.cl"))
    }

    /// The statement that computes the prologue's value of the elements `d_` from the place on.
    fn value(&self, helpers: &mut Vec<Helper>, ctype: CType) -> String {
        let run = self.writer.run;
        let (name, wide) = (ctype.name(), ctype.width() > 1);
        let mut text = "{ ".to_owned();
        for (i, (input, &repeats)) in run.inputs.iter().zip(&self.repeats).enumerate() {
            let at = if repeats { format!("x{i}_p") } else { format!("x{i}_p + (d_)") };
            let value = match (wide, repeats) {
                (false, _) => load(input.dtype(), &at),
                (true, true) => format!("({name})(({}){})", ctype.lane().name(), load(input.dtype(), &at)),
                (true, false) => format!("convert_{name}({})", load_vector(input.dtype(), &at, ctype.width())),
            };
            let _ = write!(text, "const {name} in{i}_ = {value}; ");
        }
        let names: Vec<String> = (0..run.inputs.len()).map(|i| format!("in{i}_")).collect();
        let scalar = |s: usize| if wide { format!("({name})(p{s})") } else { format!("p{s}") };
        let scalars: Vec<String> = (0..self.writer.prologue_scalars()).map(scalar).collect();
        let output = self.writer.inline(&mut text, helpers, run.op.prologue.as_ref(), &names, &scalars, ctype);
        let _ = write!(text, "v_ = {output}; }}");
        text
    }
}
