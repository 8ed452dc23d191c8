//! The vision transformer (Dosovitskiy et al., 2020), with torchvision's names: its weights can be loaded as they are.

use netcl_autograd::ops::elementwise::add;
use netcl_autograd::ops::layout::{cat, expand, flatten, select, transpose};
use netcl_autograd::{Error, Result, Tensor};

use crate::activation::GELU;
use crate::attention::{MultiheadAttention, MultiheadAttentionOptions};
use crate::config::{Build, Configured};
use crate::conv::{Conv2d, Conv2dOptions};
use crate::dropout::Dropout;
use crate::init::{Gain, Init};
use crate::linear::{Linear, LinearOptions};
use crate::module_dict::ModuleDict;
use crate::norm::{LayerNorm, LayerNormOptions};
use crate::sequential::Sequential;
use crate::settings::Settings;
use crate::{Module, sequential};

/// How a [`VisionTransformer`] is made.
#[derive(Clone, Debug, Settings)]
#[settings(check = VisionTransformerOptions::check)]
pub struct VisionTransformerOptions {
    /// The height and width of the images.
    #[setting(least = 1)]
    pub image_size: usize,
    /// The height and width of the patches that they are cut into.
    #[setting(least = 1)]
    pub patch_size: usize,
    /// The number of blocks.
    pub num_layers: usize,
    /// The number of heads of each attention.
    #[setting(least = 1)]
    pub num_heads: usize,
    /// The values of a patch.
    #[setting(least = 1)]
    pub hidden_dim: usize,
    /// The values inside of a block's linear layers.
    #[setting(least = 1)]
    pub mlp_dim: usize,
    /// The probability with which a value is dropped in training.
    #[setting(default = 0.0)]
    pub dropout: f64,
    /// The probability with which an attention's weight is dropped in training.
    #[setting(default = 0.0)]
    pub attention_dropout: f64,
    /// The length of the result.
    #[setting(default = 1000, least = 1)]
    pub num_classes: usize,
    /// The channels of the images.
    #[setting(default = 3, least = 1)]
    pub in_channels: usize,
}

impl VisionTransformerOptions {
    /// ViT-B/16: twelve blocks of 768 values over patches of 16 pixels of images of 224.
    pub fn base_16() -> VisionTransformerOptions {
        VisionTransformerOptions::new(224, 16, 12, 12, 768, 3072)
    }

    fn check(&self, layer: &'static str) -> Result<()> {
        let Self { image_size, patch_size, .. } = self;
        if image_size.is_multiple_of(*patch_size) {
            return Ok(());
        }
        Err(Error::argument(layer, format!("patches of {patch_size} do not divide images of {image_size}")))
    }
}

/// Attention over the patches of images `[N, in_channels, image_size, image_size]`; the result has one score per class.
///
/// Weights start as torchvision's do, the head as zeros.
#[derive(Module)]
pub struct VisionTransformer {
    class_token: Tensor,
    conv_proj: Conv2d,
    encoder: Encoder,
    heads: ModuleDict,
    #[module(settings)]
    settings: VisionTransformerOptions,
}

/// The positions, the blocks and a last norm.
#[derive(Module)]
struct Encoder {
    pos_embedding: Tensor,
    dropout: Dropout,
    layers: ModuleDict,
    ln: LayerNorm,
}

/// Self-attention and two linear layers, each behind a norm and bypassed.
#[derive(Module)]
struct EncoderBlock {
    ln_1: LayerNorm,
    self_attention: MultiheadAttention,
    dropout: Dropout,
    ln_2: LayerNorm,
    mlp: Sequential,
}

