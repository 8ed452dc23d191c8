//! Exponential decay.

use netcl_autograd::Result;

use super::{At, Driver, Schedule, driven, groups_of};
use crate::group::ParamGroup;
use crate::optimizer::Optimizer;
use crate::settings::not_negative;

/// Multiplies the learning rate by `gamma` after every epoch.
///
/// ```
/// use netcl_optim::{ParamGroup, schedule::{ExponentialLR, Schedule}};
///
/// let rate = ParamGroup::free(8.0);
/// let mut schedule = ExponentialLR::of_groups(vec![rate.clone()], 0.5)?;
/// schedule.step()?;
/// schedule.step()?;
/// assert_eq!(rate.learning_rate(), 2.0);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ExponentialLR {
    driver: Driver,
    gamma: f64,
}

impl ExponentialLR {
    /// A schedule of an optimizer's groups.
    ///
    /// # Errors
    /// For a factor that is negative.
    pub fn new(optimizer: &dyn Optimizer, gamma: f64) -> Result<ExponentialLR> {
        ExponentialLR::of_groups(groups_of(optimizer), gamma)
    }

    /// A schedule of groups.
    ///
    /// # Errors
    /// As [`ExponentialLR::new`].
    pub fn of_groups(groups: Vec<ParamGroup>, gamma: f64) -> Result<ExponentialLR> {
        not_negative("ExponentialLR", "gamma", gamma)?;
        Ok(ExponentialLR { driver: Driver::new(groups), gamma })
    }
}

impl Schedule for ExponentialLR {
    driven!();

    fn rate(&self, at: &At) -> Result<f64> {
        Ok(if at.epoch == 0 { at.current } else { at.current * self.gamma })
    }
}
