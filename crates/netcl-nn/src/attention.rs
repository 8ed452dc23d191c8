//! Attention with several heads.

use netcl_autograd::ops::attention::{Attention, additive, scaled_dot_product_attention};
use netcl_autograd::ops::dropout::dropout;
use netcl_autograd::ops::elementwise::{add, cast, mul, where_};
use netcl_autograd::ops::indexing::masked_fill;
use netcl_autograd::ops::layout::{permute, reshape, split, squeeze, transpose, tril};
use netcl_autograd::ops::matmul::{linear, matmul};
use netcl_autograd::ops::softmax::softmax;
use netcl_autograd::{Error, Queue, Result, Shape, Tensor};

use crate::Module;
use crate::config::{Build, Configured};
use crate::init::{Gain, Init};
use crate::linear::{Linear, LinearOptions};
use crate::settings::{Settings, probability};

/// What queries do not see. Truth values hide a key where they are true; other tensors are added to the scores, where minus infinity
/// hides a key ([`hidden`] makes such ones). No gradient flows to them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Masks<'t> {
    /// Query i sees the keys 0 to i only.
    pub is_causal: bool,
    /// `[queries, keys]` or `[batch * heads, queries, keys]`.
    pub attn_mask: Option<&'t Tensor>,
    /// `[batch, keys]`: which keys are padding.
    pub key_padding_mask: Option<&'t Tensor>,
}

impl Masks<'_> {
    /// Query i sees the keys 0 to i.
    pub fn causal() -> Self {
        Masks { is_causal: true, ..Default::default() }
    }
}

/// Minus infinity where a tensor is not 0, else 0: a mask of what is to be hidden.
pub fn hidden(hide: &Tensor) -> Result<Tensor> {
    masked_fill(&Tensor::from_shape(hide.queue(), hide.shape().clone(), hide.dtype())?, hide.raw(), f64::NEG_INFINITY)
}

/// Dropout of a part of a layer.
pub(crate) fn dropped(x: Tensor, p: f64, training: bool) -> Result<Tensor> {
    if training && p > 0.0 { dropout(&x, p, None) } else { Ok(x) }
}

/// Refuses a width that the heads do not divide.
pub(crate) fn divides(layer: &'static str, heads: (&str, usize), width: (&str, usize)) -> Result<()> {
    if width.1.is_multiple_of(heads.1) {
        return Ok(());
    }
    Err(Error::argument(layer, format!("{}={} must divide {}={}", heads.0, heads.1, width.0, width.1)))
}

/// How a [`MultiheadAttention`] is made.
#[derive(Clone, Debug, Settings)]
#[settings(check = MultiheadAttentionOptions::fits)]
pub struct MultiheadAttentionOptions {
    /// The width of vectors.
    #[setting(least = 1)]
    pub embed_dim: usize,
    /// The number of heads.
    #[setting(least = 1)]
    pub num_heads: usize,
    /// The probability with which a weight is dropped in training.
    #[setting(default = 0.0)]
    pub dropout: f64,
    /// Whether the projections add biases.
    #[setting(default = true)]
    pub bias: bool,
    /// Whether inputs are `[batch, length, width]` instead of `[length, batch, width]`.
    #[setting(default = true)]
    pub batch_first: bool,
}

impl MultiheadAttentionOptions {
    fn fits(&self, layer: &'static str) -> Result<()> {
        probability(layer, "dropout", self.dropout)?;
        divides(layer, ("num_heads", self.num_heads), ("embed_dim", self.embed_dim))
    }
}

/// Attention of several heads, each in a part of the width, between a projection of the inputs and one of the results.
///
/// Names, layouts and start values are PyTorch's: `in_proj_weight` holds the projections of queries, keys and values one
/// below the other. [`Module::forward`] is self-attention without a mask; [`MultiheadAttention::attend`] is everything else.
///
/// ```
/// use netcl_nn::autograd::{Tensor, manager};
/// use netcl_nn::{Masks, MultiheadAttention};
///
/// let queue = manager().cpu().queue;
/// let layer = MultiheadAttention::new(&queue, 8, 2)?;
/// let words = Tensor::from_host(&queue, &[0.5f32; 40], [1, 5, 8])?;
/// assert_eq!(layer.attend(&words, &words, &words, &Masks::causal())?.shape()[..], [1, 5, 8]);
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
#[derive(Module)]
pub struct MultiheadAttention {
    in_proj_weight: Tensor,
    in_proj_bias: Option<Tensor>,
    out_proj: Box<dyn Module>,
    training: bool,
    #[module(settings)]
    settings: MultiheadAttentionOptions,
}

