//! Parts of transformers that predict what comes next.

use netcl_autograd::ops::attention::{Attention, RotaryForm, RotaryTables, rotary, scaled_dot_product_attention};
use netcl_autograd::ops::elementwise::{add, mul, silu};
use netcl_autograd::ops::indexing::index_select;
use netcl_autograd::ops::layout::{permute, reshape, split};
use netcl_autograd::ops::matmul::linear;
use netcl_autograd::{Error, RawTensor, Result, Tensor};

use crate::Module;
use crate::attention::{divides, dropped};
use crate::config::{Build, Configured};
use crate::kv_cache::{Cached, KVCache};
use crate::linear::{Linear, LinearOptions};
use crate::norm::{LayerNorm, LayerNormOptions, RMSNorm, RMSNormOptions};
use crate::settings::{Settings, probability};
use crate::transformer::Activation;

/// In a box, where [`quantize`](crate::quantize) can put another layer.
pub(crate) fn linear_of(build: &mut Build<'_>, inputs: usize, outputs: usize, bias: bool) -> Result<Box<dyn Module>> {
    Ok(Box::new(Linear::build(build, LinearOptions { bias, ..LinearOptions::new(inputs, outputs) })?))
}

pub(crate) fn layer_norm_of(build: &mut Build<'_>, width: usize, eps: f64, bias: bool) -> Result<LayerNorm> {
    LayerNorm::build(build, LayerNormOptions { eps, bias, ..LayerNormOptions::new([width]) })
}

fn rms_norm_of(build: &mut Build<'_>, width: usize, eps: f64) -> Result<RMSNorm> {
    RMSNorm::build(build, RMSNormOptions { eps: Some(eps), ..RMSNormOptions::new([width]) })
}

/// Queries, keys and values `[batch, heads, length, width / heads]` of `[batch, length, 3 * width]`.
fn in_heads(layer: &'static str, projected: &Tensor, heads: usize) -> Result<[Tensor; 3]> {
    let &[batch, length, width] = &projected.shape()[..] else {
        return Err(Error::shape(layer, projected.shape(), "the input is (batch, length, width)"));
    };
    let width = width / 3;
    let parts = split(projected, &[width; 3], -1)?;
    let of = |part: &Tensor| permute(&reshape(part, [batch, length, heads, width / heads])?, &[0, 2, 1, 3]);
    Ok([of(&parts[0])?, of(&parts[1])?, of(&parts[2])?])
}

/// Attention of every place to itself and those before it, over what a cache holds as well; `[batch, length, width]`.
fn attended(parts: &[Tensor; 3], causal: bool, dropout: f64, cache: Cached<'_>) -> Result<Tensor> {
    let [q, k, v] = parts;
    let out = match cache {
        None => scaled_dot_product_attention(q, k, v, &Attention { causal, dropout, ..Default::default() }, None)?,
        Some((cache, layer)) => match cache.attend(layer, q, k, v)? {
            Some(out) => out,
            None => over_cache(parts, causal, cache, layer)?,
        },
    };
    let [batch, heads, length, width] = [0, 1, 2, 3].map(|axis| out.shape()[axis]);
    reshape(&permute(&out, &[0, 2, 1, 3])?, [batch, length, heads * width])
}

/// Attention after keys and values were written to a layer's part of a cache.
fn over_cache([q, k, v]: &[Tensor; 3], causal: bool, cache: &KVCache, layer: usize) -> Result<Tensor> {
    let (new, before) = (q.shape()[2], cache.length());
    let (mask, (k, v)) = (cache.mask(before + new)?, cache.append(layer, k, v)?);
    if before > 0 && new > 1 {
        let what =
            format!("{new} places cannot follow {before} at once: after the first call give one place at a time");
        return Err(Error::argument("attention", what));
    }
    let how = Attention { causal: causal && before == 0, mask: mask.as_ref(), ..Default::default() };
    scaled_dot_product_attention(q, &k, &v, &how, None)
}

