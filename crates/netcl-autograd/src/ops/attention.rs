//! Attention and rotary embedding.

use std::iter;

use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_core::random::Generator;
use netcl_core::shape::{Shape, Slice};
use netcl_core::tensor::Tensor as Raw;
use netcl_ops as ops;
use netcl_ops::attention::{self as raw, Append, AttentionOptions};
pub use netcl_ops::attention::{RotaryForm, RotaryTables};
use netcl_ops::dropout::MaskPlace;
use smallvec::{SmallVec, smallvec};

use super::elementwise::{add, cast, exp, indicator, mul, sub, where_};
use super::fused::record_fused;
use super::layout::{expand, reshape, slice, sum_to, transpose, tril, unsqueeze};
use super::linear_map::LinearMap;
use super::matmul::matmul;
use super::pad::{PadMode, pad};
use super::reduce::sum;
use super::softmax::softmax;
use crate::autocast;
use crate::error::{Error, Result};
use crate::graph::{Gradients, grad_enabled};
use crate::tensor::Tensor;
use crate::trace;

/// How [`scaled_dot_product_attention`] weighs keys.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attention<'t> {
    /// Query i sees the keys 0 to i only.
    pub causal: bool,
    /// Added to the scores; broadcast to `[batch, heads, queries, keys]`. Minus infinity hides a key. Of truth values, those that are
    /// true say which keys are seen.
    pub mask: Option<&'t Tensor>,
    /// The probability with which a weight is dropped.
    pub dropout: f64,
    /// What scores are multiplied by; `1 / sqrt(width)` if not given.
    pub scale: Option<f64>,
    /// Grouped queries: `k` and `v` may have fewer heads than `q`, each of which serves as many neighbouring heads of `q`.
    pub grouped: bool,
}

/// `softmax(q k^T * scale + mask) v` for every batch and head, in memory linear in the number of queries and keys.
///
/// `q` is `[batch, heads, queries, width]`, `k` `[batch, heads, keys, width]`, `v` `[batch, heads, keys, value width]`, with any
/// number of axes in place of batch and heads, as long as all three have the same. A query whose keys are all hidden gives zeros. Random numbers come from the generator, or from the process-wide one. The gradient of a
/// mask that wants one has all scores in memory.
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
    if let Some(mask) = how.mask.filter(|mask| !mask.dtype().is_float()) {
        let mask = additive(mask, q.dtype(), false)?;
        let how = Attention { mask: Some(&mask), ..*how };
        return scaled_dot_product_attention(q, k, v, &how, generator);
    }
    if q.ndim() != 4 && q.ndim() >= 2 && k.ndim() == q.ndim() && v.ndim() == q.ndim() {
        return with_four_axes(q, k, v, how, generator);
    }
    if let Some(casts) = autocast::enter("scaled_dot_product_attention", [q, k, v]) {
        let mask = casts.given(how.mask)?;
        let how = Attention { mask: mask.as_ref(), ..*how };
        return scaled_dot_product_attention(&casts.of(q)?, &casts.of(k)?, &casts.of(v)?, &how, generator);
    }
    if how.grouped && q.shape().get(1) != k.shape().get(1) {
        return grouped(q, k, v, how, generator);
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
        let [q, k, v, with_gradient @ ..] = inputs else { return Ok(smallvec![None; inputs.len()]) };
        let (mask, dropout) = &again;
        let options = AttentionOptions { causal, mask: mask.as_ref(), dropout: dropout.clone(), scale };
        let found =
            raw::scaled_dot_product_attention_backward(upstream.raw(), q.raw(), k.raw(), v.raw(), &saved, &options)?;
        let mut all: Gradients = [found.q, found.k, found.v].into_iter().map(|raw| Some(raw.into())).collect();
        for mask in with_gradient {
            all.push(Some(mask_gradient([q, k, v], mask, upstream, &saved, &options)?));
        }
        Ok(all)
    };
    let composite = move |inputs: &[Tensor]| {
        let [q, k, v, with_gradient @ ..] = inputs else { return Ok(inputs[0].clone()) };
        let constant = mask.clone().map(Tensor::from);
        in_pieces([q, k, v], causal, with_gradient.first().or(constant.as_ref()), dropout.as_ref(), scale)
    };
    let mut inputs: SmallVec<[&Tensor; 4]> = smallvec![q, k, v];
    inputs.extend(how.mask.filter(|mask| mask.needs_grad()));
    trace::settings("scaled_dot_product_attention", || {
        let width = q.shape().last().copied().unwrap_or(1) as f64;
        // Without a mask, q stands in its place.
        let mask = how.mask.map_or(q.raw(), Tensor::raw);
        [
            ("causal", causal.into()),
            ("scale", scale.unwrap_or(1.0 / width.sqrt()).into()),
            ("dropout", how.dropout.into()),
            ("masked", how.mask.is_some().into()),
            ("mask", mask.into()),
        ]
    });
    record_fused("scaled_dot_product_attention", &inputs, output, fast, composite)
}