impl MultiheadAttention {
    /// A float32 layer for vectors of this width.
    ///
    /// # Errors
    /// If the heads do not divide the width.
    pub fn new(queue: &Queue, embed_dim: usize, num_heads: usize) -> Result<MultiheadAttention> {
        MultiheadAttention::new_with(queue, MultiheadAttentionOptions::new(embed_dim, num_heads))
    }

    fn make(build: &mut Build<'_>, settings: MultiheadAttentionOptions) -> Result<MultiheadAttention> {
        let MultiheadAttentionOptions { embed_dim, bias, .. } = settings;
        let in_proj_weight =
            build.parameter(Init::XavierUniform { gain: Gain::Linear }, [embed_dim.saturating_mul(3), embed_dim])?;
        let zeros = Init::Constant(0.0);
        let in_proj_bias = bias.then(|| build.parameter(zeros, [embed_dim.saturating_mul(3)])).transpose()?;
        let out_proj = Linear::build(build, LinearOptions { bias, ..LinearOptions::new(embed_dim, embed_dim) })?;
        if let Some(bias) = out_proj.bias() {
            build.fill(bias, zeros)?;
        }
        let out_proj = Box::new(out_proj);
        Ok(MultiheadAttention { in_proj_weight, in_proj_bias, out_proj, training: true, settings })
    }

    /// Where its weights are.
    pub(crate) fn queue(&self) -> &Queue {
        self.in_proj_weight.queue()
    }

