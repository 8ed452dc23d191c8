//! How far a run is: what a checkpoint adds to the weights and the states of what trains them.

use std::collections::BTreeMap;

use netcl_io::Checkpoint;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::history::History;
use crate::error::{Error, Result};

/// How far a run is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Finished epochs.
    pub epochs: usize,
    /// Batches of the epoch under way that are trained with.
    pub batches: usize,
    /// The time spent on the epoch under way, in seconds.
    pub seconds: f64,
    /// What happened so far.
    pub history: History,
    /// The states of callbacks, by their names.
    #[serde(default)]
    pub callbacks: BTreeMap<String, Value>,
    /// Where the loader is.
    #[serde(default)]
    pub loader: Value,
    /// Seed and offset of every rank's random generator, where there were several.
    #[serde(default)]
    pub generators: Vec<(u64, u64)>,
}

impl Progress {
    /// What a checkpoint says.
    ///
    /// # Errors
    /// If another loop wrote it.
    pub fn of(checkpoint: &Checkpoint) -> Result<Progress> {
        let progress = Progress::deserialize(checkpoint.progress()).map_err(|error| {
            Error::setting(format!(
                "the checkpoint's progress cannot be read ({error}): was it written by fit()? load_checkpoint() reads those of \
                 save_checkpoint()"
            ))
        })?;
        let History { steps, epochs } = &progress.history;
        let counted = steps.iter().enumerate().all(|(i, step)| step.step == i + 1)
            && epochs.iter().enumerate().all(|(i, epoch)| epoch.epoch == i + 1)
            && epochs.len() == progress.epochs;
        if !counted {
            return Err(Error::setting("the checkpoint's progress does not fit its history: the file is damaged"));
        }
        Ok(progress)
    }
}
