//! A factor for the first epochs.

use netcl_autograd::{Error, Result};

use super::{At, Driver, Schedule, driven, groups_of};
use crate::group::ParamGroup;
use crate::optimizer::Optimizer;

/// The learning rate times `factor` for the first `total_iters` epochs.
///
/// ```
/// use netcl_optim::{ParamGroup, schedule::{ConstantLR, Schedule}};
///
/// let rate = ParamGroup::free(1.0);
/// let mut schedule = ConstantLR::of_groups(vec![rate.clone()], 0.5, 2)?;
/// let rates: Vec<f64> = (0..4).map(|_| { let now = rate.learning_rate(); schedule.step().map(|()| now) }).collect::<Result<_, _>>()?;
/// assert_eq!(rates, [0.5, 0.5, 1.0, 1.0]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ConstantLR {
    driver: Driver,
    factor: f64,
    total_iters: u64,
}

impl ConstantLR {
    /// A schedule of an optimizer's groups.
    ///
    /// # Errors
    /// For a factor that is not between 0 and 1.
    pub fn new(optimizer: &dyn Optimizer, factor: f64, total_iters: u64) -> Result<ConstantLR> {
        ConstantLR::of_groups(groups_of(optimizer), factor, total_iters)
    }

    /// A schedule of groups.
    ///
    /// # Errors
    /// As [`ConstantLR::new`].
    pub fn of_groups(groups: Vec<ParamGroup>, factor: f64, total_iters: u64) -> Result<ConstantLR> {
        if !(0.0..=1.0).contains(&factor) {
            return Err(Error::argument("ConstantLR", format!("the factor is {factor}; use a number from 0 to 1")));
        }
        let driver = Driver::new(groups);
        driver.scale(factor);
        Ok(ConstantLR { driver, factor, total_iters })
    }
}

impl Schedule for ConstantLR {
    driven!();

    fn rate(&self, at: &At) -> Result<f64> {
        Ok(match at.epoch {
            0 => at.current * self.factor,
            // A rate of zero has forgotten what it was.
            epoch if epoch == self.total_iters && self.factor == 0.0 => at.base,
            epoch if epoch == self.total_iters => at.current * (1.0 / self.factor),
            _ => at.current,
        })
    }
}
