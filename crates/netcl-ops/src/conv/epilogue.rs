//! Bias and epilogue as one expression.

use netcl_core::dtype::DType;
use netcl_core::kernels::elementwise::Number;
use netcl_core::kernels::expr::cpu::Program;
use netcl_core::kernels::expr::{Expr, Graph};
use netcl_core::shape::Shape;
use netcl_core::tensor::{Tensor, reshape};
use netcl_core::{Error, Result};

use crate::epilogue::check;
use crate::matmul::Epilogue;

/// The epilogue of a convolution, its bias included. Input 0 of the expression is the sum.
pub(super) struct ConvEpilogue {
    pub(super) expr: Option<Expr>,
    /// The expression's further inputs, expanded to the result.
    pub(super) inputs: Vec<Tensor>,
    pub(super) scalars: Vec<Number>,
    /// The type of the result.
    pub(super) dtype: DType,
    /// The type that the sums have: f32, or f64 for operands of f64.
    pub(super) sum: DType,
    /// The type that the expression computes in.
    pub(super) compute: DType,
}

impl ConvEpilogue {
    /// Sums that are written as they are.
    pub(super) fn plain(dtype: DType) -> ConvEpilogue {
        let sum = dtype.accumulator();
        ConvEpilogue { expr: None, inputs: Vec::new(), scalars: Vec::new(), dtype, sum, compute: sum }
    }

    /// `epilogue(sum + bias)`, for a result of this shape.
    pub(super) fn new(
        op: &'static str,
        x: &Tensor,
        bias: Option<&Tensor>,
        epilogue: Option<&Epilogue<'_>>,
        out: &Shape,
    ) -> Result<ConvEpilogue> {
        let mut made = ConvEpilogue::plain(x.dtype());
        let graph = Graph::new();
        let mut value = graph.input(0);
        if let Some(bias) = bias {
            let channels = out[1];
            bias.check_float(op)?;
            x.queue().check_same_device(op, bias.queue())?;
            if bias.shape() != &Shape::from([channels]) {
                let why = format!("the bias must have one element for each of the {channels} output channels");
                return Err(Error::Shape { op, shape: bias.shape().clone(), why });
            }
            value = value + graph.input(1);
            made.inputs.push(reshape(bias, [1, channels, 1, 1])?.expand(out)?);
        }
        if let Some(epilogue) = epilogue {
            check(op, x, epilogue)?;
            let first = made.inputs.len();
            let inputs: Vec<_> =
                std::iter::once(value).chain((0..epilogue.inputs.len()).map(|i| graph.input(1 + first + i))).collect();
            // Checked above: there is one output.
            if let Some(&last) = graph.inline(epilogue.expr, &inputs, &[]).first() {
                value = last;
            }
            for input in &epilogue.inputs {
                made.inputs.push(input.expand(out)?);
            }
            made.scalars.clone_from(&epilogue.scalars);
            made.dtype = epilogue.dtype.unwrap_or(x.dtype());
        }
        if bias.is_some() || epilogue.is_some() {
            made.expr = Some(graph.finish_with(&[value], 1 + made.inputs.len(), made.scalars.len()));
        }
        let types = made.inputs.iter().map(Tensor::dtype).chain([made.sum, made.dtype]);
        made.compute = Program::compute_type(types);
        Ok(made)
    }

    /// The expression as the epilogue of a product whose result is seen through other axes: `inputs` are this one's, seen the
    /// same way.
    pub(super) fn epilogue(&self, inputs: Vec<Tensor>) -> Option<Epilogue<'_>> {
        let expr = self.expr.as_ref()?;
        Some(Epilogue { expr, inputs, scalars: self.scalars.clone(), dtype: Some(self.dtype) })
    }
}
