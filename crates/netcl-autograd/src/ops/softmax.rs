//! Softmax and its logarithm.

use netcl_ops as ops;
use netcl_ops::Axes;
use smallvec::smallvec;

use super::elementwise::{exp, mul, neg, sub};
use super::reduce::sum;
use crate::error::Result;
use crate::graph::{Save, record};
use crate::tensor::Tensor;

/// `exp(x) / sum(exp(x))` along an axis, stable.
#[track_caller]
pub fn softmax(x: &Tensor, axis: isize) -> Result<Tensor> {
    record("softmax", &[x], ops::softmax(x.raw(), axis)?, Save::OUTPUT, || {
        Box::new(move |context, upstream| Ok(smallvec![Some(softmax_backward(upstream, &context.output()?, axis)?)]))
    })
}

/// `log(softmax(x))` along an axis, stable.
#[track_caller]
pub fn log_softmax(x: &Tensor, axis: isize) -> Result<Tensor> {
    record("log_softmax", &[x], ops::log_softmax(x.raw(), axis)?, Save::OUTPUT, || {
        Box::new(move |context, upstream| {
            Ok(smallvec![Some(log_softmax_backward(upstream, &context.output()?, axis)?)])
        })
    })
}

/// The sum along an axis of a product, with a length of one.
fn dot(a: &Tensor, b: &Tensor, axis: isize) -> Result<Tensor> {
    sum(&mul(a, b)?, Axes::One(axis), true)
}

/// `y * (g - sum(g * y))`, for second derivatives with a gradient of its own: the map is symmetric in `g`, and along a change
/// of `y` it moves by `h * (g - sum(g * y)) - g * sum(h * y)`.
fn softmax_backward(g: &Tensor, y: &Tensor, axis: isize) -> Result<Tensor> {
    let result = ops::softmax_backward(g.raw(), y.raw(), axis)?;
    record("softmax_backward", &[g, y], result, Save::INPUTS, || {
        Box::new(move |context, h| {
            let (g, y) = (context.input(0)?, context.input(1)?);
            let d_g = context.if_wanted(0, || softmax_backward(h, &y, axis))?;
            let d_y = context
                .if_wanted(1, || sub(&mul(h, &sub(&g, &dot(&g, &y, axis)?)?)?, &mul(&g, &dot(h, &y, axis)?)?))?;
            Ok(smallvec![d_g, d_y])
        })
    })
}

/// `g - exp(y) * sum(g)`; its gradients are `h - sum(h * exp(y))` and `-h * exp(y) * sum(g)`.
pub(crate) fn log_softmax_backward(g: &Tensor, y: &Tensor, axis: isize) -> Result<Tensor> {
    let result = ops::log_softmax_backward(g.raw(), y.raw(), axis)?;
    record("log_softmax_backward", &[g, y], result, Save::INPUTS, || {
        Box::new(move |context, h| {
            let (g, y) = (context.input(0)?, context.input(1)?);
            let powers = exp(&y)?;
            let d_g = context.if_wanted(0, || sub(h, &dot(h, &powers, axis)?))?;
            let d_y = context.if_wanted(1, || {
                let total = sum(&g, Axes::One(axis), true)?;
                mul(&neg(h)?, &mul(&powers, &total)?)
            })?;
            Ok(smallvec![d_g, d_y])
        })
    })
}