/// How a [`CausalSelfAttention`] is made.
#[derive(Clone, Debug, Settings)]
#[settings(check = CausalSelfAttentionOptions::fits)]
pub struct CausalSelfAttentionOptions {
    /// The width of vectors.
    #[setting(least = 1)]
    pub embed_dim: usize,
    /// The number of heads.
    #[setting(least = 1)]
    pub num_heads: usize,
    /// Whether a place sees only itself and those before it.
    #[setting(default = true)]
    pub causal: bool,
    /// The probability with which weights and results are dropped in training.
    #[setting(default = 0.0)]
    pub dropout: f64,
    /// Whether the projections add biases.
    #[setting(default = true)]
    pub bias: bool,
}

impl CausalSelfAttentionOptions {
    fn fits(&self, layer: &'static str) -> Result<()> {
        probability(layer, "dropout", self.dropout)?;
        divides(layer, ("num_heads", self.num_heads), ("embed_dim", self.embed_dim))
    }
}

/// Attention of several heads in which a place sees itself and those before it, with the names of GPT-2.
#[derive(Module)]
pub struct CausalSelfAttention {
    c_attn: Box<dyn Module>,
    c_proj: Box<dyn Module>,
    training: bool,
    #[module(settings)]
    settings: CausalSelfAttentionOptions,
}

impl CausalSelfAttention {
    fn make(build: &mut Build<'_>, settings: CausalSelfAttentionOptions) -> Result<CausalSelfAttention> {
        let CausalSelfAttentionOptions { embed_dim, bias, .. } = settings;
        let c_attn = linear_of(build, embed_dim, embed_dim.saturating_mul(3), bias)?;
        let c_proj = linear_of(build, embed_dim, embed_dim, bias)?;
        Ok(CausalSelfAttention { c_attn, c_proj, training: true, settings })
    }

    /// The result for `[batch, length, embed_dim]`.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || self.attend(input, None))
    }

    /// The result for places that follow those in a cache.
    pub fn attend(&self, input: &Tensor, cache: Cached<'_>) -> Result<Tensor> {
        crate::scope::run(self, || {
            let CausalSelfAttentionOptions { num_heads, causal, dropout, .. } = self.settings;
            let dropout = if self.training { dropout } else { 0.0 };
            let parts = in_heads("CausalSelfAttention", &self.c_attn.forward(input)?, num_heads)?;
            dropped(self.c_proj.forward(&attended(&parts, causal, dropout, cache)?)?, dropout, true)
        })
    }
}

/// How a [`RotaryAttention`] is made.
#[derive(Clone, Debug, Settings)]
#[settings(check = RotaryAttentionOptions::fits)]
pub struct RotaryAttentionOptions {
    /// The width of vectors.
    #[setting(least = 1)]
    pub dim: usize,
    /// The number of heads.
    #[setting(least = 1)]
    pub n_head: usize,
    /// What the slowest angle is divided by.
    #[setting(default = 10_000.0)]
    pub rope_base: f64,
    /// The probability with which weights and results are dropped in training.
    #[setting(default = 0.0)]
    pub dropout: f64,
    /// Whether the projections add biases.
    #[setting(default = false)]
    pub bias: bool,
    /// Whether queries and keys are normalised.
    #[setting(default = true)]
    pub qk_norm: bool,
    /// Added to their mean squares.
    #[setting(default = 1e-6)]
    pub eps: f64,
}

impl RotaryAttentionOptions {
    fn fits(&self, layer: &'static str) -> Result<()> {
        probability(layer, "dropout", self.dropout)?;
        if self.dim.is_multiple_of(self.n_head.saturating_mul(2)) {
            return Ok(());
        }
        let what = format!("dim={} must be n_head={} times an even number", self.dim, self.n_head);
        Err(Error::argument(layer, what))
    }
}

