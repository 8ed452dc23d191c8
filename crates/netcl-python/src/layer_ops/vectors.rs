//! Gates, choices, and products, distances and angles of vectors.

use netcl::autograd::ops::{activation, distance, matmul, softmax};
use pyo3::prelude::*;

use super::arguments::inner;
use super::{Mode, both};
use crate::axis;
use crate::index::Made;
use crate::ops::seeded;
use crate::tensor::Tensor;

both! {
    /// The first half of an axis times the sigmoid of the second.
    #[signature(x, axis=None, *, dim=None)]
    #[text("(x, axis=-1, *, dim=None)")]
    fn glu(mode, py, x: &Tensor, axis: Option<isize>, dim: Option<isize>) -> Made {
        let (x, axis) = (&x.inner(), axis::one_or("glu", dim, axis, -1)?);
        mode.tensor(py, x, || activation::glu(x, axis))
    }

    /// ``x`` above 0, elsewhere ``x`` times a slope: with ``training`` a random one from [lower, upper) for each element, else their
    /// mean.
    #[signature(x, lower=0.125, upper=1.0 / 3.0, training=false, *, seed=None)]
    #[text("(x, lower=0.125, upper=0.3333333333333333, training=False, *, seed=None)")]
    fn rrelu(mode, py, x: &Tensor, lower: f64, upper: f64, training: bool, seed: Option<u64>) -> Made {
        let x = &x.inner();
        mode.tensor(py, x, || activation::rrelu(x, lower, upper, training, seeded(seed).as_mut()))
    }

    /// ``softmax(-x)`` along an axis.
    #[signature(x, axis=None, *, dim=None)]
    #[text("(x, axis=-1, *, dim=None)")]
    fn softmin(mode, py, x: &Tensor, axis: Option<isize>, dim: Option<isize>) -> Made {
        let (x, axis) = (&x.inner(), axis::one_or("softmin", dim, axis, -1)?);
        mode.tensor(py, x, || softmax::softmin(x, axis))
    }

    /// A random choice along an axis that can be differentiated: the softmax of ``(logits + noise) / tau`` with Gumbel's noise. With
    /// ``hard`` the result is one-hot, and its gradient still that of the softmax.
    #[signature(logits, tau=1.0, hard=false, axis=None, *, dim=None, seed=None)]
    #[text("(logits, tau=1.0, hard=False, axis=-1, *, dim=None, seed=None)")]
    fn gumbel_softmax(
        mode, py, logits: &Tensor, tau: f64, hard: bool, axis: Option<isize>, dim: Option<isize>, seed: Option<u64>,
    ) -> Made {
        let (logits, axis) = (&logits.inner(), axis::one_or("gumbel_softmax", dim, axis, -1)?);
        mode.tensor(py, logits, || softmax::gumbel_softmax(logits, tau, hard, axis, seeded(seed).as_mut()))
    }

    /// ``x1^T W x2 + bias`` for vectors along the last axes: (..., A) and (..., B) with a weight (F, A, B) give (..., F).
    #[signature(x1, x2, weight, bias=None)]
    #[text("(x1, x2, weight, bias=None)")]
    fn bilinear(mode, py, x1: &Tensor, x2: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Made {
        let (x1, x2, weight, bias) = (&x1.inner(), &x2.inner(), &weight.inner(), &inner(bias));
        let bias = bias.as_deref();
        mode.tensor(py, x1, || matmul::bilinear(x1, x2, weight, bias))
    }

    /// The cosine of the angle between vectors along an axis, broadcast together; a vector shorter than ``eps`` counts as one of
    /// that length.
    #[signature(x1, x2, axis=None, eps=1e-8, *, dim=None)]
    #[text("(x1, x2, axis=1, eps=1e-8, *, dim=None)")]
    fn cosine_similarity(mode, py, x1: &Tensor, x2: &Tensor, axis: Option<isize>, eps: f64, dim: Option<isize>) -> Made {
        let (x1, x2, axis) = (&x1.inner(), &x2.inner(), axis::one_or("cosine_similarity", dim, axis, 1)?);
        mode.tensor(py, x1, || distance::cosine_similarity(x1, x2, axis, eps))
    }

    /// The p-norm of ``x1 - x2 + eps`` along the last axis.
    #[signature(x1, x2, p=2.0, eps=1e-6, keepdims=false, *, keepdim=false)]
    #[text("(x1, x2, p=2.0, eps=1e-6, keepdims=False, *, keepdim=False)")]
    fn pairwise_distance(
        mode, py, x1: &Tensor, x2: &Tensor, p: f64, eps: f64, keepdims: bool, keepdim: bool,
    ) -> Made {
        let (x1, x2) = (&x1.inner(), &x2.inner());
        mode.tensor(py, x1, || distance::pairwise_distance(x1, x2, p, eps, keepdims || keepdim))
    }

    /// Vectors along an axis divided by their p-norm, or by ``eps`` where that is larger.
    #[signature(x, p=2.0, axis=None, eps=1e-12, *, dim=None)]
    #[text("(x, p=2.0, axis=1, eps=1e-12, *, dim=None)")]
    fn normalize(mode, py, x: &Tensor, p: f64, axis: Option<isize>, eps: f64, dim: Option<isize>) -> Made {
        let (x, axis) = (&x.inner(), axis::one_or("normalize", dim, axis, 1)?);
        mode.tensor(py, x, || distance::normalize(x, p, axis, eps))
    }
}
