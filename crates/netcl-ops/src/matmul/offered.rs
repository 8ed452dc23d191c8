//! Matrix products as a compiler that listens at the launch seam sees them.

use std::sync::Arc;

use netcl_core::Result;
use netcl_core::dtype::DType;
use netcl_core::kernels::described::{self, Described, Finish, Heavy, Meaning, Taken};
use netcl_core::kernels::elementwise::Number;
use netcl_core::kernels::expr::{Expr, Graph};
use netcl_core::kernels::launch;
use netcl_core::precision::{MatmulPrecision, matmul_precision};
use netcl_core::tensor::Tensor;
use smallvec::SmallVec;

use super::{Epilogue, MatmulOptions, OP, Prologue, matmul_with, takes_prologue};
use crate::lead::Lead;

/// What an operation was told to do behind its sums, kept for a run with more behind it.
pub(crate) struct Tail {
    epilogue: Option<(Expr, Vec<Number>)>,
    dtype: DType,
}

/// An epilogue that owns its expression.
pub(crate) struct OwnEpilogue {
    expr: Option<Expr>,
    inputs: Vec<Tensor>,
    scalars: Vec<Number>,
    dtype: DType,
}

impl Tail {
    pub(crate) fn new(epilogue: Option<&Epilogue<'_>>, out: &Tensor) -> Self {
        Tail { epilogue: epilogue.map(|e| (e.expr.clone(), e.scalars.clone())), dtype: out.dtype() }
    }

    /// The own epilogue (over `own`), and behind it another one.
    pub(crate) fn with(&self, own: &[Tensor], finish: Option<Finish<'_>>) -> OwnEpilogue {
        let (first, scalars) = match &self.epilogue {
            Some((expr, scalars)) => (Some(expr.clone()), scalars.clone()),
            None => (None, Vec::new()),
        };
        let Some(finish) = finish else {
            return OwnEpilogue { expr: first, inputs: own.to_vec(), scalars, dtype: self.dtype };
        };
        let g = Graph::new();
        let first = first.unwrap_or_else(|| g.finish(&[g.input(0)]));
        OwnEpilogue {
            expr: Some(finish.after(&first, 1 + own.len())),
            inputs: own.iter().cloned().chain(finish.inputs).collect(),
            scalars: scalars.into_iter().chain(finish.scalars).collect(),
            dtype: finish.dtype,
        }
    }
}

impl OwnEpilogue {
    pub(crate) fn epilogue(&self) -> Option<Epilogue<'_>> {
        let (inputs, scalars) = (self.inputs.clone(), self.scalars.clone());
        self.expr.as_ref().map(|expr| Epilogue { expr, inputs, scalars, dtype: Some(self.dtype) })
    }
}

/// A product; its inputs are the operands and the tensors of its epilogue.
struct Product {
    tail: Tail,
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
    let product = Product { tail: Tail::new(epilogue, out), precision };
    launch::offer(&Described { inputs: &inputs, outputs: &[out], meaning: Meaning::Heavy(Arc::new(product)) })
}

impl Heavy for Product {
    fn name(&self) -> &'static str {
        OP
    }

    fn takes(&self, prologue: &described::Prologue<'_>, inputs: &[Tensor], out: &Tensor) -> Result<Taken> {
        let described::Prologue { operand, expr, inputs: further, scalars } = prologue;
        match inputs {
            [a, b, ..] if *operand < 2 => {
                let lead = Lead::new(OP, &inputs[*operand], expr, further, scalars)?;
                takes_prologue([a, b, out], self.precision, None, *operand == 0, &lead)
            }
            _ => Ok(Taken::No("it belongs to the epilogue")),
        }
    }

    fn run(
        &self,
        inputs: &[Tensor],
        prologue: Option<described::Prologue<'_>>,
        finish: Option<Finish<'_>>,
    ) -> Result<Tensor> {
        let [a, b, own @ ..] = inputs else {
            return Err(netcl_core::Error::argument(OP, "a product takes two operands"));
        };
        let tail = self.tail.with(own, finish);
        let precision = Some(self.precision);
        let prologue = prologue.map(|described::Prologue { operand, expr, inputs, scalars }| Prologue {
            first: operand == 0,
            expr,
            inputs,
            scalars,
        });
        matmul_with(a, b, &MatmulOptions { prologue, epilogue: tail.epilogue(), precision, ..Default::default() })
    }
}