/// Causal attention that knows places by rotation: only distances count.
///
/// ```
/// use netcl_nn::autograd::{DType, Tensor, manager};
/// use netcl_nn::{KVCache, KVCacheOptions, RotaryAttention, RotaryAttentionOptions};
///
/// let queue = manager().cpu().queue;
/// let layer = RotaryAttention::new_with(&queue, RotaryAttentionOptions::new(8, 2))?;
/// let size = KVCacheOptions { n_layer: 1, batch: 1, n_head: 2, head_dim: 4, capacity: 16 };
/// let mut cache = KVCache::new(&queue, DType::F32, &size)?;
/// for _ in 0..3 {
///     let place = Tensor::from_host(&queue, &[0.5f32; 8], [1, 1, 8])?;
///     assert_eq!(layer.attend(&place, Some((&cache, 0)))?.shape()[..], [1, 1, 8]);
///     cache.advance(1);
/// }
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
#[derive(Module)]
pub struct RotaryAttention {
    qkv: Box<dyn Module>,
    proj: Box<dyn Module>,
    q_norm: Option<RMSNorm>,
    k_norm: Option<RMSNorm>,
    training: bool,
    #[module(settings)]
    settings: RotaryAttentionOptions,
}

impl RotaryAttention {
    fn make(build: &mut Build<'_>, settings: RotaryAttentionOptions) -> Result<RotaryAttention> {
        let RotaryAttentionOptions { dim, n_head, bias, qk_norm, eps, .. } = settings;
        let qkv = linear_of(build, dim, dim.saturating_mul(3), bias)?;
        let proj = linear_of(build, dim, dim, bias)?;
        let mut norm = || qk_norm.then(|| rms_norm_of(build, dim / n_head, eps)).transpose();
        Ok(RotaryAttention { qkv, proj, q_norm: norm()?, k_norm: norm()?, training: true, settings })
    }

    /// The result for `[batch, length, dim]`.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || self.attend(input, None))
    }

    /// The result for places that follow those in a cache.
    pub fn attend(&self, input: &Tensor, cache: Cached<'_>) -> Result<Tensor> {
        crate::scope::run(self, || {
            let RotaryAttentionOptions { n_head, rope_base, dropout, .. } = self.settings;
            let [q, k, v] = in_heads("RotaryAttention", &self.qkv.forward(input)?, n_head)?;
            let (length, width) = (q.shape()[2], q.shape()[3]);
            let tables = |start, length| RotaryTables::new(q.queue(), start, length, width, rope_base, q.dtype());
            // Only distances count: places of padding turn like others.
            let tables = match cache.and_then(|(cache, _)| Some((cache, cache.followed()?))) {
                Some((cache, place)) => {
                    let all = tables(0, cache.capacity())?;
                    let row = |table: &RawTensor| {
                        Ok::<_, Error>(index_select(&table.clone().into(), 0, &place)?.raw().clone())
                    };
                    RotaryTables::from_parts(row(all.cos())?, row(all.sin())?)?
                }
                None => tables(cache.map_or(0, |(cache, _)| cache.length()), length)?,
            };
            let turned = |x: Tensor, norm: &Option<RMSNorm>| {
                let x = norm.as_ref().map_or(Ok(x.clone()), |norm| norm.forward(&x))?;
                rotary(&x, &tables, RotaryForm::HalfSplit)
            };
            let dropout = if self.training { dropout } else { 0.0 };
            let parts = [turned(q, &self.q_norm)?, turned(k, &self.k_norm)?, v];
            dropped(self.proj.forward(&attended(&parts, true, dropout, cache)?)?, dropout, true)
        })
    }
}

/// How a [`SwiGLU`] is made.
#[derive(Clone, Debug, Settings)]
pub struct SwiGLUOptions {
    /// The outer width.
    #[setting(least = 1)]
    pub dim: usize,
    /// The inner width; 8/3 of the outer one, up to a multiple of 64, unless given: as many weights as without a gate.
    #[setting(default, least = 1)]
    pub hidden: Option<usize>,
    /// Whether the linear layers add biases.
    #[setting(default = false)]
    pub bias: bool,
}

/// A gated pair of linear layers: `down(silu(gate(x)) * up(x))`.
#[derive(Module)]
pub struct SwiGLU {
    gate: Box<dyn Module>,
    up: Box<dyn Module>,
    down: Box<dyn Module>,
    #[module(settings)]
    settings: SwiGLUOptions,
}

