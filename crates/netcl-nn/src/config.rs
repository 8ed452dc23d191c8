//! Networks as data: a list of layers by name and settings, and back.
//!
//! The format is that of the published package: `[{"type": "Linear", "args": {"in_features": 4, "out_features": 2}}]`.
//!
//! ```
//! use netcl_nn::autograd::core::device::manager;
//! use netcl_nn::config::from_json;
//! use netcl_nn::{Module, build_sequential};
//!
//! let config = from_json(r#"[
//!     {"type": "Linear", "args": {"in_features": 4, "out_features": 8}},
//!     {"type": "Residual", "args": {"inner": {"type": "Linear", "args": {"in_features": 8, "out_features": 8}},
//!                                   "activation": {"type": "ReLU"}}},
//!     {"type": "Linear", "args": {"in_features": 8, "out_features": 2, "bias": false}}
//! ]"#)?;
//! let model = build_sequential(&manager().cpu().queue, &config)?;
//! assert_eq!(model.num_parameters(), 40 + 72 + 16);
//! assert_eq!(build_sequential(&manager().cpu().queue, &model.config()?)?.to_string(), model.to_string());
//! # Ok::<(), netcl_nn::autograd::Error>(())
//! ```
//!
//! # How a layer joins
//!
//! 1. A struct of its settings with `#[derive(Serialize, Deserialize)]` and `#[serde(deny_unknown_fields)]`;
//!    `#[serde(default)]` for what may be left out, `#[serde(alias = "...")]` for other names of the same setting.
//! 2. [`Configured`] for the layer: the type's name, the settings of a layer, a layer from settings. Layers inside are
//!    settings of type [`LayerConfig`], turned by [`layer_config`] and [`Build::layer`].
//! 3. A layer of this crate gets a line in the table of `config/built_in.rs`, where the existing ones stand as models (`config/image.rs` has more) (one without
//!    settings, or with numbers only, is a line in a macro there). Everybody else calls [`register_layer`].
//!
//! ```
//! use netcl_nn::autograd::{Result, Tensor, core::device::manager};
//! use netcl_nn::config::from_json;
//! use netcl_nn::{Build, Configured, Module, build_sequential, functional as F, register_layer};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Module)]
//! struct Scale {
//!     factor: f64,
//! }
//!
//! impl Scale {
//!     fn forward(&self, input: &Tensor) -> Result<Tensor> {
//!         F::mul(input, self.factor)
//!     }
//! }
//!
//! #[derive(Serialize, Deserialize)]
//! #[serde(deny_unknown_fields)]
//! struct ScaleSettings {
//!     factor: f64,
//! }
//!
//! impl Configured for Scale {
//!     const KIND: &'static str = "Scale";
//!     type Settings = ScaleSettings;
//!     fn settings(&self) -> Result<ScaleSettings> {
//!         Ok(ScaleSettings { factor: self.factor })
//!     }
//!     fn build(settings: ScaleSettings, _build: &Build<'_>) -> Result<Scale> {
//!         Ok(Scale { factor: settings.factor })
//!     }
//! }
//!
//! register_layer::<Scale>()?;
//! let queue = manager().cpu().queue;
//! let model = build_sequential(&queue, &from_json(r#"[{"type": "Scale", "args": {"factor": 3}}]"#)?)?;
//! assert_eq!(model.forward(&Tensor::from_host(&queue, &[2.0f32], [1])?)?.to_host::<f32>()?, [6.0]);
//!
//! let wrong = from_json(r#"[{"type": "Scale", "args": {"factor": "big"}}]"#)?;
//! let error = build_sequential(&queue, &wrong).unwrap_err().to_string();
//! assert_eq!(error, r#"build_sequential: layer 0 (Scale): factor: invalid type: string "big", expected f64"#);
//! # Ok::<(), netcl_nn::autograd::Error>(())
//! ```

mod built_in;
mod image;

use std::any::TypeId;
use std::sync::{PoisonError, RwLock};

