//! The kernel source of an expression over many tensors.
//!
//! ```text
//! table: a long per chunk          segment << 32 | number of the chunk in it
//!        a row per segment         count, set, where its set's values start, list offsets..., row starts..., controls' start
//!        the values of each set    as bits of the type of the computation
//! ```
//!
//! The text depends on how many tensors there are at most, not on their lengths; the number is rounded up, so that few
//! programs serve all models.

use std::fmt::Write as _;

use super::spec::{Spec, Target};
use crate::dtype::DType;
use crate::kernels::expr::opencl::{CType, Helper, inline_c, tag};

/// What a kernel's source depends on, beside its expression.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    /// The dtype of each list.
    pub(super) lists: Vec<DType>,
    /// The type to compute in, which is that of the flat tensor.
    pub(super) compute: DType,
    /// How many tensors each list has room for.
    pub(super) tensors: usize,
    /// How many sets of scalars there is room for.
    pub(super) sets: usize,
    /// Which scalars are arguments; the other ones the expression reads stand in the table.
    pub(super) slots: Vec<bool>,
    /// Elements per vector.
    pub(super) width: usize,
    /// Vectors begin at multiples of their length in all tensors: many GPUs load one with one instruction only then.
    pub(super) aligned: bool,
    /// Elements per chunk.
    pub(super) chunk: usize,
    /// What becomes of the expression's value.
    pub(super) body: Body,
}

/// What a kernel does with the values of its expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Body {
    /// Writes them to the expression's targets.
    Map,
    /// Adds those of a chunk up; the sum goes to a buffer of partial sums.
    Sum,
}

/// A kernel's text and name.
#[derive(Debug)]
pub(super) struct Text {
    pub(super) name: String,
    pub(super) source: String,
}

/// The longs of a segment's row of the table.
pub(super) fn row_length(spec: &Spec) -> usize {
    3 + spec.lists + spec.rows + usize::from(spec.controls() > 0)
}

/// Writes the kernel. The width is one that exists in OpenCL C.
pub(super) fn write(spec: &Spec, form: &Form) -> Text {
    let ctype = CType::new(form.compute, form.width).unwrap_or(CType::FLOAT);
    let mut writer = Writer { spec, form, ctype, helpers: Vec::new(), body: String::new(), in_loop: false };
    writer.pick();
    writer.numbers();
    writer.elements();
    let name = name(spec, form);
    let mut source = "#pragma OPENCL FP_CONTRACT OFF\n".to_owned();
    for helper in &writer.helpers {
        let _ = write!(source, "\n{}", helper.text);
    }
    let _ = write!(source, "\n// {}: {}\n", spec.label(), spec.map.expr());
    let _ = write!(source, "kernel void {name}(\n    {}) {{\n{}}}\n", writer.signature(), writer.body);
    Text { name, source }
}

fn name(spec: &Spec, form: &Form) -> String {
    let mut name = spec.label().to_owned();
    for list in &form.lists {
        let _ = write!(name, "_{}", tag(*list));
    }
    let slots: String = form.slots.iter().map(|slot| if *slot { 's' } else { 'v' }).collect();
    let Form { compute, tensors, sets, width, chunk, aligned, .. } = form;
    let key = spec.map.expr().key() & 0xffff_ffff_ffff;
    let _ = write!(name, "_{}_many{tensors}x{sets}_{slots}_{width}_{chunk}_{key:012x}", tag(*compute));
    if *aligned {
        name.push_str("_aligned");
    }
    name
}

struct Writer<'a> {
    spec: &'a Spec,
    form: &'a Form,
    ctype: CType,
    helpers: Vec<Helper>,
    body: String,
    in_loop: bool,
}

