//! Launches of `reduce.cl`: which variant, which macros, which arguments.

use std::cell::Cell;
use std::fmt::Write as _;
use std::hash::Hash;

use netcl_core::backend::opencl::{Grid, Kernel, Source, Stream};
use netcl_core::dtype::DType;
pub(super) use netcl_core::kernel_selector::{SEQUENTIAL_BELOW, WORKGROUP_FROM};
use netcl_core::kernels::expr::Expr;
use netcl_core::kernels::expr::opencl::{CType, Helper, IndexWidth, inline_c};
use netcl_core::kernels::group_limit::largest_group;
use netcl_core::kernels::launch::{self, Access, Arg, Scalar, Work};
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};
use smallvec::SmallVec;

use super::engine::{Args, Carry, Combine, Run};
use super::groups::Groups;
use super::plan::Nest;
use crate::elements::{kernel_source, load, rounding, store};

/// The three kernels a reduction may run as on an OpenCL device. Launches carry the variant in their name:
/// `sum_sequential`, `sum_parallel`, `sum_workgroup` (followed by `sum_finish` where one launch does not do).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Variant {
    /// One work-item per result: reductions of fewer than 256 elements.
    Sequential,
    /// One work-group per result (or per few neighbouring ones) and a tree in local memory.
    Parallel,
    /// Several work-groups per result, whose partial results the last of them or a second launch combines: for few long
    /// reductions.
    Workgroup,
}

impl Variant {
    /// `"sequential"`, `"parallel"` or `"workgroup"`.
    pub const fn name(self) -> &'static str {
        match self {
            Variant::Sequential => "sequential",
            Variant::Parallel => "parallel",
            Variant::Workgroup => "workgroup",
        }
    }
}

/// Elements a work-item of the multi-stage variant should have at least.
const PER_ITEM: usize = 16;
/// Partial results per result at most.
const MAX_PARTS: usize = 1024;
/// Work-items of a group at most.
const GROUP: usize = 256;
/// Neighbouring results that make reads coalesced when the reduced axis is not the innermost.
const COLUMNS: usize = 32;

thread_local! {
    pub(super) static FORCED: Cell<Option<Variant>> = const { Cell::new(None) };
}

/// Runs a closure in which reductions of this thread on OpenCL devices use one variant, whatever their size: for tests
/// and measurements.
pub fn force_variant<R>(variant: Variant, f: impl FnOnce() -> R) -> R {
    struct Scope(Option<Variant>);
    impl Drop for Scope {
        fn drop(&mut self) {
            FORCED.set(self.0);
        }
    }
    let _scope = Scope(FORCED.replace(Some(variant)));
    f()
}

/// How a run is cut into work-groups.
struct Shape {
    variant: Variant,
    group: usize,
    columns: usize,
    parts: usize,
    part: usize,
}

