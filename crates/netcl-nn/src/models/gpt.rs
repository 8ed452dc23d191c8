//! A small language model in the manner of GPT-2.

use netcl_autograd::ops::attention::{RotaryForm, RotaryTables};
use netcl_autograd::ops::elementwise::add;
use netcl_autograd::ops::layout::slice;
use netcl_autograd::ops::matmul::linear;
use netcl_autograd::ops::random::uniform;
use netcl_autograd::{DType, Error, Generator, IndexTensor, Queue, Result, Slice, Tensor, host, manager, no_grad};

use crate::attention::Masks;
use crate::config::Build;
use crate::dropout::Dropout;
use crate::embedding::{Embedding, EmbeddingOptions};
use crate::init::Init;
use crate::members;
use crate::module::{Module, print_as_module};
use crate::norm::{LayerNorm, LayerNormOptions};
use crate::transformer::{FeedForward, TransformerEncoderLayer, TransformerEncoderLayerOptions};

/// How a [`GPT`] knows the order of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Positions {
    /// A trained vector per position, added to the token's.
    #[default]
    Learned,
    /// Queries and keys turned by angles that grow with the position, as in Llama.
    Rotary {
        /// What the slowest angle is divided by; 10000 in most models.
        base: f64,
    },
}

/// The size of a [`GPT`] and how it starts.
#[derive(Debug)]
pub struct GPTOptions<'g> {
    /// The number of tokens there are.
    pub vocab_size: usize,
    /// The largest number of tokens that are seen together.
    pub context: usize,
    /// The width of a token's vector.
    pub width: usize,
    /// The heads of each attention.
    pub heads: usize,
    /// The number of blocks.
    pub layers: usize,
    /// The probability with which values are dropped in training.
    pub dropout: f64,
    /// How the order is known.
    pub positions: Positions,
    /// The parameters' dtype.
    pub dtype: DType,
    /// Where the first weights come from; the process-wide generator where none is given.
    pub generator: Option<&'g mut Generator>,
}

impl Default for GPTOptions<'_> {
    fn default() -> Self {
        GPTOptions {
            vocab_size: 256,
            context: 128,
            width: 128,
            heads: 4,
            layers: 4,
            dropout: 0.0,
            positions: Positions::default(),
            dtype: DType::F32,
            generator: None,
        }
    }
}

/// How [`GPT::generate`] chooses the next token.
#[derive(Debug)]
pub struct Sampling<'g> {
    /// What scores are divided by: less than 1 prefers likely tokens, 0 always takes the likeliest.
    pub temperature: f64,
    /// Only so many of the likeliest tokens are considered; all of them where none is given.
    pub top_k: Option<usize>,
    /// Where random numbers come from; the process-wide generator where none is given.
    pub generator: Option<&'g mut Generator>,
}

impl Default for Sampling<'_> {
    fn default() -> Self {
        Sampling { temperature: 1.0, top_k: None, generator: None }
    }
}

/// A transformer that predicts the next token: vectors of tokens (and positions), blocks that look back only, and scores by the
/// same vectors.
///
/// Blocks normalise first and use GELU. Weights start as in GPT-2: normal with the deviation 0.02, those that end a bypassed part
/// smaller by the root of the number of such parts; biases at 0.
///
/// ```
/// use netcl_nn::autograd::{Generator, IndexTensor, manager};
/// use netcl_nn::{GPT, GPTOptions, Module, Sampling};
///
/// let queue = manager().cpu().queue;
/// let mut generator = Generator::new(1);
/// let options = GPTOptions {
///     vocab_size: 11,
///     context: 8,
///     width: 16,
///     layers: 2,
///     generator: Some(&mut generator),
///     ..Default::default()
/// };
/// let mut model = GPT::new(&queue, options)?;
/// let tokens = IndexTensor::from_host(&queue, &[3i64, 1, 4, 1, 5], [1, 5])?;
/// assert_eq!(model.scores(&tokens)?.shape()[..], [1, 5, 11]);
///
/// model.eval();
/// let sampling = Sampling { generator: Some(&mut generator), ..Default::default() };
/// assert_eq!(model.generate(&[3, 1, 4], 10, sampling)?.len(), 13);
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
pub struct GPT {
    wte: Embedding,
    wpe: Option<Embedding>,
    drop: Dropout,
    h: Vec<TransformerEncoderLayer>,
    ln_f: LayerNorm,
    context: usize,
    heads: usize,
    positions: Positions,
}

