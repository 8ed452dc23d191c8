//! A power of the epochs that are left.

use netcl_autograd::Result;

use super::{At, Driver, Schedule, driven, groups_of};
use crate::group::ParamGroup;
use crate::optimizer::Optimizer;
use crate::settings::not_negative;

/// The learning rate times `(1 - epoch / total_iters)^power`: zero after `total_iters` epochs.
///
/// ```
/// use netcl_optim::{ParamGroup, schedule::{PolynomialLR, Schedule}};
///
/// let rate = ParamGroup::free(1.0);
/// let mut schedule = PolynomialLR::of_groups(vec![rate.clone()], 4, 2.0)?;
/// schedule.step()?;
/// schedule.step()?;
/// assert!((rate.learning_rate() - 0.25).abs() < 1e-12);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PolynomialLR {
    driver: Driver,
    total_iters: u64,
    power: f64,
}

impl PolynomialLR {
    /// A schedule of an optimizer's groups.
    ///
    /// # Errors
    /// For a power that is negative.
    pub fn new(optimizer: &dyn Optimizer, total_iters: u64, power: f64) -> Result<PolynomialLR> {
        PolynomialLR::of_groups(groups_of(optimizer), total_iters, power)
    }

    /// A schedule of groups.
    ///
    /// # Errors
    /// As [`PolynomialLR::new`].
    pub fn of_groups(groups: Vec<ParamGroup>, total_iters: u64, power: f64) -> Result<PolynomialLR> {
        not_negative("PolynomialLR", "power", power)?;
        Ok(PolynomialLR { driver: Driver::new(groups), total_iters, power })
    }
}

impl Schedule for PolynomialLR {
    driven!();

    fn rate(&self, at: &At) -> Result<f64> {
        if at.epoch == 0 || at.epoch > self.total_iters {
            return Ok(at.current);
        }
        let left = |epoch: u64| 1.0 - epoch as f64 / self.total_iters as f64;
        Ok(at.current * (left(at.epoch) / left(at.epoch - 1)).powf(self.power))
    }
}
