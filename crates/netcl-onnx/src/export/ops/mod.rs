//! How operations are written: one table for each family.

mod assign;
mod layers;
mod layout;
mod pointwise;
mod reduce;
mod sequence;

use netcl_nn::autograd::trace::Attr;

use super::builder::{Builder, Call, Trouble, Written};

/// Writes one operation.
pub(super) type Handler = fn(&mut Builder<'_>, &Call<'_>) -> Written;

/// Writes one operation of the first trace.
pub(super) fn write(b: &mut Builder<'_>, call: &Call<'_>) -> Written {
    b.begin(call.op);
    if let Some(name) = call.changed_setting() {
        let what = format!("its {name} depends on a dynamic length");
        return Err(format!("{what}; make it fixed (dynamic_batch = false, or fewer dynamic_axes)").into());
    }
    if let Some(Attr::Expr(expr)) = call.op.attribute("expr") {
        return pointwise::write(b, call, expr);
    }
    let tables = [assign::TABLE, layers::TABLE, layout::TABLE, pointwise::TABLE, reduce::TABLE, sequence::TABLE];
    match tables.into_iter().flatten().find(|(name, _)| *name == call.op.name) {
        Some((_, handler)) => handler(b, call),
        None => Err(Trouble::Said(String::new())),
    }
}