/// Launches a reduction: one launch, or two for the multi-stage variant.
pub(super) fn launch(run: &Run<'_>, stream: &Stream) -> Result<()> {
    let writer = Writer::new(run);
    if let Some(groups) = Groups::new(&writer) {
        return groups.launch(stream);
    }
    let shape = Shape::choose(run, stream, writer.accumulator());
    let (results, n) = (run.plan.kept.size(), run.plan.reduced.size());
    let kernel = |name: &str| {
        writer
            .kernel(stream, (), name, || kernel_source(&writer.of_variant(shape.variant), &[include_str!("reduce.cl")]))
    };
    let mut args = writer.inputs();
    args.extend(writer.kept());
    let local = Arg::Local(shape.group * writer.accumulator());
    let columns = Arg::Scalar(Scalar::U32(shape.columns as u32));
    let groups = results.div_ceil(shape.columns);
    let name = |suffix: &str| format!("{}_{suffix}", run.op.name());
    match shape.variant {
        Variant::Sequential => {
            args.extend(writer.outputs());
            args.extend([writer.count(results), writer.count(n)]);
            let grid = Grid::new([results.next_multiple_of(shape.group)]).local([shape.group]);
            run.submit(name("sequential"), (Work::OpenCl(kernel("reduce_sequential")?, grid), args))
        }
        Variant::Parallel => {
            args.extend(writer.outputs());
            args.extend([writer.count(results), writer.count(n), columns, local]);
            let grid = Grid::new([groups * shape.group]).local([shape.group]);
            run.submit(name("parallel"), (Work::OpenCl(kernel("reduce_parallel")?, grid), args))
        }
        Variant::Workgroup => {
            let bytes = results * shape.parts * writer.accumulator();
            let partial = launch::allocate(run.out.queue(), bytes, "reduce")?;
            args.push(Arg::Buffer(partial.clone(), Access::Write));
            args.extend([
                writer.count(results),
                writer.count(n),
                columns.clone(),
                writer.count(shape.part),
                local.clone(),
            ]);
            let grid = Grid::new([groups * shape.group, shape.parts]).local([shape.group, 1]);
            run.submit(name("workgroup"), (Work::OpenCl(kernel("reduce_workgroup")?, grid), args))?;
            let mut args: Args = Args::new();
            args.push(Arg::Buffer(partial, Access::Read));
            args.extend(writer.kept());
            args.extend(writer.outputs());
            args.extend([writer.count(results), Arg::Scalar(Scalar::U32(shape.parts as u32)), columns, local]);
            let grid = Grid::new([groups * shape.group]).local([shape.group]);
            run.submit(name("finish"), (Work::OpenCl(kernel("reduce_finish")?, grid), args))
        }
    }
}

impl Shape {
    fn choose(run: &Run<'_>, stream: &Stream, accumulator: usize) -> Shape {
        let info = stream.device().info();
        let (results, n) = (run.plan.kept.size(), run.plan.reduced.size());
        let by_memory = (info.local_mem_size as usize / accumulator).max(1);
        let mut group = floor_power_of_two(largest_group(stream.device()).min(GROUP).min(by_memory));
        let columns =
            if run.plan.columns { floor_power_of_two(run.plan.kept.inner().min(COLUMNS)).min(group) } else { 1 };
        let groups = results.div_ceil(columns);
        // Enough work-groups to keep every compute unit busy.
        let busy = info.compute_units as usize * 16;
        let variant = FORCED.get().unwrap_or(if n < SEQUENTIAL_BELOW {
            Variant::Sequential
        } else if n.saturating_mul(columns) < WORKGROUP_FROM || groups >= busy {
            Variant::Parallel
        } else {
            Variant::Workgroup
        });
        if variant == Variant::Sequential {
            group = group.min(64);
        }
        let lanes = group / columns;
        let most = n.div_ceil(lanes * PER_ITEM).clamp(1, MAX_PARTS);
        let wanted = busy.div_ceil(groups).clamp(1, most);
        // Whole rounds of the unrolled loop in every part but the last.
        let part = n.div_ceil(wanted).next_multiple_of(lanes * 8);
        Shape { variant, group, columns, parts: n.div_ceil(part), part }
    }
}

fn floor_power_of_two(n: usize) -> usize {
    1 << n.max(1).ilog2()
}

/// Writes the macros that `reduce.cl` and `reduce_groups.cl` are compiled with, and the matching arguments.
pub(super) struct Writer<'r> {
    pub(super) run: &'r Run<'r>,
    pub(super) ctype: CType,
    index: IndexWidth,
}

impl<'r> Writer<'r> {
    fn new(run: &'r Run<'r>) -> Self {
        let operands = run.inputs.iter().chain([run.out]).chain(run.extras);
        let span = operands.map(|t| t.layout().end().max(t.size())).max().unwrap_or(0);
        let ctype = if run.compute == DType::F64 { CType::DOUBLE } else { CType::FLOAT };
        Writer { run, ctype, index: IndexWidth::for_span(span) }
    }

