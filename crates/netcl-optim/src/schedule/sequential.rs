//! One schedule after the other.

use netcl_autograd::{Error, Result};
use netcl_core::kernels::launch::is_repeating;

use super::chained::{merged, restore};
use super::{At, Driver, Schedule, step_each_run};
use crate::state::State;

const OP: &str = "SequentialLR";

/// Schedules of one optimizer that take turns: each begins, at its own first epoch, when a milestone is reached.
///
/// ```
/// use netcl_optim::{ParamGroup, schedule::{ExponentialLR, LambdaLR, Schedule, SequentialLR}};
///
/// let rate = ParamGroup::free(1.0);
/// let groups = || vec![rate.clone()];
/// let warmup = LambdaLR::of_groups(groups(), vec![Box::new(|_| Ok(0.1))])?;
/// let decay = ExponentialLR::of_groups(groups(), 0.5)?;
/// let mut schedule = SequentialLR::new(vec![Box::new(warmup), Box::new(decay)], vec![2])?;
/// let rates: Vec<f64> = (0..5).map(|_| { let now = rate.learning_rate(); schedule.step().map(|()| now) }).collect::<Result<_, _>>()?;
/// assert_eq!(rates, [0.1, 0.1, 1.0, 0.5, 0.25]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
pub struct SequentialLR {
    schedules: Vec<Box<dyn Schedule>>,
    milestones: Vec<u64>,
    epoch: u64,
}

impl SequentialLR {
    /// Schedules of the same groups, and the epochs at which the second and later ones begin.
    ///
    /// # Errors
    /// For none, and for milestones that are not one fewer than the schedules or do not rise.
    pub fn new(schedules: Vec<Box<dyn Schedule>>, milestones: Vec<u64>) -> Result<SequentialLR> {
        if schedules.is_empty() || milestones.len() + 1 != schedules.len() {
            let (s, m) = (schedules.len(), milestones.len());
            let what = format!("{m} milestones for {s} schedules; there must be one fewer, the epochs of the changes");
            return Err(Error::argument(OP, what));
        }
        if !milestones.is_sorted_by(|a, b| a < b) || milestones.first() == Some(&0) {
            let what = format!("the milestones {milestones:?} must rise, from 1 at least");
            return Err(Error::argument(OP, what));
        }
        let mut schedule = SequentialLR { schedules, milestones, epoch: 0 };
        schedule.restart()?;
        Ok(schedule)
    }
}

impl Schedule for SequentialLR {
    fn driver(&self) -> &Driver {
        self.schedules[0].driver()
    }

    fn driver_mut(&mut self) -> &mut Driver {
        self.schedules[0].driver_mut()
    }

    fn rate(&self, at: &At) -> Result<f64> {
        let (turn, since) = self.turn(at.epoch);
        self.schedules[turn].rate(&At { epoch: since, ..*at })
    }

    fn arrive(&mut self, epoch: u64) -> Result<()> {
        let (turn, since) = self.turn(epoch);
        self.schedules[turn].arrive(since)?;
        self.epoch = epoch;
        Ok(())
    }

    fn step(&mut self) -> Result<()> {
        if is_repeating() {
            return step_each_run(None);
        }
        self.arrive(self.epoch + 1)
    }

    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn state(&self) -> State {
        let mut state = merged(&self.schedules);
        state.numbers.insert("epoch".to_owned(), self.epoch as f64);
        state
    }

    fn load_state(&mut self, state: &State) -> Result<()> {
        state.check_numbers(OP, &self.state())?;
        restore(&mut self.schedules, state)?;
        self.epoch = state.number("epoch") as u64;
        Ok(())
    }
}

impl SequentialLR {
    /// Whose turn it is at an epoch, and since how many epochs.
    fn turn(&self, epoch: u64) -> (usize, u64) {
        let turn = self.milestones.iter().filter(|&&milestone| milestone <= epoch).count();
        (turn, epoch - if turn == 0 { 0 } else { self.milestones[turn - 1] })
    }
}
