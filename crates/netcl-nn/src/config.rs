//! Networks as data: a list of layers by name and settings, and back.
//!
//! The format is that of the published package: `[{"type": "Linear", "args": {"in_features": 4, "out_features": 2}}]`.
//!
//! ```
//! use netcl_nn::autograd::manager;
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
//! 1. A struct of its settings derives [`Settings`](trait@crate::Settings), and the layer has a field of it.
//! 2. The layer derives [`Module`] with the attribute `settings` on that field, and has a function
//!    `make(build: &mut Build, settings) -> Result<Self>`; [`Build`] knows the device, the dtype and the random numbers.
//!    A layer that is nothing but its settings derives both and has `#[module(settings)]` on the struct.
//! 3. A layer of this crate gets a line in the table of `config/built_in.rs`; everybody else calls [`register_layer`].
//!
//! ```
//! use netcl_nn::autograd::{Result, Tensor, manager};
//! use netcl_nn::config::from_json;
//! use netcl_nn::init::Init;
//! use netcl_nn::{Build, Module, Settings, build_sequential, functional as F, register_layer};
//!
//! #[derive(Module)]
//! struct Scale {
//!     factor: Tensor,
//!     #[module(settings)]
//!     settings: ScaleOptions,
//! }
//!
//! #[derive(Clone, Settings)]
//! struct ScaleOptions {
//!     start: f64,
//! }
//!
//! impl Scale {
//!     fn make(build: &mut Build<'_>, settings: ScaleOptions) -> Result<Scale> {
//!         Ok(Scale { factor: build.parameter(Init::Constant(settings.start), ())?, settings })
//!     }
//!
//!     fn forward(&self, input: &Tensor) -> Result<Tensor> {
//!         F::mul(input, &self.factor)
//!     }
//! }
//!
//! register_layer::<Scale>()?;
//! let queue = manager().cpu().queue;
//! let model = build_sequential(&queue, &from_json(r#"[{"type": "Scale", "args": {"start": 3}}]"#)?)?;
//! assert_eq!(model.forward(&Tensor::from_host(&queue, &[2.0f32], [1])?)?.to_host::<f32>()?, [6.0]);
//! assert_eq!(model.to_string(), "Sequential(\n  (0): Scale(start=3)\n)");
//!
//! let wrong = from_json(r#"[{"type": "Scale", "args": {"start": "big"}}]"#)?;
//! let error = build_sequential(&queue, &wrong).unwrap_err().to_string();
//! assert_eq!(error, "build_sequential: layer 0 (Scale): start is a number, not 'big'");
//! # Ok::<(), netcl_nn::autograd::Error>(())
//! ```

mod built_in;

use std::any::TypeId;
use std::sync::{PoisonError, RwLock};

use netcl_autograd::DType;
use netcl_autograd::ErrorKind;
use netcl_autograd::Generator;
use netcl_autograd::Queue;
use netcl_autograd::Shape;
use netcl_autograd::ops::layout::expand;
use netcl_autograd::{Error, Result, Tensor};
use serde::de::Deserializer;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::init::Init;
use crate::members::Member;
use crate::module::Module;
use crate::sequential::Sequential;
use crate::settings::{self, Settings};
use crate::walk::walk;

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

/// A layer that can be made from settings and tells its settings; `#[derive(Module)]` writes it for a layer with settings.
pub trait Configured: Module + Sized {
    /// Its name in configurations: the type's.
    const KIND: &'static str;

    /// What is needed to make one.
    type Settings: Settings;

    /// The settings that make a layer like this one.
    ///
    /// # Errors
    /// For a container of a layer that has none.
    fn options(&self) -> Result<Self::Settings>;

