//! Drawing indices by their scores: the score that is largest with Gumbel's noise added is drawn with the probability that
//! softmax gives it. Nothing is read by the host, so a recorded step may draw.

use std::sync::{Arc, LazyLock};

use netcl_core::backend::Queue;
use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_core::kernels::expr::Graph;
use netcl_core::random::Generator;
use netcl_core::shape::Shape;
use netcl_core::tensor::{Tensor as Raw, reshape};
use netcl_ops as ops;

use super::elementwise::{ExprOp, cast, ge, sub};
use super::indexing::masked_fill;
use super::random::uniform;
use super::reduce::{argmax, cumsum};
use super::softmax::softmax;
use super::sort::topk;
use crate::error::Result;
use crate::graph::no_grad;
use crate::tensor::Tensor;

/// Which indices may be drawn, and how much likelier high scores make them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// What scores are divided by; above 0.
    pub temperature: f64,
    /// Only so many of the likeliest; all where none is given.
    pub top_k: Option<usize>,
    /// Only the likeliest that together have at least this probability.
    pub top_p: Option<f64>,
}

/// Gumbel's noise in float32.
pub fn gumbel(queue: &Queue, shape: impl Into<Shape>, generator: Option<&mut Generator>) -> Result<Tensor> {
    /// Of a uniform number in [0, 1). The logarithm of 1 - u is 0 for one u in 2^24, half of which is as good a representative and
    /// has a finite logarithm.
    static NOISE: LazyLock<Arc<ExprOp>> = LazyLock::new(|| {
        let g = Graph::new();
        let exponential = (-(-g.input(0)).log1p()).max(0.5f64.powi(25));
        ExprOp::new("gumbel_noise", g.finish(&[-exponential.log()]))
    });
    NOISE.apply(&[&uniform(queue, shape, DType::F32, 0.0, 1.0, generator)?], &[])
}

/// The number of candidates of each row for which [`draw`] wants noise.
pub fn candidates(scores: usize, choice: &Choice) -> usize {
    choice.top_k.map_or(scores, |k| k.min(scores))
}

/// An index of each row of scores `[rows, scores]`: the one whose score over the temperature plus noise `[rows, candidates]` is
/// largest.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::sampling::{Choice, draw, gumbel}};
///
/// let queue = manager().cpu().queue;
/// let scores = Tensor::from_host(&queue, &[0.0f32, 50.0, 0.0, 0.0, 0.0, 50.0], [2, 3])?;
/// let choice = Choice { temperature: 1.0, top_k: None, top_p: Some(0.9) };
/// assert_eq!(draw(&scores, &gumbel(&queue, [2, 3], None)?, &choice)?.to_host()?, [1, 2]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
pub fn draw(scores: &Tensor, noise: &Tensor, choice: &Choice) -> Result<IndexTensor> {
    /// Inputs: scores, noise. Scalar: temperature.
    static NOISY: LazyLock<Arc<ExprOp>> = LazyLock::new(|| {
        let g = Graph::new();
        ExprOp::new("noisy_scores", g.finish(&[g.input(0) / g.scalar(0) + g.input(1)]))
    });
    /// Input: scores. Scalar: temperature.
    static COOLED: LazyLock<Arc<ExprOp>> = LazyLock::new(|| {
        let g = Graph::new();
        ExprOp::new("cooled_scores", g.finish(&[g.input(0) / g.scalar(0)]))
    });
    let _off = no_grad();
    // 16 bits are too few for sums of many probabilities.
    let scores = cast(&scores.detach(), scores.dtype().accumulator())?;
    let temperature = [choice.temperature.into()];
    let sorted = choice.top_k.is_some() || choice.top_p.is_some();
    let (scores, indices) = match sorted {
        false => (scores, None),
        true => {
            let (values, indices) = topk(&scores, candidates(scores.shape()[1], choice), 1, true)?;
            (values, Some(indices))
        }
    };
    let scores = match choice.top_p {
        None => scores,
        Some(enough) => {
            let shares = softmax(&COOLED.apply(&[&scores], &temperature)?, 1)?;
            let before = sub(&cumsum(&shares, 1)?, &shares)?;
            masked_fill(&scores, ge(&before, enough)?.raw(), f64::NEG_INFINITY)?
        }
    };
    let noise = cast(noise, scores.dtype())?;
    let best = argmax(&NOISY.apply(&[&scores, &noise], &temperature)?, Some(1), indices.is_some())?;
    let Some(indices) = indices else { return Ok(best) };
    let drawn = ops::gather(indices.tensor(), 1, &best)?;
    let rows = drawn.shape()[0];
    Ok(IndexTensor::from_tensor(reshape(&drawn, [rows])?)?)
}

/// How often each of some classes was seen, `[rows, classes]`, after indices `[rows, length]` as well.
pub fn count(before: &Tensor, indices: &IndexTensor) -> Result<Tensor> {
    let ones = Raw::full(before.queue(), indices.tensor().shape().clone(), before.dtype(), 1.0)?;
    Ok(ops::scatter_add(before.raw(), 1, indices, &ones)?.into())
}

/// Scores of which those that were seen are less likely: divided by the penalty above 0, multiplied by it below.
pub fn penalize(scores: &Tensor, seen: &Tensor, penalty: f64) -> Result<Tensor> {
    /// Inputs: scores, seen. Scalar: penalty.
    static PENALIZED: LazyLock<Arc<ExprOp>> = LazyLock::new(|| {
        let g = Graph::new();
        let (x, penalty) = (g.input(0), g.scalar(0));
        let less = x.gt(0.0).select(x / penalty, x * penalty);
        ExprOp::new("penalized_scores", g.finish(&[g.input(1).gt(0.0).select(less, x)]))
    });
    PENALIZED.apply(&[scores, &cast(seen, scores.dtype())?], &[penalty.into()])
}
