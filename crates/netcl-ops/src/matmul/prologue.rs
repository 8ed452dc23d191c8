//! Whether a product computes one of its operands while it reads it.

use netcl_core::Result;
use netcl_core::backend::Queue;
use netcl_core::kernels::described::CanFuse;
use netcl_core::precision::MatmulPrecision;
use netcl_core::tensor::Tensor;

use super::problem::Problem;
use super::{ShapeRule, Variant, cpu, opencl};
use crate::prologue::CheckedPrologue;

/// Whether a product computes an operand while it reads it; else why not.
pub(crate) fn can_fuse(
    [a, b, out]: [&Tensor; 3],
    precision: MatmulPrecision,
    forced: Option<Variant>,
    first: bool,
    prologue: &CheckedPrologue<'_>,
) -> Result<CanFuse> {
    let rule = ShapeRule::new(a, b)?;
    if out.size() == 0 || rule.k == 0 {
        return Ok(CanFuse::No("there is nothing to multiply"));
    }
    // What it is computed from decides with it which axes of the batch are one.
    let problem = Problem::new(&rule, a, b, out, &[], None, Some((first, prologue)))?;
    Ok(match out.queue() {
        Queue::Cpu(_) => cpu::can_fuse(&problem, first, prologue.expr),
        Queue::OpenCl(stream) => {
            let chosen = match forced {
                Some(forced) => (forced, None),
                None => opencl::variant(&problem, precision)?,
            };
            opencl::can_fuse(stream, problem, chosen, precision, (first, prologue.expr))?
        }
    })
}