impl SwiGLU {
    fn make(build: &mut Build<'_>, settings: SwiGLUOptions) -> Result<SwiGLU> {
        let SwiGLUOptions { dim, hidden, bias } = settings;
        let hidden = hidden.unwrap_or_else(|| (dim.saturating_mul(8) / 3).next_multiple_of(64));
        Ok(SwiGLU {
            gate: linear_of(build, dim, hidden, bias)?,
            up: linear_of(build, dim, hidden, bias)?,
            down: linear_of(build, hidden, dim, bias)?,
            settings: SwiGLUOptions { hidden: Some(hidden), ..settings },
        })
    }

    /// The result for an input.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || {
            self.down.forward(&mul(&silu(&self.gate.forward(input)?)?, &self.up.forward(input)?)?)
        })
    }
}

/// How a [`FeedForward`] is made.
#[derive(Clone, Debug, Settings)]
#[settings(check = FeedForwardOptions::fits)]
pub struct FeedForwardOptions {
    /// The outer width.
    #[setting(least = 1)]
    pub dim: usize,
    /// The inner width.
    #[setting(least = 1)]
    pub hidden: usize,
    /// What is between the two layers.
    #[setting(default = Activation::Gelu)]
    pub activation: Activation,
    /// The probability with which results are dropped in training.
    #[setting(default = 0.0)]
    pub dropout: f64,
    /// Whether the linear layers add biases.
    #[setting(default = true)]
    pub bias: bool,
}

impl FeedForwardOptions {
    fn fits(&self, layer: &'static str) -> Result<()> {
        probability(layer, "dropout", self.dropout)
    }
}

/// Two linear layers with an activation between them, with the names of GPT-2.
#[derive(Module)]
pub struct FeedForward {
    c_fc: Box<dyn Module>,
    c_proj: Box<dyn Module>,
    training: bool,
    #[module(settings)]
    settings: FeedForwardOptions,
}

impl FeedForward {
    fn make(build: &mut Build<'_>, settings: FeedForwardOptions) -> Result<FeedForward> {
        let FeedForwardOptions { dim, hidden, bias, .. } = settings;
        let (c_fc, c_proj) = (linear_of(build, dim, hidden, bias)?, linear_of(build, hidden, dim, bias)?);
        Ok(FeedForward { c_fc, c_proj, training: true, settings })
    }

    /// The result for an input.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || {
            let inner = self.settings.activation.of(&self.c_fc.forward(input)?)?;
            dropped(self.c_proj.forward(&inner)?, self.settings.dropout, self.training)
        })
    }
}

/// How a [`TransformerBlock`] is made.
#[derive(Clone, Debug, Settings)]
pub struct TransformerBlockOptions {
    /// The width of vectors.
    #[setting(least = 1)]
    pub d_model: usize,
    /// The number of heads.
    #[setting(least = 1)]
    pub num_heads: usize,
    /// The width between the two linear layers; four times the outer one unless given.
    #[setting(default, least = 1)]
    pub dim_feedforward: Option<usize>,
    /// The probability with which values are dropped in training.
    #[setting(default = 0.0)]
    pub dropout: f64,
    /// Whether a place sees only itself and those before it.
    #[setting(default = true)]
    pub causal: bool,
    /// What is between the two linear layers.
    #[setting(default = Activation::Gelu)]
    pub activation: Activation,
    /// Whether linear layers and normalisations add biases.
    #[setting(default = true)]
    pub bias: bool,
}

/// `x + attn(ln_1(x))`, then `x + mlp(ln_2(x))`: the block of GPT.
#[derive(Module)]
pub struct TransformerBlock {
    ln_1: LayerNorm,
    attn: CausalSelfAttention,
    ln_2: LayerNorm,
    mlp: FeedForward,
    #[module(settings)]
    settings: TransformerBlockOptions,
}

impl TransformerBlock {
    fn make(build: &mut Build<'_>, settings: TransformerBlockOptions) -> Result<TransformerBlock> {
        let TransformerBlockOptions { d_model, num_heads, dim_feedforward, dropout, causal, activation, bias } =
            settings;
        let hidden = dim_feedforward.unwrap_or(d_model.saturating_mul(4));
        let attention = CausalSelfAttentionOptions::new(d_model, num_heads);
        let ln_1 = layer_norm_of(build, d_model, 1e-5, bias)?;
        let attn =
            CausalSelfAttention::build(build, CausalSelfAttentionOptions { causal, dropout, bias, ..attention })?;
        let ln_2 = layer_norm_of(build, d_model, 1e-5, bias)?;
        let mlp = FeedForward::build(build, FeedForwardOptions { dim: d_model, hidden, activation, dropout, bias })?;
        let settings = TransformerBlockOptions { dim_feedforward: Some(hidden), ..settings };
        Ok(TransformerBlock { ln_1, attn, ln_2, mlp, settings })
    }

