//! Matrix products as a compiler that listens at the launch seam sees them.

use std::sync::Arc;

use netcl_core::Result;
use netcl_core::kernels::described::{CanFuse, Described, Epilogue, Fusable, Meaning, Prologue, RowNorm};
use netcl_core::kernels::launch;
use netcl_core::precision::{MatmulPrecision, matmul_precision};
use netcl_core::tensor::Tensor;
use smallvec::SmallVec;

use super::prologue::can_fuse;
use super::{MatmulOptions, OP, matmul_with, normed};
use crate::epilogue::OwnedEpilogue;
use crate::prologue::CheckedPrologue;

/// A product; its inputs are the operands and the tensors of its epilogue.
struct FusableMatmul {
    epilogue: OwnedEpilogue,
    precision: MatmulPrecision,
}

/// Offers a product whose operands are already transposed.
pub(super) fn offer(a: &Tensor, b: &Tensor, options: &MatmulOptions<'_>, out: &Tensor) -> Result<bool> {
    if !launch::has_sink() {
        return Ok(false);
    }
    let epilogue = options.epilogue.as_ref();
    let mut inputs: SmallVec<[&Tensor; 4]> = [a, b].into_iter().collect();
    inputs.extend(epilogue.iter().flat_map(|epilogue| &epilogue.inputs));
    let precision = options.precision.unwrap_or_else(matmul_precision);
    let product = FusableMatmul { epilogue: OwnedEpilogue::new(epilogue, out.dtype()), precision };
    launch::offer(&Described { inputs: &inputs, outputs: &[out], meaning: Meaning::Fusable(Arc::new(product)) })
}

impl Fusable for FusableMatmul {
    fn name(&self) -> &'static str {
        OP
    }

    fn can_fuse(&self, prologue: &Prologue<'_>, inputs: &[Tensor], out: &Tensor) -> Result<CanFuse> {
        let Prologue { operand, expr, inputs: further, scalars } = prologue;
        match inputs {
            [a, b, ..] if *operand < 2 => {
                let prologue = CheckedPrologue::new(OP, &inputs[*operand], expr, further, scalars)?;
                can_fuse([a, b, out], self.precision, None, *operand == 0, &prologue)
            }
            _ => Ok(CanFuse::No("it belongs to the epilogue")),
        }
    }

    fn run_normed(&self, inputs: &[Tensor], norm: &RowNorm, epilogue: Option<&Epilogue<'_>>) -> Result<Option<Tensor>> {
        let [a, b, own @ ..] = inputs else { return Ok(None) };
        let epilogue = self.epilogue.then(own, epilogue.cloned());
        normed(a, b, norm, epilogue.epilogue().as_ref(), self.precision)
    }

    fn run(&self, inputs: &[Tensor], prologue: Option<Prologue<'_>>, epilogue: Option<Epilogue<'_>>) -> Result<Tensor> {
        let [a, b, own @ ..] = inputs else {
            return Err(netcl_core::Error::argument(OP, "a product takes two operands"));
        };
        let epilogue = self.epilogue.then(own, epilogue);
        let precision = Some(self.precision);
        matmul_with(a, b, &MatmulOptions { prologue, epilogue: epilogue.epilogue(), precision, ..Default::default() })
    }
}
