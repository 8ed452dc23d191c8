//! What stands before a convolution's kernel.

use netcl_core::dtype::DType;

use super::super::finish::Finish;
use crate::prelude::{Ending, Prelude};

/// Defines how operands are loaded as sums.
pub(super) fn loads(prelude: &mut Prelude, dtype: DType) {
    prelude.loads("T", "LOAD", dtype, dtype.accumulator());
}

/// Defines what becomes of a sum and how it is stored.
pub(super) fn result(prelude: &mut Prelude, finish: &Finish) {
    prelude.ending(&Ending {
        dtype: finish.dtype,
        compute: finish.compute,
        expr: finish.expr.as_ref(),
        inputs: finish.inputs.iter().map(|input| input.dtype()).collect(),
        coordinates: [("n", "n"), ("c", "c"), ("y", "y"), ("x", "x")],
    });
}
