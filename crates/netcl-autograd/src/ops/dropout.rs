//! Dropout: of elements, and of whole channels.

use std::sync::{Arc, LazyLock};

use netcl_core::kernels::expr::Graph;
use netcl_core::random::Generator;
use netcl_core::shape::Shape;
use netcl_ops::dropout as raw;

use super::elementwise::{ExprOp, mul};
use super::linear_map::LinearMap;
use super::random::bernoulli;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Elements set to zero with probability `p`, the others divided by `1 - p`. The mask comes from the generator (the process-wide
/// one where none is given) and is never stored: the gradient draws it again.
#[track_caller]
pub fn dropout(x: &Tensor, p: f64, generator: Option<&mut Generator>) -> Result<Tensor> {
    let (output, place) = raw::dropout(x.raw(), p, generator)?;
    let again = place.clone();
    let names = ["dropout", "dropout_backward"];
    LinearMap::new(names, move |x| raw::dropout_at(x, p, &place), move |grad| raw::dropout_backward(grad, p, &again))
        .record(x, output)
}

/// What one draw keeps or drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// Each element by itself.
    Elements,
    /// Whole channels of `[N, C, ...]`: neighbouring pixels are too alike for single ones to matter.
    Channels,
}

impl Dropped {
    /// 1 where something is kept and 0 where it is dropped, in a shape that broadcasts to the tensor's.
    fn mask(self, op: &'static str, x: &Tensor, p: f64, generator: Option<&mut Generator>) -> Result<Tensor> {
        if !(0.0..=1.0).contains(&p) {
            return Err(Error::argument(op, format!("{p} is not a probability; use a number from 0 to 1")));
        }
        let shape: Shape = match self {
            Dropped::Elements => x.shape().clone(),
            Dropped::Channels if x.ndim() < 2 => {
                return Err(Error::shape(op, x.shape(), "whole channels are dropped of [N, C, ...]"));
            }
            Dropped::Channels => (0..x.ndim()).map(|axis| if axis < 2 { x.shape()[axis] } else { 1 }).collect(),
        };
        bernoulli(x.queue(), shape, x.dtype(), 1.0 - p, generator)
    }
}

/// [`dropout`] of whole channels of `[N, C, ...]`.
///
/// ```
/// use netcl_autograd::{DType, manager};
/// use netcl_autograd::{Tensor, ops::dropout::feature_dropout};
///
/// let x = Tensor::full(&manager().cpu().queue, [1, 8, 100], DType::F32, 1.0)?;
/// let y = feature_dropout(&x, 0.5, None)?.to_host::<f32>()?;
/// assert!(y.chunks(100).all(|channel| channel == [0.0; 100] || channel == [2.0; 100]));
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn feature_dropout(x: &Tensor, p: f64, generator: Option<&mut Generator>) -> Result<Tensor> {
    /// Inputs: x, mask. Scalar: what kept values are multiplied by.
    static OP: LazyLock<Arc<ExprOp>> = LazyLock::new(|| {
        let g = Graph::new();
        ExprOp::new("feature_dropout", g.finish(&[g.input(1).select(g.input(0) * g.scalar(0), 0.0)]))
    });
    let mask = Dropped::Channels.mask("feature_dropout", x, p, generator)?;
    OP.apply(&[x, &mask], &[(1.0 / (1.0 - p)).into()])
}

/// Dropout for networks of [`selu`](super::elementwise::selu): what is dropped gets selu's lowest value instead of 0, and a scale and
/// a shift keep mean 0 and variance 1. With `p = 1` everything is 0, as in PyTorch.
///
/// ```
/// use netcl_autograd::{DType, manager};
/// use netcl_autograd::{Tensor, ops::dropout::{Dropped, alpha_dropout}};
///
/// let x = Tensor::full(&manager().cpu().queue, [1000], DType::F32, 0.0)?;
/// let y = alpha_dropout(&x, 0.5, Dropped::Elements, None)?.to_host::<f32>()?;
/// assert!(y.iter().all(|&y| (y - 0.7792).abs() < 1e-3 || (y + 0.7792).abs() < 1e-3));
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn alpha_dropout(x: &Tensor, p: f64, dropped: Dropped, generator: Option<&mut Generator>) -> Result<Tensor> {
    /// selu's lowest value: its scale times its alpha, below 0.
    const LOWEST: f64 = -1.758_099_340_847_376_6;
    /// Inputs: x, mask. Scalars: the scale, the shift, what dropped elements become.
    static OP: LazyLock<Arc<ExprOp>> = LazyLock::new(|| {
        let g = Graph::new();
        let kept = g.input(0) * g.scalar(0) + g.scalar(1);
        ExprOp::new("alpha_dropout", g.finish(&[g.input(1).select(kept, g.scalar(2))]))
    });
    let mask = dropped.mask("alpha_dropout", x, p, generator)?;
    if p == 1.0 {
        return mul(x, 0.0);
    }
    let scale = 1.0 / ((1.0 - p) * (1.0 + p * LOWEST * LOWEST)).sqrt();
    let shift = -scale * LOWEST * p;
    OP.apply(&[x, &mask], &[scale.into(), shift.into(), (scale * LOWEST + shift).into()])
}
