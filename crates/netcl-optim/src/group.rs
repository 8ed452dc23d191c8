//! Parameters with settings of their own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use netcl_autograd::{Error, Result, Tensor};
use netcl_core::kernels::elementwise::Number;
use netcl_core::kernels::launch::Slot;

use crate::settings::not_negative;

/// Parameters with a learning rate, a weight decay and, where the optimizer has one, a momentum of their own.
///
/// The numbers live in slots outside the launches that use them: a captured step sees the values of the moment. A clone is
/// the same group, which is how a schedule holds on to it.
#[derive(Clone, Debug)]
pub struct ParamGroup {
    params: Vec<Tensor>,
    learning_rate: Arc<Slot>,
    weight_decay: Arc<Slot>,
    momentum: Option<Arc<Momentum>>,
    initial_lr: Arc<OnceLock<f64>>,
}

/// A momentum (or Adam's first beta), which few programs ever change.
#[derive(Debug)]
struct Momentum {
    value: Arc<Slot>,
    /// What is left of one, and the logarithm: a kernel that derived them from a float would lose digits.
    rest: Arc<Slot>,
    log: Arc<Slot>,
    /// Whether somebody has changed it: from then on it is an argument of the kernel, before it stands in its table.
    changes: AtomicBool,
}

impl ParamGroup {
    pub(crate) fn new(
        op: &'static str,
        params: Vec<Tensor>,
        learning_rate: f64,
        weight_decay: f64,
        momentum: Option<f64>,
        earlier: &[ParamGroup],
    ) -> Result<ParamGroup> {
        not_negative(op, "learning rate", learning_rate)?;
        not_negative(op, "weight decay", weight_decay)?;
        if params.is_empty() {
            return Err(Error::argument(op, "there are no parameters; pass model.parameters()"));
        }
        for (i, parameter) in params.iter().enumerate() {
            parameter.check_float(op)?;
            if !parameter.is_leaf() {
                let what = format!("parameter {i} is the result of a recorded op; only leaves can be trained");
                return Err(Error::argument(op, what));
            }
            let mut known = earlier.iter().flat_map(ParamGroup::params).chain(&params[..i]);
            if known.any(|other| other.shares_storage(parameter) && other.layout() == parameter.layout()) {
                let what = format!("parameter {i} was given before; it would be updated twice in a step");
                return Err(Error::argument(op, what));
            }
        }
        Ok(ParamGroup::detached(params, learning_rate, weight_decay, momentum))
    }

    /// A learning rate without an optimizer, for a schedule that is only asked what it would be.
    ///
    /// ```
    /// use netcl_optim::{ParamGroup, schedule::{Schedule, StepLR}};
    ///
    /// let rate = ParamGroup::free(0.5);
    /// let mut schedule = StepLR::of_groups(vec![rate.clone()], 1, 0.5)?;
    /// schedule.step()?;
    /// assert_eq!(rate.learning_rate(), 0.25);
    /// # Ok::<(), netcl_autograd::Error>(())
    /// ```
    pub fn free(learning_rate: f64) -> ParamGroup {
        ParamGroup::detached(Vec::new(), learning_rate, 0.0, None)
    }

    fn detached(params: Vec<Tensor>, learning_rate: f64, weight_decay: f64, momentum: Option<f64>) -> ParamGroup {
        let momentum = momentum.map(|value| {
            Arc::new(Momentum {
                value: Slot::float(value),
                rest: Slot::float(1.0 - value),
                log: Slot::float(value.ln()),
                changes: AtomicBool::new(false),
            })
        });
        ParamGroup {
            params,
            learning_rate: Slot::float(learning_rate),
            weight_decay: Slot::float(weight_decay),
            momentum,
            initial_lr: Arc::default(),
        }
    }

    /// The parameters. One that was moved since the last step is found by [`Tensor::latest`].
    pub fn params(&self) -> &[Tensor] {
        &self.params
    }

    /// Goes where the parameters have been moved to.
    pub(crate) fn follow(&mut self) {
        for parameter in self.params.iter_mut().filter(|parameter| parameter.has_moved()) {
            *parameter = parameter.latest();
        }
    }

    /// The learning rate.
    pub fn learning_rate(&self) -> f64 {
        self.learning_rate.get_float()
    }

    /// Changes the learning rate, also of captured steps.
    pub fn set_learning_rate(&self, learning_rate: f64) {
        self.learning_rate.set_float(learning_rate);
    }

    /// The weight decay.
    pub fn weight_decay(&self) -> f64 {
        self.weight_decay.get_float()
    }

    /// Changes the weight decay. A captured step sees it unless decay was off in all groups when it was captured.
    pub fn set_weight_decay(&self, weight_decay: f64) {
        self.weight_decay.set_float(weight_decay);
    }

    /// The momentum, or Adam's first beta; `None` for an optimizer without one.
    pub fn momentum(&self) -> Option<f64> {
        self.momentum.as_ref().map(|momentum| momentum.value.get_float())
    }

    /// Changes the momentum, or Adam's first beta; nothing happens where there is none. A step that was captured before the
    /// first change keeps the old one.
    pub fn set_momentum(&self, value: f64) {
        if let Some(momentum) = &self.momentum {
            momentum.value.set_float(value);
            momentum.rest.set_float(1.0 - value);
            momentum.log.set_float(value.ln());
            momentum.changes.store(true, Ordering::Release);
        }
    }

    /// The learning rate before any schedule changed it: what schedules multiply.
    pub fn initial_learning_rate(&self) -> f64 {
        *self.initial_lr.get_or_init(|| self.learning_rate())
    }

    pub(crate) fn learning_rate_number(&self) -> Number {
        Number::Slot(self.learning_rate.clone())
    }

    pub(crate) fn weight_decay_number(&self) -> Number {
        Number::Slot(self.weight_decay.clone())
    }

    /// The momentum as an argument of an update.
    pub fn momentum_number(&self) -> Number {
        self.momentum_part(|momentum| &momentum.value)
    }

    /// One minus the momentum as an argument of an update.
    pub fn momentum_rest_number(&self) -> Number {
        self.momentum_part(|momentum| &momentum.rest)
    }

    /// The momentum's logarithm as an argument of an update.
    pub fn momentum_log_number(&self) -> Number {
        self.momentum_part(|momentum| &momentum.log)
    }

    fn momentum_part(&self, part: impl Fn(&Momentum) -> &Arc<Slot>) -> Number {
        match &self.momentum {
            Some(momentum) if momentum.changes.load(Ordering::Acquire) => Number::Slot(part(momentum).clone()),
            Some(momentum) => Number::Value(part(momentum).get_float()),
            None => Number::Value(0.0),
        }
    }
}
