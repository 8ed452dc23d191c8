//! Whole kernels: loads, the expression, stores.

use std::fmt::Write as _;

use super::ctype::tag;
use super::inline::inline_c;
use super::{CType, Helper};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernels::expr::Expr;

/// How a dense kernel reads an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InputKind {
    /// One element per element of the output.
    Dense,
    /// A single element, for all of them; in a strided kernel for all of a vector, wherever that is.
    Single,
}

/// An input of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InputSpec {
    /// Its element type.
    pub dtype: DType,
    /// How it is read.
    pub kind: InputKind,
}

impl From<DType> for InputSpec {
    fn from(dtype: DType) -> Self {
        InputSpec { dtype, kind: InputKind::Dense }
    }
}

/// How a kernel finds its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Addressing {
    /// All operands lie densely; each work-item does `width` (1, 2, 4, 8 or 16) neighbouring elements.
    Dense {
        /// Elements per work-item.
        width: usize,
    },
    /// All operands lie densely and begin at multiples of `width` elements; each work-item does `vectors` vectors, a
    /// work-group's apart, and loads all of them before it computes: for GPUs, which have many loads under way at once.
    Tiles {
        /// Elements per vector: 1, 2, 4, 8 or 16.
        width: usize,
        /// Vectors per work-item.
        vectors: usize,
    },
    /// Any strides, broadcasting included. Each work-item does `width` neighbours along the last axis, a whole number of which makes
    /// its length: they lie side by side from a multiple of `width` on, or are [one element](InputKind::Single).
    Strided {
        /// The number of axes after collapsing, at least 1.
        rank: usize,
        /// Elements per work-item: 1, 2, 4, 8 or 16.
        width: usize,
    },
}

/// The type of indices. 64-bit divisions are slow on GPUs, so only large tensors get them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IndexWidth {
    /// All positions fit an `int`.
    Bits32,
    /// They do not.
    Bits64,
}

impl IndexWidth {
    /// The narrowest type for kernels whose operands span at most so many positions.
    pub fn for_span(positions: usize) -> IndexWidth {
        // Work-items are rounded up to whole groups, and vectors reach past the end: leave room for both.
        if positions <= i32::MAX as usize - (1 << 16) { IndexWidth::Bits32 } else { IndexWidth::Bits64 }
    }

    /// The names of the unsigned and the signed type.
    pub const fn names(self) -> (&'static str, &'static str) {
        match self {
            IndexWidth::Bits32 => ("uint", "int"),
            IndexWidth::Bits64 => ("ulong", "long"),
        }
    }
}

/// What an elementwise kernel is made from.
#[derive(Clone, Debug)]
pub struct ElementwiseSpec<'a> {
    /// What the kernel is called, beside its key: the operations it does, `add_relu`.
    pub label: &'a str,
    /// What it computes.
    pub expr: &'a Expr,
    /// One per input of the expression.
    pub inputs: Vec<InputSpec>,
    /// One per output of the expression.
    pub outputs: Vec<DType>,
    /// How elements are found.
    pub addressing: Addressing,
    /// The type of indices.
    pub index: IndexWidth,
}

/// An argument of a kernel, in the order of the signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arg {
    /// The buffer of an output.
    Output(usize),
    /// The position of an output's first element in its buffer: `ulong`.
    OutputOffset(usize),
    /// The buffer of an input.
    Input(usize),
    /// The position of an input's first element in its buffer: `ulong`.
    InputOffset(usize),
    /// A run-time scalar: `float`, or `double` where the kernel computes in f64.
    Scalar(usize),
    /// The number of elements: `uint` or `ulong`.
    Count,
    /// The length of an axis but the outermost: `uint` or `ulong`.
    Length(usize),
    /// An output's stride along an axis: `int` or `long`.
    OutputStride(usize, usize),
    /// An input's stride along an axis: `int` or `long`.
    InputStride(usize, usize),
}

/// A kernel's text and how to call it.
#[derive(Clone, Debug)]
pub struct KernelSource {
    /// The kernel's name: the same for the same specification, in every process.
    pub name: String,
    /// Functions it needs before it.
    pub helpers: Vec<Helper>,
    /// The kernel itself.
    pub kernel: String,
    /// Its arguments.
    pub args: Vec<Arg>,
    /// The type of its run-time scalars.
    pub scalar: DType,
    /// The type of its count, lengths and strides.
    pub index: IndexWidth,
    /// Elements per work-item.
    pub width: usize,
}

/// The tile of a work-item, beside its vectors' width.
#[derive(Clone, Copy)]
struct Tile {
    vectors: usize,
}

