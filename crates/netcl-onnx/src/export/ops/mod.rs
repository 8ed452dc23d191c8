//! How operations are written: one table for each family.

mod layers;
mod layout;
mod pointwise;
mod reduce;
mod sequence;

use netcl_nn::autograd::trace::{Attr, Trace};

use super::builder::{Builder, Call, Trouble, Written};

/// Writes one operation.
pub(super) type Handler = fn(&mut Builder<'_>, &Call<'_>) -> Written;

/// Writes one operation of the first trace, with a look at those before it.
pub(super) fn write(b: &mut Builder<'_>, call: &Call<'_>, traces: &[Trace]) -> Written {
    b.begin(call.op);
    if let Some(name) = call.changed_setting() {
        return Err(format!("its {name} depends on the size of the batch; export with dynamic_batch = false").into());
    }
    if let Some(Attr::Expr(expr)) = call.op.attribute("expr") {
        return pointwise::write(b, call, expr);
    }
    if call.op.name == "recurrent" {
        return sequence::recurrent(b, call, traces);
    }
    let tables = [layers::TABLE, layout::TABLE, pointwise::TABLE, reduce::TABLE, sequence::TABLE];
    match tables.into_iter().flatten().find(|(name, _)| *name == call.op.name) {
        Some((_, handler)) => handler(b, call),
        None => Err(Trouble::Said(String::new())),
    }
}
