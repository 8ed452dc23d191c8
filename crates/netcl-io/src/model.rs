//! Models in files.

use std::path::Path;

use netcl_nn::autograd::{Queue, Shape, Tensor, manager};
use netcl_nn::{
    LayerConfig, LoadReport, Misshapen, Module, StateDict, StateMismatch, Strict, build_layer, layer_config,
};
use serde_json::{Map, Value};

use crate::archive::Archive;
use crate::array::Array;
use crate::checkpoint::{parts, prefixed};
use crate::error::{Error, Result};
use crate::rename::{Rename, Renamed};
use crate::tensor_file::{Kind, open};
use crate::tensors::Tensors;
use crate::writer::{WriteOptions, write};

/// Writes a model's parameters and buffers under their dotted names, with metadata. The name says the [`Kind`] of file, `.netcl`
/// where it says none; a PyTorch file has no metadata. How [`load_model`] builds the model again is added to a `.netcl` file where
/// every layer of the model says how it is made.
pub fn save_model(path: impl AsRef<Path>, model: &dyn Module, metadata: Map<String, Value>) -> Result<()> {
    let path = path.as_ref();
    let mut archive = Archive::new(metadata);
    let kind = Kind::of_name(path).unwrap_or(Kind::Netcl);
    if kind == Kind::Netcl
        && !archive.metadata.contains_key("type")
        && let Ok(mut config) = layer_config(model)
    {
        if let Some(layers) = config.settings.remove("layers").filter(|_| config.kind == "Sequential") {
            archive.metadata.insert("config".to_owned(), layers);
        } else {
            archive.metadata.insert("args".to_owned(), config.settings.into());
        }
        archive.metadata.insert("type".to_owned(), config.kind.into());
    }
    insert_model(&mut archive, model)?;
    write(path, &archive, &WriteOptions::new(kind)).map(drop)
}

/// The network of a file of [`save_model`] or of the published package, built from the configuration in its metadata.
///
/// ```
/// use netcl_nn::{Linear, Module, ReLU, autograd::manager, sequential};
/// use netcl_io::{load_model, save_model};
///
/// let path = std::env::temp_dir().join(format!("netcl-load-{}.netcl", std::process::id()));
/// let queue = manager().cpu().queue;
/// let model = sequential![Linear::new(&queue, 2, 8)?, ReLU, Linear::new(&queue, 8, 1)?];
/// save_model(&path, &model, Default::default())?;
/// assert_eq!(load_model(&path, &queue)?.to_string(), model.to_string());
/// # std::fs::remove_file(path).unwrap();
/// # Ok::<(), netcl_io::Error>(())
/// ```
///
/// # Errors
/// If the file cannot be read, has no configuration (then build the model and call [`load_weights`]), or its weights do not fit.
pub fn load_model(path: impl AsRef<Path>, queue: &Queue) -> Result<Box<dyn Module>> {
    let path = path.as_ref();
    let file = open(path)?;
    let config = configuration(file.metadata()).ok_or_else(|| {
        let what = "has no configuration of a network: build the model and load the weights into it".to_owned();
        Error::Unsuitable { path: path.to_owned(), what }
    })?;
    let mut model = build_layer(queue, &config)?;
    load(&file, &mut *model, Strict::Yes)?;
    Ok(model)
}

/// A network is `{"type": ..., "args": {...}}`; the layers of a `Sequential` are beside it, as in the published package.
fn configuration(metadata: &Map<String, Value>) -> Option<LayerConfig> {
    let kind = metadata.get("type")?.as_str()?.to_owned();
    let settings = match metadata.get("config") {
        Some(layers) => Map::from_iter([("layers".to_owned(), layers.clone())]),
        None => metadata.get("args").and_then(Value::as_object).cloned().unwrap_or_default(),
    };
    Some(LayerConfig { kind, settings })
}

/// How [`load_weights_with`] loads.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// Whether every tensor of the file must be in the model and the other way round.
    pub strict: Strict,
    /// New names for the file's tensors.
    pub rename: Rename,
}

/// What [`load_weights_with`] found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Loaded {
    /// What the file says of itself.
    pub metadata: Map<String, Value>,
    /// What was passed by: nothing, if the options are strict.
    pub report: LoadReport,
}

/// Copies the weights of a file of any kind into a model that is already built, and returns the file's metadata.
///
/// # Errors
/// As [`Archive::restore`], and if the file cannot be read.
pub fn load_weights(path: impl AsRef<Path>, model: &mut dyn Module) -> Result<Map<String, Value>> {
    let path = path.as_ref();
    load_weights_with(path, model, &LoadOptions::default()).map(|loaded| loaded.metadata)
}

/// [`load_weights`] of a file with other names, or of a part of a model.
///
/// ```
/// use netcl_nn::{Linear, Module, autograd::manager};
/// use netcl_io::{Archive, Array, LoadOptions, Rename, load_weights_with};
///
/// let path = std::env::temp_dir().join(format!("netcl-rename-{}.netcl", std::process::id()));
/// let mut layer = Linear::new(&manager().cpu().queue, 1, 1)?;
/// let mut archive = Archive::default();
/// for (name, tensor) in layer.state_dict() {
///     archive.insert(format!("module.fc.{name}"), Array::from_tensor(&tensor)?);
/// }
/// archive.write(&path)?;
/// let rename = Rename::new(&[(r"^module\.fc\.(.*)", "$1")])?;
/// load_weights_with(&path, &mut layer, &LoadOptions { rename, ..Default::default() })?;
/// # std::fs::remove_file(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As [`load_weights`], if two tensors get the same name, and if no name of the file is in the model, whatever `strict` says.
pub fn load_weights_with(path: impl AsRef<Path>, model: &mut dyn Module, options: &LoadOptions) -> Result<Loaded> {
    let path = path.as_ref();
    let file = open(path)?;
    let report = load(&Renamed::new(&file, &options.rename)?, model, options.strict)?;
    Ok(Loaded { metadata: file.metadata().clone(), report })
}