impl KernelSource {
    /// A program with this kernel alone.
    pub fn source(&self) -> String {
        batch([self])
    }

    /// How many work-items `elements` need; round up to the group size, surplus ones return at once.
    pub fn work_items(&self, elements: usize) -> usize {
        elements.div_ceil(self.width)
    }
}

/// One program with several kernels: compilers take far less time for one large program than for many small ones.
pub fn batch<'a>(kernels: impl IntoIterator<Item = &'a KernelSource>) -> String {
    let mut helpers: Vec<&Helper> = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    let mut bodies = String::new();
    for kernel in kernels {
        if names.contains(&kernel.name.as_str()) {
            continue;
        }
        names.push(&kernel.name);
        for helper in &kernel.helpers {
            if !helpers.contains(&helper) {
                helpers.push(helper);
            }
        }
        let _ = write!(bodies, "\n{}", kernel.kernel);
    }
    // Contraction would make results depend on what the compiler happens to see at once.
    let mut source = "#pragma OPENCL FP_CONTRACT OFF\n".to_owned();
    for helper in helpers {
        let _ = write!(source, "\n{}", helper.text);
    }
    source + &bodies
}

/// Writes the kernel of a specification.
///
/// ```
/// use netcl_core::dtype::DType;
/// use netcl_core::kernels::expr::opencl::{Addressing, ElementwiseSpec, IndexWidth, elementwise_source};
/// use netcl_core::kernels::expr::table;
///
/// let silu = table::op("silu").unwrap().expr();
/// let kernel = elementwise_source(&ElementwiseSpec {
///     label: "silu",
///     expr: &silu,
///     inputs: vec![DType::F16.into()],
///     outputs: vec![DType::F16],
///     addressing: Addressing::Dense { width: 4 },
///     index: IndexWidth::for_span(1000),
/// })?;
/// assert!(kernel.name.starts_with("silu_f16_f16_dense4_"));
/// assert_eq!(kernel.work_items(1001), 251);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn elementwise_source(spec: &ElementwiseSpec<'_>) -> Result<KernelSource> {
    let (width, rank, tile) = match spec.addressing {
        Addressing::Dense { width } => (width, None, None),
        Addressing::Tiles { width, vectors } => (width, None, Some(Tile { vectors: vectors.max(1) })),
        Addressing::Strided { rank, width } => (width, Some(rank), None),
    };
    let compute = if spec.inputs.iter().map(|i| i.dtype).chain(spec.outputs.iter().copied()).any(|d| d == DType::F64) {
        DType::F64
    } else {
        DType::F32
    };
    let Some(ctype) = CType::new(compute, width) else {
        let what = format!("vector width {width} does not exist in OpenCL C; use one of {:?}", CType::WIDTHS);
        return Err(Error::argument("elementwise kernel", what));
    };
    if rank == Some(0) {
        return Err(Error::argument("elementwise kernel", "a strided kernel needs at least one axis; use a dense one"));
    }
    let (given, expected) = ((spec.inputs.len(), spec.outputs.len()), (spec.expr.inputs(), spec.expr.outputs().len()));
    if given != expected {
        let what = format!("{given:?} dtypes given for the {expected:?} inputs and outputs of {}", spec.label);
        return Err(Error::argument("elementwise kernel", what));
    }
    let mut writer = Writer { spec, ctype, rank, helpers: Vec::new(), body: String::new(), depth: 1 };
    match tile {
        Some(tile) => writer.tiles(tile),
        None => writer.body(),
    }
    let name = kernel_name(spec);
    let (args, signature) = writer.signature();
    let formula = spec.expr.to_string();
    let comment = if formula.len() <= 400 { format!("// {}: {formula}\n", spec.label) } else { String::new() };
    let kernel = format!("{comment}kernel void {name}(\n    {signature}) {{\n{}}}\n", writer.body);
    let width = width * tile.map_or(1, |tile| tile.vectors);
    Ok(KernelSource { name, helpers: writer.helpers, kernel, args, scalar: compute, index: spec.index, width })
}

fn kernel_name(spec: &ElementwiseSpec<'_>) -> String {
    let mut name: String =
        spec.label.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).take(48).collect();
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        name.insert_str(0, "k_");
    }
    for input in &spec.inputs {
        let scalar = matches!(spec.addressing, Addressing::Strided { width: 1, .. });
        let single = if input.kind == InputKind::Single && !scalar { "s" } else { "" };
        let _ = write!(name, "_{}{single}", tag(input.dtype));
    }
    for output in &spec.outputs {
        let _ = write!(name, "_{}", tag(*output));
    }
    let _ = match spec.addressing {
        Addressing::Dense { width } => write!(name, "_dense{width}"),
        Addressing::Tiles { width, vectors } => write!(name, "_tiles{width}x{vectors}"),
        Addressing::Strided { rank, width: 1 } => write!(name, "_strided{rank}"),
        Addressing::Strided { rank, width } => write!(name, "_strided{rank}x{width}"),
    };
    if spec.index == IndexWidth::Bits64 {
        name.push_str("_long");
    }
    // 48 bits of the key: enough to tell apart what shares a label and all types.
    let _ = write!(name, "_{:012x}", spec.expr.key() & 0xffff_ffff_ffff);
    name
}