impl EncoderBlock {
    fn make(build: &mut Build<'_>, settings: &VisionTransformerOptions) -> Result<EncoderBlock> {
        let &VisionTransformerOptions { num_heads, hidden_dim, mlp_dim, dropout, attention_dropout, .. } = settings;
        let attention = MultiheadAttentionOptions {
            dropout: attention_dropout,
            batch_first: true,
            ..MultiheadAttentionOptions::new(hidden_dim, num_heads)
        };
        let ln_1 = norm(build, hidden_dim)?;
        let self_attention = MultiheadAttention::build(build, attention)?;
        let ln_2 = norm(build, hidden_dim)?;
        let first = Linear::build(build, LinearOptions::new(hidden_dim, mlp_dim))?;
        let second = Linear::build(build, LinearOptions::new(mlp_dim, hidden_dim))?;
        for linear in [&first, &second] {
            build.fill(linear.weight(), Init::XavierUniform { gain: Gain::Linear })?;
            let bias = Init::Normal { mean: 0.0, std: 1e-6 };
            linear.bias().map_or(Ok(()), |tensor| build.fill(tensor, bias))?;
        }
        let drop = || Dropout::new(dropout);
        let mlp = sequential![first, GELU::default(), drop()?, second, drop()?];
        Ok(EncoderBlock { ln_1, self_attention, dropout: drop()?, ln_2, mlp })
    }

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || {
            let seen = self.self_attention.forward(&self.ln_1.forward(input)?)?;
            let x = add(input, &self.dropout.forward(&seen)?)?;
            add(&x, &self.mlp.forward(&self.ln_2.forward(&x)?)?)
        })
    }
}

impl Encoder {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || {
            let x = self.dropout.forward(&add(input, &self.pos_embedding)?)?;
            let x = self.layers.iter().try_fold(x, |x, (_, block)| block.forward(&x))?;
            self.ln.forward(&x)
        })
    }
}

fn norm(build: &mut Build<'_>, width: usize) -> Result<LayerNorm> {
    LayerNorm::build(build, LayerNormOptions { eps: 1e-6, ..LayerNormOptions::new(vec![width]) })
}

impl VisionTransformer {
    fn make(build: &mut Build<'_>, settings: VisionTransformerOptions) -> Result<VisionTransformer> {
        let VisionTransformerOptions {
            image_size, patch_size, num_layers, hidden_dim, num_classes, in_channels, ..
        } = settings;
        let class_token = build.parameter(Init::Constant(0.0), [1, 1, hidden_dim])?;
        let patches =
            Conv2dOptions { stride: [patch_size; 2], ..Conv2dOptions::new(in_channels, hidden_dim, patch_size) };
        let conv_proj = Conv2d::build(build, patches)?;
        let length = (image_size / patch_size).saturating_pow(2).saturating_add(1);
        let pos_embedding = build.parameter(Init::Normal { mean: 0.0, std: 0.02 }, [1, length, hidden_dim])?;
        let mut layers = ModuleDict::default();
        for i in 0..num_layers {
            layers.insert(format!("encoder_layer_{i}"), EncoderBlock::make(build, &settings)?)?;
        }
        let dropout = Dropout::new(settings.dropout)?;
        let encoder = Encoder { pos_embedding, dropout, layers, ln: norm(build, hidden_dim)? };
        let head = Linear::build(build, LinearOptions::new(hidden_dim, num_classes))?;
        let std = (1.0 / (in_channels as f64 * (patch_size as f64).powi(2))).sqrt();
        build.fill(conv_proj.weight(), Init::TruncNormal { mean: 0.0, std, low: -2.0, high: 2.0 })?;
        for tensor in [conv_proj.bias(), Some(head.weight()), head.bias()].into_iter().flatten() {
            build.fill(tensor, Init::Constant(0.0))?;
        }
        let mut heads = ModuleDict::default();
        heads.insert("head", head)?;
        Ok(VisionTransformer { class_token, conv_proj, encoder, heads, settings })
    }

    /// The result for images: one score per class.
    pub fn forward(&self, images: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || {
            let (size, channels) = (self.settings.image_size, self.settings.in_channels);
            let samples = match images.shape()[..] {
                [samples, given, height, width] if [given, height, width] == [channels, size, size] => samples,
                _ => {
                    let what = format!("it takes (N, {channels}, {size}, {size})");
                    return Err(Error::shape("VisionTransformer", images.shape(), what));
                }
            };
            let patches = transpose(&flatten(&self.conv_proj.forward(images)?, 2, -1)?, 1, 2)?;
            let token = expand(&self.class_token, [samples, 1, self.settings.hidden_dim])?;
            let x = self.encoder.forward(&cat(&[&token, &patches], 1)?)?;
            self.heads.iter().try_fold(select(&x, 1, 0)?, |x, (_, head)| head.forward(&x))
        })
    }
}
