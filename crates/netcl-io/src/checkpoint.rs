//! Checkpoints: a model file that also holds what a run needs to go on.

use std::path::Path;

use netcl_nn::Module;
use netcl_nn::autograd::{Generator, default_generator, manager, set_default_generator};
use netcl_optim::State;
use serde_json::{Map, Value, json};

use crate::archive::Archive;
use crate::array::Array;
use crate::error::{Error, Result};
use crate::model::insert_model;

const GENERATOR: &str = "generator";
const PARTS: &str = "parts";
const PROGRESS: &str = "progress";
/// The parts of files that do not list theirs.
const FIRST_PARTS: [&str; 2] = ["optimizer", "schedule"];

/// A checkpoint in memory: the model's arrays, the random generator, the states of an optimizer, a schedule and whatever else
/// takes part in the run, and the loop's own progress.
///
/// The file is a model file as well: whoever reads only the model's arrays needs to know nothing of the rest. A part's numbers
/// and tensors are arrays `"optimizer/numbers/groups.0.lr"` and `"optimizer/tensors/0.exp_avg"`.
///
/// ```
/// use netcl_nn::{Linear, Module, autograd::manager};
/// use netcl_optim::{Optimizer, SGD};
/// use netcl_io::Checkpoint;
///
/// let mut model = Linear::new(&manager().cpu().queue, 2, 3)?;
/// let mut opt = SGD::new(model.parameters(), 0.1)?;
/// let mut saved = Checkpoint::new(&model, Default::default())?;
/// saved.put("optimizer", opt.state())?;
/// saved.set_progress("epoch 3".into());
///
/// opt.set_learning_rate(0.5);
/// opt.load_state(&saved.state("optimizer")?)?;
/// saved.restore(&mut model)?;
/// assert_eq!(opt.learning_rate(), 0.1);
/// assert_eq!(saved.progress(), "epoch 3");
/// # Ok::<(), netcl_io::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    archive: Archive,
}

impl Checkpoint {
    /// The model and the process-wide random generator as they are now. `metadata` says how to build the model again.
    pub fn new(model: &dyn Module, metadata: Map<String, Value>) -> Result<Checkpoint> {
        let mut archive = Archive::new(metadata);
        insert_model(&mut archive, model)?;
        let Generator { seed, offset } = default_generator();
        archive.metadata.insert(GENERATOR.to_owned(), json!({ "seed": seed, "offset": offset }));
        archive.metadata.insert(PARTS.to_owned(), json!([]));
        archive.metadata.insert(PROGRESS.to_owned(), Value::Null);
        Ok(Checkpoint { archive })
    }

    /// Adds the state of a part of the run.
    ///
    /// # Errors
    /// For a name that has a `/`, or that names of the model's tensors begin with, and if a tensor cannot be read.
    pub fn put(&mut self, part: &str, state: State) -> Result<()> {
        let taken = self.archive.names().any(|name| prefixed(name, part).is_some());
        if part.is_empty() || part.contains('/') || taken {
            let what = format!("{part:?} cannot name a part of a checkpoint: it is empty, has a '/' or is taken");
            return Err(netcl_nn::autograd::Error::argument("Checkpoint::put", what).into());
        }
        for (name, number) in state.numbers {
            self.archive.insert(format!("{part}/numbers/{name}"), Array::scalar(number));
        }
        for (name, tensor) in state.tensors {
            self.archive.insert(format!("{part}/tensors/{name}"), Array::from_tensor(&tensor)?);
        }
        if let Some(Value::Array(parts)) = self.archive.metadata.get_mut(PARTS) {
            parts.push(part.into());
        }
        Ok(())
    }

    /// Sets what the training loop adds.
    pub fn set_progress(&mut self, progress: Value) {
        self.archive.metadata.insert(PROGRESS.to_owned(), progress);
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If it is no `.netcl` file, or a model without the rest.
    pub fn read(path: impl AsRef<Path>) -> Result<Checkpoint> {
        let path = path.as_ref();
        let checkpoint = Checkpoint { archive: Archive::read(path)? };
        if checkpoint.archive.metadata.get(PROGRESS).is_none() || checkpoint.generator().is_none() {
            let what = "is a model, but no checkpoint: it does not say how to go on".to_owned();
            return Err(Error::Unsuitable { path: path.to_owned(), what });
        }
        Ok(checkpoint)
    }

    /// Writes the file, as a whole or not at all.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        self.archive.write(path)
    }

    /// What the training loop added.
    pub fn progress(&self) -> &Value {
        self.archive.metadata.get(PROGRESS).unwrap_or(&Value::Null)
    }

    /// The metadata, with how to build the model again.
    pub fn metadata(&self) -> &Map<String, Value> {
        &self.archive.metadata
    }

    /// The names of the parts.
    pub fn parts(&self) -> Vec<&str> {
        parts(&self.archive.metadata)
    }

    /// The state of a part; the tensors are on the native CPU.
    ///
    /// # Errors
    /// If there is no such part.
    pub fn state(&self, part: &str) -> Result<State> {
        if !self.parts().contains(&part) {
            let what = format!("has no part {part:?}; there are {:?}", self.parts());
            return Err(Error::Unsuitable { path: self.archive.path().to_owned(), what });
        }
        let host = manager().cpu().queue;
        let mut state = State::default();
        for (name, array) in self.archive.arrays() {
            let Some(name) = prefixed(name, part) else { continue };
            if let (Some(name), Some(number)) = (prefixed(name, "numbers"), array.as_scalar()) {
                state.numbers.insert(name.to_owned(), number);
            } else if let Some(name) = prefixed(name, "tensors") {
                state.tensors.insert(name.to_owned(), array.to_tensor(&host)?);
            }
        }
        Ok(state)
    }

    fn generator(&self) -> Option<Generator> {
        let generator = self.archive.metadata.get(GENERATOR)?;
        let number = |key: &str| generator.get(key).and_then(Value::as_u64);
        Some(Generator { seed: number("seed")?, offset: number("offset")? })
    }

    /// Whether the weights fit a model, which stays as it is.
    ///
    /// # Errors
    /// If they do not: as [`Checkpoint::restore`].
    pub fn check(&self, model: &dyn Module) -> Result<()> {
        self.archive.check(model)
    }

    /// Puts the model and the process-wide random generator back to where they were.
    ///
    /// # Errors
    /// If the weights do not fit.
    pub fn restore(&self, model: &mut dyn Module) -> Result<()> {
        self.archive.restore(model)?;
        if let Some(generator) = self.generator() {
            set_default_generator(generator);
        }
        Ok(())
    }
}

/// The rest of a name under a prefix.
pub(crate) fn prefixed<'n>(name: &'n str, prefix: &str) -> Option<&'n str> {
    name.strip_prefix(prefix)?.strip_prefix('/')
}

/// The parts of a run whose states are beside the model in a file of this metadata.
pub(crate) fn parts(metadata: &Map<String, Value>) -> Vec<&str> {
    match metadata.get(PARTS) {
        Some(Value::Array(parts)) => parts.iter().filter_map(Value::as_str).collect(),
        _ if metadata.contains_key(PROGRESS) => FIRST_PARTS.to_vec(),
        _ => Vec::new(),
    }
}
