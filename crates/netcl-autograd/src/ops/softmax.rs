//! Softmax and its logarithm.

use netcl_ops as ops;
use netcl_ops::Axes;
use smallvec::smallvec;

use super::elementwise::{exp, mul, sub};
use super::reduce::sum;
use crate::error::Result;
use crate::graph::{Save, record};
use crate::tensor::Tensor;

/// `exp(x) / sum(exp(x))` along an axis, stable.
#[track_caller]
pub fn softmax(x: &Tensor, axis: isize) -> Result<Tensor> {
    record("softmax", &[x], ops::softmax(x.raw(), axis)?, Save::OUTPUT, || {
        Box::new(move |context, upstream| {
            let y = context.output()?;
            let weighted = mul(upstream, &y)?;
            Ok(smallvec![Some(sub(&weighted, &mul(&y, &sum(&weighted, Axes::One(axis), true)?)?)?)])
        })
    })
}

/// `log(softmax(x))` along an axis, stable.
#[track_caller]
pub fn log_softmax(x: &Tensor, axis: isize) -> Result<Tensor> {
    record("log_softmax", &[x], ops::log_softmax(x.raw(), axis)?, Save::OUTPUT, || {
        Box::new(move |context, upstream| {
            let total = sum(upstream, Axes::One(axis), true)?;
            Ok(smallvec![Some(sub(upstream, &mul(&exp(&context.output()?)?, &total)?)?)])
        })
    })
}
