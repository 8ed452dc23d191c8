//! Up and down between two rates.

use std::fmt;
use std::sync::Arc;

use netcl_autograd::{Error, Result};

use super::{At, Driver, PerGroup, Schedule, driven, groups_of};
use crate::group::ParamGroup;
use crate::optimizer::Optimizer;
use crate::settings::{at_least_one, not_negative};

const OP: &str = "CyclicLR";

/// Cycles of straight lines between two learning rates, as PyTorch defines them; it counts steps, not epochs.
///
/// ```
/// use netcl_optim::{ParamGroup, schedule::{Cycle, CyclicLR, CyclicOptions, Schedule}};
///
/// let rate = ParamGroup::free(0.1);
/// let options = CyclicOptions { cycle_momentum: false, cycle: Cycle::Halving, ..CyclicOptions::new(1.0, 3.0, 2) };
/// let mut schedule = CyclicLR::of_groups(vec![rate.clone()], options)?;
/// let rates: Vec<f64> = (0..7).map(|_| { let now = rate.learning_rate(); schedule.step().map(|()| now) }).collect::<Result<_, _>>()?;
/// assert_eq!(rates, [1.0, 2.0, 3.0, 2.0, 1.0, 1.5, 2.0]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct CyclicLR {
    driver: Driver,
    options: CyclicOptions,
    base_lr: Vec<f64>,
    max_lr: Vec<f64>,
}

/// The settings of [`CyclicLR`].
#[derive(Clone, Debug)]
pub struct CyclicOptions {
    /// The lower learning rate: one for all groups or one for each.
    pub base_lr: PerGroup,
    /// The upper learning rate: one for all groups or one for each.
    pub max_lr: PerGroup,
    /// The steps of a rise.
    pub step_size_up: u64,
    /// The steps of a fall.
    pub step_size_down: u64,
    /// How high the cycles are.
    pub cycle: Cycle,
    /// Whether the momentum goes the other way.
    pub cycle_momentum: bool,
    /// The momentum at the top.
    pub base_momentum: f64,
    /// The momentum at the bottom.
    pub max_momentum: f64,
}

/// How high the cycles are.
#[derive(Clone, Debug, Default)]
pub enum Cycle {
    /// All alike: PyTorch's `"triangular"`.
    #[default]
    Same,
    /// Each half as high as the one before: `"triangular2"`.
    Halving,
    /// Times a number to the power of the step: `"exp_range"`.
    Power(f64),
    /// Times a function of the cycle's number, counted from 1.
    ByCycle(CycleScale),
    /// Times a function of the step.
    ByStep(CycleScale),
}

/// A function that scales cycles.
#[derive(Clone)]
pub struct CycleScale(Arc<dyn Fn(f64) -> Result<f64> + Send + Sync>);

impl CycleScale {
    /// A function of the cycle or step.
    pub fn new(scale: impl Fn(f64) -> Result<f64> + Send + Sync + 'static) -> CycleScale {
        CycleScale(Arc::new(scale))
    }
}

impl fmt::Debug for CycleScale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CycleScale").finish_non_exhaustive()
    }
}

impl CyclicOptions {
    /// The usual settings for two rates and the steps from one to the other.
    pub fn new(base_lr: impl Into<PerGroup>, max_lr: impl Into<PerGroup>, step_size: u64) -> CyclicOptions {
        CyclicOptions {
            base_lr: base_lr.into(),
            max_lr: max_lr.into(),
            step_size_up: step_size,
            step_size_down: step_size,
            cycle: Cycle::Same,
            cycle_momentum: true,
            base_momentum: 0.8,
            max_momentum: 0.9,
        }
    }
}

impl CyclicLR {
    /// A schedule of an optimizer's groups.
    ///
    /// # Errors
    /// For settings out of range, and for momenta to cycle where the optimizer has none.
    pub fn new(optimizer: &dyn Optimizer, options: CyclicOptions) -> Result<CyclicLR> {
        CyclicLR::of_groups(groups_of(optimizer), options)
    }

    /// A schedule of groups.
    ///
    /// # Errors
    /// As [`CyclicLR::new`].
    pub fn of_groups(groups: Vec<ParamGroup>, options: CyclicOptions) -> Result<CyclicLR> {
        at_least_one(OP, "step_size_up", options.step_size_up)?;
        at_least_one(OP, "step_size_down", options.step_size_down)?;
        let base_lr = options.base_lr.spread(OP, "base_lr", groups.len())?;
        let max_lr = options.max_lr.spread(OP, "max_lr", groups.len())?;
        base_lr.iter().try_for_each(|lr| not_negative(OP, "base_lr", *lr))?;
        max_lr.iter().try_for_each(|lr| not_negative(OP, "max_lr", *lr))?;
        if options.cycle_momentum && groups.iter().any(|group| group.momentum().is_none()) {
            let what = "the optimizer has no momentum to cycle; give it one, or set cycle_momentum to false";
            return Err(Error::argument(OP, what));
        }
        let mut schedule = CyclicLR { driver: Driver::new(groups), options, base_lr, max_lr };
        schedule.restart()?;
        Ok(schedule)
    }

    /// How far from the bottom a step is, as a part of the first cycle's height.
    fn height(&self, step: u64) -> Result<f64> {
        let (up, down) = (self.options.step_size_up as f64, self.options.step_size_down as f64);
        let (total, rise) = (up + down, up / (up + down));
        let step = step as f64;
        let cycle = (1.0 + step / total).floor();
        let x = 1.0 + step / total - cycle;
        let height = if x <= rise { x / rise } else { (x - 1.0) / (rise - 1.0) };
        Ok(height
            * match &self.options.cycle {
                Cycle::Same => 1.0,
                Cycle::Halving => 1.0 / 2f64.powf(cycle - 1.0),
                Cycle::Power(gamma) => gamma.powf(step),
                Cycle::ByCycle(scale) => (scale.0)(cycle)?,
                Cycle::ByStep(scale) => (scale.0)(step)?,
            })
    }
}

impl Schedule for CyclicLR {
    driven!();

    fn rate(&self, at: &At) -> Result<f64> {
        let (low, high) = (self.base_lr[at.group], self.max_lr[at.group]);
        Ok(low + (high - low) * self.height(at.epoch)?)
    }

    fn momentum(&self, at: &At) -> Option<f64> {
        let CyclicOptions { cycle_momentum, base_momentum, max_momentum, .. } = self.options;
        // A function that fails has failed for the rate already.
        let height = self.height(at.epoch).ok().filter(|_| cycle_momentum)?;
        Some(max_momentum - (max_momentum - base_momentum) * height)
    }
}
