//! Ends a run that does not get better.

use serde_json::{Value, json};

use super::monitor::{Mode, Monitor};
use crate::error::{Error, Result};
use crate::trainer::{Callback, Context, Epoch};

/// Stops when a figure has not improved for `patience` epochs. A resumed run goes on counting.
///
/// ```
/// use netcl_trainer::callbacks::{EarlyStopping, Mode};
///
/// let stopping = EarlyStopping::new("val_accuracy", 5, 0.001, Mode::Auto)?;
/// assert!(EarlyStopping::new("val_loss", 0, 0.0, Mode::Min).is_err());
/// # Ok::<(), netcl_trainer::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct EarlyStopping {
    monitor: Monitor,
    patience: usize,
    waited: usize,
    stopped: Option<usize>,
}

impl EarlyStopping {
    /// Watches a figure, see [`Monitor::new`].
    ///
    /// # Errors
    /// If `patience` is 0 or `min_delta` negative.
    pub fn new(monitor: &str, patience: usize, min_delta: f64, mode: Mode) -> Result<EarlyStopping> {
        if patience == 0 {
            return Err(Error::setting("EarlyStopping: patience is 0, but must be at least 1 epoch"));
        }
        Ok(EarlyStopping { monitor: Monitor::new(monitor, mode, min_delta)?, patience, waited: 0, stopped: None })
    }

    /// The figure, and its best value so far.
    pub fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    /// The epoch after which it stopped the run, if it did.
    pub fn stopped(&self) -> Option<usize> {
        self.stopped
    }
}

impl Callback for EarlyStopping {
    fn name(&self) -> String {
        "EarlyStopping".to_owned()
    }

    fn epoch_ends(&mut self, run: &mut Context<'_>, epoch: &Epoch) -> Result<()> {
        self.waited = if self.monitor.improved(epoch)? { 0 } else { self.waited + 1 };
        if self.waited >= self.patience {
            self.stopped = Some(epoch.epoch);
            let best = match self.monitor.best() {
                Some((epoch, value)) => format!("is no better than {value:.6} of epoch {epoch}"),
                None => "was never a number".to_owned(),
            };
            run.stop = Some(format!("{} {best}, for {} epochs", self.monitor.name(), self.waited));
        }
        Ok(())
    }

    fn state(&self) -> Value {
        json!({ "waited": self.waited, "best": self.monitor.state() })
    }

    fn load_state(&mut self, state: &Value) -> Result<()> {
        let waited = state["waited"].as_u64().ok_or_else(|| {
            Error::setting(format!("the state {state} has no number \"waited\"; it is of another callback"))
        })?;
        self.waited = waited as usize;
        self.monitor.load_state(&state["best"])
    }
}