    /// The bytes of a partial result.
    fn accumulator(&self) -> usize {
        match self.run.op.carry {
            Carry::Value(_) => self.run.compute.size(),
            Carry::Position(_) => 16,
        }
    }

    pub(super) fn count(&self, n: usize) -> Arg {
        self.index.unsigned(n)
    }

    fn step(&self, n: isize) -> Arg {
        self.index.signed(n)
    }

    pub(super) fn types(&self) -> (&'static str, &'static str) {
        self.index.names()
    }

    /// A kernel; `key` has what its source depends on beside the reduction itself.
    pub(super) fn kernel(
        &self,
        stream: &Stream,
        key: impl Hash,
        name: &str,
        make: impl FnOnce() -> Source,
    ) -> Result<Kernel> {
        let run = self.run;
        let dtypes: SmallVec<[DType; 8]> =
            run.inputs.iter().chain([run.out]).chain(run.extras).map(|t| t.dtype()).collect();
        let ranks = [run.plan.kept.shape.len(), run.plan.reduced.shape.len()];
        let key = (name, key, run.op.carry, self.index, ranks, dtypes, &run.op.prologue, &run.op.epilogue);
        let limit = stream.device().info().max_parameter_size;
        let bytes = 8 * (8 + self.inputs().len() + self.kept().len() + self.outputs().len());
        if bytes > limit {
            let why =
                format!("it needs {bytes} bytes of kernel arguments, the device takes {limit}; make inputs contiguous");
            return Err(Error::Unsupported { op: run.op.name(), device: stream.device().name().to_owned(), why });
        }
        stream.kernel(&key, || (make(), name))
    }

    fn of_variant(&self, variant: Variant) -> String {
        let variant = match variant {
            Variant::Sequential => 1,
            Variant::Parallel => 2,
            Variant::Workgroup => 3,
        };
        let mut helpers: Vec<Helper> = Vec::new();
        let value = self.value(&mut helpers);
        let shared = self.defines(&mut helpers);
        let bits = rounding(self.run.out.dtype(), 1);
        let helpers: String = helpers.into_iter().map(|h| h.text).collect();
        format!(
            "#pragma OPENCL FP_CONTRACT OFF\n{bits}{helpers}{shared}#define VARIANT {variant}\n\
             #define VALUE(v_, r_i) {value}\n"
        )
    }

    /// `COMPUTE`, `UINT`, `OP`, the parameters, `KEPT(o)` and `RESULT(a, o)`.
    pub(super) fn defines(&self, helpers: &mut Vec<Helper>) -> String {
        let run = self.run;
        let (uint, int) = self.types();
        let op = match run.op.carry {
            Carry::Value(Combine::Sum) => 0,
            Carry::Value(Combine::Prod) => 1,
            Carry::Value(Combine::Max) => 2,
            Carry::Value(Combine::Min) => 3,
            Carry::Position(true) => 4,
            Carry::Position(false) => 5,
        };
        let result = self.result(helpers);
        let mut text = String::new();
        let mut define = |name: &str, body: &str| {
            let _ = writeln!(text, "#define {name} {body}");
        };
        define("COMPUTE", &self.ctype.name());
        define("UINT", uint);
        define("OP", &op.to_string());
        let (kept, reduced) = (&run.plan.kept, &run.plan.reduced);
        let mut params = String::new();
        for (i, input) in run.inputs.iter().enumerate() {
            let _ = write!(params, "__global const {} *x{i}, const ulong x{i}_at, ", input.dtype().cl_type());
            strides(&mut params, int, &format!("x{i}_k"), kept);
            strides(&mut params, int, &format!("x{i}_r"), reduced);
        }
        params.extend((1..reduced.shape.len()).map(|a| format!("const {uint} r_n{a}, ")));
        params.extend((0..self.prologue_scalars()).map(|s| format!("const {} p{s}, ", self.ctype.name())));
        define("INPUT_PARAMS", &params);
        let lengths: String = (1..kept.shape.len()).map(|a| format!("const {uint} k_n{a}, ")).collect();
        define("KEPT_PARAMS", &lengths);
        let mut params = format!("__global {} *y, const ulong y_at, ", run.out.dtype().cl_type());
        strides(&mut params, int, "y_k", kept);
        for (i, extra) in run.extras.iter().enumerate() {
            let _ = write!(params, "__global const {} *e{i}, const ulong e{i}_at, ", extra.dtype().cl_type());
            strides(&mut params, int, &format!("e{i}_k"), kept);
        }
        let scalars = run.scalars.len() - self.prologue_scalars();
        params.extend((0..scalars).map(|s| format!("const {} q{s}, ", self.ctype.name())));
        define("OUTPUT_PARAMS", &params);
        let mut places = indices(uint, "k", "o_", kept);
        for (i, input) in run.inputs.iter().enumerate() {
            let sum = terms(int, "k", &format!("x{i}_k"), kept);
            let _ = write!(places, "__global const {} *x{i}_o = x{i} + x{i}_at + ({sum}); ", input.dtype().cl_type());
        }
        define("KEPT(o_)", &places);
        define("RESULT(a_, o_)", &result);
        text
    }