impl GPT {
    /// A model with new weights.
    ///
    /// # Errors
    /// If the heads do not divide the width, or the dropout is no probability.
    pub fn new(queue: &Queue, options: GPTOptions<'_>) -> Result<GPT> {
        let GPTOptions { vocab_size, context, width, heads, layers, dropout, positions, dtype, mut generator } =
            options;
        let table = |rows: usize, generator: Option<&mut Generator>| {
            let build = Build::on(queue).dtype(dtype).generator(generator);
            Embedding::new_with(build, EmbeddingOptions::new(rows, width))
        };
        let wte = table(vocab_size, generator.as_deref_mut())?;
        let wpe = (positions == Positions::Learned).then(|| table(context, generator.as_deref_mut())).transpose()?;
        let mut h = host::with_capacity("GPT", layers)?;
        for _ in 0..layers {
            let options = TransformerEncoderLayerOptions {
                dim_feedforward: 4 * width,
                dropout,
                activation: FeedForward::Gelu,
                batch_first: true,
                norm_first: true,
                dtype,
                generator: generator.as_deref_mut(),
                ..Default::default()
            };
            h.push(TransformerEncoderLayer::new_with(queue, width, heads, options)?);
        }
        let ln_f = LayerNorm::new_with(Build::on(queue).dtype(dtype), LayerNormOptions::new([width]))?;
        let model = GPT { wte, wpe, drop: Dropout::new(dropout)?, h, ln_f, context, heads, positions };
        for (name, parameter) in model.named_parameters() {
            let ends_part = name.ends_with("out_proj.weight") || name.ends_with("linear2.weight");
            let std = if ends_part { 0.02 / (2.0 * layers as f64).sqrt() } else { 0.02 };
            match parameter.ndim() {
                2 => Init::Normal { mean: 0.0, std }.fill(&parameter, generator.as_deref_mut())?,
                _ if name.ends_with("bias") => parameter.fill(0.0)?,
                _ => {}
            }
        }
        Ok(model)
    }

    /// The largest number of tokens that are seen together.
    pub fn context(&self) -> usize {
        self.context
    }

    /// The scores of every token to come next, `[batch, length, vocab_size]`, behind each of the tokens `[batch, length]`.
    ///
    /// # Errors
    /// If there are more tokens than the model can see, or one that it does not know.
    pub fn scores(&self, tokens: &IndexTensor) -> Result<Tensor> {
        let &[_, length] = &tokens.tensor().shape()[..] else {
            let why = "tokens are (batch, length)".to_owned();
            return Err(Error::shape("GPT", tokens.tensor().shape(), why));
        };
        if length > self.context {
            let what = format!("{length} tokens are more than the {} that the model sees together", self.context);
            return Err(Error::argument("GPT", what));
        }
        let mut x = self.wte.lookup(tokens)?;
        if let Some(wpe) = &self.wpe {
            x = add(&x, &slice(wpe.weight(), 0, Slice::new(None, Some(length as isize), 1))?)?;
        }
        let turned = match self.positions {
            Positions::Learned => None,
            Positions::Rotary { base } => {
                let width = self.wte.weight().shape()[1] / self.heads;
                Some(RotaryTables::new(x.queue(), 0, length, width, base, x.dtype())?)
            }
        };
        let positions = turned.as_ref().map(|tables| (tables, RotaryForm::HalfSplit));
        x = self.drop.forward(&x)?;
        let masks = Masks { causal: true, ..Default::default() };
        for block in &self.h {
            x = block.encode_at(&x, &masks, positions)?;
        }
        linear(&self.ln_f.forward(&x)?, self.wte.weight(), None)
    }

    /// A prompt with so many more tokens, each drawn by the model's scores; what lies further back than the context is not seen.
    ///
    /// # Errors
    /// If the prompt is empty or has a token that the model does not know, or the temperature is negative.
    pub fn generate(&self, prompt: &[i64], count: usize, mut sampling: Sampling<'_>) -> Result<Vec<i64>> {
        const OP: &str = "GPT::generate";
        if prompt.is_empty() {
            return Err(Error::argument(OP, "the prompt is empty; begin with at least one token"));
        }
        if sampling.temperature.is_nan() || sampling.temperature < 0.0 {
            let what = format!("the temperature is {}; use 0 or a positive number", sampling.temperature);
            return Err(Error::argument(OP, what));
        }
        let _scope = no_grad();
        let mut tokens = prompt.to_vec();
        for _ in 0..count {
            let seen = &tokens[tokens.len().saturating_sub(self.context)..];
            let scores = self.scores(&IndexTensor::from_host(self.wte.weight().queue(), seen, [1, seen.len()])?)?;
            let scores = scores.raw().select(1, -1)?.to_f64_vec()?;
            tokens.push(draw(&scores, &mut sampling)? as i64);
        }
        Ok(tokens)
    }
}

/// A token by its score.
fn draw(scores: &[f64], sampling: &mut Sampling<'_>) -> Result<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    let likeliest = order.first().copied().unwrap_or(0);
    if sampling.temperature == 0.0 {
        return Ok(likeliest);
    }
    order.truncate(sampling.top_k.unwrap_or(scores.len()).max(1));
    let weight = |&token: &usize| ((scores[token] - scores[likeliest]) / sampling.temperature).exp();
    let weights: Vec<f64> = order.iter().map(weight).collect();
    let generator = sampling.generator.as_deref_mut();
    let share = uniform(&manager().cpu().queue, (), DType::F64, 0.0, 1.0, generator)?.item()?;
    let mut left = share * weights.iter().sum::<f64>();
    for (token, weight) in order.iter().zip(&weights) {
        left -= weight;
        if left < 0.0 {
            return Ok(*token);
        }
    }
    Ok(likeliest)
}

impl Module for GPT {
    /// [`GPT::scores`] of whole numbers in a float tensor.
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        self.scores(&IndexTensor::from_float(input.raw())?)
    }

    fn arguments(&self) -> String {
        format!("context={}, heads={}", self.context, self.heads)
    }

    members! { children: wte, wpe, drop, h, ln_f }
}

print_as_module!(GPT);
