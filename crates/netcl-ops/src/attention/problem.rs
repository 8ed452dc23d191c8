//! The shapes, strides and checks of attention.

use netcl_core::backend::Queue;
use netcl_core::dtype::DType;
use netcl_core::shape::Shape;
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};

use super::{Attention, AttentionOptions};
use crate::dropout::cpu::keep_below;
use crate::dropout::{MaskPlace, check_probability, keep_and_scale};

/// Tensors whose last axis is dense, of the dtype that is computed with on the CPU and stored on other devices.
pub(super) struct Problem {
    pub(super) op: &'static str,
    pub(super) batch: usize,
    pub(super) heads: usize,
    /// Queries, keys, width and value width.
    pub(super) l: usize,
    pub(super) s: usize,
    pub(super) d: usize,
    pub(super) dv: usize,
    pub(super) q: Tensor,
    pub(super) k: Tensor,
    pub(super) v: Tensor,
    /// Expanded to `[batch, heads, queries, keys]`.
    pub(super) mask: Option<Tensor>,
    pub(super) causal: bool,
    pub(super) scale: f64,
    pub(super) drop: Option<Drop>,
}

/// Dropout of probabilities.
pub(super) struct Drop {
    pub(super) place: MaskPlace,
    /// The number that the upper 24 bits of a kept element's word stay below.
    pub(super) below: u32,
    /// What kept probabilities are multiplied by.
    pub(super) scale: f64,
}

/// What forward writes; dense.
#[derive(Clone, Copy)]
pub(super) struct Saved<'t> {
    pub(super) out: &'t Tensor,
    pub(super) logsumexp: &'t Tensor,
}

/// What backward reads and writes beside the problem.
pub(super) struct Backward<'t> {
    /// Of the output; its last axis is dense.
    pub(super) grad: &'t Tensor,
    pub(super) out: &'t Tensor,
    /// Dense.
    pub(super) logsumexp: &'t Tensor,
    /// For each query the sum of output times gradient; dense, written first.
    pub(super) delta: &'t Tensor,
    /// Of q, k and v; dense.
    pub(super) gradients: [&'t Tensor; 3],
}

impl Problem {
    pub(super) fn new(
        op: &'static str,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        options: &AttentionOptions<'_>,
    ) -> Result<Problem> {
        q.check_float(op)?;
        let shape = |t: &Tensor, what: &str| match t.shape()[..] {
            [batch, heads, length, width] => Ok([batch, heads, length, width]),
            _ => {
                let why = format!("{what} must have the four axes batch, heads, length and width");
                Err(Error::Shape { op, shape: t.shape().clone(), why })
            }
        };
        let [batch, heads, l, d] = shape(q, "q")?;
        let [k_batch, k_heads, s, k_width] = shape(k, "k")?;
        let [v_batch, v_heads, v_length, dv] = shape(v, "v")?;
        for t in [k, v] {
            q.queue().check_same_device(op, t.queue())?;
            if t.dtype() != q.dtype() {
                return Err(Error::DtypeMismatch { op, lhs: q.dtype(), rhs: t.dtype() });
            }
        }
        if [k_batch, k_heads, k_width] != [batch, heads, d] {
            let why = format!("k must have the batch, heads and width of q, whose shape is {}", q.shape());
            return Err(Error::Shape { op, shape: k.shape().clone(), why });
        }
        if [v_batch, v_heads, v_length] != [batch, heads, s] {
            let why = format!("v must have the batch, heads and length of k, whose shape is {}", k.shape());
            return Err(Error::Shape { op, shape: v.shape().clone(), why });
        }
        if let Some((t, what)) = [(q, "q"), (v, "v")].into_iter().find(|(t, _)| t.shape()[3] == 0) {
            let why = format!("{what} must have a width of at least 1");
            return Err(Error::Shape { op, shape: t.shape().clone(), why });
        }
        let scale = options.scale.unwrap_or_else(|| (d as f64).sqrt().recip());
        if !scale.is_finite() {
            return Err(Error::argument(op, format!("the scale {scale} must be finite")));
        }
        let mask = options.mask.map(|mask| check_mask(op, mask, q, [batch, heads, l, s])).transpose()?;
        let drop = match &options.dropout {
            Some((p, place)) => {
                check_probability(op, *p)?;
                let (keep, scale) = keep_and_scale(*p);
                (*p > 0.0).then(|| Drop { place: place.clone(), below: keep_below(keep), scale })
            }
            None => None,
        };
        let [q, k, v] = [usable(q)?, usable(k)?, usable(v)?];
        Ok(Problem { op, batch, heads, l, s, d, dv, q, k, v, mask, causal: options.causal, scale, drop })
    }

