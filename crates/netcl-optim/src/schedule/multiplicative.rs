//! A factor for each epoch.

use std::fmt;

use netcl_autograd::Result;

use super::lambda::{check_factors, factor_of};
use super::{At, Driver, Factor, Schedule, groups_of};
use crate::group::ParamGroup;
use crate::optimizer::Optimizer;

/// Multiplies the learning rate, as it stands, by a function of the epoch.
///
/// ```
/// use netcl_optim::{ParamGroup, schedule::{MultiplicativeLR, Schedule}};
///
/// let rate = ParamGroup::free(1.0);
/// let mut schedule = MultiplicativeLR::of_groups(vec![rate.clone()], vec![Box::new(|epoch| Ok(epoch as f64))])?;
/// for _ in 0..4 {
///     schedule.step()?;
/// }
/// assert_eq!(rate.learning_rate(), 24.0);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
pub struct MultiplicativeLR {
    driver: Driver,
    factors: Vec<Factor>,
}

impl MultiplicativeLR {
    /// A schedule of an optimizer's groups by one function.
    pub fn new(optimizer: &dyn Optimizer, factor: impl Fn(u64) -> f64 + Send + 'static) -> Result<MultiplicativeLR> {
        MultiplicativeLR::of_groups(groups_of(optimizer), vec![Box::new(move |epoch| Ok(factor(epoch)))])
    }

    /// A schedule of groups by one function, or by one for each.
    ///
    /// # Errors
    /// For another number of functions.
    pub fn of_groups(groups: Vec<ParamGroup>, factors: Vec<Factor>) -> Result<MultiplicativeLR> {
        check_factors("MultiplicativeLR", &factors, &groups)?;
        Ok(MultiplicativeLR { driver: Driver::new(groups), factors })
    }
}

impl Schedule for MultiplicativeLR {
    fn driver(&self) -> &Driver {
        &self.driver
    }

    fn driver_mut(&mut self) -> &mut Driver {
        &mut self.driver
    }

    fn rate(&self, at: &At) -> Result<f64> {
        if at.epoch == 0 { Ok(at.current) } else { Ok(at.current * factor_of(&self.factors, at)?) }
    }
}

impl fmt::Debug for MultiplicativeLR {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiplicativeLR").field("driver", &self.driver).finish_non_exhaustive()
    }
}
