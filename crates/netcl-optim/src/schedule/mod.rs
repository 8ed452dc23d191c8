//! Learning rates that change with the epochs (or steps) of a training.
//!
//! A schedule holds on to an optimizer's groups, not to the optimizer: make it after the optimizer, and call its
//! [`step`](Schedule::step) after each epoch, or after each step where that is what it counts.
//!
//! ```
//! use netcl_autograd::{Tensor, manager};
//! use netcl_optim::schedule::{CosineAnnealingLR, Schedule};
//! use netcl_optim::{Adam, Optimizer};
//!
//! let p = Tensor::from_host(&manager().cpu().queue, &[1.0f32], [1])?.with_grad();
//! let opt = Adam::new([p], 0.4)?;
//! let mut schedule = CosineAnnealingLR::new(&opt, 10, 0.0)?;
//! for _ in 0..5 {
//!     schedule.step()?; // after each epoch
//! }
//! assert!((opt.learning_rate() - 0.2).abs() < 1e-12);
//! # Ok::<(), netcl_autograd::Error>(())
//! ```

mod chained;
mod constant;
mod cosine;
mod cyclic;
mod exponential;
mod lambda;
mod linear;
mod multi_step;
mod multiplicative;
mod one_cycle;
mod per_group;
mod plateau;
mod polynomial;
mod sequential;
mod step;
mod warm_restarts;
mod warmup_cosine;

use std::sync::Arc;

use netcl_autograd::Result;
use netcl_core::Error as CoreError;
use netcl_core::kernels::launch::{self, Slot};

use crate::group::ParamGroup;
use crate::optimizer::Optimizer;
use crate::state::State;

pub use chained::ChainedScheduler;
pub use constant::ConstantLR;
pub use cosine::CosineAnnealingLR;
pub use cyclic::{Cycle, CycleScale, CyclicLR, CyclicOptions};
pub use exponential::ExponentialLR;
pub use lambda::{Factor, LambdaLR};
pub use linear::LinearLR;
pub use multi_step::MultiStepLR;
pub use multiplicative::MultiplicativeLR;
pub use one_cycle::{Anneal, OneCycleLR, OneCycleOptions};
pub use per_group::PerGroup;
pub use plateau::{Better, PlateauOptions, ReduceLROnPlateau, Threshold};
pub use polynomial::PolynomialLR;
pub use sequential::SequentialLR;
pub use step::StepLR;
pub use warm_restarts::CosineAnnealingWarmRestarts;
pub use warmup_cosine::WarmupCosine;

/// A learning rate that changes from epoch to epoch.
///
/// Most schedules change the rate as it stands by what the epoch asks for, so that several can work on one optimizer; see
/// [`ChainedScheduler`] and [`SequentialLR`].
pub trait Schedule: Send {
    /// The groups it drives, and how far it has come.
    fn driver(&self) -> &Driver;

    /// The groups it drives, to change them.
    fn driver_mut(&mut self) -> &mut Driver;

    /// A group's learning rate when an epoch begins.
    fn rate(&self, at: &At) -> Result<f64>;

    /// A group's momentum when an epoch begins; `None` leaves it as it is.
    fn momentum(&self, _at: &At) -> Option<f64> {
        None
    }

    /// Ends an epoch: sets the learning rates of the next one. In a step that is being captured it does so at every replay.
    ///
    /// # Errors
    /// In a step that is being captured for a schedule that is not [`shared`](Schedule::shared).
    fn step(&mut self) -> Result<()> {
        if launch::is_repeating() {
            return step_each_run(self.shared());
        }
        self.arrive(self.driver().epoch() + 1)
    }

    /// The same schedule once more, for a captured step to hold on to; `None` for one that has parts which cannot be shared.
    /// Clones of a [`Driver`] count together, so for most schedules a clone will do.
    fn shared(&self) -> Option<Box<dyn Schedule>> {
        None
    }

    /// Back to the first epoch and its learning rates.
    fn restart(&mut self) -> Result<()> {
        self.arrive(0)
    }

    /// Sets the learning rates of an epoch that has just begun.
    fn arrive(&mut self, epoch: u64) -> Result<()> {
        let (mut rates, mut momenta) = (Vec::new(), Vec::new());
        for (group, (of, base)) in self.driver().groups.iter().zip(&self.driver().base).enumerate() {
            let base = base.get_float();
            let current = if epoch == 0 { base } else { of.learning_rate() };
            let at = At { epoch, group, base, current };
            rates.push(self.rate(&at)?);
            momenta.push(self.momentum(&at));
        }
        let driver = self.driver_mut();
        driver.epoch.set_integer(epoch);
        for ((group, rate), momentum) in driver.groups.iter().zip(rates).zip(momenta) {
            group.set_learning_rate(rate);
            if let Some(momentum) = momentum {
                group.set_momentum(momentum);
            }
        }
        Ok(())
    }