/// Keys and values of places that were seen, and where the next one goes.
#[derive(Clone, Copy, Debug)]
pub struct Cache<'t> {
    /// The keys, then the values: `[2, batch, heads, places, width]`.
    pub store: &'t Tensor,
    /// The number of the new place, `[1]`.
    pub place: &'t IndexTensor,
    /// How many places are looked at; those after the new one are hidden.
    pub seen: usize,
}

/// Writes the key and value of one place `[batch, heads, 1, width]` into a cache; then [`scaled_dot_product_attention`] over the places up
/// to it. `None`, and nothing was written, where that is not one launch. Records nothing.
pub fn attention_append(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    cache: &Cache<'_>,
    mask: Option<&Tensor>,
) -> Result<Option<Tensor>> {
    let wants = grad_enabled() && [q, k, v].into_iter().any(Tensor::needs_grad);
    if wants || autocast::enter("scaled_dot_product_attention", [q, k, v]).is_some() {
        return Ok(None);
    }
    let mut store = cache.store.clone();
    let shown = |which: isize| store.raw().select(0, which)?.slice(2, Slice::new(None, Some(cache.seen as isize), 1));
    let (keys, values) = (shown(0)?, shown(1)?);
    let append = Append { key: k.raw(), value: v.raw(), place: cache.place };
    let options = AttentionOptions { mask: mask.map(Tensor::raw), ..Default::default() };
    let mut out = None;
    store.overwrite(|_| {
        out = raw::attention_append(q.raw(), &keys, &values, &append, &options)?;
        Ok(())
    })?;
    Ok(out.map(Tensor::from))
}

/// A mask of truth values as what is added to scores: minus infinity for a key that is hidden, which is where it is true with
/// `true_hides`, else where it is false.
pub fn additive(mask: &Tensor, dtype: DType, true_hides: bool) -> Result<Tensor> {
    if mask.dtype() != DType::U8 {
        let what = format!("a mask holds truth values or floats, not {}; compare first (mask == 0)", mask.dtype());
        return Err(Error::argument("attention", what));
    }
    let (yes, no) = if true_hides { (f64::NEG_INFINITY, 0.0) } else { (0.0, f64::NEG_INFINITY) };
    cast(&where_(mask, yes, no)?, dtype)
}

