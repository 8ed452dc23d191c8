//! Negative log-likelihoods of numbers: of counts, and of values with a variance.

use std::f64::consts::PI;
use std::sync::{Arc, LazyLock};

use netcl_core::kernels::expr::Graph;
use netcl_ops as ops;
use smallvec::smallvec;

use super::{Reduction, check_elements, check_number, check_same_shape};
use crate::autocast;
use crate::error::{Error, Result};
use crate::graph::{Save, record};
use crate::ops::elementwise::ExprOp;
use crate::ops::layout::unsqueeze;
use crate::tensor::Tensor;

/// How [`poisson_nll_loss`] reads its input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PoissonNllOptions {
    /// The input holds logarithms of rates.
    pub log_input: bool,
    /// Adds Stirling's approximation of the part that depends on the target alone.
    pub full: bool,
    /// Added to rates before their logarithm is taken.
    pub eps: f64,
    /// What becomes of the elements' losses.
    pub reduction: Reduction,
}

impl Default for PoissonNllOptions {
    fn default() -> Self {
        PoissonNllOptions { log_input: true, full: false, eps: 1e-8, reduction: Reduction::Mean }
    }
}

/// How [`gaussian_nll_loss`] treats variances.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GaussianNllOptions {
    /// Adds the constant `log(2 * pi) / 2`.
    pub full: bool,
    /// The least variance; smaller ones count as this one, with their gradient.
    pub eps: f64,
    /// What becomes of the elements' losses.
    pub reduction: Reduction,
}

impl Default for GaussianNllOptions {
    fn default() -> Self {
        GaussianNllOptions { full: false, eps: 1e-6, reduction: Reduction::Mean }
    }
}

/// `rate - target * log(rate)`: the negative log-likelihood of counts, without what depends on them alone.
///
/// ```
/// use netcl_autograd::manager;
/// use netcl_autograd::{Tensor, ops::loss::{PoissonNllOptions, poisson_nll_loss}};
///
/// let queue = manager().cpu().queue;
/// let log_rate = Tensor::from_host(&queue, &[0.0f32], [1])?;
/// let target = Tensor::from_host(&queue, &[3.0f32], [1])?;
/// assert_eq!(poisson_nll_loss(&log_rate, &target, &PoissonNllOptions::default())?.item()?, 1.0);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn poisson_nll_loss(input: &Tensor, target: &Tensor, options: &PoissonNllOptions) -> Result<Tensor> {
    /// By (log_input, full). Scalar: eps.
    static OPS: LazyLock<[[Arc<ExprOp>; 2]; 2]> = LazyLock::new(|| {
        [false, true].map(|log_input| {
            [false, true].map(|full| {
                let g = Graph::new();
                let (x, t) = (g.input(0), g.input(1));
                let loss = if log_input { x.exp() - t * x } else { x - t * (x + g.scalar(0)).log() };
                let stirling = t * t.log() - t + (t * (2.0 * PI)).log() * 0.5;
                let loss = if full { loss + t.gt(1.0).select(stirling, 0.0) } else { loss };
                ExprOp::new("poisson_nll_loss", g.finish_with(&[loss], 2, 1))
            })
        })
    });
    let op = "poisson_nll_loss";
    if let Some(casts) = autocast::enter(op, [input, target]) {
        return poisson_nll_loss(&casts.of(input)?, &casts.of(target)?, options);
    }
    let PoissonNllOptions { log_input, full, eps, reduction } = *options;
    check_number(op, "eps", eps, eps.is_finite(), "a finite number")?;
    check_same_shape(op, input, target)?;
    reduction.apply(OPS[usize::from(log_input)][usize::from(full)].apply(&[input, target], &[eps.into()])?)
}

/// `(log(var) + (input - target)^2 / var) / 2`: the negative log-likelihood of values with a variance of their own. The variance has
/// the input's shape, is shared along the last axis (of length 1 or absent), or is one number.
///
/// ```
/// use netcl_autograd::manager;
/// use netcl_autograd::{Tensor, ops::loss::{GaussianNllOptions, gaussian_nll_loss}};
///
/// let queue = manager().cpu().queue;
/// let row = |v: [f32; 2]| Tensor::from_host(&queue, &v, [2]);
/// let (input, target, var) = (row([1.0, 3.0])?, row([1.0, 1.0])?, row([1.0, 1.0])?);
/// assert_eq!(gaussian_nll_loss(&input, &target, &var, &GaussianNllOptions::default())?.item()?, 1.0);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn gaussian_nll_loss(
    input: &Tensor,
    target: &Tensor,
    var: &Tensor,
    options: &GaussianNllOptions,
) -> Result<Tensor> {
    /// Scalar: the constant.
    static OP: LazyLock<Arc<ExprOp>> = LazyLock::new(|| {
        let g = Graph::new();
        let (z, var) = (g.input(0) - g.input(1), g.input(2));
        ExprOp::new("gaussian_nll_loss", g.finish(&[(var.log() + z * z / var) * 0.5 + g.scalar(0)]))
    });
    let op = "gaussian_nll_loss";
    if let Some(casts) = autocast::enter(op, [input, target, var]) {
        return gaussian_nll_loss(&casts.of(input)?, &casts.of(target)?, &casts.of(var)?, options);
    }
    let GaussianNllOptions { full, eps, reduction } = *options;
    check_number(op, "eps", eps, eps > 0.0 && eps.is_finite(), "a number above 0")?;
    check_same_shape(op, input, target)?;
    let var = match input.shape().split_last() {
        Some((_, outer)) if var.shape()[..] == *outer && var.ndim() > 0 => unsqueeze(var, -1)?,
        _ => var.clone(),
    };
    let shared =
        |(i, (&own, &of_input)): (usize, (&usize, &usize))| own == of_input || (own == 1 && i + 1 == input.ndim());
    let fits = var.ndim() == input.ndim() && var.shape().iter().zip(input.shape().iter()).enumerate().all(shared);
    if var.ndim() > 0 && !fits {
        let why = format!("a variance has the input's shape {}, or one element in its last axis", input.shape());
        return Err(Error::shape(op, var.shape(), why));
    }
    check_elements(op, &var, |v| v.is_nan() || v >= 0.0, "the variance", "variances are not negative")?;
    // A variance that is held at eps would learn nothing if its slope were 0.
    let held = ops::maximum(var.raw(), eps)?;
    let held = record("gaussian_nll_floor", &[&var], held, Save::NOTHING, || {
        Box::new(|_, up| Ok(smallvec![Some(up.clone())]))
    })?;
    let constant = if full { 0.5 * (2.0 * PI).ln() } else { 0.0 };
    reduction.apply(OP.apply(&[input, target, &held], &[constant.into()])?)
}
