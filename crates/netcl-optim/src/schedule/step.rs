//! Steps down at regular intervals.

use netcl_autograd::Result;

use super::{At, Driver, Schedule, driven, groups_of};
use crate::group::ParamGroup;
use crate::optimizer::Optimizer;
use crate::settings::{at_least_one, not_negative};

/// Multiplies the learning rate by `gamma` after every `step_size` epochs.
///
/// ```
/// use netcl_optim::{ParamGroup, schedule::{Schedule, StepLR}};
///
/// let rate = ParamGroup::free(1.0);
/// let mut schedule = StepLR::of_groups(vec![rate.clone()], 2, 0.5)?;
/// let rates: Vec<f64> = (0..5).map(|_| { let now = rate.learning_rate(); schedule.step().map(|()| now) }).collect::<Result<_, _>>()?;
/// assert_eq!(rates, [1.0, 1.0, 0.5, 0.5, 0.25]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct StepLR {
    driver: Driver,
    step_size: u64,
    gamma: f64,
}

impl StepLR {
    /// A schedule of an optimizer's groups.
    ///
    /// # Errors
    /// For a step size of zero or a factor that is negative.
    pub fn new(optimizer: &dyn Optimizer, step_size: u64, gamma: f64) -> Result<StepLR> {
        StepLR::of_groups(groups_of(optimizer), step_size, gamma)
    }

    /// A schedule of groups.
    ///
    /// # Errors
    /// As [`StepLR::new`].
    pub fn of_groups(groups: Vec<ParamGroup>, step_size: u64, gamma: f64) -> Result<StepLR> {
        at_least_one("StepLR", "step_size", step_size)?;
        not_negative("StepLR", "gamma", gamma)?;
        Ok(StepLR { driver: Driver::new(groups), step_size, gamma })
    }
}

impl Schedule for StepLR {
    driven!();

    fn rate(&self, at: &At) -> Result<f64> {
        let falls = at.epoch > 0 && at.epoch.is_multiple_of(self.step_size);
        Ok(if falls { at.current * self.gamma } else { at.current })
    }
}
