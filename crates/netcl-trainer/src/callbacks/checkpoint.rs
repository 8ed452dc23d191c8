//! Which checkpoints a run keeps.

use serde_json::Value;

use super::monitor::{Mode, Monitor};
use crate::error::Result;
use crate::trainer::{Callback, Context, Epoch};

/// Asks for checkpoints at the ends of epochs; the trainer writes them into the run's folder.
///
/// ```
/// use netcl_trainer::callbacks::{Checkpoint, Mode};
///
/// let checkpoint = Checkpoint::new("val_accuracy", Mode::Max)?.with_last(false).with_every(10);
/// # Ok::<(), netcl_trainer::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Checkpoint {
    monitor: Monitor,
    best: bool,
    last: bool,
    every: usize,
}

impl Checkpoint {
    /// Keeps the best by a figure, and the last.
    ///
    /// # Errors
    /// None today; those of [`Monitor::new`].
    pub fn new(monitor: &str, mode: Mode) -> Result<Checkpoint> {
        Ok(Checkpoint { monitor: Monitor::new(monitor, mode, 0.0)?, best: true, last: true, every: 0 })
    }

    /// Whether `best` is written when the figure improves.
    pub fn with_best(self, best: bool) -> Checkpoint {
        Checkpoint { best, ..self }
    }

    /// Whether `last` is written after every epoch.
    pub fn with_last(self, last: bool) -> Checkpoint {
        Checkpoint { last, ..self }
    }

    /// Keeps one for good every `every` epochs, as `epoch-0005`; 0 for never.
    pub fn with_every(self, every: usize) -> Checkpoint {
        Checkpoint { every, ..self }
    }

    /// The figure, and its best value so far.
    pub fn monitor(&self) -> &Monitor {
        &self.monitor
    }
}

impl Callback for Checkpoint {
    fn name(&self) -> String {
        "Checkpoint".to_owned()
    }

    fn epoch_ends(&mut self, run: &mut Context<'_>, epoch: &Epoch) -> Result<()> {
        if self.best && self.monitor.improved(epoch)? {
            run.keep.push("best".to_owned());
        }
        if self.every > 0 && epoch.epoch.is_multiple_of(self.every) {
            run.keep.push(format!("epoch-{:04}", epoch.epoch));
        }
        if self.last {
            run.keep.push("last".to_owned());
        }
        Ok(())
    }

    fn state(&self) -> Value {
        self.monitor.state()
    }

    fn load_state(&mut self, state: &Value) -> Result<()> {
        self.monitor.load_state(state)
    }
}
