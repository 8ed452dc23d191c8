//! Whether a product computes one of its operands while it reads it.

use netcl_core::Result;
use netcl_core::backend::Queue;
use netcl_core::kernel_selector::get_kernel_selector;
use netcl_core::kernels::described::Taken;
use netcl_core::precision::MatmulPrecision;
use netcl_core::tensor::Tensor;

use super::problem::Problem;
use super::{ShapeRule, Variant, cpu, opencl};
use crate::lead::Lead;

/// Whether a product computes an operand while it reads it; else why not.
pub(crate) fn takes_prologue(
    [a, b, out]: [&Tensor; 3],
    precision: MatmulPrecision,
    forced: Option<Variant>,
    first: bool,
    lead: &Lead<'_>,
) -> Result<Taken> {
    let rule = ShapeRule::new(a, b)?;
    if out.size() == 0 || rule.k == 0 {
        return Ok(Taken::No("there is nothing to multiply"));
    }
    // What it is computed from decides with it which axes of the batch are one.
    let problem = Problem::new(&rule, a, b, out, &[], None, Some((first, lead)))?;
    Ok(match out.queue() {
        Queue::Cpu(_) => cpu::takes(&problem, first, lead.expr),
        queue @ Queue::OpenCl(stream) => {
            let chosen = match forced {
                Some(forced) => (forced, None),
                None => opencl::variant(stream, &*get_kernel_selector(Some(queue))?, &problem, precision)?,
            };
            opencl::takes(stream, problem, chosen, precision, (first, lead.expr))?
        }
    })
}
