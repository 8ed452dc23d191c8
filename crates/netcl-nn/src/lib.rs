//! Modules, layers and models, built on autograd alone.
//!
//! ```
//! use netcl_nn::autograd::{Tape, Tensor, manager};
//! use netcl_nn::{Linear, Module, ReLU, functional as F, sequential};
//!
//! let queue = manager().cpu().queue;
//! let model = sequential![Linear::new(&queue, 2, 32)?, ReLU, Linear::new(&queue, 32, 2)?];
//! let x = Tensor::from_host(&queue, &[0.5f32, -1.0, 2.0, 0.0], [2, 2])?;
//!
//! let tape = Tape::new();
//! let loss = F::cross_entropy(&model.forward(&x)?, &[0, 1])?;
//! tape.backward(&loss)?;
//! assert!(model.parameters().iter().all(|parameter| parameter.grad().is_some()));
//! # Ok::<(), netcl_nn::autograd::Error>(())
//! ```

// So that what the derive macro writes resolves in this crate as well.
extern crate self as netcl_nn;

pub mod activation;
pub mod attention;
pub mod batch_norm;
pub mod config;
pub mod conv;
pub mod decoder;
pub mod dropout;
pub mod embedding;
pub mod flatten;
pub mod functional;
pub mod fuse;
pub mod generation;
pub mod hooks;
pub mod identity;
pub mod init;
pub mod kv_cache;
pub mod lambda;
pub mod linear;
pub mod loss;
mod members;
pub mod models;
pub mod module;
pub mod module_dict;
pub mod module_list;
pub mod norm;
pub mod padding;
pub mod parameter_list;
pub mod pool;
pub mod positional;
mod print;
pub mod quantized;
pub mod residual;
pub mod rnn;
pub mod sampling;
pub mod scope;
pub mod sequential;
pub mod settings;
pub mod shuffle;
mod size;
pub mod state;
pub mod transformer;
pub mod unfold;
mod upsample;
mod walk;

pub use netcl_autograd as autograd;
/// The macro that makes a struct a module; [`trait@Module`] documents it.
pub use netcl_derive::Module;

pub use activation::*;
pub use attention::{Masks, MultiheadAttention, MultiheadAttentionOptions};
pub use batch_norm::{BatchNorm1d, BatchNorm2d, BatchNormOptions, InstanceNorm1d, InstanceNorm2d, InstanceNormOptions};
pub use config::{Build, Configured, LayerConfig, build_layer, build_sequential, layer_config, register_layer};
pub use conv::{
    Conv1d, Conv1dOptions, Conv2d, Conv2dOptions, ConvTranspose1d, ConvTranspose1dOptions, ConvTranspose2d,
    ConvTranspose2dOptions, DepthwiseConv2d, DepthwiseConv2dOptions, Padding, PaddingMode,
};
pub use decoder::{
    CausalSelfAttention, CausalSelfAttentionOptions, DecoderBlock, DecoderBlockOptions, FeedForward,
    FeedForwardOptions, RotaryAttention, RotaryAttentionOptions, SwiGLU, SwiGLUOptions, TiedLinear, TransformerBlock,
    TransformerBlockOptions,
};
pub use dropout::{AlphaDropout, Dropout, Dropout1d, Dropout2d, FeatureAlphaDropout};
pub use embedding::{Embedding, EmbeddingBag, EmbeddingBagOptions, EmbeddingOptions};
pub use flatten::{Flatten, Unflatten};
pub use fuse::{fold_batch_norm, fuse_conv_bn};
pub use generation::generate_with;
pub use hooks::{ForwardHook, Hooked};
pub use identity::Identity;
pub use init::Init;
pub use kv_cache::{Cached, KVCache, KVCacheOptions, Place};
pub use lambda::Lambda;
pub use linear::{Bilinear, BilinearOptions, Linear, LinearOptions};
pub use loss::*;
pub use models::gpt::{GPT, GPTOptions};
pub use models::mobilenet::{MobileNetV2, MobileNetV2Options};
pub use models::resnet::{BlockKind, Depth, ResNet, ResNetOptions, Stem};
pub use models::vit::{VisionTransformer, VisionTransformerOptions};
pub use module::{Member, MemberMut, Module, Role, Summary};
pub use module_dict::ModuleDict;
pub use module_list::ModuleList;
pub use norm::{GroupNorm, GroupNormOptions, LayerNorm, LayerNormOptions, RMSNorm, RMSNormOptions};
pub use padding::{
    CircularPad1d, CircularPad2d, ConstantPad1d, ConstantPad2d, Margins, ReflectionPad1d, ReflectionPad2d,
    ReplicationPad1d, ReplicationPad2d, ZeroPad1d, ZeroPad2d,
};
pub use parameter_list::{ParameterDict, ParameterList};
pub use pool::{
    AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveMaxPool1d, AdaptiveMaxPool2d, AvgPool1d, AvgPool2d, GlobalAvgPool2d,
    LPPool1d, LPPool2d, MaxPool1d, MaxPool2d,
};
pub use positional::{
    PositionalEmbedding, PositionalEmbeddingOptions, SinusoidalEmbedding, SinusoidalEmbeddingOptions,
};
pub use quantized::{Quantization, QuantizedLinear, QuantizedLinearOptions, quantize};
pub use residual::Residual;
pub use rnn::{
    GRU, GRUCell, LSTM, LSTMCell, Nonlinearity, RNN, RNNCell, RNNCellOptions, RNNOptions, RecurrentCellOptions,
    RecurrentOptions,
};
pub use sampling::{Sampler, Sampling};
pub use sequential::Sequential;
pub use settings::Settings;
pub use shuffle::{PixelShuffle, PixelUnshuffle};
pub use size::Size;
pub use state::{LoadReport, Misshapen, StateDict, StateMismatch, Strict};
pub use transformer::{
    Activation, TransformerDecoder, TransformerDecoderLayer, TransformerEncoder, TransformerEncoderLayer,
    TransformerLayerOptions,
};
pub use unfold::{Fold, Unfold};
pub use upsample::{Resize, Upsample, UpsampleMode};
