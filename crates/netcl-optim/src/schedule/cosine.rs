//! Half a cosine.

use std::f64::consts::PI;

use netcl_autograd::Result;

use super::{At, Driver, Schedule, driven, groups_of};
use crate::group::ParamGroup;
use crate::optimizer::Optimizer;
use crate::settings::{at_least_one, not_negative};

/// Half a cosine from the learning rate down to `eta_min` in `t_max` epochs, and `eta_min` from then on.
///
/// Up to `t_max` the rates are PyTorch's, whose schedule climbs again afterwards.
///
/// ```
/// use netcl_optim::{ParamGroup, schedule::{CosineAnnealingLR, Schedule}};
///
/// let rate = ParamGroup::free(1.0);
/// let mut schedule = CosineAnnealingLR::of_groups(vec![rate.clone()], 2, 0.25)?;
/// schedule.step()?;
/// assert_eq!(rate.learning_rate(), 0.625);
/// for _ in 0..10 {
///     schedule.step()?;
/// }
/// assert_eq!(rate.learning_rate(), 0.25);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct CosineAnnealingLR {
    driver: Driver,
    t_max: u64,
    eta_min: f64,
}

impl CosineAnnealingLR {
    /// A schedule of an optimizer's groups.
    ///
    /// # Errors
    /// For no epochs, or a smallest rate that is negative.
    pub fn new(optimizer: &dyn Optimizer, t_max: u64, eta_min: f64) -> Result<CosineAnnealingLR> {
        CosineAnnealingLR::of_groups(groups_of(optimizer), t_max, eta_min)
    }

    /// A schedule of groups.
    ///
    /// # Errors
    /// As [`CosineAnnealingLR::new`].
    pub fn of_groups(groups: Vec<ParamGroup>, t_max: u64, eta_min: f64) -> Result<CosineAnnealingLR> {
        at_least_one("CosineAnnealingLR", "t_max", t_max)?;
        not_negative("CosineAnnealingLR", "eta_min", eta_min)?;
        Ok(CosineAnnealingLR { driver: Driver::new(groups), t_max, eta_min })
    }
}

impl Schedule for CosineAnnealingLR {
    driven!();

    fn rate(&self, at: &At) -> Result<f64> {
        if at.epoch == 0 {
            return Ok(at.current);
        }
        if at.epoch >= self.t_max {
            return Ok(self.eta_min);
        }
        // As a change of the rate as it stands, so that schedules can be chained.
        let height = |epoch: u64| 1.0 + (PI * epoch as f64 / self.t_max as f64).cos();
        Ok(height(at.epoch) / height(at.epoch - 1) * (at.current - self.eta_min) + self.eta_min)
    }
}
