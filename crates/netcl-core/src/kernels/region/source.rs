//! The source of a kernel over rows.
//!
//! ```text
//!   lanes of a work-group share a row, rows share a work-group if they are short:
//!
//!   row 0 |l0|l1|l2|l3|l0|l1|l2|l3|...    lane l takes the vectors l, l + lanes, l + 2 lanes, ...
//!   row 1 |l0|l1|l2|l3|l0|l1|l2|l3|...
//! ```

use std::fmt::Write as _;

use super::form::{self, Access, Form, KEPT_VECTORS, Param, Text};
use super::parts;
use super::plan::{Keep, Phase, Plan};
use super::spec::{Extent, Spec};
use crate::kernels::described::Combine;
use crate::kernels::expr::opencl::{CType, Helper, Statements, in_comment};
use crate::kernels::expr::{Id, Node};

/// Writes the kernel.
pub(super) fn write(region: &Spec, form: &Form) -> Text {
    let vector = CType::new(form.compute, form.width).unwrap_or(CType::FLOAT);
    let plan = region.plan(form.keep);
    let statements = Statements::new(&region.expr);
    let mut writer = Writer { region, form, plan, vector, statements, body: String::new(), depth: 1 };
    writer.start();
    for phase in &plan.phases {
        writer.phase(phase);
    }
    writer.finish();
    let name = form::name(region, form);
    let (params, signature) = writer.signature();
    let mut source = "#pragma OPENCL FP_CONTRACT OFF\n".to_owned();
    for helper in &writer.statements.helpers {
        let _ = write!(source, "\n{}", helper.text);
    }
    let _ = write!(source, "\n// {}: lanes of a work-group share a row\n", in_comment(&region.label));
    let _ = write!(source, "kernel void {name}(\n    {signature}) {{\n{}}}\n", writer.body);
    Text { name, source, params }
}

struct Writer<'a> {
    region: &'a Spec,
    form: &'a Form,
    plan: &'a Plan,
    vector: CType,
    statements: Statements<'a>,
    body: String,
    depth: usize,
}

