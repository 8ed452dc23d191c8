//! The layers of this crate as data.

use netcl_autograd::Result;
use netcl_derive::Settings;
use serde::Deserialize;

use super::{Build, Configured, Entry, LayerConfig, layer_config};
use crate::activation::*;
use crate::dropout::{Dropout, Dropout2d};
use crate::flatten::Flatten;
use crate::linear::Linear;
use crate::module::Module;
use crate::module_list::ModuleList;
use crate::residual::Residual;
use crate::sequential::Sequential;
use crate::settings::{Setting, Value, Wrong};

/// All of them: one line each.
pub(super) static TABLE: &[Entry] = &[
    Entry::of::<Dropout>(),
    Entry::of::<Dropout2d>(),
    Entry::of::<ELU>(),
    Entry::of::<Flatten>(),
    Entry::of::<GELU>(),
    Entry::of::<Hardsigmoid>(),
    Entry::of::<Hardswish>(),
    Entry::of::<Hardtanh>(),
    Entry::of::<LeakyReLU>(),
    Entry::of::<Linear>(),
    Entry::of::<LogSigmoid>(),
    Entry::of::<LogSoftmax>(),
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
