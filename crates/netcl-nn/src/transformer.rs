//! Encoders and decoders of transformers, with PyTorch's names.

use netcl_autograd::ops::elementwise::{add, gelu, relu, silu};
use netcl_autograd::ops::layout::duplicate;
use netcl_autograd::{Error, Queue, Result, Tensor, host};

use crate::Module;
use crate::attention::{Masks, MultiheadAttention, MultiheadAttentionOptions, dropped};
use crate::choices;
use crate::config::{Build, Configured, LayerConfig, layer_config};
use crate::decoder::{layer_norm_of, linear_of};
use crate::norm::LayerNorm;
use crate::settings::{Settings, depth};

choices! {
    /// What is between two linear layers.
    pub enum Activation {
        /// `max(x, 0)`.
        #[default]
        Relu = "relu",
        /// `x * normcdf(x)`.
        Gelu = "gelu",
        /// `x * sigmoid(x)`.
        Silu = "silu",
    }
}

impl Activation {
    /// The result for an input.
    pub fn of(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Activation::Relu => relu(x),
            Activation::Gelu => gelu(x),
            Activation::Silu => silu(x),
        }
    }
}

/// How a [`TransformerEncoderLayer`] or a [`TransformerDecoderLayer`] is made.
#[derive(Clone, Debug, Settings)]
pub struct TransformerLayerOptions {
    /// The width of vectors.
    #[setting(least = 1)]
    pub d_model: usize,
    /// The number of heads.
    #[setting(least = 1)]
    pub nhead: usize,
    /// The width between the two linear layers.
    #[setting(default = 2048, least = 1)]
    pub dim_feedforward: usize,
    /// The probability with which weights of the attention, hidden values and results are dropped in training.
    #[setting(default = 0.1)]
    pub dropout: f64,
    /// What is between the two linear layers.
    #[setting(default)]
    pub activation: Activation,
    /// Added to variances.
    #[setting(default = 1e-5)]
    pub layer_norm_eps: f64,
    /// Whether inputs are `[batch, length, width]` instead of `[length, batch, width]`.
    #[setting(default = true)]
    pub batch_first: bool,
    /// Whether inputs of the parts are normalised, rather than the sums after them.
    #[setting(default = false)]
    pub norm_first: bool,
    /// Whether linear layers and normalisations add biases.
    #[setting(default = true)]
    pub bias: bool,
}

impl TransformerLayerOptions {
    fn attention(&self, build: &mut Build<'_>) -> Result<MultiheadAttention> {
        let &TransformerLayerOptions { d_model, nhead, dropout, bias, batch_first, .. } = self;
        let options = MultiheadAttentionOptions::new(d_model, nhead);
        MultiheadAttention::build(build, MultiheadAttentionOptions { dropout, bias, batch_first, ..options })
    }

    fn norm(&self, build: &mut Build<'_>) -> Result<LayerNorm> {
        layer_norm_of(build, self.d_model, self.layer_norm_eps, self.bias)
    }

    fn linears(&self, build: &mut Build<'_>) -> Result<(Box<dyn Module>, Box<dyn Module>)> {
        let &TransformerLayerOptions { d_model, dim_feedforward, bias, .. } = self;
        Ok((linear_of(build, d_model, dim_feedforward, bias)?, linear_of(build, dim_feedforward, d_model, bias)?))
    }
}

/// What encoder and decoder layers have in common.
macro_rules! layers {
    ($($layer:ident),*) => {$(
        impl $layer {
            /// A float32 layer for vectors of this width.
            ///
            /// # Errors
            /// If the heads do not divide the width.
            pub fn new(queue: &Queue, d_model: usize, nhead: usize) -> Result<$layer> {
                $layer::new_with(queue, TransformerLayerOptions::new(d_model, nhead))
            }

            /// `x` and what a part makes of it, with dropout and a norm before or after.
            fn around(&self, x: &Tensor, norm: &LayerNorm, part: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
                let dropped = |y| dropped(y, self.settings.dropout, self.training);
                if self.settings.norm_first {
                    return add(x, &dropped(part(&norm.forward(x)?)?)?);
                }
                norm.forward(&add(x, &dropped(part(x)?)?)?)
            }

            fn feed_forward(&self, x: &Tensor) -> Result<Tensor> {
                let inner = self.settings.activation.of(&self.linear1.forward(x)?)?;
                self.linear2.forward(&dropped(inner, self.settings.dropout, self.training)?)
            }
        }
    )*};
}