struct Writer<'a> {
    spec: &'a ElementwiseSpec<'a>,
    ctype: CType,
    rank: Option<usize>,
    helpers: Vec<Helper>,
    body: String,
    depth: usize,
}

impl Writer<'_> {
    fn line(&mut self, text: &str) {
        let _ = writeln!(self.body, "{:indent$}{text}", "", indent = 4 * self.depth);
    }

    fn need(&mut self, helpers: Vec<Helper>) {
        for helper in helpers {
            if !self.helpers.contains(&helper) {
                self.helpers.push(helper);
            }
        }
    }

    fn signature(&self) -> (Vec<Arg>, String) {
        let (unsigned, signed) = self.spec.index.names();
        let mut args = Vec::new();
        let mut lines = Vec::new();
        for (o, dtype) in self.spec.outputs.iter().enumerate() {
            args.extend([Arg::Output(o), Arg::OutputOffset(o)]);
            lines.push(format!("global {} *y{o}_data, const ulong y{o}_offset", dtype.cl_type()));
        }
        for (i, input) in self.spec.inputs.iter().enumerate() {
            args.extend([Arg::Input(i), Arg::InputOffset(i)]);
            lines.push(format!("global const {} *x{i}_data, const ulong x{i}_offset", input.dtype.cl_type()));
        }
        for s in 0..self.spec.expr.scalars() {
            args.push(Arg::Scalar(s));
            lines.push(format!("const {} s{s}", self.ctype.lane().name()));
        }
        args.push(Arg::Count);
        lines.push(format!("const {unsigned} count"));
        if let Some(rank) = self.rank {
            args.extend((1..rank).map(Arg::Length));
            lines.extend((1..rank).map(|a| format!("const {unsigned} length{a}")));
            let mut strides = |letter: char, operand: usize, arg: fn(usize, usize) -> Arg| {
                args.extend((0..rank).map(|a| arg(operand, a)));
                let names: Vec<String> =
                    (0..rank).map(|a| format!("const {signed} {letter}{operand}_stride{a}")).collect();
                lines.push(names.join(", "));
            };
            (0..self.spec.outputs.len()).for_each(|o| strides('y', o, Arg::OutputStride));
            (0..self.spec.inputs.len()).for_each(|i| strides('x', i, Arg::InputStride));
        }
        (args, lines.join(",\n    "))
    }

    fn body(&mut self) {
        let (unsigned, _) = self.spec.index.names();
        let width = self.ctype.width();
        let times = if width == 1 { String::new() } else { format!(" * {width}") };
        self.line(&format!("const {unsigned} i = get_global_id(0){times};"));
        self.line("if (i >= count) return;");
        match self.rank {
            Some(rank) => self.indices("i", rank),
            None => self.line("const ulong left = count - i;"),
        }
        let all = width.to_string();
        let left = if self.rank.is_some() { all.as_str() } else { "left" };
        let aligned = self.rank.is_some() && width > 1;
        let ty = self.ctype.name();
        for (i, input) in self.spec.inputs.iter().enumerate() {
            let single = (self.rank.is_none() || aligned) && input.kind == InputKind::Single;
            let (reader, left) = if single { (self.ctype.lane(), "1") } else { (self.ctype, left) };
            let load = reader.load_helper_at(input.dtype, aligned && !single);
            let alone = single && self.rank.is_none();
            let place = if alone { format!("x{i}_data + x{i}_offset") } else { self.place('x', i) };
            let call = format!("{}({place}, {left})", load.name);
            self.need(vec![load]);
            // A lane widens by itself.
            self.line(&format!("const {ty} x{i} = {call};"));
        }
        let scalars = self.scalars();
        self.compute(&scalars, left, aligned);
    }

    /// Several vectors for each work-item: all loads, then each vector's value.
    fn tiles(&mut self, Tile { vectors }: Tile) {
        let (unsigned, _) = self.spec.index.names();
        let (width, ty) = (self.ctype.width(), self.ctype.name());
        self.line(&format!(
            "// {vectors} vectors, a work-group's width apart: all loads are under way before one is used."
        ));
        self.line(&format!("const {unsigned} step = get_local_size(0) * {width};"));
        self.line(&format!(
            "const {unsigned} first = get_group_id(0) * (step * {vectors}) + get_local_id(0) * {width};"
        ));
        let scalars = self.scalars();
        let mut waiting = Vec::new();
        for (i, input) in self.spec.inputs.iter().enumerate() {
            if input.kind == InputKind::Single {
                let load = self.ctype.lane().load_helper(input.dtype);
                let call = format!("{}(x{i}_data + x{i}_offset, 1)", load.name);
                self.need(vec![load]);
                self.line(&format!("const {ty} x{i} = {call};"));
            } else {
                waiting.push(i);
            }
        }
        if !waiting.is_empty() {
            let names: Vec<String> = waiting.iter().map(|i| format!("x{i}_all[{vectors}]")).collect();
            self.line(&format!("{ty} {};", names.join(", ")));
            self.open_tile(vectors);
            for &i in &waiting {
                let load = self.ctype.load_helper_at(self.spec.inputs[i].dtype, true);
                let call = format!("{}(x{i}_data + x{i}_offset + i, left)", load.name);
                self.need(vec![load]);
                self.line(&format!("x{i}_all[k] = {call};"));
            }
            self.depth -= 1;
            self.line("}");
        }
        self.open_tile(vectors);
        if !waiting.is_empty() {
            let names: Vec<String> = waiting.iter().map(|i| format!("x{i} = x{i}_all[k]")).collect();
            self.line(&format!("const {ty} {};", names.join(", ")));
        }
        self.compute(&scalars, "left", true);
        self.depth -= 1;
        self.line("}");
    }

    fn open_tile(&mut self, vectors: usize) {
        let (unsigned, _) = self.spec.index.names();
        self.line("#pragma unroll");
        self.line(&format!("for (uint k = 0; k < {vectors}; ++k) {{"));
        self.depth += 1;
        self.line(&format!("const {unsigned} i = first + k * step;"));
        self.line("if (i >= count) break;");
        self.line("const ulong left = count - i;");
    }

    /// What the run-time scalars are called, as values of the type of the computation.
    fn scalars(&mut self) -> Vec<String> {
        let (width, ty) = (self.ctype.width(), self.ctype.name());
        let mut scalars: Vec<String> = (0..self.spec.expr.scalars()).map(|s| format!("s{s}")).collect();
        if width > 1 {
            for (s, name) in scalars.iter_mut().enumerate() {
                *name = format!("s{s}_all");
                self.line(&format!("const {ty} s{s}_all = ({ty})(s{s});"));
            }
        }
        scalars
    }

    /// The expression and its stores.
    fn compute(&mut self, scalars: &[String], left: &str, aligned: bool) {
        let names: Vec<&str> = scalars.iter().map(String::as_str).collect();
        let inlined = inline_c(self.spec.expr, &[], &names, self.ctype);
        self.need(inlined.helpers);
        for (statement, comment) in inlined.statements.iter().zip(&inlined.comments) {
            let comment = if comment.is_empty() { String::new() } else { format!("  // {comment}") };
            self.line(&format!("{statement}{comment}"));
        }
        for (o, dtype) in self.spec.outputs.iter().enumerate() {
            let helpers = self.ctype.store_helpers_at(*dtype, aligned);
            let name = helpers.last().map(|h| h.name.clone()).unwrap_or_default();
            self.need(helpers);
            let place = self.place('y', o);
            self.line(&format!("{name}({}, {place}, {left});", inlined.outputs[o]));
        }
    }

    /// The index along each of the first axes, from a flat one.
    fn indices(&mut self, flat: &str, rank: usize) {
        let (unsigned, signed) = self.spec.index.names();
        if rank > 1 {
            self.line(&format!("{unsigned} rest = {flat};"));
        }
        for axis in (1..rank).rev() {
            self.line(&format!("const {signed} i{axis} = rest % length{axis}; rest /= length{axis};"));
        }
        let rest = if rank > 1 { "rest" } else { flat };
        self.line(&format!("const {signed} i0 = {rest};"));
    }

    /// Where an operand's element lies.
    fn place(&self, letter: char, operand: usize) -> String {
        let first = format!("{letter}{operand}_data + {letter}{operand}_offset");
        match self.rank {
            None => format!("{first} + i"),
            Some(rank) => {
                let terms: Vec<String> = (0..rank).map(|a| format!("i{a} * {letter}{operand}_stride{a}")).collect();
                format!("{first} + ({})", terms.join(" + "))
            }
        }
    }
}