    /// The result for `[batch, length, d_model]`.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || self.attend(input, None))
    }

    /// The result for places that follow those in a cache.
    pub fn attend(&self, input: &Tensor, cache: Cached<'_>) -> Result<Tensor> {
        crate::scope::run(self, || {
            let x = add(input, &self.attn.attend(&self.ln_1.forward(input)?, cache)?)?;
            add(&x, &self.mlp.forward(&self.ln_2.forward(&x)?)?)
        })
    }
}

/// How a [`DecoderBlock`] is made.
#[derive(Clone, Debug, Settings)]
pub struct DecoderBlockOptions {
    /// The width of vectors.
    #[setting(least = 1)]
    pub dim: usize,
    /// The number of heads.
    #[setting(least = 1)]
    pub n_head: usize,
    /// The inner width of the [`SwiGLU`].
    #[setting(default, least = 1)]
    pub hidden: Option<usize>,
    /// The probability with which values are dropped in training.
    #[setting(default = 0.0)]
    pub dropout: f64,
    /// What the slowest angle is divided by.
    #[setting(default = 10_000.0)]
    pub rope_base: f64,
    /// Added to mean squares.
    #[setting(default = 1e-6)]
    pub eps: f64,
    /// Whether queries and keys are normalised.
    #[setting(default = true)]
    pub qk_norm: bool,
}

/// `x + attn(norm1(x))`, then `x + ffn(norm2(x))`, with [`RotaryAttention`], [`RMSNorm`] and [`SwiGLU`]: the block of Llama.
#[derive(Module)]
pub struct DecoderBlock {
    norm1: RMSNorm,
    attn: RotaryAttention,
    norm2: RMSNorm,
    ffn: SwiGLU,
    training: bool,
    #[module(settings)]
    settings: DecoderBlockOptions,
}

impl DecoderBlock {
    fn make(build: &mut Build<'_>, settings: DecoderBlockOptions) -> Result<DecoderBlock> {
        let DecoderBlockOptions { dim, n_head, hidden, dropout, rope_base, eps, qk_norm } = settings;
        let attention = RotaryAttentionOptions::new(dim, n_head);
        let norm1 = rms_norm_of(build, dim, eps)?;
        let attn =
            RotaryAttention::build(build, RotaryAttentionOptions { rope_base, dropout, qk_norm, eps, ..attention })?;
        let norm2 = rms_norm_of(build, dim, eps)?;
        let ffn = SwiGLU::build(build, SwiGLUOptions { hidden, ..SwiGLUOptions::new(dim) })?;
        let settings = DecoderBlockOptions { hidden: ffn.settings.hidden, ..settings };
        Ok(DecoderBlock { norm1, attn, norm2, ffn, training: true, settings })
    }

    /// The result for `[batch, length, dim]`.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || self.attend(input, None))
    }

    /// The result for places that follow those in a cache.
    pub fn attend(&self, input: &Tensor, cache: Cached<'_>) -> Result<Tensor> {
        crate::scope::run(self, || {
            let x = add(input, &self.attn.attend(&self.norm1.forward(input)?, cache)?)?;
            let y = self.ffn.forward(&self.norm2.forward(&x)?)?;
            add(&x, &dropped(y, self.settings.dropout, self.training)?)
        })
    }
}

/// `x @ weight.T` with the table of an [`Embedding`](crate::Embedding): the parameter stays one.
#[derive(Module)]
pub struct TiedLinear {
    weight: Tensor,
}

impl TiedLinear {
    /// Over a table `[out_features, in_features]`.
    pub fn new(weight: &Tensor) -> TiedLinear {
        TiedLinear { weight: weight.clone() }
    }

    /// The result for an input.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || linear(input, &self.weight, None))
    }
}