    pub(super) fn prologue_scalars(&self) -> usize {
        self.run.op.prologue.as_ref().map_or(0, Expr::scalars)
    }

    /// The statement that computes the prologue's value of an element.
    fn value(&self, helpers: &mut Vec<Helper>) -> String {
        let (uint, int) = self.types();
        let reduced = &self.run.plan.reduced;
        let mut text = format!("{{ {}", indices(uint, "r", "r_i", reduced));
        for (i, input) in self.run.inputs.iter().enumerate() {
            let sum = terms(int, "r", &format!("x{i}_r"), reduced);
            let load = load(input.dtype(), &format!("x{i}_o + ({sum})"));
            let _ = write!(text, "const {} in{i}_ = {load}; ", self.ctype.name());
        }
        let names: Vec<String> = (0..self.run.inputs.len()).map(|i| format!("in{i}_")).collect();
        let scalars: Vec<String> = (0..self.prologue_scalars()).map(|s| format!("p{s}")).collect();
        let output = self.inline(&mut text, helpers, self.run.op.prologue.as_ref(), &names, &scalars, self.ctype);
        let _ = write!(text, "v_ = {output}; }}");
        text
    }

    /// The statement that writes the epilogue's value of a result.
    fn result(&self, helpers: &mut Vec<Helper>) -> String {
        let (uint, int) = self.types();
        let (run, kept) = (self.run, &self.run.plan.kept);
        let mut text = format!("{{ {}", indices(uint, "k", "o_", kept));
        let at = format!("y + y_at + ({})", terms(int, "k", "y_k", kept));
        if matches!(run.op.carry, Carry::Position(_)) {
            let _ = write!(text, "*({at}) = (a_).at; }}");
            return text;
        }
        let _ = write!(text, "const {} total_ = a_; ", self.ctype.name());
        let mut names = vec!["total_".to_owned()];
        for (i, extra) in run.extras.iter().enumerate() {
            let sum = terms(int, "k", &format!("e{i}_k"), kept);
            let load = load(extra.dtype(), &format!("e{i} + e{i}_at + ({sum})"));
            let _ = write!(text, "const {} extra{i}_ = {load}; ", self.ctype.name());
            names.push(format!("extra{i}_"));
        }
        let scalars = run.scalars.len() - self.prologue_scalars();
        let scalars: Vec<String> = (0..scalars).map(|s| format!("q{s}")).collect();
        let output = self.inline(&mut text, helpers, run.op.epilogue.as_ref(), &names, &scalars, self.ctype);
        let _ = write!(text, "{} }}", store(run.out.dtype(), &at, &output));
        text
    }

