//! Any function of the epoch.

use std::fmt;

use netcl_autograd::{Error, Result};

use super::{At, Driver, Schedule, groups_of};
use crate::group::ParamGroup;
use crate::optimizer::Optimizer;

/// The factor of an epoch.
pub type Factor = Box<dyn Fn(u64) -> Result<f64> + Send>;

/// The learning rate times a function of the epoch.
///
/// ```
/// use netcl_optim::{ParamGroup, schedule::{LambdaLR, Schedule}};
///
/// let rate = ParamGroup::free(1.0);
/// let half = Box::new(|epoch: u64| Ok(0.5f64.powi(epoch as i32)));
/// let mut schedule = LambdaLR::of_groups(vec![rate.clone()], vec![half])?;
/// schedule.step()?;
/// schedule.step()?;
/// assert_eq!(rate.learning_rate(), 0.25);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
pub struct LambdaLR {
    driver: Driver,
    factors: Vec<Factor>,
}

impl LambdaLR {
    /// A schedule of an optimizer's groups by one function.
    pub fn new(optimizer: &dyn Optimizer, factor: impl Fn(u64) -> f64 + Send + 'static) -> Result<LambdaLR> {
        LambdaLR::of_groups(groups_of(optimizer), vec![Box::new(move |epoch| Ok(factor(epoch)))])
    }

    /// A schedule of groups by one function, or by one for each.
    ///
    /// # Errors
    /// For another number of functions, and where a function fails for epoch 0.
    pub fn of_groups(groups: Vec<ParamGroup>, factors: Vec<Factor>) -> Result<LambdaLR> {
        check_factors("LambdaLR", &factors, &groups)?;
        let mut schedule = LambdaLR { driver: Driver::new(groups), factors };
        schedule.restart()?;
        Ok(schedule)
    }
}

impl Schedule for LambdaLR {
    fn driver(&self) -> &Driver {
        &self.driver
    }

    fn driver_mut(&mut self) -> &mut Driver {
        &mut self.driver
    }

    fn rate(&self, at: &At) -> Result<f64> {
        Ok(at.base * factor_of(&self.factors, at)?)
    }
}

impl fmt::Debug for LambdaLR {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LambdaLR").field("driver", &self.driver).finish_non_exhaustive()
    }
}

/// An error unless there is one function, or one for each group.
pub(super) fn check_factors(op: &'static str, factors: &[Factor], groups: &[ParamGroup]) -> Result<()> {
    if factors.len() == 1 || factors.len() == groups.len() {
        return Ok(());
    }
    let what = format!("{} functions for {} groups; give one, or one for each", factors.len(), groups.len());
    Err(Error::argument(op, what))
}

/// What the function of a group gives for an epoch.
pub(super) fn factor_of(factors: &[Factor], at: &At) -> Result<f64> {
    let factor = if factors.len() == 1 { &factors[0] } else { &factors[at.group] };
    factor(at.epoch)
}
