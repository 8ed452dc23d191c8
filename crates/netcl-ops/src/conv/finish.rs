//! What becomes of a sum before it is written: bias and epilogue as one expression.

use netcl_core::dtype::DType;
use netcl_core::kernels::elementwise::Number;
use netcl_core::kernels::expr::cpu::Program;
use netcl_core::kernels::expr::{Expr, Graph};
use netcl_core::shape::Shape;
use netcl_core::tensor::{Tensor, reshape};
use netcl_core::{Error, Result};

use crate::matmul::Epilogue;

/// The end of a convolution. Input 0 of the expression is the sum.
pub(super) struct Finish {
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

impl Finish {
    /// Sums that are written as they are.
    pub(super) fn plain(dtype: DType) -> Finish {
        let sum = dtype.accumulator();
        Finish { expr: None, inputs: Vec::new(), scalars: Vec::new(), dtype, sum, compute: sum }
    }

    /// `epilogue(sum + bias)`, for a result of this shape.
    pub(super) fn new(
        op: &'static str,
        x: &Tensor,
        bias: Option<&Tensor>,
        epilogue: Option<&Epilogue<'_>>,
        out: &Shape,
    ) -> Result<Finish> {
        let mut finish = Finish::plain(x.dtype());
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
            finish.inputs.push(reshape(bias, [1, channels, 1, 1])?.expand(out)?);
        }
        if let Some(epilogue) = epilogue {
            check(op, x, epilogue)?;
            let first = finish.inputs.len();
            let inputs: Vec<_> =
                std::iter::once(value).chain((0..epilogue.inputs.len()).map(|i| graph.input(1 + first + i))).collect();
            // Checked above: there is one output.
            if let Some(&last) = graph.inline(epilogue.expr, &inputs, &[]).first() {
                value = last;
            }
            for input in &epilogue.inputs {
                finish.inputs.push(input.expand(out)?);
            }
            finish.scalars.clone_from(&epilogue.scalars);
            finish.dtype = epilogue.dtype.unwrap_or(x.dtype());
        }
        if bias.is_some() || epilogue.is_some() {
            finish.expr = Some(graph.finish_with(&[value], 1 + finish.inputs.len(), finish.scalars.len()));
        }
        let types = finish.inputs.iter().map(Tensor::dtype).chain([finish.sum, finish.dtype]);
        finish.compute = Program::compute_type(types);
        Ok(finish)
    }

    /// The expression as the epilogue of a product whose result is seen through other axes: `inputs` are this one's, seen the
    /// same way.
    pub(super) fn epilogue(&self, inputs: Vec<Tensor>) -> Option<Epilogue<'_>> {
        let expr = self.expr.as_ref()?;
        Some(Epilogue { expr, inputs, scalars: self.scalars.clone(), dtype: Some(self.dtype) })
    }
}

fn check(op: &'static str, x: &Tensor, epilogue: &Epilogue<'_>) -> Result<()> {
    let given = [1 + epilogue.inputs.len(), epilogue.scalars.len(), 1];
    let expected = [epilogue.expr.inputs().max(1), epilogue.expr.scalars(), epilogue.expr.outputs().len()];
    if given != expected {
        let what = format!(
            "the epilogue takes (inputs with the sum, scalars, outputs) = {expected:?}, but {given:?} are given; it must \
             have one output"
        );
        return Err(Error::argument(op, what));
    }
    for input in &epilogue.inputs {
        input.check_float(op)?;
        x.queue().check_same_device(op, input.queue())?;
    }
    match epilogue.dtype {
        Some(dtype) if !dtype.is_float() => {
            Err(Error::Dtype { op, expected: "a float dtype for the result".to_owned(), got: dtype })
        }
        _ => Ok(()),
    }
}