    /// Checks what forward saved and the gradient of its output against the problem.
    pub(super) fn check_saved(&self, grad: &Tensor, saved: &Attention) -> Result<(Tensor, Tensor, Tensor)> {
        let op = self.op;
        let [batch, heads, l] = self.rows_shape();
        let full = Shape::from([batch, heads, l, self.dv]);
        for (what, t, shape) in [
            ("the gradient", grad, full.clone()),
            ("the saved output", &saved.out, full),
            ("the saved logsumexp", &saved.logsumexp, Shape::from([batch, heads, l])),
        ] {
            self.q.queue().check_same_device(op, t.queue())?;
            if t.shape() != &shape {
                let why = format!("{what} must have shape {shape}");
                return Err(Error::Shape { op, shape: t.shape().clone(), why });
            }
        }
        for t in [grad, &saved.out] {
            if usable_dtype(t) != self.q.dtype() {
                return Err(Error::DtypeMismatch { op, lhs: self.q.dtype(), rhs: t.dtype() });
            }
        }
        let sums = self.q.dtype().accumulator();
        if saved.logsumexp.dtype() != sums {
            return Err(Error::DtypeMismatch { op, lhs: sums, rhs: saved.logsumexp.dtype() });
        }
        Ok((usable(grad)?, usable(&saved.out)?, saved.logsumexp.contiguous()?))
    }

    /// The shape of what is kept for each query.
    pub(super) fn rows_shape(&self) -> [usize; 3] {
        [self.batch, self.heads, self.l]
    }

    /// Queries of all batches and heads.
    pub(super) fn rows(&self) -> usize {
        self.batch * self.heads * self.l
    }

    /// Operations of so many products of the size of `q k^T`; half of them where half of the keys are hidden.
    pub(super) fn flops(&self, products: usize) -> f64 {
        let all = 2.0 * self.rows() as f64 * self.s as f64 * (self.d + self.dv) as f64 / 2.0 * products as f64;
        if self.causal { all / 2.0 } else { all }
    }

    /// What must be read and written once.
    pub(super) fn bytes(&self) -> f64 {
        let elements = self.q.size() + self.k.size() + self.v.size() + self.rows() * self.dv;
        (elements * self.q.dtype().size()) as f64
    }
}

fn check_mask(op: &'static str, mask: &Tensor, q: &Tensor, shape: [usize; 4]) -> Result<Tensor> {
    q.queue().check_same_device(op, mask.queue())?;
    if mask.dtype() != q.dtype() {
        return Err(Error::DtypeMismatch { op, lhs: q.dtype(), rhs: mask.dtype() });
    }
    let shape = Shape::from(shape);
    if mask.ndim() > 4 || mask.shape().broadcast(op, &shape)? != shape {
        let why = format!("the mask must broadcast to the scores, whose shape is {shape}");
        return Err(Error::Shape { op, shape: mask.shape().clone(), why });
    }
    mask.cast(usable_dtype(mask))?.expand(shape)
}

/// The native code computes with float32 or float64; kernels widen as they read.
fn usable_dtype(t: &Tensor) -> DType {
    match t.queue() {
        Queue::Cpu(_) => t.dtype().accumulator(),
        Queue::OpenCl(_) => t.dtype(),
    }
}

/// The tensor with a dense last axis, in the dtype that the backend takes.
fn usable(t: &Tensor) -> Result<Tensor> {
    let t = t.cast(usable_dtype(t))?;
    let last = t.ndim().saturating_sub(1);
    if t.layout().strides().get(last) == Some(&1) || t.shape().get(last) == Some(&1) { Ok(t) } else { t.contiguous() }
}
