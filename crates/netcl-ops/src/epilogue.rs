//! Epilogues that outlive a call, and those of the native CPU, compiled.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use netcl_core::dtype::DType;
use netcl_core::kernels::described::Epilogue;
use netcl_core::kernels::elementwise::Number;
use netcl_core::kernels::expr::cpu::Program;
use netcl_core::kernels::expr::{Expr, Graph};
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};

/// Refuses an epilogue that does not fit the device of an operand, or its own expression.
pub(crate) fn check(op: &'static str, x: &Tensor, epilogue: &Epilogue<'_>) -> Result<()> {
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

/// An epilogue that owns its expression; without one, results are written as they are.
pub(crate) struct OwnedEpilogue {
    expr: Option<Expr>,
    inputs: Vec<Tensor>,
    scalars: Vec<Number>,
    dtype: DType,
}

impl OwnedEpilogue {
    /// What a call was given, for a result of a dtype. The inputs come with each [run](OwnedEpilogue::then).
    pub(crate) fn new(epilogue: Option<&Epilogue<'_>>, dtype: DType) -> Self {
        let (expr, scalars) = epilogue.map(|e| (e.expr.clone(), e.scalars.clone())).unzip();
        OwnedEpilogue { expr, inputs: Vec::new(), scalars: scalars.unwrap_or_default(), dtype }
    }

    /// With these inputs, and another epilogue after it.
    pub(crate) fn then(&self, own: &[Tensor], next: Option<Epilogue<'_>>) -> OwnedEpilogue {
        let (expr, inputs, scalars) = (self.expr.clone(), own.to_vec(), self.scalars.clone());
        let Some(next) = next else { return OwnedEpilogue { expr, inputs, scalars, dtype: self.dtype } };
        let first = expr.unwrap_or_else(|| COPY.clone());
        OwnedEpilogue {
            expr: Some(next.after(&first, 1 + own.len())),
            inputs: inputs.into_iter().chain(next.inputs).collect(),
            scalars: scalars.into_iter().chain(next.scalars).collect(),
            dtype: next.dtype.unwrap_or(self.dtype),
        }
    }

    pub(crate) fn epilogue(&self) -> Option<Epilogue<'_>> {
        let (inputs, scalars) = (self.inputs.clone(), self.scalars.clone());
        self.expr.as_ref().map(|expr| Epilogue { expr, inputs, scalars, dtype: Some(self.dtype) })
    }
}

/// The epilogue of an operation that has none, for results of another type than the sums.
pub(crate) static COPY: LazyLock<Expr> = LazyLock::new(|| {
    let g = Graph::new();
    g.finish(&[g.input(0)])
});

/// The compiled expression; made once per process.
pub(crate) fn program(expr: &Expr, compute: DType) -> Result<Arc<Program>> {
    type Cache = HashMap<(Expr, DType), Arc<Program>>;
    static CACHE: LazyLock<RwLock<Cache>> = LazyLock::new(RwLock::default);
    let key = (expr.clone(), compute);
    if let Some(found) = CACHE.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
        return Ok(found.clone());
    }
    let made = Arc::new(Program::compile(expr, compute)?);
    Ok(CACHE.write().unwrap_or_else(PoisonError::into_inner).entry(key).or_insert(made).clone())
}
