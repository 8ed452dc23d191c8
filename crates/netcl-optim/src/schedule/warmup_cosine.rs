//! A straight line up, then half a cosine down.

use std::f64::consts::PI;

use netcl_autograd::{Error, Result};

use super::{At, Driver, Schedule, driven, groups_of};
use crate::group::ParamGroup;
use crate::optimizer::Optimizer;
use crate::settings::not_negative;

/// A straight line up to the learning rate in `warmup_epochs`, then half a cosine down to `min_lr` at `max_epochs`, and
/// `min_lr` from then on.
///
/// The first epoch is not wasted: it has `1 / (warmup_epochs + 1)` of the learning rate, not zero. Epochs may as well be
/// steps.
///
/// ```
/// use netcl_optim::{ParamGroup, schedule::{Schedule, WarmupCosine}};
///
/// let rate = ParamGroup::free(1.0);
/// let mut schedule = WarmupCosine::of_groups(vec![rate.clone()], 7, 3, 0.0)?;
/// let rates: Vec<f64> = (0..6).map(|_| { let now = rate.learning_rate(); schedule.step().map(|()| now) }).collect::<Result<_, _>>()?;
/// assert_eq!(rates[..4], [0.25, 0.5, 0.75, 1.0]);
/// assert!((rates[5] - 0.5).abs() < 1e-12);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct WarmupCosine {
    driver: Driver,
    max_epochs: u64,
    warmup_epochs: u64,
    min_lr: f64,
}

impl WarmupCosine {
    /// A schedule of an optimizer's groups, whose learning rates are those of the top.
    ///
    /// # Errors
    /// For a smallest rate that is negative, and for a warm-up as long as all epochs.
    pub fn new(optimizer: &dyn Optimizer, max_epochs: u64, warmup_epochs: u64, min_lr: f64) -> Result<WarmupCosine> {
        WarmupCosine::of_groups(groups_of(optimizer), max_epochs, warmup_epochs, min_lr)
    }

    /// A schedule of groups.
    ///
    /// # Errors
    /// As [`WarmupCosine::new`].
    pub fn of_groups(
        groups: Vec<ParamGroup>,
        max_epochs: u64,
        warmup_epochs: u64,
        min_lr: f64,
    ) -> Result<WarmupCosine> {
        const OP: &str = "WarmupCosine";
        not_negative(OP, "min_lr", min_lr)?;
        if warmup_epochs >= max_epochs {
            let what = format!("a warm-up of {warmup_epochs} leaves nothing of {max_epochs}; make it shorter");
            return Err(Error::argument(OP, what));
        }
        let mut schedule = WarmupCosine { driver: Driver::new(groups), max_epochs, warmup_epochs, min_lr };
        schedule.restart()?;
        Ok(schedule)
    }

    /// The learning rate of an epoch for a given top, without changing anything.
    pub fn lr(&self, top: f64, epoch: u64) -> f64 {
        if epoch < self.warmup_epochs {
            return top * (epoch + 1) as f64 / (self.warmup_epochs + 1) as f64;
        }
        let done = (epoch - self.warmup_epochs) as f64 / (self.max_epochs - self.warmup_epochs) as f64;
        self.min_lr + 0.5 * (top - self.min_lr) * (1.0 + (PI * done.min(1.0)).cos())
    }
}

impl Schedule for WarmupCosine {
    driven!();

    fn rate(&self, at: &At) -> Result<f64> {
        Ok(self.lr(at.base, at.epoch))
    }
}
