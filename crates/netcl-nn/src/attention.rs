//! Attention with several heads.

use netcl_autograd::ops::attention::{Attention, RotaryForm, RotaryTables, rotary, scaled_dot_product_attention};
use netcl_autograd::ops::elementwise::add;
use netcl_autograd::ops::indexing::masked_fill;
use netcl_autograd::ops::layout::{permute, reshape, split, squeeze, unsqueeze};
use netcl_autograd::ops::matmul::linear;
use netcl_autograd::{DType, Error, Generator, Queue, Result, Tensor};

use crate::config::Build;
use crate::init::{Gain, Init};
use crate::linear::{Linear, LinearOptions};
use crate::members;
use crate::module::{Module, print_as_module};

/// What queries do not see.
#[derive(Clone, Copy, Debug, Default)]
pub struct Masks<'t> {
    /// Query i sees the keys 0 to i only.
    pub causal: bool,
    /// Added to the scores, `[queries, keys]` or `[batch * heads, queries, keys]`; minus infinity hides a key. No gradient
    /// flows to it.
    pub scores: Option<&'t Tensor>,
    /// Keys that nobody sees, because they are padding: `[batch, keys]`, not 0 where one is hidden.
    pub padding: Option<&'t Tensor>,
}

/// How a [`MultiheadAttention`] is made.
#[derive(Debug)]
pub struct MultiheadAttentionOptions<'g> {
    /// The probability with which a weight is dropped in training.
    pub dropout: f64,
    /// Whether the projections add biases.
    pub bias: bool,
    /// Whether inputs are `[batch, length, width]` instead of `[length, batch, width]`.
    pub batch_first: bool,
    /// The parameters' dtype.
    pub dtype: DType,
    /// Where the first weights come from; the process-wide generator where none is given.
    pub generator: Option<&'g mut Generator>,
}

impl Default for MultiheadAttentionOptions<'_> {
    fn default() -> Self {
        MultiheadAttentionOptions { dropout: 0.0, bias: true, batch_first: false, dtype: DType::F32, generator: None }
    }
}

/// Attention of several heads, each in a part of the width, between a projection of the inputs and one of the results.
///
/// Names, layouts and start values are PyTorch's: `in_proj_weight` holds the projections of queries, keys and values one
/// below the other. [`Module::forward`] is self-attention without a mask; [`MultiheadAttention::attend`] is everything else.
///
/// ```
/// use netcl_nn::autograd::{Tensor, manager};
/// use netcl_nn::{Masks, MultiheadAttention, MultiheadAttentionOptions};
///
/// let queue = manager().cpu().queue;
/// let options = MultiheadAttentionOptions { batch_first: true, ..Default::default() };
/// let layer = MultiheadAttention::new_with(&queue, 8, 2, options)?;
/// let words = Tensor::from_host(&queue, &[0.5f32; 40], [1, 5, 8])?;
/// let causal = Masks { causal: true, ..Default::default() };
/// assert_eq!(layer.attend(&words, &words, &words, &causal)?.shape()[..], [1, 5, 8]);
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
pub struct MultiheadAttention {
    in_proj_weight: Tensor,
    in_proj_bias: Option<Tensor>,
    out_proj: Linear,
    heads: usize,
    dropout: f64,
    batch_first: bool,
    training: bool,
}

impl MultiheadAttention {
    /// A float32 layer for vectors of this width.
    ///
    /// # Errors
    /// If the heads do not divide the width.
    pub fn new(queue: &Queue, embed_dim: usize, num_heads: usize) -> Result<MultiheadAttention> {
        MultiheadAttention::new_with(queue, embed_dim, num_heads, MultiheadAttentionOptions::default())
    }

    /// A layer with dropout, without biases, with the batch first, of another dtype, or from a generator of its own.
    ///
    /// # Errors
    /// If the heads do not divide the width, or the dropout is no probability.
    pub fn new_with(
        queue: &Queue,
        embed_dim: usize,
        num_heads: usize,
        options: MultiheadAttentionOptions<'_>,
    ) -> Result<MultiheadAttention> {
        let MultiheadAttentionOptions { dropout, bias, batch_first, dtype, mut generator } = options;
        if num_heads == 0 || !embed_dim.is_multiple_of(num_heads) {
            let what = format!("a width of {embed_dim} cannot be divided among {num_heads} heads; use a divisor");
            return Err(Error::argument("MultiheadAttention", what));
        }
        check_probability("MultiheadAttention", dropout)?;
        let law = Init::XavierUniform { gain: Gain::Linear };
        let in_proj_weight = law.tensor(queue, [3 * embed_dim, embed_dim], dtype, generator.as_deref_mut())?;
        let in_proj_bias = bias.then(|| Tensor::from_shape(queue, [3 * embed_dim], dtype)).transpose()?;
        let out_proj = Linear::new_with(
            Build::on(queue).dtype(dtype).generator(generator),
            LinearOptions { bias, ..LinearOptions::new(embed_dim, embed_dim) },
        )?;
        if let Some(bias) = out_proj.bias() {
            bias.fill(0.0)?;
        }
        Ok(MultiheadAttention {
            in_proj_weight: in_proj_weight.with_grad(),
            in_proj_bias: in_proj_bias.map(Tensor::with_grad),
            out_proj,
            heads: num_heads,
            dropout,
            batch_first,
            training: true,
        })
    }

    /// The width of vectors.
    pub fn embed_dim(&self) -> usize {
        self.in_proj_weight.shape()[1]
    }

    /// The number of heads.
    pub fn num_heads(&self) -> usize {
        self.heads
    }

