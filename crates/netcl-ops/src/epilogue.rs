//! Expressions behind a native product or convolution, compiled.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use netcl_core::Result;
use netcl_core::dtype::DType;
use netcl_core::kernels::expr::cpu::Program;
use netcl_core::kernels::expr::{Expr, Graph};

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
