//! Operands that are computed while they are read.

use netcl_core::Result;
use netcl_core::backend::Queue;
use netcl_core::dtype::DType;
use netcl_core::kernel_selector::get_kernel_selector;
use netcl_core::kernels::described::Taken;
use netcl_core::kernels::elementwise::Elementwise;
use netcl_core::kernels::expr::cpu::Program;
use netcl_core::precision::MatmulPrecision;
use netcl_core::tensor::Tensor;

use super::problem::Problem;
use super::{OP, Prologue, ShapeRule, cpu, opencl};

/// A checked prologue: its tensors have the shape of the operand.
pub(super) struct Lead<'e> {
    pub(super) prologue: &'e Prologue<'e>,
    operand: &'e Tensor,
    /// All inputs of the expression but the first.
    pub(super) inputs: Vec<Tensor>,
    /// The type that the expression computes in.
    pub(super) compute: DType,
}

impl<'e> Lead<'e> {
    pub(super) fn new(prologue: &'e Prologue<'e>, a: &'e Tensor, b: &'e Tensor) -> Result<Lead<'e>> {
        let operand = if prologue.first { a } else { b };
        let expr = prologue.expr;
        let given = [1 + prologue.inputs.len(), prologue.scalars.len(), 1];
        let expected = [expr.inputs().max(1), expr.scalars(), expr.outputs().len()];
        if given != expected {
            let what = format!(
                "the prologue takes (inputs with the operand, scalars, outputs) = {expected:?}, but {given:?} are given; it \
                 must have one output"
            );
            return Err(netcl_core::Error::argument(OP, what));
        }
        let place = |input: &Tensor| {
            input.check_float(OP)?;
            operand.queue().check_same_device(OP, input.queue())?;
            input.expand(operand.shape())
        };
        let inputs = prologue.inputs.iter().map(place).collect::<Result<Vec<Tensor>>>()?;
        let dtype = operand.dtype();
        let compute = Program::compute_type(inputs.iter().map(Tensor::dtype).chain([dtype, dtype.accumulator()]));
        Ok(Lead { prologue, operand, inputs, compute })
    }

    /// Everything that it reads.
    pub(super) fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        std::iter::once(self.operand).chain(&self.inputs)
    }

    /// The operand in memory, by a launch of its own.
    pub(super) fn computed(&self) -> Result<Tensor> {
        let out = Tensor::uninit(self.operand.queue(), self.operand.shape().clone(), self.operand.dtype())?;
        let inputs: Vec<&Tensor> = self.tensors().collect();
        // An expression that does not look at the operand may have no inputs at all.
        let inputs = &inputs[..self.prologue.expr.inputs()];
        Elementwise::new(OP, self.prologue.expr.clone()).run(inputs, &self.prologue.scalars, &[&out])?;
        Ok(out)
    }
}

/// Whether a product computes an operand itself, by an expression of so many operations; else why not.
pub(super) fn takes_prologue(
    a: &Tensor,
    b: &Tensor,
    out: &Tensor,
    precision: MatmulPrecision,
    first: bool,
    flops: usize,
) -> Result<Taken> {
    let rule = ShapeRule::new(a, b)?;
    if out.size() == 0 || rule.k == 0 {
        return Ok(Taken::No("there is nothing to multiply"));
    }
    let problem = Problem::new(&rule, a, b, out, &[], None, None)?;
    Ok(match out.queue() {
        Queue::Cpu(_) => cpu::takes(&problem, first, flops),
        queue @ Queue::OpenCl(stream) => {
            let chosen = opencl::variant(stream, &*get_kernel_selector(Some(queue))?, &problem, precision)?;
            opencl::takes(problem, chosen, first)
        }
    })
}
