//! Losses on differences.

use std::sync::{Arc, LazyLock};

use netcl_core::kernels::elementwise::Number;
use netcl_core::kernels::expr::{Graph, Val};

use super::{Reduction, check_number, check_same_shape};
use crate::autocast;
use crate::error::Result;
use crate::ops::elementwise::ExprOp;
use crate::tensor::Tensor;

/// How [`smooth_l1_loss`] bends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SmoothL1Options {
    /// The difference at which the parabola becomes a line; 0 gives [`l1_loss`].
    pub beta: f64,
    /// What becomes of the elements' losses.
    pub reduction: Reduction,
}

impl Default for SmoothL1Options {
    fn default() -> Self {
        SmoothL1Options { beta: 1.0, reduction: Reduction::Mean }
    }
}

/// How [`huber_loss`] bends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HuberOptions {
    /// The difference at which the parabola becomes a line; above 0.
    pub delta: f64,
    /// What becomes of the elements' losses.
    pub reduction: Reduction,
}

impl Default for HuberOptions {
    fn default() -> Self {
        HuberOptions { delta: 1.0, reduction: Reduction::Mean }
    }
}

/// A function of the difference as an operation on input and target.
fn of_difference(name: &'static str, build: impl for<'g> Fn(&'g Graph, Val<'g>) -> Val<'g>) -> Arc<ExprOp> {
    let g = Graph::new();
    let loss = build(&g, g.input(0) - g.input(1));
    ExprOp::new(name, g.finish(&[loss]))
}

#[track_caller]
fn apply(
    op: &'static str,
    expression: &Arc<ExprOp>,
    [input, target]: [&Tensor; 2],
    numbers: &[Number],
    reduction: Reduction,
) -> Result<Tensor> {
    if let Some(casts) = autocast::enter(op, [input, target]) {
        return apply(op, expression, [&casts.of(input)?, &casts.of(target)?], numbers, reduction);
    }
    check_same_shape(op, input, target)?;
    reduction.apply(expression.apply(&[input, target], numbers)?)
}

/// `(input - target)^2`.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::loss::{Reduction, mse_loss}};
///
/// let queue = manager().cpu().queue;
/// let input = Tensor::from_host(&queue, &[1.0f32, 5.0], [2])?.with_grad();
/// let target = Tensor::from_host(&queue, &[2.0f32, 2.0], [2])?;
/// let loss = mse_loss(&input, &target, Reduction::Mean)?;
/// assert_eq!(loss.item()?, 5.0);
/// loss.backward()?;
/// assert_eq!(input.grad().unwrap().to_host::<f32>()?, [-1.0, 3.0]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn mse_loss(input: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    static OP: LazyLock<Arc<ExprOp>> = LazyLock::new(|| of_difference("mse_loss", |_, z| z.square()));
    apply("mse_loss", &OP, [input, target], &[], reduction)
}

/// `|input - target|`; the slope at 0 is 0.
#[track_caller]
pub fn l1_loss(input: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    static OP: LazyLock<Arc<ExprOp>> = LazyLock::new(|| of_difference("l1_loss", |_, z| z.abs()));
    apply("l1_loss", &OP, [input, target], &[], reduction)
}

/// With `z = input - target`: `z^2 / (2 * beta)` where `|z| < beta`, else `|z| - beta / 2`.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::loss::{SmoothL1Options, smooth_l1_loss}};
///
/// let queue = manager().cpu().queue;
/// let input = Tensor::from_host(&queue, &[0.5f32, 3.0], [2])?;
/// let target = Tensor::from_shape(&queue, [2], input.dtype())?;
/// assert_eq!(smooth_l1_loss(&input, &target, &SmoothL1Options::default())?.item()?, (0.125 + 2.5) / 2.0);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn smooth_l1_loss(input: &Tensor, target: &Tensor, options: &SmoothL1Options) -> Result<Tensor> {
    static OP: LazyLock<Arc<ExprOp>> = LazyLock::new(|| {
        of_difference("smooth_l1_loss", |g, z| {
            let beta = g.scalar(0);
            z.abs().lt(beta).select(z * z * 0.5 / beta, z.abs() - beta * 0.5)
        })
    });
    let SmoothL1Options { beta, reduction } = *options;
    check_number("smooth_l1_loss", "beta", beta, beta >= 0.0, "0 or more")?;
    apply("smooth_l1_loss", &OP, [input, target], &[beta.into()], reduction)
}

/// With `z = input - target`: `z^2 / 2` where `|z| <= delta`, else `delta * (|z| - delta / 2)`.
#[track_caller]
pub fn huber_loss(input: &Tensor, target: &Tensor, options: &HuberOptions) -> Result<Tensor> {
    static OP: LazyLock<Arc<ExprOp>> = LazyLock::new(|| {
        of_difference("huber_loss", |g, z| {
            let delta = g.scalar(0);
            z.abs().le(delta).select(z * z * 0.5, delta * (z.abs() - delta * 0.5))
        })
    });
    let HuberOptions { delta, reduction } = *options;
    check_number("huber_loss", "delta", delta, delta > 0.0, "above 0")?;
    apply("huber_loss", &OP, [input, target], &[delta.into()], reduction)
}
