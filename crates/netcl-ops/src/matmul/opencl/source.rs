//! What stands before a product's kernel.

use super::Problem;
use crate::prelude::{Inline, Prelude};

/// What a kernel writes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The result, after the epilogue.
    Final,
    /// Sums of a part of the terms.
    Partial,
}

/// Defines what becomes of a sum and how it is stored.
pub(super) fn result(prelude: &mut Prelude<'_>, problem: &Problem<'_>, what: Outcome) {
    match what {
        Outcome::Partial => prelude.define("OUT", problem.sum.cl_type()),
        Outcome::Final => {
            let inline = Inline {
                compute: problem.compute,
                inputs: problem.inputs.iter().map(|input| input.tensor.dtype()).collect(),
                coordinates: [("row", "rs"), ("col", "cs"), ("i0", "b0"), ("i1", "b1")],
            };
            prelude.epilogue(problem.c.tensor.dtype(), problem.epilogue, &inline);
        }
    }
}
