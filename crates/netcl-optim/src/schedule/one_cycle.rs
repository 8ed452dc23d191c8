//! One cycle: up, then far down.

use std::f64::consts::PI;

use netcl_autograd::{Error, Result};
use netcl_core::Error as CoreError;

use super::{At, Driver, PerGroup, Schedule, driven, groups_of};
use crate::group::ParamGroup;
use crate::optimizer::Optimizer;
use crate::settings::{at_least_one, positive};

const OP: &str = "OneCycleLR";

/// The 1cycle policy, as PyTorch defines it; it counts steps, not epochs.
///
/// The learning rate goes from `max_lr / div_factor` up to `max_lr` and down to `max_lr / div_factor / final_div_factor`,
/// and the momentum (or Adam's first beta) the other way.
///
/// ```
/// use netcl_optim::{ParamGroup, schedule::{OneCycleLR, OneCycleOptions, Schedule}};
///
/// let rate = ParamGroup::free(0.1);
/// let options = OneCycleOptions { cycle_momentum: false, ..OneCycleOptions::new(1.0, 11) };
/// let mut schedule = OneCycleLR::of_groups(vec![rate.clone()], options)?;
/// assert!((rate.learning_rate() - 0.04).abs() < 1e-12);
/// for _ in 0..11 {
///     schedule.step()?; // after each step of the optimizer
/// }
/// assert!((rate.learning_rate() - 4e-6).abs() < 1e-12);
/// assert!(schedule.step().is_err()); // the cycle is over
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct OneCycleLR {
    driver: Driver,
    options: OneCycleOptions,
    max_lr: Vec<f64>,
}

/// The settings of [`OneCycleLR`].
#[derive(Clone, Debug, PartialEq)]
pub struct OneCycleOptions {
    /// The learning rate at the top: one for all groups or one for each.
    pub max_lr: PerGroup,
    /// The steps of the cycle.
    pub total_steps: u64,
    /// The part of the cycle in which the rate rises.
    pub pct_start: f64,
    /// The shape of rise and fall.
    pub anneal: Anneal,
    /// Whether the momentum goes the other way.
    pub cycle_momentum: bool,
    /// The momentum at the top.
    pub base_momentum: f64,
    /// The momentum at both ends.
    pub max_momentum: f64,
    /// What the top is divided by for the start.
    pub div_factor: f64,
    /// What the start is divided by for the end.
    pub final_div_factor: f64,
    /// Whether there is a third phase, from the start's rate to the end's.
    pub three_phase: bool,
}

/// The shape of a rise or fall.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Anneal {
    /// Half a cosine.
    #[default]
    Cos,
    /// A straight line.
    Linear,
}

impl OneCycleOptions {
    /// The usual settings for a top and a number of steps.
    pub fn new(max_lr: impl Into<PerGroup>, total_steps: u64) -> OneCycleOptions {
        OneCycleOptions {
            max_lr: max_lr.into(),
            total_steps,
            pct_start: 0.3,
            anneal: Anneal::Cos,
            cycle_momentum: true,
            base_momentum: 0.85,
            max_momentum: 0.95,
            div_factor: 25.0,
            final_div_factor: 1e4,
            three_phase: false,
        }
    }
}

impl OneCycleLR {
    /// A schedule of an optimizer's groups.
    ///
    /// # Errors
    /// For settings out of range, and for momenta to cycle where the optimizer has none.
    pub fn new(optimizer: &dyn Optimizer, options: OneCycleOptions) -> Result<OneCycleLR> {
        OneCycleLR::of_groups(groups_of(optimizer), options)
    }

    /// A schedule of groups.
    ///
    /// # Errors
    /// As [`OneCycleLR::new`].
    pub fn of_groups(groups: Vec<ParamGroup>, options: OneCycleOptions) -> Result<OneCycleLR> {
        at_least_one(OP, "total_steps", options.total_steps)?;
        positive(OP, "div_factor", options.div_factor)?;
        positive(OP, "final_div_factor", options.final_div_factor)?;
        if !(0.0..=1.0).contains(&options.pct_start) {
            let what = format!("pct_start is {}; use a number from 0 to 1", options.pct_start);
            return Err(Error::argument(OP, what));
        }
        let max_lr = options.max_lr.spread(OP, "max_lr", groups.len())?;
        for lr in &max_lr {
            positive(OP, "max_lr", *lr)?;
        }
        if options.cycle_momentum && groups.iter().any(|group| group.momentum().is_none()) {
            let what = "the optimizer has no momentum to cycle; give it one, or set cycle_momentum to false";
            return Err(Error::argument(OP, what));
        }
        let mut schedule = OneCycleLR { driver: Driver::new(groups), options, max_lr };
        schedule.restart()?;
        Ok(schedule)
    }

    /// Where a cycle through `points` stands at a step: from each point to the next in one phase.
    fn between(&self, step: u64, points: [f64; 4]) -> f64 {
        let (total, rise) = (self.options.total_steps as f64, self.options.pct_start);
        let ends = if self.options.three_phase {
            [rise * total - 1.0, 2.0 * rise * total - 2.0, total - 1.0]
        } else {
            [rise * total - 1.0, total - 1.0, total - 1.0]
        };
        let phases = if self.options.three_phase { 3 } else { 2 };
        let step = step as f64;
        let phase = (0..phases - 1).find(|&phase| step <= ends[phase]).unwrap_or(phases - 1);
        let start = if phase == 0 { 0.0 } else { ends[phase - 1] };
        // The call after the last step finds the cycle at its end.
        let done = ((step - start) / (ends[phase] - start)).min(1.0);
        let (from, to) = (points[phase], points[phase + 1]);
        match self.options.anneal {
            Anneal::Cos => to + (from - to) / 2.0 * (1.0 + (PI * done).cos()),
            Anneal::Linear => (to - from) * done + from,
        }
    }
}

impl Schedule for OneCycleLR {
    driven!();

    fn rate(&self, at: &At) -> Result<f64> {
        let OneCycleOptions { total_steps, div_factor, final_div_factor, three_phase, .. } = self.options;
        if at.epoch > total_steps {
            let what = format!("the cycle of {total_steps} steps is over, this is step {}", at.epoch);
            return Err(CoreError::State { op: OP, what }.into());
        }
        let top = self.max_lr[at.group];
        let (start, end) = (top / div_factor, top / div_factor / final_div_factor);
        Ok(self.between(at.epoch, [start, top, if three_phase { start } else { end }, end]))
    }

    fn momentum(&self, at: &At) -> Option<f64> {
        let OneCycleOptions { base_momentum, max_momentum, .. } = self.options;
        let points = [max_momentum, base_momentum, max_momentum, max_momentum];
        self.options.cycle_momentum.then(|| self.between(at.epoch, points))
    }
}
