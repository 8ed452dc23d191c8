//! The layers of this crate as data.

use netcl_autograd::Result;
use netcl_autograd::core::dtype::DType;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use super::{Build, Configured, Entry, LayerConfig, layer_config};
use crate::activation::*;
use crate::batch_norm::{BatchNorm, BatchNorm1d, BatchNorm2d};
use crate::conv::{Conv1d, Conv2d, ConvTranspose2d};
use crate::dropout::{Dropout, Dropout2d};
use crate::flatten::Flatten;
use crate::linear::{Linear, LinearOptions};
use crate::module::Module;
use crate::module_list::ModuleList;
use crate::pool::{AdaptiveAvgPool2d, AdaptiveMaxPool2d, AvgPool1d, AvgPool2d, MaxPool1d, MaxPool2d};
use crate::residual::Residual;
use crate::sequential::Sequential;

/// All of them: one line each.
pub(super) static TABLE: &[Entry] = &[
    Entry::of::<AdaptiveAvgPool2d>(),
    Entry::of::<AdaptiveMaxPool2d>(),
    Entry::of::<AvgPool1d>(),
    Entry::of::<AvgPool2d>(),
    Entry::of::<BatchNorm>(),
    Entry::of::<BatchNorm1d>(),
    Entry::of::<BatchNorm2d>(),
    Entry::of::<Conv1d>(),
    Entry::of::<Conv2d>(),
    Entry::of::<ConvTranspose2d>(),
    Entry::of::<Dropout>(),
    Entry::of::<Dropout2d>(),
    Entry::of::<ELU>(),
    Entry::of::<Flatten>(),
    Entry::of::<GELU>(),
    Entry::of::<GELUTanh>(),
    Entry::of::<Hardsigmoid>(),
    Entry::of::<Hardswish>(),
    Entry::of::<Hardtanh>(),
    Entry::of::<LeakyReLU>(),
    Entry::of::<Linear>(),
    Entry::of::<LogSigmoid>(),
    Entry::of::<LogSoftmax>(),
    Entry::of::<MaxPool1d>(),
    Entry::of::<MaxPool2d>(),
    Entry::of::<Mish>(),
    Entry::of::<ModuleList>(),
    Entry::of::<ReLU>(),
    Entry::of::<ReLU6>(),
    Entry::of::<Residual>(),
    Entry::of::<SELU>(),
    Entry::of::<Sequential>(),
    Entry::of::<SiLU>(),
    Entry::of::<Sigmoid>(),
    Entry::of::<Softmax>(),
    Entry::of::<Softplus>(),
    Entry::of::<Softsign>(),
    Entry::of::<Tanh>(),
];

/// The settings of a layer that has none.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoSettings {}

macro_rules! without_settings {
    ($($layer:ident)*) => {$(
        impl Configured for $layer {
            const KIND: &'static str = stringify!($layer);
            type Settings = NoSettings;
            fn settings(&self) -> Result<NoSettings> {
                Ok(NoSettings {})
            }
            fn build(_settings: NoSettings, _build: &Build<'_>) -> Result<Self> {
                Ok($layer)
            }
        }
    )*};
}

without_settings! {
    ReLU ReLU6 SELU GELU GELUTanh SiLU Mish Tanh Sigmoid LogSigmoid Softsign Hardsigmoid Hardswish
}

