//! Vectors along an axis: their lengths, distances and angles.

use std::sync::{Arc, LazyLock};

use netcl_core::kernels::expr::Graph;

use super::elementwise::{ExprOp, div, maximum, mul, sub};
use super::layout::unsqueeze;
use super::reduce::{norm, sum};
use crate::autocast;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// The cosine of the angle between vectors along an axis; a vector shorter than `eps` counts as one of that length.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::distance::cosine_similarity};
///
/// let queue = manager().cpu().queue;
/// let a = Tensor::from_host(&queue, &[3.0f32, 4.0], [1, 2])?;
/// let b = Tensor::from_host(&queue, &[0.0f32, 2.0], [2])?;
/// assert_eq!(cosine_similarity(&a, &b, -1, 1e-8)?.to_host::<f32>()?, [0.8]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn cosine_similarity(x1: &Tensor, x2: &Tensor, axis: isize, eps: f64) -> Result<Tensor> {
    /// Inputs: the product of the vectors, both lengths. Scalar: eps. Each length divides by itself: their product could overflow.
    static OP: LazyLock<Arc<ExprOp>> = LazyLock::new(|| {
        let g = Graph::new();
        let [product, first, second] = std::array::from_fn(|i| g.input(i));
        let cosine = product / first.max(g.scalar(0)) / second.max(g.scalar(0));
        ExprOp::new("cosine_similarity", g.finish(&[cosine]))
    });
    if let Some(casts) = autocast::enter("cosine_similarity", [x1, x2]) {
        return cosine_similarity(&casts.of(x1)?, &casts.of(x2)?, axis, eps);
    }
    let shape = x1.shape().broadcast("cosine_similarity", x2.shape())?;
    // An axis counted from the front is one of the broadcast shape.
    let axis = shape.axis("cosine_similarity", axis)? as isize;
    let (x1, x2) = (x1.expand(&shape)?, x2.expand(&shape)?);
    let product = sum(&mul(&x1, &x2)?, axis, false)?;
    OP.apply(&[&product, &norm(&x1, 2.0, axis, false)?, &norm(&x2, 2.0, axis, false)?], &[eps.into()])
}

/// The p-norm of `x1 - x2 + eps` along the last axis; eps keeps the distance of equal vectors differentiable.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::distance::pairwise_distance};
///
/// let queue = manager().cpu().queue;
/// let a = Tensor::from_host(&queue, &[3.0f32, 4.0], [1, 2])?;
/// let b = Tensor::from_host(&queue, &[0.0f32, 0.0], [1, 2])?;
/// assert_eq!(pairwise_distance(&a, &b, 2.0, 0.0, false)?.to_host::<f32>()?, [5.0]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn pairwise_distance(x1: &Tensor, x2: &Tensor, p: f64, eps: f64, keepdims: bool) -> Result<Tensor> {
    static SHIFTED: LazyLock<Arc<ExprOp>> = LazyLock::new(|| {
        let g = Graph::new();
        ExprOp::new("pairwise_difference", g.finish(&[g.input(0) - g.input(1) + g.scalar(0)]))
    });
    if let Some(casts) = autocast::enter("pairwise_distance", [x1, x2]) {
        return pairwise_distance(&casts.of(x1)?, &casts.of(x2)?, p, eps, keepdims);
    }
    norm(&SHIFTED.apply(&[x1, x2], &[eps.into()])?, p, -1, keepdims)
}

/// Vectors along an axis divided by their p-norm, or by `eps` where that is larger.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::distance::normalize};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[3.0f32, 4.0, 0.0, 0.0], [2, 2])?;
/// assert_eq!(normalize(&x, 2.0, 1, 1e-12)?.to_host::<f32>()?, [0.6, 0.8, 0.0, 0.0]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn normalize(x: &Tensor, p: f64, axis: isize, eps: f64) -> Result<Tensor> {
    if let Some(casts) = autocast::enter("normalize", [x]) {
        return normalize(&casts.of(x)?, p, axis, eps);
    }
    div(x, &maximum(&norm(x, p, axis, true)?, eps)?)
}

/// The p-norms of the differences of all pairs of rows: `[..., P, M]` and `[..., R, M]` give `[..., P, R]`. Takes memory for all
/// differences; equal rows have the gradient 0.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::distance::cdist};
///
/// let queue = manager().cpu().queue;
/// let a = Tensor::from_host(&queue, &[0.0f32, 0.0, 3.0, 0.0], [2, 2])?;
/// let b = Tensor::from_host(&queue, &[0.0f32, 4.0], [1, 2])?;
/// assert_eq!(cdist(&a, &b, 2.0)?.to_host::<f32>()?, [4.0, 5.0]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn cdist(x1: &Tensor, x2: &Tensor, p: f64) -> Result<Tensor> {
    let op = "cdist";
    if let Some(casts) = autocast::enter(op, [x1, x2]) {
        return cdist(&casts.of(x1)?, &casts.of(x2)?, p);
    }
    for x in [x1, x2] {
        if x.ndim() < 2 {
            return Err(Error::shape(op, x.shape(), "it takes matrices of rows, or batches of them"));
        }
    }
    norm(&sub(&unsqueeze(x1, -2)?, &unsqueeze(x2, -3)?)?, p, -1, false)
}