    /// Appends an expression's statements and returns the name of its value.
    pub(super) fn inline(
        &self,
        text: &mut String,
        helpers: &mut Vec<Helper>,
        expr: Option<&Expr>,
        names: &[String],
        scalars: &[String],
        ctype: CType,
    ) -> String {
        let Some(expr) = expr else { return names[0].clone() };
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let scalars: Vec<&str> = scalars.iter().map(String::as_str).collect();
        let inlined = inline_c(expr, &names, &scalars, ctype);
        for helper in inlined.helpers {
            if !helpers.contains(&helper) {
                helpers.push(helper);
            }
        }
        for statement in &inlined.statements {
            let _ = write!(text, "{statement} ");
        }
        inlined.outputs.into_iter().next().unwrap_or_default()
    }

    fn buffer(&self, tensor: &Tensor, access: Access) -> [Arg; 2] {
        [Arg::Buffer(tensor.storage().clone(), access), Arg::Scalar(Scalar::U64(tensor.layout().offset() as u64))]
    }

    /// The arguments of `INPUT_PARAMS`.
    pub(super) fn inputs(&self) -> Args {
        let (kept, reduced) = (&self.run.plan.kept, &self.run.plan.reduced);
        let mut args = Args::new();
        for (i, input) in self.run.inputs.iter().enumerate() {
            args.extend(self.buffer(input, Access::Read));
            args.extend(kept.strides[i].iter().chain(&reduced.strides[i]).map(|&s| self.step(s)));
        }
        args.extend(reduced.shape[1..].iter().map(|&n| self.count(n)));
        args.extend(self.run.scalars[..self.prologue_scalars()].iter().cloned().map(Arg::Scalar));
        args
    }

    /// The arguments of `KEPT_PARAMS`.
    pub(super) fn kept(&self) -> Args {
        self.run.plan.kept.shape[1..].iter().map(|&n| self.count(n)).collect()
    }

    /// The arguments of `OUTPUT_PARAMS`.
    pub(super) fn outputs(&self) -> Args {
        let (run, kept) = (self.run, &self.run.plan.kept);
        let mut args = Args::new();
        for (i, tensor) in [run.out].into_iter().chain(run.extras).enumerate() {
            args.extend(self.buffer(tensor, if i == 0 { Access::Write } else { Access::Read }));
            args.extend(kept.strides[run.inputs.len() + i].iter().map(|&s| self.step(s)));
        }
        args.extend(run.scalars[self.prologue_scalars()..].iter().cloned().map(Arg::Scalar));
        args
    }
}

/// Parameters for an operand's strides along the axes of a nest.
fn strides(text: &mut String, int: &str, prefix: &str, nest: &Nest) {
    for axis in 0..nest.shape.len() {
        let _ = write!(text, "const {int} {prefix}{axis}, ");
    }
}

/// Declares the index along each axis of a nest, from the flat one.
pub(crate) fn indices(uint: &str, letter: &str, flat: &str, nest: &Nest) -> String {
    let rank = nest.shape.len();
    if rank == 1 {
        return format!("const {uint} {letter}_0 = {flat}; ");
    }
    let mut text = format!("{uint} {letter}_rest = {flat}; ");
    for axis in (1..rank).rev() {
        let _ = write!(
            text,
            "const {uint} {letter}_{axis} = {letter}_rest % {letter}_n{axis}; {letter}_rest /= {letter}_n{axis}; "
        );
    }
    let _ = write!(text, "const {uint} {letter}_0 = {letter}_rest; ");
    text
}

/// The distance of an operand's element from its first one.
pub(crate) fn terms(int: &str, letter: &str, prefix: &str, nest: &Nest) -> String {
    let terms: Vec<String> = (0..nest.shape.len()).map(|a| format!("({int}){letter}_{a} * {prefix}{a}")).collect();
    terms.join(" + ")
}