/// Layers that are nothing but public fields with defaults; a setting may be called otherwise than its field.
macro_rules! of_fields {
    ($($layer:ident, $settings:ident { $($field:ident: $type:ty $(= $name:literal)?),+ };)*) => {$(
        #[derive(Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $settings {
            $($(#[serde(rename = $name)])? $field: $type),+
        }

        impl Default for $settings {
            fn default() -> Self {
                let $layer { $($field),+ } = $layer::default();
                $settings { $($field),+ }
            }
        }

        impl Configured for $layer {
            const KIND: &'static str = stringify!($layer);
            type Settings = $settings;
            fn settings(&self) -> Result<$settings> {
                Ok($settings { $($field: self.$field),+ })
            }
            fn build(settings: $settings, _build: &Build<'_>) -> Result<Self> {
                Ok($layer { $($field: settings.$field),+ })
            }
        }
    )*};
}

of_fields! {
    ELU, EluSettings { alpha: f64 };
    Flatten, FlattenSettings { start: isize = "start_dim", end: isize = "end_dim" };
    Hardtanh, HardtanhSettings { min_val: f64, max_val: f64 };
    LeakyReLU, LeakyReluSettings { negative_slope: f64 };
    LogSoftmax, LogSoftmaxSettings { axis: isize };
    Softmax, SoftmaxSettings { axis: isize };
    Softplus, SoftplusSettings { beta: f64, threshold: f64 };
}

/// Settings of type [`DType`] by their names, for `#[serde(with = "dtype_name")]`.
pub(super) mod dtype_name {
    use super::*;
    use serde::Serializer;

    /// What is left out of configurations.
    pub(crate) fn is_default(dtype: &DType) -> bool {
        *dtype == DType::F32
    }

    pub(crate) fn default() -> DType {
        DType::F32
    }

    pub(crate) fn serialize<S: Serializer>(dtype: &DType, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(dtype.name())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<DType, D::Error> {
        DType::parse(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// The settings of a [`Linear`].
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinearSettings {
    in_features: usize,
    out_features: usize,
    #[serde(default = "yes")]
    bias: bool,
    #[serde(with = "dtype_name", default = "dtype_name::default", skip_serializing_if = "dtype_name::is_default")]
    dtype: DType,
}

pub(super) fn yes() -> bool {
    true
}

impl Configured for Linear {
    const KIND: &'static str = "Linear";
    type Settings = LinearSettings;
    fn settings(&self) -> Result<LinearSettings> {
        let (in_features, out_features) = (self.in_features(), self.out_features());
        Ok(LinearSettings { in_features, out_features, bias: self.bias().is_some(), dtype: self.weight().dtype() })
    }
    fn build(settings: LinearSettings, build: &Build<'_>) -> Result<Linear> {
        let LinearSettings { in_features, out_features, bias, dtype } = settings;
        let options = LinearOptions { bias, dtype, generator: None };
        Linear::new_with(build.queue(), in_features, out_features, options)
    }
}

/// The settings of containers whose children are a list.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListSettings {
    layers: Vec<LayerConfig>,
}

impl ListSettings {
    fn of<'m>(layers: impl Iterator<Item = &'m dyn Module>) -> Result<ListSettings> {
        Ok(ListSettings { layers: layers.map(layer_config).collect::<Result<_>>()? })
    }

    fn build(&self, build: &Build<'_>) -> Result<Vec<Box<dyn Module>>> {
        self.layers.iter().enumerate().map(|(i, layer)| build.layer(&i.to_string(), layer)).collect()
    }
}

impl Configured for Sequential {
    const KIND: &'static str = "Sequential";
    type Settings = ListSettings;
    fn settings(&self) -> Result<ListSettings> {
        ListSettings::of(self.iter())
    }
    fn build(settings: ListSettings, build: &Build<'_>) -> Result<Sequential> {
        Ok(Sequential::new(settings.build(build)?))
    }
}

impl Configured for ModuleList {
    const KIND: &'static str = "ModuleList";
    type Settings = ListSettings;
    fn settings(&self) -> Result<ListSettings> {
        ListSettings::of(self.iter())
    }
    fn build(settings: ListSettings, build: &Build<'_>) -> Result<ModuleList> {
        Ok(ModuleList::new(settings.build(build)?))
    }
}

/// The settings of a [`Residual`].
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResidualSettings {
    inner: OneOrMore,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shortcut: Option<OneOrMore>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    activation: Option<OneOrMore>,
}

/// A layer; a list of them, as the Python package writes it, is read as a [`Sequential`] unless it has but one.
#[derive(Serialize)]
#[serde(transparent)]
struct OneOrMore(LayerConfig);

impl<'de> Deserialize<'de> for OneOrMore {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let layer = match Value::deserialize(from)? {
            Value::Array(mut layers) if layers.len() == 1 => layers.swap_remove(0),
            Value::Array(layers) => json!({ "type": "Sequential", "args": { "layers": layers } }),
            layer => layer,
        };
        LayerConfig::deserialize(layer).map(OneOrMore).map_err(D::Error::custom)
    }
}

impl Configured for Residual {
    const KIND: &'static str = "Residual";
    type Settings = ResidualSettings;
    fn settings(&self) -> Result<ResidualSettings> {
        Ok(ResidualSettings {
            inner: OneOrMore(layer_config(self.inner())?),
            shortcut: self.shortcut().map(layer_config).transpose()?.map(OneOrMore),
            activation: self.activation().map(layer_config).transpose()?.map(OneOrMore),
        })
    }
    fn build(settings: ResidualSettings, build: &Build<'_>) -> Result<Residual> {
        let mut residual = Residual::new(build.layer("inner", &settings.inner.0)?);
        if let Some(shortcut) = &settings.shortcut {
            residual = residual.with_shortcut(build.layer("shortcut", &shortcut.0)?);
        }
        if let Some(activation) = &settings.activation {
            residual = residual.with_activation(build.layer("activation", &activation.0)?);
        }
        Ok(residual)
    }
}