layers!(TransformerEncoderLayer, TransformerDecoderLayer);

/// Self-attention and two linear layers, each bypassed and normalised (Vaswani et al., 2017).
///
/// ```
/// use netcl_nn::autograd::{Tensor, manager};
/// use netcl_nn::{Masks, TransformerEncoderLayer, TransformerLayerOptions};
///
/// let queue = manager().cpu().queue;
/// let options = TransformerLayerOptions { dim_feedforward: 32, norm_first: true, ..TransformerLayerOptions::new(8, 2) };
/// let layer = TransformerEncoderLayer::new_with(&queue, options)?;
/// let words = Tensor::from_host(&queue, &[0.5f32; 40], [1, 5, 8])?;
/// assert_eq!(layer.encode(&words, &Masks::causal())?.shape()[..], [1, 5, 8]);
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
#[derive(Module)]
pub struct TransformerEncoderLayer {
    self_attn: MultiheadAttention,
    linear1: Box<dyn Module>,
    linear2: Box<dyn Module>,
    norm1: LayerNorm,
    norm2: LayerNorm,
    training: bool,
    #[module(settings)]
    settings: TransformerLayerOptions,
}

impl TransformerEncoderLayer {
    fn make(build: &mut Build<'_>, settings: TransformerLayerOptions) -> Result<TransformerEncoderLayer> {
        let self_attn = settings.attention(build)?;
        let (linear1, linear2) = settings.linears(build)?;
        let (norm1, norm2) = (settings.norm(build)?, settings.norm(build)?);
        Ok(TransformerEncoderLayer { self_attn, linear1, linear2, norm1, norm2, training: true, settings })
    }

    /// The result without a mask.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || self.encode(input, &Masks::default()))
    }

    /// The result where queries do not see everything.
    pub fn encode(&self, src: &Tensor, masks: &Masks<'_>) -> Result<Tensor> {
        let x = self.around(src, &self.norm1, |x| self.self_attn.attend(x, x, x, masks))?;
        self.around(&x, &self.norm2, |x| self.feed_forward(x))
    }
}

/// Self-attention, attention to what an encoder gave and two linear layers, each bypassed and normalised.
///
/// ```
/// use netcl_nn::autograd::{Tensor, manager};
/// use netcl_nn::{Masks, TransformerDecoderLayer};
///
/// let queue = manager().cpu().queue;
/// let layer = TransformerDecoderLayer::new(&queue, 8, 2)?;
/// let (words, memory) = (Tensor::from_host(&queue, &[0.5f32; 24], [1, 3, 8])?, Tensor::from_host(&queue, &[0.5f32; 40], [1, 5, 8])?);
/// assert_eq!(layer.decode(&words, &memory, &Masks::causal(), &Masks::default())?.shape()[..], [1, 3, 8]);
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
#[derive(Module)]
#[module(no_forward)]
pub struct TransformerDecoderLayer {
    self_attn: MultiheadAttention,
    multihead_attn: MultiheadAttention,
    linear1: Box<dyn Module>,
    linear2: Box<dyn Module>,
    norm1: LayerNorm,
    norm2: LayerNorm,
    norm3: LayerNorm,
    training: bool,
    #[module(settings)]
    settings: TransformerLayerOptions,
}

impl TransformerDecoderLayer {
    fn make(build: &mut Build<'_>, settings: TransformerLayerOptions) -> Result<TransformerDecoderLayer> {
        let (self_attn, multihead_attn) = (settings.attention(build)?, settings.attention(build)?);
        let (linear1, linear2) = settings.linears(build)?;
        let (norm1, norm2, norm3) = (settings.norm(build)?, settings.norm(build)?, settings.norm(build)?);
        Ok(TransformerDecoderLayer {
            self_attn,
            multihead_attn,
            linear1,
            linear2,
            norm1,
            norm2,
            norm3,
            training: true,
            settings,
        })
    }

    /// The result for a target, which sees itself under one kind of masks and the memory under another.
    pub fn decode(
        &self,
        tgt: &Tensor,
        memory: &Tensor,
        tgt_masks: &Masks<'_>,
        memory_masks: &Masks<'_>,
    ) -> Result<Tensor> {
        let x = self.around(tgt, &self.norm1, |x| self.self_attn.attend(x, x, x, tgt_masks))?;
        let x = self.around(&x, &self.norm2, |x| self.multihead_attn.attend(x, memory, memory, memory_masks))?;
        self.around(&x, &self.norm3, |x| self.feed_forward(x))
    }
}

