//! Several schedules at once.

use netcl_autograd::{Error, Result};
use netcl_core::kernels::launch::is_repeating;

use super::{At, Driver, Schedule, step_each_run};
use crate::state::State;

/// Several schedules of one optimizer that step together, each changing the rate that the one before left.
///
/// ```
/// use netcl_optim::{ParamGroup, schedule::{ChainedScheduler, ExponentialLR, Schedule, StepLR}};
///
/// let rate = ParamGroup::free(1.0);
/// let halve = StepLR::of_groups(vec![rate.clone()], 2, 0.5)?;
/// let decay = ExponentialLR::of_groups(vec![rate.clone()], 0.75)?;
/// let mut both = ChainedScheduler::new(vec![Box::new(halve), Box::new(decay)])?;
/// both.step()?;
/// both.step()?;
/// assert_eq!(rate.learning_rate(), 0.75 * 0.75 * 0.5);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
pub struct ChainedScheduler {
    schedules: Vec<Box<dyn Schedule>>,
}

impl ChainedScheduler {
    /// Some schedules of the same groups.
    ///
    /// # Errors
    /// For none.
    pub fn new(schedules: Vec<Box<dyn Schedule>>) -> Result<ChainedScheduler> {
        if schedules.is_empty() {
            return Err(Error::argument("ChainedScheduler", "there are no schedules to chain"));
        }
        Ok(ChainedScheduler { schedules })
    }
}

impl Schedule for ChainedScheduler {
    fn driver(&self) -> &Driver {
        self.schedules[0].driver()
    }

    fn driver_mut(&mut self) -> &mut Driver {
        self.schedules[0].driver_mut()
    }

    fn rate(&self, at: &At) -> Result<f64> {
        self.schedules.iter().try_fold(at.current, |current, schedule| schedule.rate(&At { current, ..*at }))
    }

    fn arrive(&mut self, epoch: u64) -> Result<()> {
        self.schedules.iter_mut().try_for_each(|schedule| schedule.arrive(epoch))
    }

    fn step(&mut self) -> Result<()> {
        if is_repeating() {
            return step_each_run(None);
        }
        self.schedules.iter_mut().try_for_each(|schedule| schedule.step())
    }

    fn state(&self) -> State {
        merged(&self.schedules)
    }

    fn load_state(&mut self, state: &State) -> Result<()> {
        state.check_numbers("ChainedScheduler", &self.state())?;
        restore(&mut self.schedules, state)
    }
}

/// The states of several schedules in one: `"0.epoch"`, `"1.epoch"`, ...
pub(super) fn merged(schedules: &[Box<dyn Schedule>]) -> State {
    let mut state = State::default();
    for (i, schedule) in schedules.iter().enumerate() {
        let numbers = schedule.state().numbers.into_iter();
        state.numbers.extend(numbers.map(|(name, value)| (format!("{i}.{name}"), value)));
    }
    state
}

/// Each schedule's part of a [`merged`] state that was checked.
pub(super) fn restore(schedules: &mut [Box<dyn Schedule>], state: &State) -> Result<()> {
    for (i, schedule) in schedules.iter_mut().enumerate() {
        let prefix = format!("{i}.");
        let own =
            state.numbers.iter().filter_map(|(name, &value)| Some((name.strip_prefix(&prefix)?.to_owned(), value)));
        schedule.load_state(&State { numbers: own.collect(), ..Default::default() })?;
    }
    Ok(())
}