impl Writer<'_> {
    fn line(&mut self, text: &str) {
        let indent = if self.in_loop { "        " } else { "    " };
        let _ = writeln!(self.body, "{indent}{text}");
    }

    fn need(&mut self, helpers: impl IntoIterator<Item = Helper>) {
        for helper in helpers {
            if !self.helpers.contains(&helper) {
                self.helpers.push(helper);
            }
        }
    }

    fn lane(&self) -> String {
        self.ctype.lane().name()
    }

    /// `const` unless a list is written.
    fn qualifier(&self, list: usize) -> &'static str {
        let written = self.form.body == Body::Map && self.spec.targets.contains(&Target::List(list));
        if written { "" } else { "const " }
    }

    fn has_flat(&self) -> bool {
        self.spec.rows + self.spec.controls() > 0
    }

    /// Pointers first: they are the widest arguments, so nothing needs padding.
    fn signature(&self) -> String {
        let mut lines = vec!["global const long *table".to_owned()];
        if self.has_flat() {
            lines.push(format!("global {} *flat", self.lane()));
        }
        if self.form.body == Body::Sum {
            lines.push(format!("global {} *sums", self.lane()));
        }
        for (l, dtype) in self.form.lists.iter().enumerate() {
            let (qualifier, ty) = (self.qualifier(l), dtype.cl_type());
            let names: Vec<String> =
                (0..self.form.tensors).map(|t| format!("global {qualifier}{ty} *x{l}_{t}")).collect();
            lines.push(names.join(", "));
        }
        for s in (0..self.form.slots.len()).filter(|&s| self.form.slots[s]) {
            let names: Vec<String> = (0..self.form.sets).map(|g| format!("const {} s{s}_{g}", self.lane())).collect();
            lines.push(names.join(", "));
        }
        if self.form.body == Body::Sum {
            lines.push(format!("const ulong first_sum, local {} *scratch", self.lane()));
        }
        lines.join(",\n    ")
    }

    /// Which chunk this work-group has, and where its operands lie.
    fn pick(&mut self) {
        let (lists, rows) = (self.spec.lists, self.spec.rows);
        self.line("const long entry = table[get_group_id(0)];");
        self.line("const uint segment = (uint)(entry >> 32);");
        self.line(&format!("const ulong start = (ulong)(entry & 0xffffffffL) * {};", self.form.chunk));
        let length = row_length(self.spec);
        self.line(&format!("global const long *row = table + get_num_groups(0) + segment * {length}u;"));
        for (l, dtype) in self.form.lists.iter().enumerate() {
            let (qualifier, ty) = (self.qualifier(l), dtype.cl_type());
            self.line(&format!("global {qualifier}{ty} *x{l}_data = x{l}_0;"));
        }
        if self.form.tensors > 1 {
            self.line("switch (segment) {");
            for t in 1..self.form.tensors {
                let picks: Vec<String> = (0..lists).map(|l| format!("x{l}_data = x{l}_{t};")).collect();
                self.line(&format!("case {t}: {} break;", picks.join(" ")));
            }
            self.line("}");
        }
        for l in 0..lists {
            self.line(&format!("x{l}_data += row[{}] + start;", 3 + l));
        }
        for r in 0..rows {
            let at = 3 + lists + r;
            self.line(&format!("global {} *r{r}_data = flat + row[{at}] + start;", self.lane()));
        }
        self.line(&format!("const uint n = (uint)min((ulong)row[0] - start, (ulong){});", self.form.chunk));
    }

    /// Scalars, controls, and what follows from them alone.
    fn numbers(&mut self) {
        let (lane, ty, width) = (self.lane(), self.ctype.name(), self.ctype.width());
        let spec = self.spec;
        let mut value = 0;
        for s in (0..spec.used.len()).filter(|&s| spec.used[s]) {
            let text = if self.form.slots[s] {
                let last = self.form.sets - 1;
                let choices: String = (0..last).map(|g| format!("row[1] == {g} ? s{s}_{g} : ")).collect();
                format!("{choices}s{s}_{last}")
            } else {
                value += 1;
                let bits = format!("table[row[2] + {}]", value - 1);
                if lane == "double" { format!("as_double({bits})") } else { format!("as_float((int){bits})") }
            };
            self.line(&format!("const {lane} s{s} = {text};"));
        }
        let first = spec.lists + spec.rows;
        for c in 0..spec.controls() {
            self.line(&format!("const {lane} x{} = flat[row[{}] + {c}];", first + c, 3 + first));
        }
        let inlined = inline_c(&spec.split.prologue, &[], &[], self.ctype.lane());
        self.need(inlined.helpers);
        for statement in &inlined.statements {
            self.line(statement);
        }
        for (u, output) in inlined.outputs.iter().enumerate() {
            let text = if width == 1 { output.clone() } else { format!("({ty})({output})") };
            self.line(&format!("const {ty} u{u} = {text};"));
        }
    }

    fn elements(&mut self) {
        let (ty, lane, width) = (self.ctype.name(), self.lane(), self.ctype.width());
        let spec = self.spec;
        let sum = self.form.body == Body::Sum;
        if sum {
            self.line(&format!("{lane} sum = {};", self.ctype.lane().literal(0.0)));
        }
        let (first, step) = (format!("get_local_id(0) * {width}"), format!("get_local_size(0) * {width}"));
        self.line(&format!("for (uint i = {first}; i < n; i += {step}) {{"));
        self.in_loop = true;
        // What is declared from here on hides the prologue's names, which nobody needs any more.
        self.line("const ulong left = n - i;");
        for (l, dtype) in self.form.lists.iter().enumerate().filter(|(l, _)| spec.reads[*l]) {
            let load = self.ctype.load_helper_at(*dtype, self.form.aligned);
            self.line(&format!("const {ty} x{l} = {}(x{l}_data + i, left);", load.name));
            self.need([load]);
        }
        for r in 0..spec.rows {
            let load = self.ctype.load_helper_at(self.form.compute, self.form.aligned);
            self.line(&format!("const {ty} x{} = {}(r{r}_data + i, left);", spec.lists + r, load.name));
            self.need([load]);
        }
        let names: Vec<String> = (0..spec.split.body.scalars()).map(|u| format!("u{u}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let inlined = inline_c(&spec.split.body, &[], &names, self.ctype);
        self.need(inlined.helpers);
        for statement in &inlined.statements {
            self.line(statement);
        }
        if sum {
            self.add_lanes(&inlined.outputs[0]);
            self.in_loop = false;
            self.line("}");
            self.tree();
            return;
        }
        for (target, value) in spec.targets.iter().zip(&inlined.outputs) {
            let (data, dtype) = match *target {
                Target::List(l) => (format!("x{l}_data"), self.form.lists[l]),
                Target::Row(r) => (format!("r{r}_data"), self.form.compute),
            };
            let helpers = self.ctype.store_helpers_at(dtype, self.form.aligned);
            let name = helpers.last().map(|h| h.name.clone()).unwrap_or_default();
            self.need(helpers);
            self.line(&format!("{name}({value}, {data} + i, left);"));
        }
        self.in_loop = false;
        self.line("}");
    }

    /// A vector's lanes in halves, then onto the work-item's sum.
    fn add_lanes(&mut self, value: &str) {
        let width = self.ctype.width();
        if width == 1 {
            return self.line(&format!("sum += {value};"));
        }
        self.line(&format!("const {} v{width} = {value};", self.ctype.name()));
        let mut wide = width;
        while wide > 2 {
            let half = wide / 2;
            let ty = CType::new(self.form.compute, half).unwrap_or(CType::FLOAT).name();
            self.line(&format!("const {ty} v{half} = v{wide}.lo + v{wide}.hi;"));
            wide = half;
        }
        self.line("sum += v2.lo + v2.hi;");
    }

    /// The work-group's sums in halves: the order never changes. Work-groups are powers of two.
    fn tree(&mut self) {
        for text in [
            "scratch[get_local_id(0)] = sum;",
            "for (uint reach = get_local_size(0) / 2; reach > 0; reach /= 2) {",
            "    barrier(CLK_LOCAL_MEM_FENCE);",
            "    if (get_local_id(0) < reach) scratch[get_local_id(0)] += scratch[get_local_id(0) + reach];",
            "}",
            "if (get_local_id(0) == 0) sums[first_sum + get_group_id(0)] = scratch[0];",
        ] {
            self.line(text);
        }
    }
}