    /// How many epochs are over.
    fn epoch(&self) -> u64 {
        self.driver().epoch()
    }

    /// The learning rate of each group.
    fn last_lr(&self) -> Vec<f64> {
        self.driver().groups.iter().map(ParamGroup::learning_rate).collect()
    }

    /// Everything a schedule with the same settings needs to go on exactly where this one stands.
    fn state(&self) -> State {
        self.driver().state()
    }

    /// Goes on from a state that [`Schedule::state`] gave for a schedule of the same kind. The learning rate itself is part of
    /// the optimizer's state.
    ///
    /// # Errors
    /// Names every entry that is missing or unknown; nothing has changed then.
    fn load_state(&mut self, state: &State) -> Result<()> {
        state.check_numbers("load_state", &self.state())?;
        self.driver_mut().restore(state);
        Ok(())
    }
}

/// When and for what a schedule is asked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct At {
    /// The epoch that begins, counted from 0.
    pub epoch: u64,
    /// The group.
    pub group: usize,
    /// The group's learning rate before any schedule changed it.
    pub base: f64,
    /// The group's learning rate in the epoch before; the base at epoch 0.
    pub current: f64,
}

/// The groups that a schedule drives, and how far it has come. A clone drives the same groups and counts with this one.
#[derive(Clone, Debug)]
pub struct Driver {
    groups: Vec<ParamGroup>,
    base: Vec<Arc<Slot>>,
    epoch: Arc<Slot>,
}

impl Driver {
    /// A driver of groups, at the first epoch.
    pub fn new(groups: Vec<ParamGroup>) -> Driver {
        let base = groups.iter().map(|group| Slot::float(group.initial_learning_rate())).collect();
        Driver { groups, base, epoch: Slot::integer(0) }
    }

    /// The groups.
    pub fn groups(&self) -> &[ParamGroup] {
        &self.groups
    }

    /// How many epochs are over.
    pub fn epoch(&self) -> u64 {
        self.epoch.get_integer()
    }

    /// Multiplies the learning rates as they stand: how a schedule that starts with a factor begins, also after others.
    fn scale(&self, factor: f64) {
        for group in &self.groups {
            group.set_learning_rate(group.learning_rate() * factor);
        }
    }

    fn state(&self) -> State {
        let mut state = State::default();
        state.numbers.insert("epoch".to_owned(), self.epoch() as f64);
        state.insert_list("base_lr", self.base.iter().map(|base| base.get_float()));
        state.insert_list("last_lr", self.groups.iter().map(ParamGroup::learning_rate));
        state
    }

    fn restore(&mut self, state: &State) {
        self.epoch.set_integer(state.number("epoch") as u64);
        for (base, value) in self.base.iter().zip(state.list("base_lr", self.groups.len())) {
            base.set_float(value);
        }
        // A rate that belongs to no optimizer is stored nowhere else.
        for (group, rate) in self.groups.iter().zip(state.list("last_lr", self.groups.len())) {
            if group.params().is_empty() {
                group.set_learning_rate(rate);
            }
        }
    }
}

/// A step of a schedule at every replay of what is being captured.
fn step_each_run(schedule: Option<Box<dyn Schedule>>) -> Result<()> {
    let Some(mut schedule) = schedule else {
        let what = "this schedule cannot take part in a captured step; step it after each call of the captured function, which \
                    sees the new learning rate";
        return Err(CoreError::State { op: "schedule", what: what.to_owned() }.into());
    };
    let failed = |error: netcl_autograd::Error| CoreError::State { op: "schedule", what: error.to_string() };
    Ok(launch::each_run(move || schedule.step().map_err(failed))?)
}

/// The methods of a [`Schedule`] that holds a `driver` and can be cloned.
macro_rules! driven {
    () => {
        fn driver(&self) -> &Driver {
            &self.driver
        }

        fn driver_mut(&mut self) -> &mut Driver {
            &mut self.driver
        }

        fn shared(&self) -> Option<Box<dyn Schedule>> {
            Some(Box::new(self.clone()))
        }
    };
}
use driven;

/// The groups of an optimizer, to drive them.
pub(crate) fn groups_of(optimizer: &dyn Optimizer) -> Vec<ParamGroup> {
    optimizer.groups().to_vec()
}
