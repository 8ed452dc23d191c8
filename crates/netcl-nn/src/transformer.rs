//! The block of a transformer.

use netcl_autograd::ops::attention::{RotaryForm, RotaryTables};
use netcl_autograd::ops::elementwise::{add, gelu, relu};
use netcl_autograd::{DType, Generator, Queue, Result, Tensor};

use crate::attention::{Masks, MultiheadAttention, MultiheadAttentionOptions};
use crate::config::Build;
use crate::dropout::Dropout;
use crate::linear::{Linear, LinearOptions};
use crate::members;
use crate::module::{Module, print_as_module};
use crate::norm::{LayerNorm, LayerNormOptions};

/// What is between the two linear layers of a [`TransformerEncoderLayer`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FeedForward {
    /// `max(x, 0)`.
    #[default]
    Relu,
    /// `x * normcdf(x)`.
    Gelu,
}

/// How a [`TransformerEncoderLayer`] is made.
#[derive(Debug)]
pub struct TransformerEncoderLayerOptions<'g> {
    /// The width between the two linear layers.
    pub dim_feedforward: usize,
    /// The probability with which weights of the attention, hidden values and results are dropped in training.
    pub dropout: f64,
    /// What is between the two linear layers.
    pub activation: FeedForward,
    /// Added to variances.
    pub layer_norm_eps: f64,
    /// Whether inputs are `[batch, length, width]` instead of `[length, batch, width]`.
    pub batch_first: bool,
    /// Whether inputs of the two parts are normalised, rather than the sums behind them.
    pub norm_first: bool,
    /// Whether linear layers and normalisations add biases.
    pub bias: bool,
    /// The parameters' dtype.
    pub dtype: DType,
    /// Where the first weights come from; the process-wide generator where none is given.
    pub generator: Option<&'g mut Generator>,
}

impl Default for TransformerEncoderLayerOptions<'_> {
    fn default() -> Self {
        TransformerEncoderLayerOptions {
            dim_feedforward: 2048,
            dropout: 0.1,
            activation: FeedForward::Relu,
            layer_norm_eps: 1e-5,
            batch_first: false,
            norm_first: false,
            bias: true,
            dtype: DType::F32,
            generator: None,
        }
    }
}

/// Self-attention and two linear layers, each bypassed and normalised (Vaswani et al., 2017). Names and defaults are PyTorch's.
///
/// ```
/// use netcl_nn::autograd::{Tensor, manager};
/// use netcl_nn::{Masks, TransformerEncoderLayer, TransformerEncoderLayerOptions};
///
/// let queue = manager().cpu().queue;
/// let options = TransformerEncoderLayerOptions { dim_feedforward: 32, norm_first: true, ..Default::default() };
/// let block = TransformerEncoderLayer::new_with(&queue, 8, 2, options)?;
/// let words = Tensor::from_host(&queue, &[0.5f32; 40], [5, 1, 8])?;
/// let causal = Masks { causal: true, ..Default::default() };
/// assert_eq!(block.encode(&words, &causal)?.shape()[..], [5, 1, 8]);
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
pub struct TransformerEncoderLayer {
    self_attn: MultiheadAttention,
    linear1: Linear,
    dropout: Dropout,
    linear2: Linear,
    norm1: LayerNorm,
    norm2: LayerNorm,
    dropout1: Dropout,
    dropout2: Dropout,
    activation: FeedForward,
    norm_first: bool,
}

impl TransformerEncoderLayer {
    /// A float32 block for vectors of this width.
    ///
    /// # Errors
    /// If the heads do not divide the width.
    pub fn new(queue: &Queue, d_model: usize, num_heads: usize) -> Result<TransformerEncoderLayer> {
        TransformerEncoderLayer::new_with(queue, d_model, num_heads, TransformerEncoderLayerOptions::default())
    }

    /// A block with other options.
    ///
    /// # Errors
    /// If the heads do not divide the width, or the dropout is no probability.
    pub fn new_with(
        queue: &Queue,
        d_model: usize,
        num_heads: usize,
        options: TransformerEncoderLayerOptions<'_>,
    ) -> Result<TransformerEncoderLayer> {
        let TransformerEncoderLayerOptions { dim_feedforward, dropout, activation, batch_first, .. } = options;
        let TransformerEncoderLayerOptions { layer_norm_eps: eps, norm_first, bias, dtype, mut generator, .. } =
            options;
        let attention =
            MultiheadAttentionOptions { dropout, bias, batch_first, dtype, generator: generator.as_deref_mut() };
        let self_attn = MultiheadAttention::new_with(queue, d_model, num_heads, attention)?;
        let mut linear = |inputs, outputs| {
            let build = Build::on(queue).dtype(dtype).generator(generator.as_deref_mut());
            Linear::new_with(build, LinearOptions { bias, ..LinearOptions::new(inputs, outputs) })
        };
        let norm = || {
            let options = LayerNormOptions { eps, bias, ..LayerNormOptions::new([d_model]) };
            LayerNorm::new_with(Build::on(queue).dtype(dtype), options)
        };
        Ok(TransformerEncoderLayer {
            self_attn,
            linear1: linear(d_model, dim_feedforward)?,
            dropout: Dropout::new(dropout)?,
            linear2: linear(dim_feedforward, d_model)?,
            norm1: norm()?,
            norm2: norm()?,
            dropout1: Dropout::new(dropout)?,
            dropout2: Dropout::new(dropout)?,
            activation,
            norm_first,
        })
    }

    /// The block's result where queries do not see everything.
    pub fn encode(&self, input: &Tensor, masks: &Masks<'_>) -> Result<Tensor> {
        self.encode_at(input, masks, None)
    }

    /// [`TransformerEncoderLayer::encode`] with queries and keys turned by their positions.
    pub(crate) fn encode_at(
        &self,
        input: &Tensor,
        masks: &Masks<'_>,
        positions: Option<(&RotaryTables, RotaryForm)>,
    ) -> Result<Tensor> {
        let attended = |x: &Tensor| self.dropout1.forward(&self.self_attn.attend_at(x, x, x, masks, positions)?);
        if self.norm_first {
            let x = add(input, &attended(&self.norm1.forward(input)?)?)?;
            return add(&x, &self.feed_forward(&self.norm2.forward(&x)?)?);
        }
        let x = self.norm1.forward(&add(input, &attended(input)?)?)?;
        self.norm2.forward(&add(&x, &self.feed_forward(&x)?)?)
    }

    fn feed_forward(&self, x: &Tensor) -> Result<Tensor> {
        let hidden = self.linear1.forward(x)?;
        let hidden = match self.activation {
            FeedForward::Relu => relu(&hidden)?,
            FeedForward::Gelu => gelu(&hidden)?,
        };
        self.dropout2.forward(&self.linear2.forward(&self.dropout.forward(&hidden)?)?)
    }
}

impl Module for TransformerEncoderLayer {
    /// The block's result without a mask.
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        self.encode(input, &Masks::default())
    }

    fn arguments(&self) -> String {
        format!("norm_first={}", self.norm_first)
    }

    members! { children: self_attn, linear1, dropout, linear2, norm1, norm2, dropout1, dropout2 }
}

print_as_module!(TransformerEncoderLayer);
