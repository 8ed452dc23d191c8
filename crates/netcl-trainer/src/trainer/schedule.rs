//! Learning rates that change in a run.

use netcl_optim::State;
use netcl_optim::schedule::{ReduceLROnPlateau, Schedule};

use crate::error::Result;

/// When a schedule moves on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScheduleEvery {
    /// After each update.
    #[default]
    Step,
    /// After each epoch.
    Epoch,
}

/// A schedule as the loop drives it: those of the epochs alone, and those that look at a figure.
pub trait Scheduled {
    /// Ends an update or an epoch; `value` is the epoch's validation loss, or its training loss without a validation.
    ///
    /// # Errors
    /// Those of the schedule.
    fn advance(&mut self, value: f64) -> Result<()>;

    /// What a checkpoint keeps.
    ///
    /// # Errors
    /// Those of the schedule.
    fn state(&self) -> Result<State>;

    /// Goes on from a state.
    ///
    /// # Errors
    /// For the state of another kind of schedule.
    fn load_state(&mut self, state: &State) -> Result<()>;
}

impl Scheduled for Box<dyn Schedule> {
    fn advance(&mut self, _value: f64) -> Result<()> {
        Ok(self.step()?)
    }

    fn state(&self) -> Result<State> {
        Ok((**self).state())
    }

    fn load_state(&mut self, state: &State) -> Result<()> {
        Ok((**self).load_state(state)?)
    }
}

impl Scheduled for ReduceLROnPlateau {
    fn advance(&mut self, value: f64) -> Result<()> {
        self.step(value);
        Ok(())
    }

    fn state(&self) -> Result<State> {
        Ok(self.state())
    }

    fn load_state(&mut self, state: &State) -> Result<()> {
        Ok(self.load_state(state)?)
    }
}