    /// A new layer.
    ///
    /// # Errors
    /// For settings that do not pass their [`check`](Settings::check), and what the layer itself refuses.
    fn build(build: &mut Build<'_>, settings: Self::Settings) -> Result<Self>;
}

/// Where a layer is being made: on which device, of which dtype, with which random numbers.
///
/// A queue is enough for most: `Linear::new_with(&queue, options)`. Everything else is said first:
///
/// ```
/// use netcl_nn::autograd::{DType, Generator, manager};
/// use netcl_nn::{Build, Linear, LinearOptions};
///
/// let queue = manager().cpu().queue;
/// let mut generator = Generator::new(7);
/// let build = Build::on(&queue).dtype(DType::F64).generator(&mut generator);
/// let layer = Linear::new_with(build, LinearOptions { bias: false, ..LinearOptions::new(3, 5) })?;
/// assert_eq!(layer.weight().dtype(), DType::F64);
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
pub struct Build<'a> {
    queue: Queue,
    dtype: DType,
    generator: Option<&'a mut Generator>,
    hollow: bool,
    /// The names of the layers that are being made, the outermost first.
    path: String,
}

impl From<&Queue> for Build<'_> {
    fn from(queue: &Queue) -> Self {
        Build::on(queue)
    }
}

impl<'a> Build<'a> {
    /// Float32 parameters on a queue's device, with numbers of the process-wide generator.
    pub fn on(queue: &Queue) -> Build<'a> {
        Build { queue: queue.clone(), dtype: DType::F32, generator: None, hollow: false, path: String::new() }
    }

    /// Parameters of another dtype.
    pub fn dtype(self, dtype: DType) -> Build<'a> {
        Build { dtype, ..self }
    }

    /// With the numbers of a generator of one's own.
    pub fn generator(self, generator: impl Into<Option<&'a mut Generator>>) -> Build<'a> {
        Build { generator: generator.into(), ..self }
    }

    /// Parameters that have shapes but no memory, because others take their place; no random number is drawn.
    pub fn hollow(self) -> Build<'a> {
        Build { hollow: true, ..self }
    }

    /// Whether parameters have no memory, and so no values to write.
    pub(crate) fn is_hollow(&self) -> bool {
        self.hollow
    }

    /// The queue of the device that the parameters are to live on.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// A tensor to be trained that starts by a rule.
    pub fn parameter(&mut self, start: Init, shape: impl Into<Shape>) -> Result<Tensor> {
        Ok(self.buffer(start, shape)?.with_grad())
    }

    /// A tensor that is not trained.
    pub fn buffer(&mut self, start: Init, shape: impl Into<Shape>) -> Result<Tensor> {
        let shape = shape.into();
        if self.hollow {
            return expand(&Tensor::full(&self.queue, (), self.dtype, 0.0)?, shape);
        }
        start.tensor(&self.queue, shape, self.dtype, self.generator.as_deref_mut())
    }

    /// Overwrites a tensor that was made here by another rule.
    pub fn fill(&mut self, tensor: &Tensor, start: Init) -> Result<()> {
        if self.hollow { Ok(()) } else { start.fill(tensor, self.generator.as_deref_mut()) }
    }

    /// PyTorch's start of linear and convolutional layers: weight and bias uniform between plus and minus `1 / sqrt(fan in)`.
    pub(crate) fn weight_and_bias(
        &mut self,
        shape: impl Into<Shape>,
        bias: Option<usize>,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let shape = shape.into();
        // As floats: a shape too large for memory is refused where the tensor is made.
        let inputs: f64 = shape[1..].iter().map(|&n| n as f64).product();
        let bound = 1.0 / inputs.max(1.0).sqrt();
        let start = Init::Uniform { low: -bound, high: bound };
        let weight = self.parameter(start, shape)?;
        Ok((weight, bias.map(|length| self.parameter(start, [length])).transpose()?))
    }

    /// A layer inside the one that is being made; errors call it by the setting's name.
    pub fn layer(&mut self, name: &str, config: &LayerConfig) -> Result<Box<dyn Module>> {
        let outer = self.path.clone();
        self.path = if outer.is_empty() { name.to_owned() } else { format!("{outer}.{name}") };
        let made = self.make(config);
        self.path = outer;
        made
    }

    fn make(&mut self, config: &LayerConfig) -> Result<Box<dyn Module>> {
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
        let place = if self.path.is_empty() { String::new() } else { format!("layer {} ", self.path) };
        Error::argument(OP, format!("{place}{what}"))
    }

    /// An error of a layer's own with the layer's place, unless it has one.
    fn placed(&self, kind: &'static str, error: Error) -> Error {
        let text = error.to_string();
        let own = text.strip_prefix(kind).and_then(|text| text.strip_prefix(": ")).unwrap_or(&text);
        match error.kind() {
            _ if self.path.is_empty() || text.starts_with(OP) => error,
            ErrorKind::Value | ErrorKind::Type => self.error(&format!("({kind}): {own}")),
            _ => error,
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
    build: fn(&LayerConfig, &mut Build<'_>) -> Result<Box<dyn Module>>,
    describe: fn(&dyn Module) -> Option<Result<LayerConfig>>,
}

impl Entry {
    const fn of<L: Configured>() -> Entry {
        Entry {
            kind: L::KIND,
            layer: TypeId::of::<L>(),
            build: |config, build| {
                let outer = build.dtype;
                let given = given(L::KIND, config, build)?;
                let made = L::Settings::read(L::KIND, given).and_then(|settings| L::build(build, settings));
                build.dtype = outer;
                Ok(Box::new(made?))
            },
            describe: |module| {
                let values = module.downcast_ref::<L>()?.options().map(|options| options.values());
                Some(values.map(|values| describe(L::KIND, module, values)))
            },
        }
    }
}

/// The settings of a configuration; a dtype among them is the place's from then on. Not generic, as [`describe`]: there are 130 layers.
fn given(kind: &'static str, config: &LayerConfig, build: &mut Build<'_>) -> Result<Vec<(String, settings::Value)>> {
    let mut given: Vec<_> = config.settings.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
    if let Some(at) = given.iter().position(|(name, _)| name == "dtype") {
        let (name, dtype) = given.swap_remove(at);
        let dtype: Option<String> = settings::one(kind, &name, &dtype)?;
        if let Some(dtype) = dtype {
            build.dtype = DType::parse(&dtype)?;
        }
    }
    Ok(given)
}

/// A layer as data; its dtype is that of its tensors.
fn describe(kind: &str, layer: &dyn Module, values: Vec<(&'static str, settings::Value)>) -> LayerConfig {
    let mut settings: Map<String, Value> =
        values.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
    let mut dtype = DType::F32;
    walk(layer, "", &mut |_, member| {
        if let Member::Parameter(tensor) | Member::Buffer(tensor) = member
            && tensor.dtype().is_float()
        {
            dtype = tensor.dtype();
        }
    });
    if dtype != DType::F32 {
        settings.insert("dtype".to_owned(), dtype.name().into());
    }
    LayerConfig { kind: kind.to_owned(), settings }
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
            Err(Error::argument("register_layer", what))
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
    let mut build = Build::on(queue);
    let layers = config.iter().enumerate().map(|(i, config)| build.layer(&i.to_string(), config));
    Ok(Sequential::new(layers.collect::<Result<_>>()?))
}

/// Makes one layer; [`build_sequential`] says more.
pub fn build_layer<'b>(build: impl Into<Build<'b>>, config: &LayerConfig) -> Result<Box<dyn Module>> {
    build.into().make(config)
}

/// A layer as data, from which [`build_layer`] makes one like it.
///
/// # Errors
/// For a layer that is not [`Configured`] or not registered, or that holds such a one.
pub fn layer_config(layer: &dyn Module) -> Result<LayerConfig> {
    entries().iter().find_map(|entry| (entry.describe)(layer)).unwrap_or_else(|| {
        let kind = layer.kind();
        let what = format!("{kind} has no settings to write down; implement Configured for it and call register_layer");
        Err(Error::argument("config", what))
    })
}

/// Reads a list of layers from JSON.
///
/// # Errors
/// For text that is no such list, with line and column.
pub fn from_json(text: &str) -> Result<Vec<LayerConfig>> {
    serde_json::from_str(text).map_err(|error| {
        let what = format!(r#"the text is no list of {{"type": ..., "args": {{...}}}}: {error}"#);
        Error::argument(OP, what)
    })
}

/// Writes a list of layers as JSON, one layer per line or more.
pub fn to_json(config: &[LayerConfig]) -> Result<String> {
    serde_json::to_string_pretty(config)
        .map_err(|error| Error::argument("config", format!("cannot be written as JSON: {error}")))
}
