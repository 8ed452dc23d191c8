//! A small language model in the manner of GPT-2.

use netcl_autograd::ops::elementwise::add;
use netcl_autograd::ops::indexing::{embedding_sum, indices};
use netcl_autograd::ops::layout::{select, slice};
use netcl_autograd::ops::loss::{LinearCrossEntropyOptions, linear_cross_entropy};
use netcl_autograd::{Error, IndexTensor, Queue, Result, Slice, Tensor, host};

use crate::Module;
use crate::attention::dropped;
use crate::config::{Build, Configured};
use crate::decoder::{TiedLinear, TransformerBlock, TransformerBlockOptions, layer_norm_of};
use crate::embedding::{Embedding, EmbeddingOptions};
use crate::generation::{Text, generate_with};
use crate::init::Init;
use crate::kv_cache::{KVCache, KVCacheOptions};
use crate::norm::LayerNorm;
use crate::sampling::Sampling;
use crate::settings::{Settings, depth, probability};

/// The size of a [`GPT`].
#[derive(Clone, Debug, Settings)]
#[settings(check = GPTOptions::fits)]
pub struct GPTOptions {
    /// The number of tokens there are.
    #[setting(least = 1)]
    pub vocab_size: usize,
    /// The largest number of tokens that are seen together.
    #[setting(least = 1)]
    pub block_size: usize,
    /// The number of blocks.
    #[setting(default = 4, least = 1)]
    pub n_layer: usize,
    /// The heads of each attention.
    #[setting(default = 4, least = 1)]
    pub n_head: usize,
    /// The width of a token's vector.
    #[setting(default = 128, least = 1)]
    pub n_embd: usize,
    /// The probability with which values are dropped in training.
    #[setting(default = 0.0)]
    pub dropout: f64,
    /// Whether linear layers and normalisations add biases.
    #[setting(default = true)]
    pub bias: bool,
}

impl GPTOptions {
    fn fits(&self, layer: &'static str) -> Result<()> {
        probability(layer, "dropout", self.dropout)?;
        depth(layer, "n_layer", self.n_layer)
    }
}

/// A transformer that predicts the next token: vectors of tokens and places, blocks that look back only, and scores by the same
/// vectors.
///
/// Weights start as in GPT-2: normal with the deviation 0.02, those that end a bypassed part smaller by the root of the number of
/// such parts; biases at 0.
///
/// ```
/// use netcl_nn::autograd::{IndexTensor, manager};
/// use netcl_nn::{GPT, GPTOptions, Module, Sampling};
///
/// let queue = manager().cpu().queue;
/// let mut model = GPT::new_with(&queue, GPTOptions { n_embd: 16, n_layer: 2, ..GPTOptions::new(11, 8) })?;
/// let tokens = IndexTensor::from_host(&queue, &[3i64, 1, 4], [1, 3])?;
/// assert_eq!(model.logits(&tokens, None)?.shape()[..], [1, 3, 11]);
///
/// model.eval();
/// let more = model.generate(&tokens, 10, Sampling { seed: Some(1), ..Default::default() })?;
/// assert_eq!(more.tensor().shape()[..], [1, 13]);
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
#[derive(Module)]
pub struct GPT {
    wte: Embedding,
    wpe: Embedding,
    h: Vec<TransformerBlock>,
    ln_f: LayerNorm,
    lm_head: TiedLinear,
    training: bool,
    #[module(settings)]
    settings: GPTOptions,
}

impl GPT {
    /// A float32 model.
    pub fn new(queue: &Queue, vocab_size: usize, block_size: usize) -> Result<GPT> {
        GPT::new_with(queue, GPTOptions::new(vocab_size, block_size))
    }

    fn make(build: &mut Build<'_>, settings: GPTOptions) -> Result<GPT> {
        let GPTOptions { vocab_size, block_size, n_layer, n_head, n_embd, dropout, bias } = settings;
        let wte = Embedding::build(build, EmbeddingOptions::new(vocab_size, n_embd))?;
        let wpe = Embedding::build(build, EmbeddingOptions::new(block_size, n_embd))?;
        let mut h = host::with_capacity("GPT", n_layer)?;
        for _ in 0..n_layer {
            let block = TransformerBlockOptions { dropout, bias, ..TransformerBlockOptions::new(n_embd, n_head) };
            h.push(TransformerBlock::build(build, block)?);
        }
        let ln_f = layer_norm_of(build, n_embd, 1e-5, bias)?;
        let lm_head = TiedLinear::new(wte.weight());
        let model = GPT { wte, wpe, h, ln_f, lm_head, training: true, settings };
        for (name, parameter) in model.named_parameters() {
            // What is added up along the shortcuts starts smaller, so that the sum keeps its size.
            let parts = if name.ends_with("c_proj.weight") { 2 * n_layer } else { 1 };
            if name.ends_with("bias") {
                build.fill(&parameter, Init::Constant(0.0))?;
            } else if parameter.ndim() == 2 {
                build.fill(&parameter, Init::Normal { mean: 0.0, std: 0.02 / (parts as f64).sqrt() })?;
            }
        }
        Ok(model)
    }

