//! Attention and rotary embedding.

use netcl_core::dtype::DType;
use netcl_core::random::Generator;
use netcl_core::shape::Slice;
use netcl_core::tensor::Tensor as Raw;
use netcl_ops as ops;
use netcl_ops::attention::{self as raw, AttentionOptions};
pub use netcl_ops::attention::{RotaryForm, RotaryTables};
use netcl_ops::dropout::MaskPlace;
use smallvec::smallvec;

use super::elementwise::{add, gt, mul, where_};
use super::fused::record_fused;
use super::layout::{slice, transpose, tril};
use super::linear_map::LinearMap;
use super::matmul::matmul;
use super::pad::{PadMode, pad};
use super::softmax::softmax;
use crate::autocast;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// How [`scaled_dot_product_attention`] weighs keys.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attention<'t> {
    /// Query i sees the keys 0 to i only.
    pub causal: bool,
    /// Added to the scores; broadcast to `[batch, heads, queries, keys]`. Minus infinity hides a key. It has no gradient.
    pub mask: Option<&'t Tensor>,
    /// The probability with which a weight is dropped.
    pub dropout: f64,
    /// What scores are multiplied by; `1 / sqrt(width)` if not given.
    pub scale: Option<f64>,
}

/// `softmax(q k^T * scale + mask) v` for every batch and head, in memory linear in the number of queries and keys.
///
/// `q` is `[batch, heads, queries, width]`, `k` `[batch, heads, keys, width]`, `v` `[batch, heads, keys, value width]`. A query
/// whose keys are all hidden gives zeros. Random numbers come from the generator, or from the process-wide one.
///
/// ```
/// use netcl_autograd::{DType, Tensor, manager, ops::attention::{Attention, scaled_dot_product_attention}};
///
/// let queue = manager().cpu().queue;
/// let q = Tensor::full(&queue, [1, 1, 2, 4], DType::F32, 0.5)?;
/// let v = Tensor::from_host(&queue, &[1.0f32, 3.0], [1, 1, 2, 1])?.with_grad();
/// let causal = Attention { causal: true, ..Default::default() };
/// let out = scaled_dot_product_attention(&q, &q, &v, &causal, None)?;
/// assert_eq!(out.to_host::<f32>()?, [1.0, 2.0]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn scaled_dot_product_attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    how: &Attention<'_>,
    generator: Option<&mut Generator>,
) -> Result<Tensor> {
    if how.mask.is_some_and(Tensor::requires_grad) {
        let what = "the mask has no gradient; detach() it, or write the attention with matmul and softmax".to_owned();
        return Err(Error::NoGradient { op: "scaled_dot_product_attention", what });
    }
    if let Some(casts) = autocast::enter("scaled_dot_product_attention", [q, k, v]) {
        let mask = casts.given(how.mask)?;
        let how = Attention { mask: mask.as_ref(), ..*how };
        return scaled_dot_product_attention(&casts.of(q)?, &casts.of(k)?, &casts.of(v)?, &how, generator);
    }
    let mask: Option<Raw> = how.mask.map(|mask| mask.raw().clone());
    let mut options = AttentionOptions { causal: how.causal, mask: mask.as_ref(), dropout: None, scale: how.scale };
    if how.dropout != 0.0 {
        options = options.with_dropout(how.dropout, q.raw(), k.raw(), generator);
    }
    let dropout = options.dropout.clone();
    let saved = raw::scaled_dot_product_attention(q.raw(), k.raw(), v.raw(), &options)?;
    let output = saved.out.clone();
    let (causal, scale) = (how.causal, how.scale);
    let again = (mask.clone(), dropout.clone());
    let fast = move |inputs: &[Tensor], upstream: &Tensor| {
        let [q, k, v] = inputs else { return Ok(smallvec![None; inputs.len()]) };
        let (mask, dropout) = &again;
        let options = AttentionOptions { causal, mask: mask.as_ref(), dropout: dropout.clone(), scale };
        let found =
            raw::scaled_dot_product_attention_backward(upstream.raw(), q.raw(), k.raw(), v.raw(), &saved, &options)?;
        Ok([found.q, found.k, found.v].into_iter().map(|raw| Some(raw.into())).collect())
    };
    let composite = move |inputs: &[Tensor]| {
        let [q, k, v] = inputs else { return Ok(inputs[0].clone()) };
        in_pieces(q, k, v, causal, mask.as_ref(), dropout.as_ref(), scale)
    };
    record_fused("scaled_dot_product_attention", &[q, k, v], output, fast, composite)
}

/// The same with all scores in memory: what second derivatives are taken of.
fn in_pieces(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    causal: bool,
    mask: Option<&Raw>,
    dropout: Option<&(f64, MaskPlace)>,
    scale: Option<f64>,
) -> Result<Tensor> {
    let width = q.shape().last().copied().unwrap_or(1);
    let mut scores = mul(&matmul(q, &transpose(k, -1, -2)?)?, scale.unwrap_or(1.0 / (width as f64).sqrt()))?;
    // 1 where a key is seen. A query that sees none gets zeros, so hidden scores must not be infinite.
    let mut visible: Tensor = Tensor::full(q.queue(), scores.shape().clone(), q.dtype(), 1.0)?;
    if let Some(mask) = mask {
        let mask: Tensor = mask.cast(q.dtype())?.into();
        let seen = gt(&mask, f64::NEG_INFINITY)?;
        scores = add(&scores, &where_(&seen, &mask, 0.0)?)?;
        visible = mul(&visible, &seen)?;
    }
    if causal {
        visible = tril(&visible, 0)?;
    }
    let hidden = if q.dtype() == DType::F16 { -6e4 } else { -1e30 };
    let mut weights = mul(&softmax(&where_(&visible, &scores, hidden)?, -1)?, &visible)?;
    if let Some((p, place)) = dropout {
        weights = dropped(&weights, *p, place)?;
    }
    matmul(&weights, v)
}

/// Dropout with the kernel's mask, in which every row starts with a random block of its own.
fn dropped(weights: &Tensor, p: f64, place: &MaskPlace) -> Result<Tensor> {
    let keys = weights.shape().last().copied().unwrap_or(0);
    let whole = keys.next_multiple_of(4);
    let rows = pad(weights, &[(0, (whole - keys) as isize)], PadMode::Constant(0.0))?;
    let (forth, back) = (place.clone(), place.clone());
    let map = LinearMap::new(
        ["dropout", "dropout_backward"],
        move |x| ops::dropout_at(x, p, &forth),
        move |grad| ops::dropout_backward(grad, p, &back),
    );
    slice(&map.apply(&rows)?, -1, Slice::new(None, Some(keys as isize), 1))
}

/// Pairs of elements turned by angles that grow with the position: rotary embedding.
#[track_caller]
pub fn rotary(x: &Tensor, tables: &RotaryTables, form: RotaryForm) -> Result<Tensor> {
    let (forth, back) = (tables.clone(), tables.clone());
    LinearMap::new(
        ["rotary", "rotary_backward"],
        move |x| raw::rotary(x, &forth, form),
        move |grad| raw::rotary_backward(grad, &back, form),
    )
    .apply(x)
}
