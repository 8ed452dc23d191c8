//! Losses that compare vectors with vectors.

use std::sync::{Arc, LazyLock};

use netcl_core::Error as CoreError;
use netcl_core::kernels::expr::Graph;

use super::{Reduction, check_number, check_same_shape};
use crate::autocast;
use crate::error::Result;
use crate::ops::distance::pairwise_distance;
use crate::ops::elementwise::{ExprOp, minimum, mul};
use crate::ops::reduce::sum;
use crate::tensor::Tensor;

/// The margin of [`cosine_embedding_loss`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CosineEmbeddingOptions {
    /// Pairs that should differ cost nothing below this cosine; from -1 to 1, better from 0 to 0.5.
    pub margin: f64,
    /// What becomes of the pairs' losses.
    pub reduction: Reduction,
}

/// How [`triplet_margin_loss`] measures distances.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TripletMarginOptions {
    /// How much farther the negative should be than the positive; above 0.
    pub margin: f64,
    /// The norm of the distances; 1 or more.
    pub p: f64,
    /// Added to differences, so that equal vectors have a distance with a slope.
    pub eps: f64,
    /// Uses the distance from positive to negative where it is the smaller one.
    pub swap: bool,
    /// What becomes of the triplets' losses.
    pub reduction: Reduction,
}

impl Default for TripletMarginOptions {
    fn default() -> Self {
        TripletMarginOptions { margin: 1.0, p: 2.0, eps: 1e-6, swap: false, reduction: Reduction::Mean }
    }
}

/// For pairs of vectors along the last axis, `(N, D)` or `(D,)`, and a target of 1 or -1 for each, `(N,)` or `()`:
/// `1 - cos` where the pair should agree, `max(0, cos - margin)` where it should not. A pair with any other target costs 0.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::loss::{CosineEmbeddingOptions, cosine_embedding_loss}};
///
/// let queue = manager().cpu().queue;
/// let a = Tensor::from_host(&queue, &[1.0f32, 0.0, 1.0, 0.0], [2, 2])?;
/// let b = Tensor::from_host(&queue, &[0.0f32, 2.0, 3.0, 0.0], [2, 2])?;
/// let target = Tensor::from_host(&queue, &[1.0f32, -1.0], [2])?;
/// let loss = cosine_embedding_loss(&a, &b, &target, &CosineEmbeddingOptions::default())?;
/// assert!((loss.item()? - 1.0).abs() < 1e-6);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn cosine_embedding_loss(
    first: &Tensor,
    second: &Tensor,
    target: &Tensor,
    options: &CosineEmbeddingOptions,
) -> Result<Tensor> {
    /// Keeps the cosine of a vector of zeros from being 0 / 0.
    const SMALLEST: f64 = 1e-12;
    /// Inputs: the three products, the target. Scalar: the margin.
    static OP: LazyLock<Arc<ExprOp>> = LazyLock::new(|| {
        let g = Graph::new();
        let (product, target) = (g.input(0), g.input(3));
        // Two roots instead of one of the product, whose square could overflow.
        let lengths = (g.input(1) + SMALLEST).sqrt() * (g.input(2) + SMALLEST).sqrt();
        let cosine = product / lengths;
        let apart = target.eq(-1.0).select((cosine - g.scalar(0)).relu(), 0.0);
        ExprOp::new("cosine_embedding_loss", g.finish(&[target.eq(1.0).select(1.0 - cosine, apart)]))
    });
    let op = "cosine_embedding_loss";
    if let Some(casts) = autocast::enter(op, [first, second, target]) {
        return cosine_embedding_loss(&casts.of(first)?, &casts.of(second)?, &casts.of(target)?, options);
    }
    check_number(op, "margin", options.margin, !options.margin.is_nan(), "a number")?;
    check_same_shape(op, first, second)?;
    let fits = matches!(first.ndim(), 1 | 2) && *target.shape() == first.shape().without_axis(first.ndim() - 1, false);
    if !fits {
        let why = format!(
            "vectors of shape (N, D) take a target of shape (N,), vectors of shape (D,) one of shape (); these are {}",
            first.shape()
        );
        return Err(CoreError::Shape { op, shape: target.shape().clone(), why }.into());
    }
    let dot = |a: &Tensor, b: &Tensor| sum(&mul(a, b)?, -1, false);
    let products = [dot(first, second)?, dot(first, first)?, dot(second, second)?];
    let losses = OP.apply(&[&products[0], &products[1], &products[2], target], &[options.margin.into()])?;
    options.reduction.apply(losses)
}

/// `max(0, margin + d(anchor, positive) - d(anchor, negative))` for vectors along the last axis, where
/// `d(a, b)` is the p-norm of `a - b + eps`.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::loss::{TripletMarginOptions, triplet_margin_loss}};
///
/// let queue = manager().cpu().queue;
/// let row = |v: [f32; 2]| Tensor::from_host(&queue, &v, [1, 2]);
/// let (anchor, positive, negative) = (row([0.0, 0.0])?, row([3.0, 4.0])?, row([0.0, 2.0])?);
/// let loss = triplet_margin_loss(&anchor, &positive, &negative, &TripletMarginOptions::default())?;
/// assert!((loss.item()? - 4.0).abs() < 1e-5);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn triplet_margin_loss(
    anchor: &Tensor,
    positive: &Tensor,
    negative: &Tensor,
    options: &TripletMarginOptions,
) -> Result<Tensor> {
    /// Inputs: both distances. Scalar: the margin.
    static OP: LazyLock<Arc<ExprOp>> = LazyLock::new(|| {
        let g = Graph::new();
        ExprOp::new("triplet_margin_loss", g.finish(&[(g.scalar(0) + g.input(0) - g.input(1)).relu()]))
    });
    let op = "triplet_margin_loss";
    if let Some(casts) = autocast::enter(op, [anchor, positive, negative]) {
        return triplet_margin_loss(&casts.of(anchor)?, &casts.of(positive)?, &casts.of(negative)?, options);
    }
    let TripletMarginOptions { margin, p, eps, swap, reduction } = *options;
    check_number(op, "margin", margin, margin > 0.0, "above 0")?;
    check_number(op, "p", p, p >= 1.0 && p.is_finite(), "a finite number of at least 1")?;
    check_number(op, "eps", eps, eps.is_finite(), "a finite number")?;
    check_same_shape(op, anchor, positive)?;
    check_same_shape(op, anchor, negative)?;
    if anchor.ndim() == 0 {
        let why = "vectors lie along the last axis, and a scalar has none".to_owned();
        return Err(CoreError::Shape { op, shape: anchor.shape().clone(), why }.into());
    }
    let distance = |a: &Tensor, b: &Tensor| pairwise_distance(a, b, p, eps, false);
    let near = distance(anchor, positive)?;
    let mut far = distance(anchor, negative)?;
    if swap {
        far = minimum(&far, &distance(positive, negative)?)?;
    }
    reduction.apply(OP.apply(&[&near, &far], &[margin.into()])?)
}
