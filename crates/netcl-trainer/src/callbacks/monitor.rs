//! Which of two values of a figure is better.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::trainer::Epoch;

/// Whether a figure shall be small or large.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// By the figure's name: losses, errors and perplexity small, everything else large.
    #[default]
    Auto,
    /// Smaller is better.
    Min,
    /// Larger is better.
    Max,
}

impl Mode {
    /// Reads `"auto"`, `"min"` or `"max"`.
    ///
    /// # Errors
    /// For another name.
    pub fn parse(name: &str) -> Result<Mode> {
        match name {
            "auto" => Ok(Mode::Auto),
            "min" => Ok(Mode::Min),
            "max" => Ok(Mode::Max),
            _ => Err(Error::setting(format!("there is no mode {name:?}; use \"auto\", \"min\" or \"max\""))),
        }
    }
}

/// A figure of every epoch, and its best value so far.
///
/// ```
/// use netcl_trainer::callbacks::{Mode, Monitor};
/// use netcl_trainer::trainer::Epoch;
///
/// let mut monitor = Monitor::new("val_accuracy", Mode::Auto, 0.0)?;
/// let mut better = |epoch, accuracy| {
///     monitor.improved(&Epoch { epoch, values: [("val_accuracy".to_owned(), accuracy)].into(), ..Epoch::default() })
/// };
/// assert!(better(1, 0.5)? && better(2, 0.7)? && !better(3, 0.6)?);
/// assert_eq!(monitor.best(), Some((2, 0.7)));
/// # Ok::<(), netcl_trainer::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Monitor {
    name: String,
    larger: bool,
    min_delta: f64,
    best: Option<Best>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Best {
    epoch: usize,
    value: f64,
}

impl Monitor {
    /// Watches a figure of [`Epoch::values`]. A value counts as better when it is so by more than `min_delta`.
    ///
    /// # Errors
    /// If `min_delta` is negative or no number.
    pub fn new(name: &str, mode: Mode, min_delta: f64) -> Result<Monitor> {
        if !(min_delta >= 0.0 && min_delta.is_finite()) {
            return Err(Error::setting(format!("min_delta is {min_delta}, but must be a number from 0 on")));
        }
        let small = ["loss", "perplexity", "error", "mae", "mse", "rmse"];
        let larger = match mode {
            Mode::Max => true,
            Mode::Min => false,
            Mode::Auto => !small.iter().any(|word| name.contains(word)),
        };
        Ok(Monitor { name: name.to_owned(), larger, min_delta, best: None })
    }

    /// The figure's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The epoch of the best value so far, and the value.
    pub fn best(&self) -> Option<(usize, f64)> {
        self.best.map(|best| (best.epoch, best.value))
    }

    /// Whether the figure of an epoch is the best so far; NaN never is.
    ///
    /// # Errors
    /// If the epoch has no such figure; the text lists those that it has.
    pub fn improved(&mut self, epoch: &Epoch) -> Result<bool> {
        let Some(&value) = epoch.values.get(&self.name) else {
            let known: Vec<&str> = epoch.values.keys().map(String::as_str).collect();
            return Err(Error::setting(format!(
                "epoch {} has no {:?}; it has {}. Watch one of these, or give fit a validation loader for those with val_",
                epoch.epoch,
                self.name,
                known.join(", ")
            )));
        };
        let better = match self.best {
            None => !value.is_nan(),
            Some(best) if self.larger => value > best.value + self.min_delta,
            Some(best) => value < best.value - self.min_delta,
        };
        if better {
            self.best = Some(Best { epoch: epoch.epoch, value });
        }
        Ok(better)
    }

    /// The best value for [`Callback::state`](crate::trainer::Callback::state).
    pub(super) fn state(&self) -> serde_json::Value {
        serde_json::json!(self.best)
    }

    pub(super) fn load_state(&mut self, state: &serde_json::Value) -> Result<()> {
        self.best = serde_json::from_value(state.clone()).map_err(|error| {
            Error::setting(format!("the best {:?} cannot be read from {state}: {error}", self.name))
        })?;
        Ok(())
    }
}