impl Writer<'_> {
    fn line(&mut self, text: &str) {
        let _ = writeln!(self.body, "{:indent$}{text}", "", indent = 4 * self.depth);
    }

    fn need(&mut self, helpers: impl IntoIterator<Item = Helper>) -> String {
        let mut last = String::new();
        for helper in helpers {
            last.clone_from(&helper.name);
            if !self.statements.helpers.contains(&helper) {
                self.statements.helpers.push(helper);
            }
        }
        last
    }

    fn lane(&self) -> CType {
        self.vector.lane()
    }

    /// `x0` for an input, `y0` for an output.
    fn operand(&self, operand: usize) -> String {
        match operand.checked_sub(self.region.inputs.len()) {
            Some(output) => format!("y{output}"),
            None => format!("x{operand}"),
        }
    }

    /// Whether a node is an input that is one number along the row: a variable already.
    fn same_along(&self, id: Id) -> bool {
        matches!(self.region.expr.nodes()[id.index()], Node::Input(i) if self.form.operands[usize::from(i)].1 == Access::Same)
    }

    fn node_of_input(&self, input: usize) -> Option<Id> {
        let wanted = Node::Input(input as u16);
        self.region.expr.nodes().iter().position(|node| *node == wanted).map(Id::new)
    }

    fn signature(&self) -> (Vec<Param>, String) {
        let (unsigned, signed) = self.form.index.names();
        let (outer, inner) = self.form.axes;
        let (mut params, mut lines) = (Vec::new(), Vec::new());
        let inputs = self.region.inputs.len();
        for operand in (inputs..self.form.operands.len()).chain(0..inputs) {
            let (dtype, access) = self.form.operands[operand];
            let (name, constant) = (self.operand(operand), if operand < inputs { "const " } else { "" });
            params.extend([Param::Buffer(operand), Param::Offset(operand)]);
            let mut line = format!("global {constant}{} *{name}_data, const ulong {name}_offset", dtype.cl_type());
            for axis in 0..outer {
                params.push(Param::Outer(operand, axis));
                let _ = write!(line, ", const {signed} {name}_row{axis}");
            }
            if access == Access::Strided {
                for axis in 0..inner {
                    params.push(Param::Inner(operand, axis));
                    let _ = write!(line, ", const {signed} {name}_step{axis}");
                }
            }
            lines.push(line);
        }
        for s in 0..self.region.scalars {
            params.push(Param::Scalar(s));
            lines.push(format!("const {} s{s}", self.lane().name()));
        }
        params.extend([Param::Rows, Param::Length]);
        let mut line = format!("const {unsigned} rows, const {unsigned} length");
        for axis in 1..outer {
            params.push(Param::OuterLength(axis));
            let _ = write!(line, ", const {unsigned} rows{axis}");
        }
        for axis in 1..inner {
            params.push(Param::InnerLength(axis));
            let _ = write!(line, ", const {unsigned} n{axis}");
        }
        params.extend([Param::Lanes, Param::Tile]);
        let _ = write!(line, ", const uint lanes, local {} *tile", self.lane().name());
        lines.push(line);
        (params, lines.join(",\n    "))
    }

    /// Finds the row, and what it has one value of.
    fn start(&mut self) {
        let (unsigned, signed) = self.form.index.names();
        let (outer, _) = self.form.axes;
        self.line("const uint lane = get_local_id(0) % lanes;");
        self.line(&format!(
            "const {unsigned} place = get_group_id(0) * (get_local_size(0) / lanes) + get_local_id(0) / lanes;"
        ));
        self.line("// Places beyond the last row have no elements, but meet the others at the barriers.");
        self.line(&format!("const {unsigned} row = place < rows ? place : 0, n = place < rows ? length : 0;"));
        if outer > 1 {
            self.line(&format!("{unsigned} rest = row;"));
            for axis in (1..outer).rev() {
                self.line(&format!("const {signed} i{axis} = rest % rows{axis}; rest /= rows{axis};"));
            }
            self.line(&format!("const {signed} i0 = rest;"));
        }
        for operand in 0..self.form.operands.len() {
            let (dtype, access) = self.form.operands[operand];
            let (name, is_input) = (self.operand(operand), operand < self.region.inputs.len());
            let terms: Vec<String> = match outer {
                1 => vec![format!("({signed})row * {name}_row0")],
                _ => (0..outer).map(|a| format!("i{a} * {name}_row{a}")).collect(),
            };
            let at = format!("{name}_data + {name}_offset + ({})", terms.join(" + "));
            match access {
                Access::Dense | Access::Strided => {
                    let constant = if is_input { "const " } else { "" };
                    self.line(&format!("global {constant}{} *{name}_at = {at};", dtype.cl_type()));
                    if is_input && let Some(id) = self.node_of_input(operand) {
                        self.statements.call(id, name, false);
                    }
                }
                // What is written to a row output comes last.
                Access::Row | Access::Same if !is_input => {}
                Access::Row | Access::Same => {
                    let Some(id) = self.node_of_input(operand) else { continue };
                    let load = self.need([self.lane().load_helper(dtype)]);
                    self.line(&format!("const {} {name} = {load}({at}, 1);", self.lane().name()));
                    self.statements.call(id, name, true);
                }
            }
        }
        for (index, node) in self.region.expr.nodes().iter().enumerate() {
            if let Node::Scalar(s) = node {
                self.statements.call(Id::new(index), format!("s{s}"), true);
            }
        }
    }

    fn row_values(&mut self, ids: &[Id]) {
        for &id in ids {
            self.statement(id, self.lane());
            let name = self.statements.name(id).to_owned();
            self.statements.call(id, name, true);
        }
    }

    fn statement(&mut self, id: Id, ctype: CType) {
        if let Some(statement) = self.statements.statement(id, ctype) {
            let comment = self.statements.comment(id).map(|c| format!("  // {c}")).unwrap_or_default();
            self.line(&format!("{statement}{comment}"));
        }
    }

    /// One loop over the row.
    fn phase(&mut self, phase: &Phase) {
        self.row_values(&phase.rows);
        let (vector, lane) = (self.vector, self.lane());
        let accumulators: Vec<(Combine, String, Id)> = phase
            .reductions
            .iter()
            .map(|&k| {
                let reduction = &self.region.reductions[k];
                let stem = reduction.name.as_deref().and_then(|name| name.rsplit(['.', ':', '/']).next());
                let name = self.statements.number(stem.unwrap_or(reduction.combine.name()));
                (reduction.combine, name, self.region.operand(k))
            })
            .collect();
        self.body.push('\n');
        let aims: Vec<String> = (accumulators.iter().map(|(_, name, _)| name.clone()))
            .chain(phase.outputs.iter().map(|o| format!("y{o}")))
            .collect();
        let user: Vec<&str> =
            phase.reductions.iter().filter_map(|&k| self.region.reductions[k].name.as_deref()).collect();
        let user = if user.is_empty() { String::new() } else { format!(" ({})", user.join(", ")) };
        self.line(&format!("// Along the row: {}{}", aims.join(", "), in_comment(&user)));
        for (combine, name, _) in &accumulators {
            let identity = vector.splat(combine.identity());
            let lost = if *combine == Combine::Sum { format!(", {name}_all_lost = {identity}") } else { String::new() };
            self.line(&format!("{} {name}_all = {identity}{lost};", vector.name()));
        }
        let stores: Vec<Id> = phase.stores.iter().copied().filter(|id| !self.same_along(*id)).collect();
        self.declare_kept(&stores);
        self.open_loop();
        self.read(phase);
        for &id in &phase.body {
            self.statement(id, vector);
        }
        for id in stores {
            let name = self.statements.name(id).to_owned();
            self.line(&format!("{name}_kept[k] = {name};"));
        }
        for (combine, name, operand) in &accumulators {
            let mut value = self.statements.value(*operand, vector);
            if vector.width() > 1 {
                let pad = self.need([parts::pad(vector)]);
                value = format!("{pad}({value}, left, {})", vector.literal(combine.identity()));
            }
            let (statement, helper) = parts::fold(*combine, vector, &format!("{name}_all"), &value);
            self.need(helper);
            self.line(&statement);
        }
        self.write_outputs(phase);
        self.depth -= 1;
        self.line("}");
        for (&k, (combine, name, _)) in phase.reductions.iter().zip(&accumulators) {
            let mut value = format!("{name}_all");
            if *combine == Combine::Sum {
                let settle = self.need([parts::settle(vector)]);
                value = format!("{settle}({name}_all, {name}_all_lost)");
            }
            if vector.width() > 1 {
                let across = self.need(parts::across(*combine, vector));
                value = format!("{across}({value})");
            }
            let along = self.need(parts::along(*combine, lane));
            value = format!("{along}({value}, tile, lane, lanes)");
            self.line(&format!("const {} {name} = {value};", lane.name()));
            let leaf = self.node_of_input(self.region.inputs.len() + k);
            if let Some(id) = leaf {
                self.statements.call(id, name.clone(), true);
            }
        }
    }

    /// Registers for values that wait; their names must be known before the loop that computes them.
    fn declare_kept(&mut self, ids: &[Id]) {
        for &id in ids {
            if self.statements.name(id).is_empty() {
                let _ = self.statements.statement(id, self.vector);
            }
            let line = format!("{} {}_kept[{KEPT_VECTORS}];", self.vector.name(), self.statements.name(id));
            self.line(&line);
        }
    }

    fn open_loop(&mut self) {
        let (unsigned, _) = self.form.index.names();
        let width = self.vector.width();
        let times = if width == 1 { String::new() } else { format!(" * {width}") };
        if self.form.keep == Keep::Nothing {
            self.line(&format!("for ({unsigned} r = lane{times}; r < n; r += lanes{times}) {{"));
            self.depth += 1;
        } else {
            self.line("#pragma unroll");
            self.line(&format!("for (uint k = 0; k < {KEPT_VECTORS}; ++k) {{"));
            self.depth += 1;
            self.line(&format!("const {unsigned} r = (k * lanes + lane){times};"));
            self.line("if (r >= n) break;");
        }
        if width > 1 {
            self.line("const ulong left = n - r;");
        }
    }

    /// Where an operand's elements lie, from the first of the row.
    fn element(&self, operand: usize) -> String {
        let (_, access) = self.form.operands[operand];
        let (name, (_, inner)) = (self.operand(operand), self.form.axes);
        match access {
            Access::Strided => {
                let (_, signed) = self.form.index.names();
                let terms: Vec<String> = match inner {
                    1 => vec![format!("({signed})r * {name}_step0")],
                    _ => (0..inner).map(|a| format!("j{a} * {name}_step{a}")).collect(),
                };
                format!("{name}_at + ({})", terms.join(" + "))
            }
            _ => format!("{name}_at + r"),
        }
    }

    /// The inputs of a loop, and what waited for it.
    fn read(&mut self, phase: &Phase) {
        let (unsigned, signed) = self.form.index.names();
        let (_, inner) = self.form.axes;
        let strided = |operand: usize| self.form.operands[operand].1 == Access::Strided;
        let inputs: Vec<usize> = (phase.inputs.iter())
            .filter_map(|id| match self.region.expr.nodes()[id.index()] {
                Node::Input(i) => Some(usize::from(i)),
                _ => None,
            })
            .collect();
        let outputs = phase.outputs.iter().map(|o| self.region.inputs.len() + o);
        if inner > 1 && inputs.iter().copied().chain(outputs).any(strided) {
            self.line(&format!("{unsigned} along = r;"));
            for axis in (1..inner).rev() {
                self.line(&format!("const {signed} j{axis} = along % n{axis}; along /= n{axis};"));
            }
            self.line(&format!("const {signed} j0 = along;"));
        }
        let left = if self.vector.width() > 1 { "left" } else { "1" };
        let ty = self.vector.name();
        for operand in inputs {
            let (dtype, access) = self.form.operands[operand];
            if access == Access::Same {
                continue;
            }
            let load = self.need([self.vector.load_helper_at(dtype, self.form.aligned)]);
            let text = format!("const {ty} {} = {load}({}, {left});", self.operand(operand), self.element(operand));
            self.line(&text);
        }
        for &id in &phase.loads {
            let name = self.statements.name(id).to_owned();
            if !self.same_along(id) {
                self.line(&format!("const {ty} {name} = {name}_kept[k];"));
            }
        }
    }

    fn write_outputs(&mut self, phase: &Phase) {
        let left = if self.vector.width() > 1 { "left" } else { "1" };
        for &output in &phase.outputs {
            let operand = self.region.inputs.len() + output;
            let (dtype, _) = self.form.operands[operand];
            let store = self.need(self.vector.store_helpers_at(dtype, self.form.aligned));
            let value = self.statements.value(self.region.result(output), self.vector);
            let text = format!("{store}({value}, {}, {left});", self.element(operand));
            self.line(&text);
        }
    }

    /// Row values behind the last loop, and the row outputs.
    fn finish(&mut self) {
        let (_, signed) = self.form.index.names();
        let (outer, _) = self.form.axes;
        self.row_values(&self.plan.last);
        for (output, extent) in self.region.outputs.iter().enumerate() {
            if *extent == Extent::Full {
                continue;
            }
            let operand = self.region.inputs.len() + output;
            let (dtype, _) = self.form.operands[operand];
            let lane = self.lane();
            let store = self.need(lane.store_helpers(dtype));
            let name = self.operand(operand);
            let terms: Vec<String> = match outer {
                1 => vec![format!("({signed})row * {name}_row0")],
                _ => (0..outer).map(|a| format!("i{a} * {name}_row{a}")).collect(),
            };
            let value = self.statements.value(self.region.result(output), lane);
            let at = format!("{name}_data + {name}_offset + ({})", terms.join(" + "));
            self.line(&format!("if (lane == 0 && place < rows) {store}({value}, {at}, 1);"));
        }
    }
}