    /// Self-attention without a mask.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || self.attend(input, input, input, &Masks::default()))
    }

    /// For every query the mean of the values, weighted by how well its key fits.
    ///
    /// Queries are `[batch, queries, width]`, keys and values `[batch, keys, width]`, or with the first two axes exchanged,
    /// depending on `batch_first`; or all of them without a batch.
    pub fn attend(&self, query: &Tensor, key: &Tensor, value: &Tensor, masks: &Masks<'_>) -> Result<Tensor> {
        crate::scope::run(self, || {
            let [q, k, v] = self.in_heads(query, key, value)?;
            let mask = self.mask(masks, &q, &k, query.ndim() == 2)?;
            let dropout = if self.training { self.settings.dropout } else { 0.0 };
            let how = Attention { causal: masks.is_causal, mask: mask.as_ref(), dropout, ..Default::default() };
            self.joined(&scaled_dot_product_attention(&q, &k, &v, &how, None)?, query.ndim() == 2)
        })
    }

    /// [`MultiheadAttention::attend`], and the weight of each key for each query, `[batch, heads, queries, keys]`.
    pub fn attend_with_weights(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        masks: &Masks<'_>,
    ) -> Result<(Tensor, Tensor)> {
        let ([q, k, v], single) = (self.in_heads(query, key, value)?, query.ndim() == 2);
        let mask = self.mask(masks, &q, &k, single)?;
        let weights = softmax(&scores(&q, &k, mask.as_ref(), masks.is_causal)?, -1)?;
        let out = matmul(&dropped(weights.clone(), self.settings.dropout, self.training)?, &v)?;
        Ok((self.joined(&out, single)?, if single { squeeze(&weights, &[0])? } else { weights }))
    }

    /// Projected queries, keys and values as `[batch, heads, length, width / heads]`.
    fn in_heads(&self, query: &Tensor, key: &Tensor, value: &Tensor) -> Result<[Tensor; 3]> {
        self.check_inputs([("query", query), ("key", key), ("value", value)])?;
        let MultiheadAttentionOptions { embed_dim: width, num_heads, batch_first, .. } = self.settings;
        let (weight, bias) = (&self.in_proj_weight, self.in_proj_bias.as_ref());
        let parts = if std::ptr::eq(query, key) && std::ptr::eq(key, value) {
            split(&linear(query, weight, bias)?, &[width; 3], -1)?
        } else {
            let weights = split(weight, &[width; 3], 0)?;
            let biases = bias.map(|bias| split(bias, &[width; 3], 0)).transpose()?;
            let project = |(i, input)| linear(input, &weights[i], biases.as_ref().map(|biases| &biases[i]));
            [query, key, value].into_iter().enumerate().map(project).collect::<Result<Vec<_>>>()?
        };
        let heads = |projected: &Tensor| match projected.shape()[..] {
            [length, _] => permute(&reshape(projected, [1, length, num_heads, width / num_heads])?, &[0, 2, 1, 3]),
            [first, second, ..] => {
                let apart = reshape(projected, [first, second, num_heads, width / num_heads])?;
                permute(&apart, if batch_first { &[0, 2, 1, 3] } else { &[1, 2, 0, 3] })
            }
            _ => Ok(projected.clone()),
        };
        Ok([heads(&parts[0])?, heads(&parts[1])?, heads(&parts[2])?])
    }

    /// The projected results of all heads, in the layout of the inputs.
    fn joined(&self, out: &Tensor, single: bool) -> Result<Tensor> {
        let MultiheadAttentionOptions { embed_dim: width, batch_first, .. } = self.settings;
        let (batch, length) = (out.shape()[0], out.shape()[2]);
        let axes: &[isize] = if single || batch_first { &[0, 2, 1, 3] } else { &[2, 0, 1, 3] };
        let out = permute(out, axes)?;
        self.out_proj.forward(&match (single, batch_first) {
            (true, _) => reshape(&out, [length, width])?,
            (_, true) => reshape(&out, [batch, length, width])?,
            (_, false) => reshape(&out, [length, batch, width])?,
        })
    }

    fn check_inputs(&self, inputs: [(&str, &Tensor); 3]) -> Result<()> {
        let MultiheadAttentionOptions { embed_dim, batch_first, .. } = self.settings;
        let axes = inputs[0].1.ndim();
        for (name, x) in inputs {
            if !(2..=3).contains(&axes) || x.ndim() != axes || x.shape().last() != Some(&embed_dim) {
                let wanted = if batch_first { "batch, length" } else { "length, batch" };
                let what = format!("{name} has shape {}; it must be ({wanted}, {embed_dim})", x.shape());
                return Err(Error::argument("MultiheadAttention", what));
            }
        }
        Ok(())
    }

    /// What is added to the scores, `[batch or 1, heads or 1, queries or 1, keys]`.
    fn mask(&self, masks: &Masks<'_>, q: &Tensor, k: &Tensor, single: bool) -> Result<Option<Tensor>> {
        let (batch, heads, queries, keys) = (q.shape()[0], q.shape()[1], q.shape()[2], k.shape()[2]);
        let fitting = |name: &str, mask: &Tensor, shapes: &[Shape]| {
            if shapes.contains(mask.shape()) {
                let mask = mask.detach();
                return match mask.dtype().is_float() {
                    true => cast(&mask, q.dtype()),
                    false => additive(&mask, q.dtype(), true),
                };
            }
            let wanted = shapes.iter().map(Shape::to_string).collect::<Vec<_>>().join(" or ");
            let mut what = format!("{name} has shape {}; it must be {wanted}", mask.shape());
            // PyTorch's layers have the lengths in front unless told otherwise.
            if !single && mask.shape().ends_with(&[batch]) {
                what += match self.settings.batch_first {
                    true => " (the batch is the first axis of the inputs: batch_first=False makes it the second)",
                    false => " (the batch is the second axis of the inputs: batch_first=True makes it the first)",
                };
            }
            Err(Error::argument("MultiheadAttention", what))
        };
        let mut sum = None;
        if let Some(mask) = masks.attn_mask {
            let shapes = [Shape::from([queries, keys]), Shape::from([batch * heads, queries, keys])];
            let mask = fitting("attn_mask", mask, &shapes)?;
            sum = Some(if mask.ndim() == 2 { mask } else { reshape(&mask, [batch, heads, queries, keys])? });
        }
        if let Some(mask) = masks.key_padding_mask {
            let shape = if single { Shape::from([keys]) } else { Shape::from([batch, keys]) };
            let mask = reshape(&fitting("key_padding_mask", mask, &[shape])?, [batch, 1, 1, keys])?;
            sum = Some(match sum {
                Some(scores) => add(&scores, &mask)?,
                None => mask,
            });
        }
        Ok(sum)
    }
}

/// The scores of all keys for all queries.
fn scores(q: &Tensor, k: &Tensor, mask: Option<&Tensor>, causal: bool) -> Result<Tensor> {
    let width = q.shape()[3] as f64;
    let mut scores = mul(&matmul(q, &transpose(k, -1, -2)?)?, 1.0 / width.sqrt())?;
    if let Some(mask) = mask {
        scores = add(&scores, mask)?;
    }
    if causal {
        let seen = tril(&Tensor::full(q.queue(), [q.shape()[2], k.shape()[2]], q.dtype(), 1.0)?, 0)?;
        scores = where_(&seen, &scores, f64::NEG_INFINITY)?;
    }
    Ok(scores)
}
