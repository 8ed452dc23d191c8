//! What a plan says about itself: explanations, kernel texts, drawings.

use std::fmt::Write as _;

use netcl_core::kernels::expr::Expr;
use netcl_core::tensor::Tensor as Raw;

use super::facts::Listing;
use super::lower::{Lowered, label};
use super::trace::{Kind, Op, StorageId};
use super::units::{Unit, Work};

/// One kernel of a program, for readers.
pub(super) struct UnitReport {
    pub(super) title: String,
    pub(super) ops: Vec<String>,
    pub(super) shape: String,
    pub(super) kind: &'static str,
    pub(super) formula: String,
    pub(super) launches: Vec<String>,
    /// Launches of the same operations op by op.
    pub(super) alone: usize,
    /// Bytes that the launches read and write, and that op by op would.
    pub(super) bytes: f64,
    pub(super) bytes_alone: f64,
    pub(super) note: &'static str,
    pub(super) source: Option<String>,
    pub(super) reads: Vec<StorageId>,
    pub(super) writes: Vec<StorageId>,
}

/// Longer formulas are cut: a fused chain repeats what it shares.
const MAX_FORMULA: usize = 240;

fn formula(expr: &Expr) -> String {
    // Sharing can make the text of an expression grow without bounds.
    if expr.flops() > 24 {
        return format!("{} operations per element", expr.flops());
    }
    let mut text = expr.to_string();
    if text.len() > MAX_FORMULA {
        text.truncate((0..=MAX_FORMULA).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0));
        text.push_str(" ...");
    }
    text
}

impl UnitReport {
    pub(super) fn all(units: &[Unit], listing: &Listing, lowered: &Lowered) -> Vec<UnitReport> {
        // An operation that was written down in parts is one launch op by op, counted with the first of its parts.
        let mut counted = vec![false; listing.composites.len()];
        units
            .iter()
            .enumerate()
            .map(|(at, unit)| {
                let members: Vec<&Op> = unit.ops.iter().map(|&op| &listing.ops[op]).collect();
                let (kind, formula, shape) = describe(unit);
                let (reads, writes) = (unit.reads(), unit.writes());
                let own: Vec<_> =
                    lowered.launches.iter().filter(|(_, of)| *of == at).map(|(launch, _)| launch).collect();
                let (mut alone, mut bytes_alone) = (0, 0.0);
                for op in &members {
                    match op.part_of.filter(|&part_of| part_of < counted.len()) {
                        Some(part_of) if counted[part_of] => {}
                        Some(part_of) => {
                            counted[part_of] = true;
                            alone += 1;
                            bytes_alone += listing.composites[part_of].launch.cost.bytes;
                        }
                        None => {
                            alone += 1;
                            bytes_alone += bytes_of(op);
                        }
                    }
                }
                // A product or a reduction takes several launches op by op, too.
                if matches!(unit.work, Work::Reduce(_) | Work::Fusable { .. }) {
                    alone += own.len().saturating_sub(1);
                }
                UnitReport {
                    title: label(&members),
                    ops: members.iter().map(|op| op.name.to_string()).collect(),
                    shape,
                    kind,
                    formula,
                    launches: own.iter().map(|launch| launch.name.to_string()).collect(),
                    alone,
                    bytes: own.iter().map(|launch| launch.cost.bytes).sum(),
                    bytes_alone,
                    note: unit.note,
                    source: lowered.sources.get(at).cloned().flatten(),
                    reads,
                    writes,
                }
            })
            .collect()
    }
}

/// Bytes that an operation reads and writes by itself. Along a broadcast axis elements are read once.
fn bytes_of(op: &Op) -> f64 {
    if let Kind::Opaque(launch) = &op.kind {
        return launch.cost.bytes;
    }
    let one = |tensor: &Raw| {
        let (shape, strides) = (tensor.shape().to_vec(), tensor.layout().strides());
        let elements: usize = shape.iter().zip(strides).filter(|(_, stride)| **stride != 0).map(|(n, _)| *n).product();
        (elements * tensor.dtype().size()) as f64
    };
    op.inputs.iter().chain(&op.outputs).map(one).sum()
}

/// "3 launches instead of 11": what compiling made of a pass.
pub(super) fn launches_of(units: &[UnitReport]) -> String {
    let launches: usize = units.iter().map(|unit| unit.launches.len()).sum();
    let alone: usize = units.iter().map(|unit| unit.alone).sum();
    let word = if launches == 1 { "launch" } else { "launches" };
    if launches < alone { format!("{launches} {word} instead of {alone}") } else { format!("{launches} {word}") }
}

/// Why `reader`, which reads what `writer` writes, is a kernel of its own; `None` where its note says so already.
pub(super) fn apart(writer: &UnitReport, reader: &UnitReport) -> Option<&'static str> {
    if !reader.note.is_empty() {
        return None;
    }
    Some(match (writer.kind, reader.kind) {
        (AS_IT_IS, _) => "its values come from a kernel that takes nothing in",
        (_, AS_IT_IS) => "a kernel that takes nothing in",
        ("product", "product") => {
            "the second product reads whole rows and columns of the first, which must be complete"
        }
        ("reduction", "product") => "a reduction must be complete before a product reads it",
        ("rows", "product") => "a row must be complete before a product reads it",
        ("product", _) => "something else reads the product as well, or its kernel has no room for more",
        ("reduction", _) => "the sum over all elements must be complete before one of them is used",
        ("rows", _) => {
            "other elements than those of one row are combined, another kernel stands between, or there is no room"
        }
        (_, "product") => {
            "something else reads these values as well, or computing them while the product reads costs more"
        }
        (_, "reduction" | "rows") => "something else reads these values as well, or they take another order of axes",
        _ => "other elements, memory that is written in place, or a kernel that has no room for more",
    })
}

