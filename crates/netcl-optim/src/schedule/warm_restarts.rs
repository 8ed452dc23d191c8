//! Half cosines, one after the other.

use std::f64::consts::PI;

use netcl_autograd::Result;

use super::{At, Driver, Schedule, driven, groups_of};
use crate::group::ParamGroup;
use crate::optimizer::Optimizer;
use crate::settings::{at_least_one, not_negative};

const OP: &str = "CosineAnnealingWarmRestarts";

/// Half a cosine from the learning rate down to `eta_min` in `t_0` epochs, then again, each time `t_mult` times as long.
///
/// ```
/// use netcl_optim::{ParamGroup, schedule::{CosineAnnealingWarmRestarts, Schedule}};
///
/// let rate = ParamGroup::free(1.0);
/// let mut schedule = CosineAnnealingWarmRestarts::of_groups(vec![rate.clone()], 2, 2, 0.0)?;
/// let rates: Vec<f64> = (0..7).map(|_| { let now = rate.learning_rate(); schedule.step().map(|()| now) }).collect::<Result<_, _>>()?;
/// assert!((rates[1] - 0.5).abs() < 1e-12 && rates[2] == 1.0 && (rates[4] - 0.5).abs() < 1e-12 && rates[6] == 1.0);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct CosineAnnealingWarmRestarts {
    driver: Driver,
    t_0: u64,
    t_mult: u64,
    eta_min: f64,
}

impl CosineAnnealingWarmRestarts {
    /// A schedule of an optimizer's groups.
    ///
    /// # Errors
    /// For no epochs, a multiple of zero, or a smallest rate that is negative.
    pub fn new(optimizer: &dyn Optimizer, t_0: u64, t_mult: u64, eta_min: f64) -> Result<CosineAnnealingWarmRestarts> {
        CosineAnnealingWarmRestarts::of_groups(groups_of(optimizer), t_0, t_mult, eta_min)
    }

    /// A schedule of groups.
    ///
    /// # Errors
    /// As [`CosineAnnealingWarmRestarts::new`].
    pub fn of_groups(
        groups: Vec<ParamGroup>,
        t_0: u64,
        t_mult: u64,
        eta_min: f64,
    ) -> Result<CosineAnnealingWarmRestarts> {
        at_least_one(OP, "T_0", t_0)?;
        at_least_one(OP, "T_mult", t_mult)?;
        not_negative(OP, "eta_min", eta_min)?;
        Ok(CosineAnnealingWarmRestarts { driver: Driver::new(groups), t_0, t_mult, eta_min })
    }
}

impl Schedule for CosineAnnealingWarmRestarts {
    driven!();

    fn rate(&self, at: &At) -> Result<f64> {
        let (mut since, mut length) = (at.epoch, self.t_0);
        if self.t_mult == 1 {
            since %= length;
        }
        while since >= length {
            since -= length;
            length = length.saturating_mul(self.t_mult);
        }
        let done = since as f64 / length as f64;
        Ok(self.eta_min + (at.base - self.eta_min) * (1.0 + (PI * done).cos()) / 2.0)
    }
}
