//! What happened in a run: every update, every epoch.

use std::collections::BTreeMap;

use netcl_nn::autograd::Queue;
use netcl_profiling::gauges;
use serde::{Deserialize, Serialize};

/// In [`Epoch::values`]: training samples per second, validation left out.
pub const SAMPLES_PER_SECOND: &str = "samples_per_second";
/// In [`Epoch::values`]: bytes of the device's memory that tensors use when the epoch ends.
pub const MEMORY_BYTES: &str = "memory_bytes";
/// In [`Epoch::values`]: the most bytes of the device's memory that tensors have used so far.
pub const MEMORY_PEAK_BYTES: &str = "memory_peak_bytes";

/// One update of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The number of the update in the whole run, from 1.
    pub step: usize,
    /// The number of the epoch, from 1.
    pub epoch: usize,
    /// The mean loss of its samples, before the update.
    pub loss: f64,
    /// The learning rate of the first group of parameters.
    pub lr: f64,
    /// The number of samples.
    pub samples: usize,
}

/// One pass over the training data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Epoch {
    /// Its number, from 1.
    pub epoch: usize,
    /// The number of updates in the run so far.
    pub steps: usize,
    /// The number of samples of this epoch.
    pub samples: usize,
    /// How long training and validation took, in seconds.
    pub seconds: f64,
    /// `loss` and the training metrics by their names, and those of the validation with `val_` before the name.
    pub values: BTreeMap<String, f64>,
}

impl Epoch {
    /// Notes throughput and memory among the values, from where the report takes its curves of them. `training` is the time without
    /// validation, in seconds.
    pub fn note_device(&mut self, queue: &Queue, training: f64) {
        let memory = gauges::memory(queue);
        let figures = [
            (SAMPLES_PER_SECOND, self.samples as f64 / training.max(1e-9)),
            (MEMORY_BYTES, memory.in_use as f64),
            (MEMORY_PEAK_BYTES, memory.peak as f64),
        ];
        self.values.extend(figures.map(|(name, value)| (name.to_owned(), value)));
    }
}

/// A whole run so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// Every update.
    pub steps: Vec<Step>,
    /// Every finished epoch.
    pub epochs: Vec<Epoch>,
}

impl History {
    /// The time of all finished epochs, in seconds.
    pub fn seconds(&self) -> f64 {
        self.epochs.iter().map(|epoch| epoch.seconds).sum()
    }

    /// A value of every finished epoch: `history.curve("val_loss")`. An epoch without it has none.
    pub fn curve(&self, name: &str) -> Vec<Option<f64>> {
        self.epochs.iter().map(|epoch| epoch.values.get(name).copied()).collect()
    }
}