use netcl_autograd::core::backend::Queue;
use netcl_autograd::core::{Error as CoreError, ErrorKind};
use netcl_autograd::{Error, Result};
use serde::de::{DeserializeOwned, Deserializer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::module::Module;
use crate::sequential::Sequential;

/// A layer as data: what it is, and its settings.
///
/// In JSON it is `{"type": ..., "args": {...}}`; `"kind"` and `"settings"` are read as well, and `"args"` may be left out or null.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerConfig {
    /// The name that the layer was registered under.
    #[serde(rename = "type", alias = "kind")]
    pub kind: String,
    /// The settings by name.
    #[serde(rename = "args", alias = "settings", default, skip_serializing_if = "Map::is_empty")]
    #[serde(deserialize_with = "null_is_empty")]
    pub settings: Map<String, Value>,
}

fn null_is_empty<'de, D: Deserializer<'de>>(from: D) -> Result<Map<String, Value>, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// A layer that can be made from settings and tells its settings.
pub trait Configured: Module + Sized {
    /// Its name in configurations: the type's.
    const KIND: &'static str;

    /// What is needed to make one. Its names in JSON are those that the errors show.
    type Settings: Serialize + DeserializeOwned;

    /// The settings that make a layer like this one.
    fn settings(&self) -> Result<Self::Settings>;

    /// A new layer.
    fn build(settings: Self::Settings, build: &Build<'_>) -> Result<Self>;
}

/// Where a layer is being made.
pub struct Build<'a> {
    queue: &'a Queue,
    path: String,
}

impl Build<'_> {
    /// The queue of the device that the parameters are to live on.
    pub fn queue(&self) -> &Queue {
        self.queue
    }

    /// A layer inside the one that is being made; errors call it by the setting's name.
    pub fn layer(&self, name: &str, config: &LayerConfig) -> Result<Box<dyn Module>> {
        let path = format!("{}.{name}", self.path);
        Build { queue: self.queue, path }.make(config)
    }

    fn make(&self, config: &LayerConfig) -> Result<Box<dyn Module>> {
        match entries().into_iter().find(|entry| entry.kind == config.kind) {
            Some(entry) => (entry.build)(config, self).map_err(|error| self.placed(entry.kind, error)),
            None => {
                let (kind, known) = (&config.kind, layer_kinds().join(", "));
                Err(self
                    .error(&format!("has the unknown type {kind:?}; there are {known}; register_layer adds others")))
            }
        }
    }

    fn error(&self, what: &str) -> Error {
        CoreError::argument(OP, format!("layer {} {what}", self.path)).into()
    }

    /// An error of a layer's own with the layer's place, unless it has one.
    fn placed(&self, kind: &str, error: Error) -> Error {
        match error {
            Error::Core(CoreError::Argument { op: OP, .. }) => error,
            Error::Core(inner) if inner.kind() == ErrorKind::Value => self.error(&format!("({kind}): {inner}")),
            other => other,
        }
    }
}

/// Whom errors name.
const OP: &str = "build_sequential";

