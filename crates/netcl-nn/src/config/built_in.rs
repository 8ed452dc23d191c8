//! The layers of this crate as data.

use netcl_autograd::Result;
use serde::Deserialize;

use super::Entry;
use crate::settings::{Setting, Value, Wrong};
use crate::*;

/// All of them: one line each.
pub(super) static TABLE: &[Entry] = &[
    Entry::of::<AdaptiveAvgPool1d>(),
    Entry::of::<AdaptiveAvgPool2d>(),
    Entry::of::<AdaptiveMaxPool1d>(),
    Entry::of::<AdaptiveMaxPool2d>(),
    Entry::of::<AlphaDropout>(),
    Entry::of::<AvgPool1d>(),
    Entry::of::<AvgPool2d>(),
    Entry::of::<BCELoss>(),
    Entry::of::<BCEWithLogitsLoss>(),
    Entry::of::<BatchNorm1d>(),
    Entry::of::<BatchNorm2d>(),
    Entry::of::<Bilinear>(),
    Entry::of::<CELU>(),
    Entry::of::<CTCLoss>(),
    Entry::of::<CausalSelfAttention>(),
    Entry::of::<CircularPad1d>(),
    Entry::of::<CircularPad2d>(),
    Entry::of::<ConstantPad1d>(),
    Entry::of::<ConstantPad2d>(),
    Entry::of::<Conv1d>(),
    Entry::of::<Conv2d>(),
    Entry::of::<ConvTranspose1d>(),
    Entry::of::<ConvTranspose2d>(),
    Entry::of::<CosineEmbeddingLoss>(),
    Entry::of::<CrossEntropyLoss>(),
    Entry::of::<DecoderBlock>(),
    Entry::of::<DepthwiseConv2d>(),
    Entry::of::<Dropout>(),
    Entry::of::<Dropout1d>(),
    Entry::of::<Dropout2d>(),
    Entry::of::<ELU>(),
    Entry::of::<Embedding>(),
    Entry::of::<EmbeddingBag>(),
    Entry::of::<FeatureAlphaDropout>(),
    Entry::of::<FeedForward>(),
    Entry::of::<Flatten>(),
    Entry::of::<Fold>(),
    Entry::of::<GELU>(),
    Entry::of::<GLU>(),
    Entry::of::<GPT>(),
    Entry::of::<GRU>(),
    Entry::of::<GRUCell>(),
    Entry::of::<GaussianNLLLoss>(),
    Entry::of::<GlobalAvgPool2d>(),
    Entry::of::<GroupNorm>(),
    Entry::of::<Hardshrink>(),
    Entry::of::<Hardsigmoid>(),
    Entry::of::<Hardswish>(),
    Entry::of::<Hardtanh>(),
    Entry::of::<HingeEmbeddingLoss>(),
    Entry::of::<HuberLoss>(),
    Entry::of::<Identity>(),
    Entry::of::<InstanceNorm1d>(),
    Entry::of::<InstanceNorm2d>(),
    Entry::of::<KLDivLoss>(),
    Entry::of::<L1Loss>(),
    Entry::of::<LPPool1d>(),
    Entry::of::<LPPool2d>(),
    Entry::of::<LSTM>(),
    Entry::of::<LSTMCell>(),
    Entry::of::<LayerNorm>(),
    Entry::of::<LeakyReLU>(),
    Entry::of::<Linear>(),
    Entry::of::<LogSigmoid>(),
    Entry::of::<LogSoftmax>(),
    Entry::of::<MSELoss>(),
    Entry::of::<MarginRankingLoss>(),
    Entry::of::<MaxPool1d>(),
    Entry::of::<MaxPool2d>(),
    Entry::of::<Mish>(),
    Entry::of::<MobileNetV2>(),
    Entry::of::<ModuleList>(),
    Entry::of::<MultiLabelMarginLoss>(),
    Entry::of::<MultiLabelSoftMarginLoss>(),
    Entry::of::<MultiMarginLoss>(),
    Entry::of::<MultiheadAttention>(),
    Entry::of::<NLLLoss>(),
    Entry::of::<PReLU>(),
    Entry::of::<PixelShuffle>(),
    Entry::of::<PixelUnshuffle>(),
    Entry::of::<PoissonNLLLoss>(),
    Entry::of::<PositionalEmbedding>(),
    Entry::of::<QuantizedLinear>(),
    Entry::of::<RMSNorm>(),
    Entry::of::<RNN>(),
    Entry::of::<RNNCell>(),
    Entry::of::<RReLU>(),
    Entry::of::<ReLU>(),
    Entry::of::<ReLU6>(),
    Entry::of::<ReflectionPad1d>(),
    Entry::of::<ReflectionPad2d>(),
    Entry::of::<ReplicationPad1d>(),
    Entry::of::<ReplicationPad2d>(),
    Entry::of::<ResNet>(),
    Entry::of::<Residual>(),
    Entry::of::<RotaryAttention>(),
    Entry::of::<SELU>(),
    Entry::of::<Sequential>(),
    Entry::of::<SiLU>(),
    Entry::of::<Sigmoid>(),
    Entry::of::<SinusoidalEmbedding>(),
    Entry::of::<SmoothL1Loss>(),
    Entry::of::<SoftMarginLoss>(),
    Entry::of::<Softmax>(),
    Entry::of::<Softmax2d>(),
    Entry::of::<Softmin>(),
    Entry::of::<Softplus>(),
    Entry::of::<Softshrink>(),
    Entry::of::<Softsign>(),
    Entry::of::<SwiGLU>(),
    Entry::of::<Tanh>(),
    Entry::of::<Tanhshrink>(),
    Entry::of::<Threshold>(),
    Entry::of::<TransformerBlock>(),
    Entry::of::<TransformerDecoder>(),
    Entry::of::<TransformerDecoderLayer>(),
    Entry::of::<TransformerEncoder>(),
    Entry::of::<TransformerEncoderLayer>(),
    Entry::of::<TripletMarginLoss>(),
    Entry::of::<Unflatten>(),
    Entry::of::<Unfold>(),
    Entry::of::<Upsample>(),
    Entry::of::<VisionTransformer>(),
    Entry::of::<ZeroPad1d>(),
    Entry::of::<ZeroPad2d>(),
];

