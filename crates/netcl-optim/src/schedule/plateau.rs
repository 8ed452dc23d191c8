//! Less when nothing improves any more.

use netcl_autograd::{Error, Result};

use super::{PerGroup, groups_of};
use crate::group::ParamGroup;
use crate::optimizer::Optimizer;
use crate::settings::not_negative;
use crate::state::State;

const OP: &str = "ReduceLROnPlateau";

/// Multiplies the learning rate by `factor` when a metric has not improved for more than `patience` epochs, as PyTorch does.
///
/// ```
/// use netcl_optim::{ParamGroup, schedule::{PlateauOptions, ReduceLROnPlateau}};
///
/// let rate = ParamGroup::free(1.0);
/// let options = PlateauOptions { factor: 0.5, patience: 1, ..Default::default() };
/// let mut schedule = ReduceLROnPlateau::of_groups(vec![rate.clone()], options)?;
/// for loss in [3.0, 2.0, 2.0, 2.0] {
///     schedule.step(loss);
/// }
/// assert_eq!(rate.learning_rate(), 0.5);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ReduceLROnPlateau {
    groups: Vec<ParamGroup>,
    options: PlateauOptions,
    min_lr: Vec<f64>,
    best: f64,
    bad_epochs: u64,
    cooldown_left: u64,
    epoch: u64,
}

/// The settings of [`ReduceLROnPlateau`].
#[derive(Clone, Debug, PartialEq)]
pub struct PlateauOptions {
    /// Whether small or large metrics are good.
    pub mode: Better,
    /// What the learning rate is multiplied by.
    pub factor: f64,
    /// How many epochs without improvement are waited for.
    pub patience: u64,
    /// By how much a metric must be better to count.
    pub threshold: f64,
    /// Whether the threshold is a part of the best metric or a number of its own.
    pub threshold_mode: Threshold,
    /// For how many epochs after a reduction nothing is counted.
    pub cooldown: u64,
    /// The smallest learning rate: one for all groups or one for each.
    pub min_lr: PerGroup,
    /// A smaller change of the learning rate is not made.
    pub eps: f64,
}

impl Default for PlateauOptions {
    fn default() -> Self {
        PlateauOptions {
            mode: Better::Smaller,
            factor: 0.1,
            patience: 10,
            threshold: 1e-4,
            threshold_mode: Threshold::Relative,
            cooldown: 0,
            min_lr: PerGroup::from(0.0),
            eps: 1e-8,
        }
    }
}

/// Which metrics are good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Better {
    /// Small ones: a loss.
    #[default]
    Smaller,
    /// Large ones: an accuracy.
    Larger,
}

/// What a threshold means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Threshold {
    /// A part of the best metric.
    #[default]
    Relative,
    /// A number that is added or subtracted.
    Absolute,
}

impl ReduceLROnPlateau {
    /// A schedule of an optimizer's groups.
    ///
    /// # Errors
    /// For a factor that is not below 1, and for numbers that are negative.
    pub fn new(optimizer: &dyn Optimizer, options: PlateauOptions) -> Result<ReduceLROnPlateau> {
        ReduceLROnPlateau::of_groups(groups_of(optimizer), options)
    }

    /// A schedule of groups.
    ///
    /// # Errors
    /// As [`ReduceLROnPlateau::new`].
    pub fn of_groups(groups: Vec<ParamGroup>, options: PlateauOptions) -> Result<ReduceLROnPlateau> {
        if !(0.0..1.0).contains(&options.factor) {
            let what = format!("the factor is {}; use a number from 0 up to, but not including, 1", options.factor);
            return Err(Error::argument(OP, what));
        }
        not_negative(OP, "threshold", options.threshold)?;
        not_negative(OP, "eps", options.eps)?;
        let min_lr = options.min_lr.spread(OP, "min_lr", groups.len())?;
        for lr in &min_lr {
            not_negative(OP, "min_lr", *lr)?;
        }
        let best = worst(options.mode);
        Ok(ReduceLROnPlateau { groups, options, min_lr, best, bad_epochs: 0, cooldown_left: 0, epoch: 0 })
    }

    /// Ends an epoch with its metric. A metric that is not a number is no improvement.
    pub fn step(&mut self, metric: f64) {
        self.epoch += 1;
        if self.improves(metric) {
            self.best = metric;
            self.bad_epochs = 0;
        } else {
            self.bad_epochs += 1;
        }
        if self.cooldown_left > 0 {
            self.cooldown_left -= 1;
            self.bad_epochs = 0;
        }
        if self.bad_epochs > self.options.patience {
            self.reduce();
            self.cooldown_left = self.options.cooldown;
            self.bad_epochs = 0;
        }
    }

    /// The learning rate of each group.
    pub fn last_lr(&self) -> Vec<f64> {
        self.groups.iter().map(ParamGroup::learning_rate).collect()
    }

    /// The best metric so far.
    pub fn best(&self) -> f64 {
        self.best
    }

    /// How many epochs are over.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Everything a schedule with the same settings needs to go on exactly where this one stands.
    pub fn state(&self) -> State {
        let counters = [
            ("best", self.best),
            ("bad_epochs", self.bad_epochs as f64),
            ("cooldown_left", self.cooldown_left as f64),
            ("epoch", self.epoch as f64),
        ];
        let mut state = State::default();
        state.numbers.extend(counters.map(|(name, value)| (name.to_owned(), value)));
        state.insert_list("last_lr", self.last_lr());
        state
    }

    /// Goes on from a state that [`ReduceLROnPlateau::state`] gave. The learning rate itself is part of the optimizer's state.
    ///
    /// # Errors
    /// Names every entry that is missing or unknown; nothing has changed then.
    pub fn load_state(&mut self, state: &State) -> Result<()> {
        state.check_numbers(OP, &self.state())?;
        self.best = state.number("best");
        self.bad_epochs = state.number("bad_epochs") as u64;
        self.cooldown_left = state.number("cooldown_left") as u64;
        self.epoch = state.number("epoch") as u64;
        for (group, rate) in self.groups.iter().zip(state.list("last_lr", self.groups.len())) {
            if group.params().is_empty() {
                group.set_learning_rate(rate);
            }
        }
        Ok(())
    }

    fn improves(&self, metric: f64) -> bool {
        let PlateauOptions { mode, threshold, threshold_mode, .. } = self.options;
        match (mode, threshold_mode) {
            (Better::Smaller, Threshold::Relative) => metric < self.best * (1.0 - threshold),
            (Better::Smaller, Threshold::Absolute) => metric < self.best - threshold,
            (Better::Larger, Threshold::Relative) => metric > self.best * (1.0 + threshold),
            (Better::Larger, Threshold::Absolute) => metric > self.best + threshold,
        }
    }

    fn reduce(&self) {
        for (group, min_lr) in self.groups.iter().zip(&self.min_lr) {
            let old = group.learning_rate();
            let new = (old * self.options.factor).max(*min_lr);
            if old - new > self.options.eps {
                group.set_learning_rate(new);
            }
        }
    }
}

fn worst(mode: Better) -> f64 {
    match mode {
        Better::Smaller => f64::INFINITY,
        Better::Larger => f64::NEG_INFINITY,
    }
}
