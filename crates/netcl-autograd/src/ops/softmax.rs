//! Softmax, its logarithm and its relatives.

use std::sync::{Arc, LazyLock};

use netcl_core::kernels::expr::Graph;
use netcl_core::random::Generator;
use netcl_core::tensor::Tensor as Raw;
use netcl_ops as ops;
use netcl_ops::Axes;
use smallvec::smallvec;

use super::elementwise::{ExprOp, cast, exp, mul, neg, sub};
use super::reduce::sum;
use super::sampling::gumbel;
use crate::autocast;
use crate::error::{Error, Result};
use crate::graph::{Save, record};
use crate::tensor::Tensor;
use crate::trace;

/// `exp(x) / sum(exp(x))` along an axis, stable.
#[track_caller]
pub fn softmax(x: &Tensor, axis: isize) -> Result<Tensor> {
    if let Some(casts) = autocast::enter("softmax", [x]) {
        return softmax(&casts.of(x)?, axis);
    }
    trace::settings("softmax", || [("axis", axis.into())]);
    record("softmax", &[x], ops::softmax(x.raw(), axis)?, Save::OUTPUT, || {
        Box::new(move |context, upstream| Ok(smallvec![Some(softmax_backward(upstream, &context.output()?, axis)?)]))
    })
}

/// `log(softmax(x))` along an axis, stable.
#[track_caller]
pub fn log_softmax(x: &Tensor, axis: isize) -> Result<Tensor> {
    if let Some(casts) = autocast::enter("log_softmax", [x]) {
        return log_softmax(&casts.of(x)?, axis);
    }
    trace::settings("log_softmax", || [("axis", axis.into())]);
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

/// `softmax(-x)`.
#[track_caller]
pub fn softmin(x: &Tensor, axis: isize) -> Result<Tensor> {
    if let Some(casts) = autocast::enter("softmin", [x]) {
        return softmin(&casts.of(x)?, axis);
    }
    softmax(&neg(x)?, axis)
}

/// A random choice along an axis that can be differentiated: the softmax of `(logits + noise) / tau` with Gumbel's noise. With
/// `hard` the result is one-hot and the gradient still that of the softmax.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::softmax::gumbel_softmax};
///
/// let logits = Tensor::from_host(&manager().cpu().queue, &[50.0f32, 0.0, 0.0], [1, 3])?.with_grad();
/// let choice = gumbel_softmax(&logits, 1.0, true, -1, None)?;
/// assert_eq!(choice.to_host::<f32>()?, [1.0, 0.0, 0.0]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn gumbel_softmax(
    logits: &Tensor,
    tau: f64,
    hard: bool,
    axis: isize,
    generator: Option<&mut Generator>,
) -> Result<Tensor> {
    /// Inputs: logits, noise. Scalar: tau.
    static SCORES: LazyLock<Arc<ExprOp>> = LazyLock::new(|| {
        let g = Graph::new();
        ExprOp::new("gumbel_scores", g.finish(&[(g.input(0) + g.input(1)) / g.scalar(0)]))
    });
    let op = "gumbel_softmax";
    if let Some(casts) = autocast::enter(op, [logits]) {
        return gumbel_softmax(&casts.of(logits)?, tau, hard, axis, generator);
    }
    if !(tau > 0.0 && tau.is_finite()) {
        return Err(Error::argument(op, format!("tau is {tau}, but must be a number above 0")));
    }
    logits.check_float(op)?;
    let axis = logits.shape().axis(op, axis)?;
    // float32 for every dtype: 16 bits are too few for numbers near 1, and the same generator makes the same choice.
    let noise = cast(&gumbel(logits.queue(), logits.shape().clone(), generator)?, logits.dtype())?;
    let soft = softmax(&SCORES.apply(&[logits, &noise], &[tau.into()])?, axis as isize)?;
    if !hard {
        return Ok(soft);
    }
    let choice: Raw = if soft.size() == 0 {
        soft.raw().clone()
    } else {
        let best = ops::argmax(soft.raw(), Some(axis as isize), false)?;
        let ones = Raw::full(soft.queue(), best.tensor().shape().clone(), soft.dtype(), 1.0)?;
        ops::unpick(&ones, axis as isize, &best, soft.shape()[axis], None)?
    };
    record(op, &[&soft], choice, Save::NOTHING, || Box::new(|_, upstream| Ok(smallvec![Some(upstream.clone())])))
}