    /// The probability with which a weight is dropped in training.
    pub fn dropout(&self) -> f64 {
        self.dropout
    }

    /// Whether inputs are `[batch, length, width]`.
    pub fn batch_first(&self) -> bool {
        self.batch_first
    }

    /// For every query the mean of the values, weighted by how well its key fits.
    ///
    /// Queries are `[batch, queries, width]`, keys and values `[batch, keys, width]`, or with the first two axes exchanged,
    /// depending on `batch_first`; or all of them without a batch.
    pub fn attend(&self, query: &Tensor, key: &Tensor, value: &Tensor, masks: &Masks<'_>) -> Result<Tensor> {
        self.attend_at(query, key, value, masks, None)
    }

    /// [`MultiheadAttention::attend`] with queries and keys turned by their positions.
    pub(crate) fn attend_at(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        masks: &Masks<'_>,
        positions: Option<(&RotaryTables, RotaryForm)>,
    ) -> Result<Tensor> {
        if query.ndim() == 2 {
            let axis = isize::from(!self.batch_first);
            let raised = |t: &Tensor| unsqueeze(t, axis);
            let padding = masks.padding.map(|mask| unsqueeze(mask, 0)).transpose()?;
            let masks = Masks { padding: padding.as_ref(), ..*masks };
            let out = self.attend_at(&raised(query)?, &raised(key)?, &raised(value)?, &masks, positions)?;
            return squeeze(&out, &[axis]);
        }
        let width = self.embed_dim();
        let weights = split(&self.in_proj_weight, &[width; 3], 0)?;
        let biases = self.in_proj_bias.as_ref().map(|bias| split(bias, &[width; 3], 0)).transpose()?;
        let heads = |input: &Tensor, part: usize| {
            let bias = biases.as_ref().map(|biases| &biases[part]);
            self.in_heads(&linear(input, &weights[part], bias)?)
        };
        let (mut q, mut k, v) = (heads(query, 0)?, heads(key, 1)?, heads(value, 2)?);
        if let Some((tables, form)) = positions {
            (q, k) = (rotary(&q, tables, form)?, rotary(&k, tables, form)?);
        }
        let mask = self.score_mask(masks, &q)?;
        let dropout = if self.training { self.dropout } else { 0.0 };
        let how = Attention { causal: masks.causal, mask: mask.as_ref(), dropout, scale: None };
        let out = scaled_dot_product_attention(&q, &k, &v, &how, None)?;
        let &[batch, _, length, _] = &out.shape()[..] else { return Ok(out) };
        let out = if self.batch_first {
            reshape(&permute(&out, &[0, 2, 1, 3])?, [batch, length, width])?
        } else {
            reshape(&permute(&out, &[2, 0, 1, 3])?, [length, batch, width])?
        };
        self.out_proj.forward(&out)
    }

    /// `[batch, heads, length, width / heads]`
    fn in_heads(&self, projected: &Tensor) -> Result<Tensor> {
        let &[first, second, width] = &projected.shape()[..] else {
            let why = "queries, keys and values have three axes, or two without a batch".to_owned();
            let shape = projected.shape().clone();
            return Err(Error::shape("MultiheadAttention", &shape, why));
        };
        let apart = reshape(projected, [first, second, self.heads, width / self.heads])?;
        permute(&apart, if self.batch_first { &[0, 2, 1, 3] } else { &[1, 2, 0, 3] })
    }

    /// What is added to the scores of `[batch, heads, queries, keys]`.
    fn score_mask(&self, masks: &Masks<'_>, q: &Tensor) -> Result<Option<Tensor>> {
        let batch = q.shape()[0];
        let scores = match masks.scores {
            Some(mask) if mask.ndim() == 3 => {
                let [queries, keys] = [mask.shape()[1], mask.shape()[2]];
                Some(reshape(mask, [batch, self.heads, queries, keys])?)
            }
            other => other.cloned(),
        };
        let Some(padding) = masks.padding else { return Ok(scores) };
        let &[samples, keys] = &padding.shape()[..] else {
            let (shape, why) = (padding.shape().clone(), "a padding mask is (batch, keys)".to_owned());
            return Err(Error::shape("MultiheadAttention", &shape, why));
        };
        let zeros = Tensor::from_shape(q.queue(), [samples, keys], q.dtype())?;
        let hidden = masked_fill(&zeros, padding.raw(), f64::NEG_INFINITY)?;
        let hidden = reshape(&hidden, [samples, 1, 1, keys])?;
        Ok(Some(match scores {
            Some(scores) => add(&scores, &hidden)?,
            None => hidden,
        }))
    }
}

pub(crate) fn check_probability(op: &'static str, p: f64) -> Result<()> {
    if (0.0..=1.0).contains(&p) {
        return Ok(());
    }
    Err(Error::argument(op, format!("the dropout {p} is not a probability; use a number from 0 to 1")))
}

impl Module for MultiheadAttention {
    /// Self-attention without a mask.
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        self.attend(input, input, input, &Masks::default())
    }

    fn arguments(&self) -> String {
        let (width, bias) = (self.embed_dim(), self.in_proj_bias.is_some());
        let (heads, dropout, first) = (self.heads, self.dropout, self.batch_first);
        format!("embed_dim={width}, num_heads={heads}, dropout={dropout}, bias={bias}, batch_first={first}")
    }

    members! {
        parameters: in_proj_weight, in_proj_bias;
        children: out_proj;
        mode: training;
    }
}

print_as_module!(MultiheadAttention);
