//! What stands before a convolution's kernel.

use netcl_core::dtype::DType;

use super::super::finish::Finish;
use crate::prelude::{Ending, Inline, Prelude};

/// What kernels call an element's coordinates, and the strides that belong to them.
pub(super) const COORDINATES: [(&str, &str); 4] = [("n", "n"), ("c", "c"), ("y", "y"), ("x", "x")];

/// Defines how operands are loaded as sums.
pub(super) fn loads(prelude: &mut Prelude, dtype: DType) {
    prelude.loads("T", "LOAD", dtype, dtype.accumulator());
}

/// Defines what becomes of a sum and how it is stored.
pub(super) fn result(prelude: &mut Prelude, finish: &Finish) {
    prelude.ending(&Ending {
        dtype: finish.dtype,
        expr: finish.expr.as_ref(),
        inline: Inline {
            compute: finish.compute,
            inputs: finish.inputs.iter().map(|input| input.dtype()).collect(),
            coordinates: COORDINATES,
        },
    });
}