/// Attention over tensors without a batch or heads, or with several axes of them.
fn with_four_axes(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    how: &Attention<'_>,
    generator: Option<&mut Generator>,
) -> Result<Tensor> {
    let rank = q.ndim();
    let folded = |t: &Tensor| {
        let (lead, rest) = t.shape().split_at(rank.saturating_sub(3));
        let batch = lead.iter().product::<usize>();
        let shape: Shape =
            iter::once(batch).chain(iter::repeat_n(1, 3 - rest.len())).chain(rest.iter().copied()).collect();
        reshape(t, shape)
    };
    let lead = &q.shape()[..rank.saturating_sub(3)];
    for other in [k, v] {
        if other.shape()[..lead.len()] != *lead {
            let why = format!("q, k and v must agree in all axes before the heads, and q has shape {}", q.shape());
            return Err(Error::shape("scaled_dot_product_attention", other.shape(), why));
        }
    }
    // A mask of fewer axes broadcasts as it is.
    let mask = how.mask.filter(|mask| mask.ndim() > 3).map(|mask| {
        let whole = mask.shape()[mask.ndim() - 3..].iter();
        folded(&expand(mask, lead.iter().chain(whole).copied().collect::<Shape>())?)
    });
    let mask = mask.transpose()?;
    let how = Attention { mask: mask.as_ref().or(how.mask), ..*how };
    let out = scaled_dot_product_attention(&folded(q)?, &folded(k)?, &folded(v)?, &how, generator)?;
    let width = v.shape().last().copied();
    let shape: Shape = q.shape().iter().take(rank - 1).copied().chain(width).collect();
    reshape(&out, shape)
}

/// Attention whose keys and values serve several heads of queries.
fn grouped(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    how: &Attention<'_>,
    generator: Option<&mut Generator>,
) -> Result<Tensor> {
    let op = "scaled_dot_product_attention";
    let (&[batch, heads, queries, width], &[_, shared, ..]) = (&q.shape()[..], &k.shape()[..]) else {
        return Err(Error::shape(op, q.shape(), "q, k and v must have the four axes batch, heads, length and width"));
    };
    if shared == 0 || !heads.is_multiple_of(shared) || k.ndim() != 4 || v.ndim() != 4 || v.shape()[1] != shared {
        let why = format!(
            "grouped queries take {heads} heads of q in equal groups, and as many heads of k as of v, whose shape is {}",
            v.shape()
        );
        return Err(Error::shape(op, k.shape(), why));
    }
    let (group, plain) = (heads / shared, Attention { grouped: false, ..*how });
    // One mask for all heads and queries.
    let same = |mask: &Tensor| mask.shape().iter().rev().skip(1).take(2).all(|&length| length == 1);
    if !how.causal && how.mask.is_none_or(same) {
        // The queries of a group as one head: keys and values are not copied.
        let rows = reshape(q, [batch, shared, group * queries, width])?;
        let out = scaled_dot_product_attention(&rows, k, v, &plain, generator)?;
        return reshape(&out, [batch, heads, queries, v.shape()[3]]);
    }
    let repeated = |t: &Tensor| {
        let &[batch, _, length, width] = &t.shape()[..] else { return Ok(t.clone()) };
        let groups = expand(&unsqueeze(t, 2)?, [batch, shared, group, length, width])?;
        reshape(&groups, [batch, heads, length, width])
    };
    scaled_dot_product_attention(q, &repeated(k)?, &repeated(v)?, &plain, generator)
}

/// The gradient of a mask, from scores that are computed again, all at once.
fn mask_gradient(
    [q, k, v]: [&Tensor; 3],
    mask: &Tensor,
    upstream: &Tensor,
    saved: &raw::Attention,
    options: &AttentionOptions<'_>,
) -> Result<Tensor> {
    let sums: Tensor = saved.logsumexp.clone().into();
    let wide = |t: &Tensor| cast(t, sums.dtype());
    let scores = scores(&wide(q)?, &wide(k)?, options.scale)?;
    let (scores, visible) = masked(&scores, Some(&wide(mask)?), options.causal)?;
    let weights = where_(&visible, &exp(&sub(&scores, &unsqueeze(&sums, -1)?)?)?, 0.0)?;
    let upstream = wide(upstream)?;
    let mut slope = matmul(&upstream, &transpose(&wide(v)?, -1, -2)?)?;
    if let Some((p, place)) = &options.dropout {
        slope = dropped(&slope, *p, place)?;
    }
    let total = sum(&mul(&upstream, &wide(&saved.out.clone().into())?)?, -1, true)?;
    cast(&sum_to(&mul(&weights, &sub(&slope, &total)?)?, mask.shape())?, mask.dtype())
}