/// A kind of layer.
#[derive(Clone, Copy)]
struct Entry {
    kind: &'static str,
    layer: TypeId,
    build: fn(&LayerConfig, &Build<'_>) -> Result<Box<dyn Module>>,
    describe: fn(&dyn Module) -> Option<Result<LayerConfig>>,
}

impl Entry {
    const fn of<L: Configured>() -> Entry {
        Entry {
            kind: L::KIND,
            layer: TypeId::of::<L>(),
            build: |config, build| {
                let settings = Value::Object(config.settings.clone());
                let settings = serde_path_to_error::deserialize(settings).map_err(|error| {
                    let (path, inner) = (error.path().to_string(), error.inner());
                    // The path of an error about the settings as a whole (one is missing) is a dot.
                    let place = if path == "." { String::new() } else { format!("{path}: ") };
                    build.error(&format!("({}): {place}{inner}", L::KIND))
                })?;
                Ok(Box::new(L::build(settings, build)?))
            },
            describe: |module| Some(describe(module.downcast_ref::<L>()?)),
        }
    }
}

fn describe<L: Configured>(layer: &L) -> Result<LayerConfig> {
    let wrong = |what: String| Error::from(CoreError::argument("config", format!("{}: {what}", L::KIND)));
    match serde_json::to_value(layer.settings()?).map_err(|error| wrong(error.to_string()))? {
        Value::Object(settings) => Ok(LayerConfig { kind: L::KIND.to_owned(), settings }),
        other => Err(wrong(format!("settings are a struct with names, not {other}"))),
    }
}

/// What [`register_layer`] added.
static REGISTERED: RwLock<Vec<Entry>> = RwLock::new(Vec::new());

/// All kinds of layers; a copy, since making or describing a layer may come back here.
fn entries() -> Vec<Entry> {
    let registered = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
    built_in::TABLE.iter().chain(registered.iter()).copied().collect()
}

/// Makes a layer known to [`build_sequential`] and [`layer_config`], for the whole process. Once more changes nothing.
///
/// # Errors
/// If another layer has the name.
pub fn register_layer<L: Configured>() -> Result<()> {
    let entry = Entry::of::<L>();
    let mut registered = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
    match built_in::TABLE.iter().chain(registered.iter()).find(|known| known.kind == entry.kind) {
        Some(known) if known.layer == entry.layer => Ok(()),
        Some(_) => {
            let what = format!("another layer is called {:?}; give this one a KIND of its own", entry.kind);
            Err(CoreError::argument("register_layer", what).into())
        }
        None => {
            registered.push(entry);
            Ok(())
        }
    }
}

/// The names of all layers that can be made from settings, sorted.
pub fn layer_kinds() -> Vec<&'static str> {
    let mut kinds: Vec<&str> = entries().iter().map(|entry| entry.kind).collect();
    kinds.sort_unstable();
    kinds
}

/// Makes the layers of a list, one after the other, on a device.
///
/// Parameters start as those of layers made by hand, with numbers of the process-wide generator; load a state for others.
///
/// # Errors
/// For an unknown type, with the list of the known ones, and for settings that are missing, unknown or of the wrong type, by
/// their names and the layer's place.
pub fn build_sequential(queue: &Queue, config: &[LayerConfig]) -> Result<Sequential> {
    let layers = config.iter().enumerate().map(|(i, config)| Build { queue, path: i.to_string() }.make(config));
    Ok(Sequential::new(layers.collect::<Result<_>>()?))
}

/// Makes one layer; [`build_sequential`] says more.
pub fn build_layer(queue: &Queue, config: &LayerConfig) -> Result<Box<dyn Module>> {
    Build { queue, path: "0".to_owned() }.make(config)
}

/// A layer as data, from which [`build_layer`] makes one like it.
///
/// # Errors
/// For a layer that is not [`Configured`] or not registered, or that holds such a one.
pub fn layer_config(layer: &dyn Module) -> Result<LayerConfig> {
    entries().iter().find_map(|entry| (entry.describe)(layer)).unwrap_or_else(|| {
        let kind = layer.kind();
        let what = format!("{kind} has no settings to write down; implement Configured for it and call register_layer");
        Err(CoreError::argument("config", what).into())
    })
}

/// Reads a list of layers from JSON.
///
/// # Errors
/// For text that is no such list, with line and column.
pub fn from_json(text: &str) -> Result<Vec<LayerConfig>> {
    serde_json::from_str(text).map_err(|error| {
        let what = format!(r#"the text is no list of {{"type": ..., "args": {{...}}}}: {error}"#);
        CoreError::argument(OP, what).into()
    })
}

/// Writes a list of layers as JSON, one layer per line or more.
pub fn to_json(config: &[LayerConfig]) -> Result<String> {
    serde_json::to_string_pretty(config)
        .map_err(|error| CoreError::argument("config", format!("cannot be written as JSON: {error}")).into())
}