/// A layer; a list of them, as the published package writes it, is read as a [`Sequential`] unless it has but one.
impl Setting for LayerConfig {
    fn wanted() -> String {
        "a layer or a list of layers".to_owned()
    }
    fn read(value: &Value) -> std::result::Result<Self, Wrong> {
        match value {
            Value::List(layers) if layers.len() == 1 => LayerConfig::read(&layers[0]),
            Value::List(_) => {
                let settings = serde_json::Map::from_iter([("layers".to_owned(), value.clone().into())]);
                Ok(LayerConfig { kind: Sequential::KIND.to_owned(), settings })
            }
            Value::Map(_) => LayerConfig::deserialize(serde_json::Value::from(value.clone()))
                .map_err(|error| Wrong::Other(format!("is {value}: {error}"))),
            _ => Err(Wrong::Type),
        }
    }
    fn write(&self) -> Value {
        let args = self.settings.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
        Value::Map(vec![("type".to_owned(), Value::Text(self.kind.clone())), ("args".to_owned(), Value::Map(args))])
    }
}

/// The settings of containers whose children are a list.
#[derive(Clone, Settings)]
pub struct ListSettings {
    layers: Vec<LayerConfig>,
}

impl ListSettings {
    fn of<'m>(layers: impl Iterator<Item = &'m dyn Module>) -> Result<ListSettings> {
        Ok(ListSettings { layers: layers.map(layer_config).collect::<Result<_>>()? })
    }

    fn build(&self, build: &mut Build<'_>) -> Result<Vec<Box<dyn Module>>> {
        self.layers.iter().enumerate().map(|(i, layer)| build.layer(&i.to_string(), layer)).collect()
    }
}

impl Configured for Sequential {
    const KIND: &'static str = "Sequential";
    type Settings = ListSettings;
    fn options(&self) -> Result<ListSettings> {
        ListSettings::of(self.iter())
    }
    fn build(build: &mut Build<'_>, settings: ListSettings) -> Result<Sequential> {
        Ok(Sequential::new(settings.build(build)?))
    }
}

impl Configured for ModuleList {
    const KIND: &'static str = "ModuleList";
    type Settings = ListSettings;
    fn options(&self) -> Result<ListSettings> {
        ListSettings::of(self.iter())
    }
    fn build(build: &mut Build<'_>, settings: ListSettings) -> Result<ModuleList> {
        Ok(ModuleList::new(settings.build(build)?))
    }
}

/// The settings of a [`Residual`].
#[derive(Clone, Settings)]
pub struct ResidualSettings {
    inner: LayerConfig,
    #[setting(default)]
    shortcut: Option<LayerConfig>,
    #[setting(default)]
    activation: Option<LayerConfig>,
}

impl Configured for Residual {
    const KIND: &'static str = "Residual";
    type Settings = ResidualSettings;
    fn options(&self) -> Result<ResidualSettings> {
        Ok(ResidualSettings {
            inner: layer_config(self.inner())?,
            shortcut: self.shortcut().map(layer_config).transpose()?,
            activation: self.activation().map(layer_config).transpose()?,
        })
    }
    fn build(build: &mut Build<'_>, settings: ResidualSettings) -> Result<Residual> {
        let mut residual = Residual::new(build.layer("inner", &settings.inner)?);
        if let Some(shortcut) = &settings.shortcut {
            residual = residual.with_shortcut(build.layer("shortcut", shortcut)?);
        }
        if let Some(activation) = &settings.activation {
            residual = residual.with_activation(build.layer("activation", activation)?);
        }
        Ok(residual)
    }
}