/// Adds a model's tensors to an archive.
pub(crate) fn insert_model(archive: &mut Archive, model: &dyn Module) -> Result<()> {
    for (name, tensor) in model.state_dict() {
        archive.insert(name, Array::from_tensor(&tensor)?);
    }
    Ok(())
}

/// As many arrays are named that a model does not know.
const MOST_UNKNOWN: usize = 20;

impl Archive {
    /// Copies the arrays into the parameters and buffers of a model that is already built.
    ///
    /// # Errors
    /// Lists every array that is missing, unexpected or of another shape; the model has not changed then. Other dtypes are
    /// converted.
    pub fn restore(&self, model: &mut dyn Module) -> Result<()> {
        load(self, model, Strict::Yes).map(drop)
    }

    /// Whether [`Archive::restore`] would succeed: the same errors, and the model stays as it is.
    pub fn check(&self, model: &dyn Module) -> Result<()> {
        matched(self, model, Strict::Yes).map(drop)
    }
}

/// Copies tensors into a model, from where they are mapped, when everything has been found to fit.
fn load(tensors: &dyn Tensors, model: &mut dyn Module, strict: Strict) -> Result<LoadReport> {
    let (report, pairs) = matched(tensors, model, strict)?;
    for (target, array) in pairs {
        target.write_bytes(&array.bytes, array.dtype)?;
    }
    Ok(report)
}

/// The tensors of a model with the arrays that belong into them. Only those that have a place in it are read, so that the model
/// bounds the memory that it takes.
fn matched(tensors: &dyn Tensors, model: &dyn Module, strict: Strict) -> Result<(LoadReport, Vec<(Tensor, Array)>)> {
    let targets = model.state_dict();
    let host = manager().cpu().queue;
    // Stands for what need not be read to be listed.
    let absent = |shape: Shape| Ok::<_, Error>(Tensor::from_host::<f32>(&host, &[], shape)?);
    let mut state = StateDict::new();
    let mut pairs: Vec<(Tensor, Array)> = Vec::new();
    let mut misshapen: Vec<(&str, &[usize])> = Vec::new();
    let mut unknown: Vec<&str> = Vec::new();
    let parts = parts(tensors.metadata());
    for (index, info) in tensors.infos().iter().enumerate() {
        let name = info.name.as_str();
        if parts.iter().any(|part| prefixed(name, part).is_some()) {
            continue;
        }
        match targets.get(name) {
            None => unknown.push(name),
            Some(target) if target.shape()[..] == info.shape[..] => {
                pairs.push((target.clone(), tensors.read(index)?));
                state.insert(name, target.clone());
            }
            Some(target) => {
                misshapen.push((name, &info.shape));
                let shape = if target.shape()[..] == [0] { Shape::from([0, 0]) } else { Shape::from([0]) };
                state.insert(name, absent(shape)?);
            }
        }
    }
    // Counters are not needed for the result: files of other origin leave them out.
    for (name, target) in targets.iter().filter(|(_, target)| !target.dtype().is_float()) {
        if state.get(name).is_none() {
            state.insert(name, target.clone());
        }
    }
    // Some are enough to see what is wrong: a file may have any number of arrays that the model does not know.
    let named = if strict == Strict::Yes { unknown.len().min(MOST_UNKNOWN) } else { unknown.len() };
    for name in &unknown[..named] {
        state.insert(*name, absent(Shape::from([0]))?);
    }
    // Compares names and shapes: a tensor's own value stands for one that fits.
    let report = model.load_state_dict(&state, strict).map_err(|error| {
        let netcl_nn::autograd::Error::Custom(custom) = &error else { return error.into() };
        let Some(mismatch) = custom.downcast_ref::<StateMismatch>() else { return error.into() };
        let shapes = misshapen.iter().filter_map(|(name, got)| {
            let Misshapen { expected, .. } = mismatch.misshapen.iter().find(|one| one.name == *name)?;
            Some(format!("{name:?} has shape {got:?} instead of {:?}", &expected[..]))
        });
        let missing = mismatch.missing.iter().map(|name| format!("{name:?} is missing"));
        let unexpected = mismatch.unexpected.iter().map(|name| format!("{name:?} is unexpected"));
        let more = unknown.len() - named;
        let more = (more > 0).then(|| format!("{more} more are unexpected"));
        let problems = shapes.chain(missing).chain(unexpected).chain(more).collect();
        Error::Weights { path: tensors.path().to_owned(), problems }
    })?;
    // Not even a part fits: a model of random weights would pass for a loaded one.
    if pairs.is_empty()
        && let (Some(ours), Some((theirs, _))) = (unknown.first(), targets.iter().next())
    {
        let count = unknown.len();
        let problem = format!(
            "none of the file's {count} names is in the model; the file has {ours:?}, the model {theirs:?}: see rename"
        );
        return Err(Error::Weights { path: tensors.path().to_owned(), problems: vec![problem] });
    }
    Ok((report, pairs))
}
