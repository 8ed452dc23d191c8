//! Steps down at chosen epochs.

use netcl_autograd::Result;

use super::{At, Driver, Schedule, driven, groups_of};
use crate::group::ParamGroup;
use crate::optimizer::Optimizer;
use crate::settings::not_negative;

/// Multiplies the learning rate by `gamma` at each of some epochs; one that is named twice counts twice.
///
/// ```
/// use netcl_optim::{ParamGroup, schedule::{MultiStepLR, Schedule}};
///
/// let rate = ParamGroup::free(1.0);
/// let mut schedule = MultiStepLR::of_groups(vec![rate.clone()], vec![1, 3], 0.5)?;
/// let rates: Vec<f64> = (0..5).map(|_| { let now = rate.learning_rate(); schedule.step().map(|()| now) }).collect::<Result<_, _>>()?;
/// assert_eq!(rates, [1.0, 0.5, 0.5, 0.25, 0.25]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MultiStepLR {
    driver: Driver,
    milestones: Vec<u64>,
    gamma: f64,
}

impl MultiStepLR {
    /// A schedule of an optimizer's groups.
    ///
    /// # Errors
    /// For a factor that is negative.
    pub fn new(optimizer: &dyn Optimizer, milestones: Vec<u64>, gamma: f64) -> Result<MultiStepLR> {
        MultiStepLR::of_groups(groups_of(optimizer), milestones, gamma)
    }

    /// A schedule of groups.
    ///
    /// # Errors
    /// As [`MultiStepLR::new`].
    pub fn of_groups(groups: Vec<ParamGroup>, milestones: Vec<u64>, gamma: f64) -> Result<MultiStepLR> {
        not_negative("MultiStepLR", "gamma", gamma)?;
        Ok(MultiStepLR { driver: Driver::new(groups), milestones, gamma })
    }
}

impl Schedule for MultiStepLR {
    driven!();

    fn rate(&self, at: &At) -> Result<f64> {
        let falls = self.milestones.iter().filter(|&&milestone| milestone == at.epoch).count();
        Ok(at.current * self.gamma.powi(falls as i32))
    }
}