/// The settings of a stack of layers.
#[derive(Clone, Settings)]
#[settings(check = StackSettings::fits)]
pub struct StackSettings {
    #[setting(name = "encoder_layer", alias = "decoder_layer")]
    layer: LayerConfig,
    #[setting(least = 1)]
    num_layers: usize,
    #[setting(default)]
    norm: Option<LayerConfig>,
}

impl StackSettings {
    fn fits(&self, layer: &'static str) -> Result<()> {
        depth(layer, "num_layers", self.num_layers)
    }
}

/// A stack of layers that start as copies of the one given.
macro_rules! stacks {
    ($($(#[$doc:meta])* $stack:ident($layer:ident);)*) => {$(
        #[derive(Module)]
        $(#[$doc])*
        pub struct $stack {
            layers: Vec<$layer>,
            norm: Option<Box<dyn Module>>,
        }

        impl $stack {
            /// So many layers, which start as copies of the one given, and a last norm.
            ///
            /// # Errors
            /// For no layer or more than 10,000.
            pub fn new(layer: $layer, num_layers: usize, norm: Option<Box<dyn Module>>) -> Result<$stack> {
                const NAME: &str = stringify!($stack);
                depth(NAME, "num_layers", num_layers)?;
                let mut layers = host::with_capacity(NAME, num_layers)?;
                for _ in 1..num_layers {
                    let mut copy = $layer::build(&mut Build::on(layer.self_attn.queue()).hollow(), layer.options()?)?;
                    for (name, tensor) in layer.named_parameters() {
                        copy.set_tensor(&name, Some(duplicate(&tensor.detach())?.with_grad()))?;
                    }
                    layers.push(copy);
                }
                layers.insert(0, layer);
                Ok($stack { layers, norm })
            }

            fn normed(&self, x: Tensor) -> Result<Tensor> {
                self.norm.as_ref().map_or(Ok(x.clone()), |norm| norm.forward(&x))
            }
        }

        impl Configured for $stack {
            const KIND: &'static str = stringify!($stack);
            type Settings = StackSettings;
            fn options(&self) -> Result<StackSettings> {
                let norm = self.norm.as_deref().map(layer_config).transpose()?;
                Ok(StackSettings { layer: layer_config(&self.layers[0])?, num_layers: self.layers.len(), norm })
            }
            fn build(build: &mut Build<'_>, settings: StackSettings) -> Result<$stack> {
                let StackSettings { layer, num_layers, norm } = settings;
                if layer.kind != $layer::KIND {
                    let what = format!("its layers are {}, not {}", $layer::KIND, layer.kind);
                    return Err(Error::argument(Self::KIND, what));
                }
                let given = layer.settings.into_iter().map(|(name, value)| (name, value.into())).collect();
                let layer = $layer::build(build, TransformerLayerOptions::read($layer::KIND, given)?)?;
                let norm = norm.map(|norm| build.layer("norm", &norm)).transpose()?;
                $stack::new(layer, num_layers, norm)
            }
        }
    )*};
}

stacks! {
    /// Encoder layers one after the other, and a last norm if one is given.
    TransformerEncoder(TransformerEncoderLayer);
    /// Decoder layers one after the other, and a last norm if one is given.
    #[module(no_forward)]
    TransformerDecoder(TransformerDecoderLayer);
}

impl TransformerEncoder {
    /// The result without a mask.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || self.encode(input, &Masks::default()))
    }

    /// The result where queries do not see everything.
    pub fn encode(&self, src: &Tensor, masks: &Masks<'_>) -> Result<Tensor> {
        let mut x = src.clone();
        for layer in &self.layers {
            x = layer.encode(&x, masks)?;
        }
        self.normed(x)
    }
}

impl TransformerDecoder {
    /// The result for a target, which sees itself under one kind of masks and the memory under another.
    pub fn decode(
        &self,
        tgt: &Tensor,
        memory: &Tensor,
        tgt_masks: &Masks<'_>,
        memory_masks: &Masks<'_>,
    ) -> Result<Tensor> {
        let mut x = tgt.clone();
        for layer in &self.layers {
            x = layer.decode(&x, memory, tgt_masks, memory_masks)?;
        }
        self.normed(x)
    }
}