/// What [`describe`] calls a launch that nobody described.
const AS_IT_IS: &str = "as it is";

fn describe(unit: &Unit) -> (&'static str, String, String) {
    let shape = |tensor: Option<&netcl_core::tensor::Tensor>| {
        tensor.map(|t| format!("{} {}", t.shape(), t.dtype())).unwrap_or_default()
    };
    match &unit.work {
        Work::Map { fused, outputs } => ("pointwise", formula(&fused.expr), shape(outputs.first())),
        Work::Rows(rows) => {
            ("rows", format!("rows of the last {} axes of {}", rows.trailing, rows.shape), String::new())
        }
        Work::Reduce(reduce) => {
            let mut text = String::new();
            if let Some(fused) = &reduce.prologue {
                let _ = write!(text, "before: {}; ", formula(&fused.expr));
            }
            let _ = write!(text, "{:?}", reduce.combine);
            if let Some(fused) = &reduce.epilogue {
                let _ = write!(text, "; behind: {}", formula(&fused.expr));
            }
            ("reduction", text, shape(Some(&reduce.out)))
        }
        Work::Fusable { heavy, out, prologue, epilogue, .. } => {
            let before = prologue.as_ref().map(|(_, fused)| format!("before: {}; ", formula(&fused.expr)));
            let behind = epilogue.as_ref().map(|(fused, _)| format!("; behind: {}", formula(&fused.expr)));
            let text = format!("{}{}{}", before.unwrap_or_default(), heavy.name(), behind.unwrap_or_default());
            ("product", text, shape(Some(out)))
        }
        Work::Opaque(_) => (AS_IT_IS, String::new(), String::new()),
    }
}

/// One paragraph per kernel.
pub(super) fn explain(out: &mut String, pass: &str, units: &[UnitReport]) {
    let ops: usize = units.iter().map(|unit| unit.ops.len()).sum();
    let _ = writeln!(out, "{pass}: {ops} operations, {}", launches_of(units));
    for (i, unit) in units.iter().enumerate() {
        let _ = writeln!(out, "  {}. {} [{}] {}", i + 1, unit.launches.join(", "), unit.kind, unit.shape);
        if unit.ops.len() > 1 {
            let _ = writeln!(out, "     fuses {}", unit.ops.join(", "));
        }
        if !unit.formula.is_empty() {
            let _ = writeln!(out, "     {}", unit.formula);
        }
        if !unit.note.is_empty() {
            let _ = writeln!(out, "     not fused: {}", unit.note);
        }
    }
}

/// The kernel texts, each under the operations it does.
pub(super) fn source(out: &mut String, pass: &str, units: &[UnitReport]) {
    for unit in units {
        let _ = writeln!(out, "// {pass}: {} ({})", unit.ops.join(", "), unit.launches.join(", "));
        match &unit.source {
            Some(text) => out.push_str(text),
            None if unit.formula.is_empty() => out.push_str("// a kernel of the library, as it is\n"),
            None => {
                let _ = writeln!(out, "// a kernel of the library, with {}", unit.formula);
            }
        }
        out.push('\n');
    }
}

/// A drawing in the DOT language: operations, boxed by kernel, and what flows between kernels.
pub(super) fn dot(passes: &[(&str, &[UnitReport])]) -> String {
    let mut out =
        String::from("digraph jit {\n  rankdir=LR;\n  node [shape=box, style=rounded, fontname=\"sans-serif\"];\n");
    for (p, (pass, units)) in passes.iter().enumerate() {
        for (u, unit) in units.iter().enumerate() {
            let _ = writeln!(out, "  subgraph cluster_{p}_{u} {{\n    label=\"{pass} {}: {}\";", u + 1, unit.kind);
            for (o, op) in unit.ops.iter().enumerate() {
                let _ = writeln!(out, "    n{p}_{u}_{o} [label=\"{op}\"];");
                if o > 0 {
                    let _ = writeln!(out, "    n{p}_{u}_{} -> n{p}_{u}_{o} [style=dotted, arrowhead=none];", o - 1);
                }
            }
            out.push_str("  }\n");
        }
        for (u, unit) in units.iter().enumerate() {
            for (w, writer) in units.iter().enumerate().filter(|(w, _)| *w != u) {
                if writer.writes.iter().any(|storage| unit.reads.contains(storage)) {
                    let last = writer.ops.len().saturating_sub(1);
                    let _ = writeln!(out, "  n{p}_{w}_{last} -> n{p}_{u}_0;");
                }
            }
        }
    }
    out.push_str("}\n");
    out
}

/// The same as a Mermaid flowchart of kernels.
pub(super) fn mermaid(passes: &[(&str, &[UnitReport])]) -> String {
    let mut out = String::from("flowchart LR\n");
    for (p, (pass, units)) in passes.iter().enumerate() {
        let _ = writeln!(out, "  subgraph {pass}");
        for (u, unit) in units.iter().enumerate() {
            let _ = writeln!(out, "    n{p}_{u}[\"{}: {}\"]", unit.kind, unit.title);
        }
        for (u, unit) in units.iter().enumerate() {
            for (w, writer) in units.iter().enumerate().filter(|(w, _)| *w != u) {
                if writer.writes.iter().any(|storage| unit.reads.contains(storage)) {
                    let _ = writeln!(out, "    n{p}_{w} --> n{p}_{u}");
                }
            }
        }
        out.push_str("  end\n");
    }
    out
}
