//! Softmax and its logarithm.

use std::sync::{Arc, LazyLock};

use netcl_core::kernels::expr::Graph;
use netcl_ops as ops;
use netcl_ops::Axes;
use smallvec::smallvec;

use super::elementwise::{ExprOp, mul};
use super::reduce::sum;
use crate::error::Result;
use crate::graph::{Save, record};
use crate::tensor::Tensor;

/// `y * (upstream - total)`
static SOFTMAX_SLOPE: LazyLock<Arc<ExprOp>> = LazyLock::new(|| {
    let g = Graph::new();
    let [upstream, y, total] = std::array::from_fn(|i| g.input(i));
    ExprOp::new("softmax_backward", g.finish(&[y * (upstream - total)]))
});

/// `upstream - exp(y) * total`
static LOG_SOFTMAX_SLOPE: LazyLock<Arc<ExprOp>> = LazyLock::new(|| {
    let g = Graph::new();
    let [upstream, y, total] = std::array::from_fn(|i| g.input(i));
    ExprOp::new("log_softmax_backward", g.finish(&[upstream - y.exp() * total]))
});

/// `exp(x) / sum(exp(x))` along an axis, stable.
#[track_caller]
pub fn softmax(x: &Tensor, axis: isize) -> Result<Tensor> {
    record("softmax", &[x], ops::softmax(x.raw(), axis)?, Save::OUTPUT, || {
        Box::new(move |context, upstream| {
            let y = context.output()?;
            let total = sum(&mul(upstream, &y)?, Axes::One(axis), true)?;
            Ok(smallvec![Some(SOFTMAX_SLOPE.apply(&[upstream, &y, &total], &[])?)])
        })
    })
}

/// `log(softmax(x))` along an axis, stable.
#[track_caller]
pub fn log_softmax(x: &Tensor, axis: isize) -> Result<Tensor> {
    record("log_softmax", &[x], ops::log_softmax(x.raw(), axis)?, Save::OUTPUT, || {
        Box::new(move |context, upstream| {
            let total = sum(upstream, Axes::One(axis), true)?;
            Ok(smallvec![Some(LOG_SOFTMAX_SLOPE.apply(&[upstream, &context.output()?, &total], &[])?)])
        })
    })
}