fn scores(q: &Tensor, k: &Tensor, scale: Option<f64>) -> Result<Tensor> {
    let width = q.shape().last().copied().unwrap_or(1);
    mul(&matmul(q, &transpose(k, -1, -2)?)?, scale.unwrap_or(1.0 / (width as f64).sqrt()))
}

/// Scores with a mask added, finite throughout, and 1 where a key is seen.
fn masked(scores: &Tensor, mask: Option<&Tensor>, causal: bool) -> Result<(Tensor, Tensor)> {
    let mut visible: Tensor = Tensor::full(scores.queue(), scores.shape().clone(), scores.dtype(), 1.0)?;
    let mut scores = scores.clone();
    if let Some(mask) = mask {
        let seen = indicator("gt", mask, f64::NEG_INFINITY)?;
        scores = add(&scores, &where_(&seen, mask, 0.0)?)?;
        visible = mul(&visible, &seen)?;
    }
    if causal {
        visible = tril(&visible, 0)?;
    }
    Ok((scores, visible))
}

/// The same with all scores in memory: what second derivatives are taken of.
fn in_pieces(
    [q, k, v]: [&Tensor; 3],
    causal: bool,
    mask: Option<&Tensor>,
    dropout: Option<&(f64, MaskPlace)>,
    scale: Option<f64>,
) -> Result<Tensor> {
    let (scores, visible) = masked(&scores(q, k, scale)?, mask, causal)?;
    // A query that sees no key gets zeros, so hidden scores must not be infinite.
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
    trace::settings("rotary", || {
        let form = if form == RotaryForm::HalfSplit { "halves" } else { "pairs" };
        [("cos", tables.cos().into()), ("sin", tables.sin().into()), ("form", form.into())]
    });
    LinearMap::new(
        ["rotary", "rotary_backward"],
        move |x| raw::rotary(x, &forth, form),
        move |grad| raw::rotary_backward(grad, &back, form),
    )
    .apply(x)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use netcl_core::device::manager;

    use super::*;

    #[test]
    fn grouped_queries_see_what_repeated_heads_show() {
        let queue = manager().cpu().queue;
        let make = |shape: [usize; 4], by: f32| {
            let values: Vec<f32> = (0..shape.iter().product()).map(|i| (i as f32 * by).sin()).collect();
            Tensor::from_host(&queue, &values, shape).unwrap()
        };
        let (q, k, v) = (make([2, 4, 3, 5], 0.7), make([2, 2, 6, 5], 0.3), make([2, 2, 6, 4], 0.9));
        let repeated = |t: &Tensor| {
            let &[batch, heads, length, width] = &t.shape()[..] else { return t.clone() };
            let groups = expand(&unsqueeze(t, 2).unwrap(), [batch, heads, 2, length, width]).unwrap();
            reshape(&groups, [batch, 2 * heads, length, width]).unwrap()
        };
        // One mask for all heads and queries, in fewer axes as well, and masks of their own.
        for shape in [&[2, 1, 1, 6][..], &[1, 6], &[6], &[3, 6], &[2, 4, 1, 6], &[2, 1, 3, 6]] {
            let count = shape.iter().product::<usize>();
            let values: Vec<f32> =
                (0..count).map(|i| if i % 5 == 2 { f32::NEG_INFINITY } else { i as f32 * 0.1 }).collect();
            let mask = Tensor::from_host(&queue, &values, shape).unwrap();
            let how = Attention { mask: Some(&mask), grouped: true, ..Default::default() };
            let found = scaled_dot_product_attention(&q, &k, &v, &how, None).unwrap().to_f64_vec().unwrap();
            let how = Attention { grouped: false, ..how };
            let expected = scaled_dot_product_attention(&q, &repeated(&k), &repeated(&v), &how, None).unwrap();
            let apart = |(a, b): (&f64, f64)| (a - b).abs();
            let most = found.iter().zip(expected.to_f64_vec().unwrap()).map(apart).fold(0.0, f64::max);
            assert!(most < 1e-6, "{shape:?}: {most:e}");
        }
    }
}
