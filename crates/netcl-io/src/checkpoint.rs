//! Checkpoints: a model file that also holds what a run needs to go on.

use std::path::Path;

use netcl_nn::Module;
use netcl_nn::autograd::{Generator, default_generator, set_default_generator};
use netcl_optim::{Optimizer, Schedule, State};
use serde_json::{Map, Value, json};

use crate::archive::Archive;
use crate::error::{Error, Result};
use crate::model::insert_model;
use crate::npy::Array;

const NUMBERS: &str = "optimizer/numbers/";
const TENSORS: &str = "optimizer/tensors/";
const SCHEDULE: &str = "schedule/numbers/";
const GENERATOR: &str = "generator";
const PROGRESS: &str = "progress";

/// A checkpoint in memory: the model's arrays, the states of optimizer and schedule, the random generator and whatever the
/// loop adds.
///
/// The file is a model file as well: whoever reads only the model's arrays needs to know nothing of the rest.
///
/// ```
/// use netcl_nn::{Linear, Module, autograd::manager};
/// use netcl_optim::{Optimizer, SGD};
/// use netcl_io::{Archive, Checkpoint};
///
/// let mut model = Linear::new(&manager().cpu().queue, 2, 3)?;
/// let mut opt = SGD::new(model.parameters(), 0.1)?;
/// let saved = Checkpoint::new(&model, &opt, None, Default::default(), "epoch 3".into())?;
///
/// opt.set_learning_rate(0.5);
/// saved.restore(&mut model, &mut opt, None)?;
/// assert_eq!(opt.learning_rate(), 0.1);
/// assert_eq!(saved.progress(), "epoch 3");
/// # Ok::<(), netcl_io::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    archive: Archive,
}

impl Checkpoint {
    /// What there is now. `metadata` says how to build the model again, `progress` is the training loop's own.
    pub fn new(
        model: &dyn Module,
        optimizer: &dyn Optimizer,
        schedule: Option<&dyn Schedule>,
        metadata: Map<String, Value>,
        progress: Value,
    ) -> Result<Checkpoint> {
        let mut archive = Archive::new(metadata);
        insert_model(&mut archive, model)?;
        let State { numbers, tensors } = optimizer.state();
        for (name, number) in numbers {
            archive.insert(format!("{NUMBERS}{name}"), Array::scalar(number));
        }
        for (name, tensor) in tensors {
            archive.insert(format!("{TENSORS}{name}"), Array::from_tensor(&tensor)?);
        }
        for (name, number) in schedule.map(Schedule::state).unwrap_or_default().numbers {
            archive.insert(format!("{SCHEDULE}{name}"), Array::scalar(number));
        }
        let Generator { seed, offset } = default_generator();
        archive.metadata.insert(GENERATOR.to_owned(), json!({ "seed": seed, "offset": offset }));
        archive.metadata.insert(PROGRESS.to_owned(), progress);
        Ok(Checkpoint { archive })
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If it is no `.netcl` file, or a model without the rest.
    pub fn read(path: &Path) -> Result<Checkpoint> {
        let archive = Archive::read(path)?;
        let checkpoint = Checkpoint { archive };
        if checkpoint.archive.metadata.get(PROGRESS).is_none() || checkpoint.generator().is_none() {
            let what = "is a model, but no checkpoint: it does not say how to go on".to_owned();
            return Err(Error::Unsuitable { path: path.to_owned(), what });
        }
        Ok(checkpoint)
    }

    /// Writes the file, as a whole or not at all.
    pub fn write(&self, path: &Path) -> Result<()> {
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

    fn generator(&self) -> Option<Generator> {
        let generator = self.archive.metadata.get(GENERATOR)?;
        let number = |key: &str| generator.get(key).and_then(Value::as_u64);
        Some(Generator { seed: number("seed")?, offset: number("offset")? })
    }

    /// Puts the model, the optimizer, the schedule and the process-wide random generator back to where they were.
    ///
    /// # Errors
    /// If the weights or a state do not fit.
    pub fn restore(
        &self,
        model: &mut dyn Module,
        optimizer: &mut dyn Optimizer,
        schedule: Option<&mut dyn Schedule>,
    ) -> Result<()> {
        self.archive.restore(model)?;
        let queue = model.parameters().first().map(|parameter| parameter.queue().clone());
        let (mut of_optimizer, mut of_schedule) = (State::default(), State::default());
        for (name, array) in self.archive.arrays() {
            if let (Some(name), Some(number)) = (name.strip_prefix(NUMBERS), array.as_scalar()) {
                of_optimizer.numbers.insert(name.to_owned(), number);
            } else if let (Some(name), Some(queue)) = (name.strip_prefix(TENSORS), &queue) {
                of_optimizer.tensors.insert(name.to_owned(), array.to_tensor(queue)?);
            } else if let (Some(name), Some(number)) = (name.strip_prefix(SCHEDULE), array.as_scalar()) {
                of_schedule.numbers.insert(name.to_owned(), number);
            }
        }
        optimizer.load_state(&of_optimizer)?;
        if let Some(schedule) = schedule {
            schedule.load_state(&of_schedule)?;
        }
        if let Some(generator) = self.generator() {
            set_default_generator(generator);
        }
        Ok(())
    }
}
