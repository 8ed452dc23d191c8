//! The small functions that kernels over rows are made of.

use crate::kernels::described::Combine;
use crate::kernels::expr::BinaryOp;
use crate::kernels::expr::opencl::{CType, Helper, extremum};

/// `a` and `b` combined, and the function that needs.
fn join(combine: Combine, t: CType, a: &str, b: &str) -> (String, Option<Helper>) {
    let helper = match combine {
        Combine::Sum => return (format!("{a} + {b}"), None),
        Combine::Prod => return (format!("{a} * {b}"), None),
        Combine::Max => extremum(t, BinaryOp::Max),
        Combine::Min => extremum(t, BinaryOp::Min),
    };
    (format!("{}({a}, {b})", helper.name), Some(helper))
}

/// `v`, with lanes beyond the end of the row replaced.
pub(super) fn pad(t: CType) -> Helper {
    let (ty, name) = (t.name(), format!("pad_{}", t.name()));
    let (lane, w) = (t.lane().name(), t.width());
    let replaced = if w > 4 {
        format!(
            "    {lane} lanes[{w}];\n    vstore{w}(v, 0, lanes);\n    \
             for (uint k = left; k < {w}; ++k) lanes[k] = fill;\n    return vload{w}(0, lanes);\n"
        )
    } else {
        let lanes: Vec<String> = (1..w).map(|k| format!(", left > {k} ? v.s{k:x} : fill")).collect();
        format!("    return ({ty})(v.s0{});\n", lanes.concat())
    };
    let text =
        format!("{ty} {name}({ty} v, ulong left, {lane} fill) {{\n    if (left >= {w}) return v;\n{replaced}}}\n");
    Helper { name, text }
}

/// The statement that combines a value with an accumulator, and what it needs.
pub(super) fn fold(combine: Combine, t: CType, acc: &str, value: &str) -> (String, Option<Helper>) {
    if combine != Combine::Sum {
        let (joined, helper) = join(combine, t, acc, value);
        return (format!("{acc} = {joined};"), helper);
    }
    let (ty, name) = (t.name(), format!("add_{}", t.name()));
    let text = format!(
        "void {name}({ty} *total, {ty} *lost, {ty} v) {{\n    \
         // What the addition rounds off is carried along (Knuth's two-sum).\n    \
         const {ty} sum = *total + v, part = sum - *total;\n    \
         *lost += (*total - (sum - part)) + (v - part);\n    *total = sum;\n}}\n"
    );
    (format!("{name}(&{acc}, &{acc}_lost, {value});"), Some(Helper { name, text }))
}

/// A sum with what its additions rounded off.
pub(super) fn settle(t: CType) -> Helper {
    let (ty, name) = (t.name(), format!("settle_{}", t.name()));
    let text = format!(
        "{ty} {name}({ty} total, {ty} lost) {{\n    \
         // An infinite sum has lost nothing (the formula says NaN).\n    \
         return isfinite(total) ? total + lost : total;\n}}\n"
    );
    Helper { name, text }
}

/// The function that combines the lanes of a vector, with what it needs before it.
pub(super) fn across(combine: Combine, t: CType) -> Vec<Helper> {
    let name = format!("across_{}_{}", combine.name(), t.name());
    let mut helpers = Vec::new();
    let mut text = format!("{} {name}({} v) {{\n", t.lane().name(), t.name());
    let (mut width, mut from) = (t.width() / 2, "v".to_owned());
    while width >= 1 {
        let Some(half) = t.with_width(width) else { break };
        let (low, high) = match width {
            1 => (format!("{from}.s0"), format!("{from}.s1")),
            _ => (format!("{from}.lo"), format!("{from}.hi")),
        };
        let (joined, helper) = join(combine, half, &low, &high);
        helpers.extend(helper);
        if width == 1 {
            text += &format!("    return {joined};\n}}\n");
            break;
        }
        from = format!("v{width}");
        text += &format!("    const {} {from} = {joined};\n", half.name());
        width /= 2;
    }
    helpers.push(Helper { name, text });
    helpers
}

/// The function that combines the work-items of a row, with what it needs before it.
pub(super) fn along(combine: Combine, t: CType) -> Vec<Helper> {
    let (ty, name) = (t.name(), format!("row_{}_{}", combine.name(), t.name()));
    let (joined, helper) = join(combine, t, "tile[here]", "tile[here + half_]");
    let text = format!(
        "// All {lanes} of a row get what their values combine to; a tree in local memory, in a fixed order.\n\
         {ty} {name}({ty} value, local {ty} *tile, uint lane, uint lanes) {{\n    \
         const uint here = get_local_id(0);\n    \
         tile[here] = value;\n    \
         barrier(CLK_LOCAL_MEM_FENCE);\n    \
         for (uint half_ = lanes / 2; half_ > 0; half_ /= 2) {{\n        \
         if (lane < half_) tile[here] = {joined};\n        \
         barrier(CLK_LOCAL_MEM_FENCE);\n    }}\n    \
         const {ty} result = tile[here - lane];\n    \
         barrier(CLK_LOCAL_MEM_FENCE);\n    \
         return result;\n}}\n",
        lanes = "work-items",
    );
    helper.into_iter().chain([Helper { name, text }]).collect()
}
