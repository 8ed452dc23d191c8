//! A straight line between two factors.

use netcl_autograd::{Error, Result};

use super::{At, Driver, Schedule, driven, groups_of};
use crate::group::ParamGroup;
use crate::optimizer::Optimizer;

/// The learning rate times a factor that goes in a straight line from `start_factor` to `end_factor` in `total_iters` epochs.
///
/// ```
/// use netcl_optim::{ParamGroup, schedule::{LinearLR, Schedule}};
///
/// let rate = ParamGroup::free(1.0);
/// let mut schedule = LinearLR::of_groups(vec![rate.clone()], 0.5, 1.0, 2)?;
/// let rates: Vec<f64> = (0..4).map(|_| { let now = rate.learning_rate(); schedule.step().map(|()| now) }).collect::<Result<_, _>>()?;
/// assert_eq!(rates, [0.5, 0.75, 1.0, 1.0]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LinearLR {
    driver: Driver,
    start_factor: f64,
    end_factor: f64,
    total_iters: u64,
}

impl LinearLR {
    /// A schedule of an optimizer's groups.
    ///
    /// # Errors
    /// For factors that are not between 0 and 1; the first one must be above 0.
    pub fn new(optimizer: &dyn Optimizer, start_factor: f64, end_factor: f64, total_iters: u64) -> Result<LinearLR> {
        LinearLR::of_groups(groups_of(optimizer), start_factor, end_factor, total_iters)
    }

    /// A schedule of groups.
    ///
    /// # Errors
    /// As [`LinearLR::new`].
    pub fn of_groups(
        groups: Vec<ParamGroup>,
        start_factor: f64,
        end_factor: f64,
        total_iters: u64,
    ) -> Result<LinearLR> {
        if !(start_factor > 0.0 && start_factor <= 1.0) {
            let what = format!("start_factor is {start_factor}; use a number above 0 and up to 1");
            return Err(Error::argument("LinearLR", what));
        }
        if !(0.0..=1.0).contains(&end_factor) {
            return Err(Error::argument("LinearLR", format!("end_factor is {end_factor}; use a number from 0 to 1")));
        }
        let driver = Driver::new(groups);
        driver.scale(start_factor);
        Ok(LinearLR { driver, start_factor, end_factor, total_iters })
    }
}

impl Schedule for LinearLR {
    driven!();

    fn rate(&self, at: &At) -> Result<f64> {
        if at.epoch == 0 {
            return Ok(at.current * self.start_factor);
        }
        if at.epoch > self.total_iters {
            return Ok(at.current);
        }
        // As a change of the rate as it stands, so that schedules can be chained.
        let rise = self.end_factor - self.start_factor;
        let before = self.total_iters as f64 * self.start_factor + (at.epoch - 1) as f64 * rise;
        Ok(at.current * (1.0 + rise / before))
    }
}