    /// [`GPT::logits`] of whole numbers in a float tensor.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || self.logits(&indices(input)?, None))
    }

    /// The scores of every token to come next, `[batch, length, vocab_size]`, after each of the tokens `[batch, length]`; with a
    /// cache, of tokens that follow those it has seen.
    ///
    /// # Errors
    /// If there are more tokens than the model can see, or one that it does not know.
    pub fn logits(&self, tokens: &IndexTensor, cache: Option<&mut KVCache>) -> Result<Tensor> {
        crate::scope::run(self, || self.lm_head.forward(&self.features(tokens, cache.as_deref())?))
    }

    /// The mean cross-entropy between [`GPT::logits`] and the tokens that do come next, `[batch, length]`, of which those numbered
    /// -100 count for nothing. Only some rows of the logits are ever in memory.
    ///
    /// # Errors
    /// As [`GPT::logits`], and for targets of another shape or that are no tokens.
    pub fn loss(&self, tokens: &IndexTensor, targets: &IndexTensor) -> Result<Tensor> {
        crate::scope::run(self, || {
            let features = self.features(tokens, None)?;
            linear_cross_entropy(&features, self.wte.weight(), None, targets, &LinearCrossEntropyOptions::default())
        })
    }

    /// What the head sees of each token.
    fn features(&self, tokens: &IndexTensor, cache: Option<&KVCache>) -> Result<Tensor> {
        let start = cache.map_or(0, KVCache::length);
        let (shape, room) = (tokens.tensor().shape(), self.settings.block_size.saturating_sub(start));
        let length = match shape[..] {
            [_, length] if (1..=room).contains(&length) => length,
            _ => {
                let what = format!("takes tokens (batch, 1 to {room}); these have shape {shape}");
                return Err(Error::argument("GPT", what));
            }
        };
        let (words, places) = (self.wte.weight(), self.wpe.weight());
        let x = match cache.map(|cache| (cache, cache.followed_within())) {
            Some((_, Some(place))) => embedding_sum((words, tokens), (places, &place))?,
            Some((cache, None)) => add(&self.wte.lookup(tokens)?, &cache.rows(places, length)?)?,
            None => {
                let places = slice(places, 0, Slice::new(Some(0), Some(length as isize), 1))?;
                add(&self.wte.lookup(tokens)?, &places)?
            }
        };
        let mut x = dropped(x, self.settings.dropout, self.training)?;
        for (layer, block) in self.h.iter().enumerate() {
            x = block.attend(&x, cache.map(|cache| (cache, layer)))?;
        }
        if let Some(cache) = cache {
            cache.advance(length);
        }
        self.ln_f.forward(&x)
    }

    /// The tokens `[batch, length]` with so many more, each drawn by the model's scores; what lies further back than the block is
    /// not seen. Dropout drops in training: call [`Module::eval`] first.
    ///
    /// # Errors
    /// If there is no token or one that the model does not know, and for a sampling that cannot be.
    pub fn generate(&self, tokens: &IndexTensor, max_new_tokens: usize, sampling: Sampling) -> Result<IndexTensor> {
        let mut text = Text::new(tokens)?;
        self.go_on(&mut text, max_new_tokens, sampling, &mut |_| Ok(true))?;
        text.whole()
    }

    /// [`GPT::generate`] for texts of different lengths.
    ///
    /// # Errors
    /// As [`GPT::generate`].
    pub fn generate_texts(
        &self,
        texts: &[Vec<i64>],
        max_new_tokens: usize,
        sampling: Sampling,
    ) -> Result<Vec<Vec<i64>>> {
        let mut text = Text::of(self.wte.weight().queue(), texts)?;
        self.go_on(&mut text, max_new_tokens, sampling, &mut |_| Ok(true))?;
        text.rows()
    }

    /// [`GPT::generate`] that hands over each token of the batch as soon as it is drawn, until `each` answers `false`.
    ///
    /// # Errors
    /// As [`GPT::generate`].
    pub fn generate_each(
        &self,
        tokens: &IndexTensor,
        max_new_tokens: usize,
        sampling: Sampling,
        each: &mut dyn FnMut(&[i64]) -> bool,
    ) -> Result<()> {
        let mut each = |more: &IndexTensor| Ok(each(&more.to_host()?));
        self.go_on(&mut Text::new(tokens)?, max_new_tokens, sampling, &mut each)
    }

    fn go_on(
        &self,
        text: &mut Text,
        max_new_tokens: usize,
        sampling: Sampling,
        each: &mut dyn FnMut(&IndexTensor) -> Result<bool>,
    ) -> Result<()> {
        let GPTOptions { block_size, n_layer, n_head, n_embd, .. } = self.settings;
        let weight = self.wte.weight();
        let size =
            KVCacheOptions { n_layer, batch: text.batch(), n_head, head_dim: n_embd / n_head, capacity: block_size };
        let cache = KVCache::new(weight.queue(), weight.dtype(), &size)?;
        let mut scores = |tokens: &IndexTensor, cache: &KVCache| {
            crate::scope::run(self, || self.lm_head.forward(&select(&self.features(tokens, Some(cache))?, 1, -1)?))
        };
        generate_with(&mut scores, text, max_new_tokens, &cache, sampling, each)
    }
}
