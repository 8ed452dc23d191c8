//! Operands that are computed while they are read.

use netcl_core::Result;
use netcl_core::dtype::DType;
use netcl_core::kernels::elementwise::{Elementwise, Number};
use netcl_core::kernels::expr::Expr;
use netcl_core::kernels::expr::cpu::Program;
use netcl_core::tensor::Tensor;

use crate::prelude::Inline;

/// Operations (tensors beside the operand count twice) that take next to nothing, however often an element is read.
const CHEAP: usize = 8;
/// Operations for one element, over all times that it is read, from which a pass over memory costs less.
const DEAR: usize = 64;
/// Operations for all elements up to which a launch costs more.
const SMALL: usize = 1 << 21;

/// Why an operand that many read is computed once.
pub(crate) const TOO_DEAR: &str =
    "it is read often enough that computing it each time would take longer than memory does";

/// Whether an expression may be computed each of the so many times that an element of so many is loaded into a tile, from which it
/// is used many times.
pub(crate) fn pays(expr: &Expr, elements: usize, times: usize) -> bool {
    effort(expr) <= CHEAP || pays_for_one(expr, elements, times)
}

/// The same where a loaded element is used once.
pub(crate) fn pays_for_one(expr: &Expr, elements: usize, times: usize) -> bool {
    let each = effort(expr).saturating_mul(times);
    each <= DEAR || each.saturating_mul(elements) <= SMALL
}

fn effort(expr: &Expr) -> usize {
    expr.effort() + 2 * expr.inputs().saturating_sub(1)
}

/// A checked prologue: its tensors have the shape of the operand.
pub(crate) struct CheckedPrologue<'e> {
    op: &'static str,
    /// One output; input 0 is the operand as it lies in memory.
    pub(crate) expr: &'e Expr,
    operand: &'e Tensor,
    /// All inputs of the expression but the first.
    pub(crate) inputs: Vec<Tensor>,
    pub(crate) scalars: &'e [Number],
    /// The type that the expression computes in.
    pub(crate) compute: DType,
}

impl<'e> CheckedPrologue<'e> {
    pub(crate) fn new(
        op: &'static str,
        operand: &'e Tensor,
        expr: &'e Expr,
        inputs: &[Tensor],
        scalars: &'e [Number],
    ) -> Result<CheckedPrologue<'e>> {
        let given = [1 + inputs.len(), scalars.len(), 1];
        let expected = [expr.inputs().max(1), expr.scalars(), expr.outputs().len()];
        if given != expected {
            let what = format!(
                "the prologue takes (inputs with the operand, scalars, outputs) = {expected:?}, but {given:?} are given; it \
                 must have one output"
            );
            return Err(netcl_core::Error::argument(op, what));
        }
        let place = |input: &Tensor| {
            input.check_float(op)?;
            operand.queue().check_same_device(op, input.queue())?;
            input.expand(operand.shape())
        };
        let inputs = inputs.iter().map(place).collect::<Result<Vec<Tensor>>>()?;
        let dtype = operand.dtype();
        let compute = Program::compute_type(inputs.iter().map(Tensor::dtype).chain([dtype, dtype.accumulator()]));
        Ok(CheckedPrologue { op, expr, operand, inputs, scalars, compute })
    }

    /// Everything that it reads.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        std::iter::once(self.operand).chain(&self.inputs)
    }

    /// The operand in memory, by a launch of its own.
    pub(crate) fn computed(&self) -> Result<Tensor> {
        let out = Tensor::uninit(self.operand.queue(), self.operand.shape().clone(), self.operand.dtype())?;
        let inputs: Vec<&Tensor> = self.tensors().collect();
        // An expression that does not look at the operand may have no inputs at all.
        let inputs = &inputs[..self.expr.inputs()];
        Elementwise::new(self.op, self.expr.clone()).run(inputs, self.scalars, &[&out])?;
        Ok(out)
    }

    /// How a kernel computes it.
    pub(crate) fn inline(&self, coordinates: [(&'static str, &'static str); 4]) -> Inline {
        Inline { compute: self.compute, inputs: self.inputs.iter().map(Tensor::dtype).collect(), coordinates }
    }
}
