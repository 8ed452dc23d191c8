//! What every optimizer is: groups of parameters and a step.

use std::collections::BTreeMap;
use std::sync::Arc;

use netcl_autograd::core::Error as CoreError;
use netcl_autograd::core::kernels::elementwise::Number;
use netcl_autograd::core::kernels::launch::Slot;
use netcl_autograd::{Result, Tensor};

/// Changes parameters by their gradients.
///
/// An optimizer holds clones of the parameters: the same tensors as the model's. Updates are written in place and never
/// recorded; a graph that was recorded before a step and still needs the old values refuses its backward pass by name.
pub trait Optimizer: Send {
    /// One update of all parameters that have a gradient; the others, and their state, stay as they are.
    fn step(&mut self) -> Result<()>;

    /// The groups of parameters.
    fn groups(&self) -> &[ParamGroup];

    /// Adds parameters with a learning rate and a weight decay of their own.
    ///
    /// # Errors
    /// For no parameters, for parameters that are given twice or are not leaves, and for settings out of range.
    fn add_group(&mut self, params: Vec<Tensor>, learning_rate: f64, weight_decay: f64) -> Result<()>;

    /// Everything a run needs to go on exactly where this one stands, apart from the parameters themselves.
    fn state(&self) -> State;

    /// Goes on from a state that [`Optimizer::state`] gave for the same parameters.
    ///
    /// # Errors
    /// Names the first entry that is missing, unknown or of the wrong shape; nothing has changed then.
    fn load_state(&mut self, state: &State) -> Result<()>;

    /// Drops the gradients of all parameters.
    fn zero_grad(&self) {
        for parameter in self.groups().iter().flat_map(ParamGroup::params) {
            parameter.set_grad(None);
        }
    }

    /// Fills the gradients of all parameters with zeros where they lie, for those who hold on to them.
    fn fill_grad_with_zeros(&self) -> Result<()> {
        for parameter in self.groups().iter().flat_map(ParamGroup::params) {
            match parameter.grad() {
                Some(grad) if grad.layout().is_contiguous() => grad.fill(0.0)?,
                // A view (the gradient of a sum repeats one element) is not to be written to.
                Some(grad) => {
                    let zeros = Tensor::from_shape(grad.queue(), grad.shape().clone(), grad.dtype())?;
                    parameter.set_grad(Some(zeros));
                }
                None => {}
            }
        }
        Ok(())
    }

    /// The learning rate of the first group.
    fn learning_rate(&self) -> f64 {
        self.groups().first().map_or(0.0, ParamGroup::learning_rate)
    }

    /// Sets the learning rate of every group.
    fn set_learning_rate(&self, learning_rate: f64) {
        for group in self.groups() {
            group.set_learning_rate(learning_rate);
        }
    }
}

/// Parameters with a learning rate and a weight decay of their own.
///
/// Both live in slots outside the launches that use them: a captured step sees the value of the moment. A clone is the same
/// group.
#[derive(Clone, Debug)]
pub struct ParamGroup {
    params: Vec<Tensor>,
    learning_rate: Arc<Slot>,
    weight_decay: Arc<Slot>,
}

impl ParamGroup {
    pub(crate) fn new(
        op: &'static str,
        params: Vec<Tensor>,
        learning_rate: f64,
        weight_decay: f64,
        earlier: &[ParamGroup],
    ) -> Result<ParamGroup> {
        check_not_negative(op, "learning rate", learning_rate)?;
        check_not_negative(op, "weight decay", weight_decay)?;
        if params.is_empty() {
            return Err(CoreError::argument(op, "there are no parameters; pass model.parameters()").into());
        }
        for (i, parameter) in params.iter().enumerate() {
            parameter.check_float(op)?;
            if !parameter.is_leaf() {
                let what = format!("parameter {i} is the result of a recorded op; only leaves can be trained");
                return Err(CoreError::argument(op, what).into());
            }
            let mut known = earlier.iter().flat_map(ParamGroup::params).chain(&params[..i]);
            if known.any(|other| other.shares_storage(parameter) && other.layout() == parameter.layout()) {
                let what = format!("parameter {i} was given before; it would be updated twice in a step");
                return Err(CoreError::argument(op, what).into());
            }
        }
        Ok(ParamGroup { params, learning_rate: Slot::float(learning_rate), weight_decay: Slot::float(weight_decay) })
    }

    /// The parameters.
    pub fn params(&self) -> &[Tensor] {
        &self.params
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

    /// Changes the weight decay. A captured step sees it unless decay was off when it was captured.
    pub fn set_weight_decay(&self, weight_decay: f64) {
        self.weight_decay.set_float(weight_decay);
    }

    pub(crate) fn learning_rate_number(&self) -> Number {
        Number::Slot(self.learning_rate.clone())
    }

    pub(crate) fn weight_decay_number(&self) -> Number {
        Number::Slot(self.weight_decay.clone())
    }
}

/// An optimizer's state under plain names, ready to be stored.
///
/// Numbers of groups are `"groups.0.lr"`; tensors of parameters, counted over all groups, are `"3.momentum_buffer"`.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Settings and counters.
    pub numbers: BTreeMap<String, f64>,
    /// Tensors. They share the optimizer's memory: store or duplicate them before the next step.
    pub tensors: BTreeMap<String, Tensor>,
}

impl State {
    /// The learning rates and weight decays of groups.
    pub(crate) fn of_groups(groups: &[ParamGroup]) -> State {
        let mut state = State::default();
        for (i, group) in groups.iter().enumerate() {
            state.numbers.insert(format!("groups.{i}.lr"), group.learning_rate());
            state.numbers.insert(format!("groups.{i}.weight_decay"), group.weight_decay());
        }
        state
    }

    /// An error unless there is exactly one learning rate and weight decay for each group.
    pub(crate) fn check_groups(&self, op: &'static str, groups: &[ParamGroup]) -> Result<()> {
        let expected = State::of_groups(groups).numbers;
        let missing = expected.keys().find(|key| !self.numbers.contains_key(*key)).map(|key| ("has no", key));
        let unknown = self.numbers.keys().find(|key| !expected.contains_key(*key)).map(|key| ("has an unknown", key));
        match missing.or(unknown) {
            Some((how, key)) => Err(CoreError::argument(op, format!("the state {how} number {key:?}")).into()),
            None => Ok(()),
        }
    }

    /// Sets learning rates and weight decays, after a check.
    pub(crate) fn restore_groups(&self, groups: &[ParamGroup]) {
        for (i, group) in groups.iter().enumerate() {
            if let Some(&learning_rate) = self.numbers.get(&format!("groups.{i}.lr")) {
                group.set_learning_rate(learning_rate);
            }
            if let Some(&weight_decay) = self.numbers.get(&format!("groups.{i}.weight_decay")) {
                group.set_weight_decay(weight_decay);
            }
        }
    }
}

/// An error for a setting that is negative or not a number.
pub(crate) fn check_not_negative(op: &'static str, name: &str, value: f64) -> Result<()> {
    if value.is_finite() && value >= 0.0 {
        return Ok(());
    }
    Err(CoreError::argument(op, format!("the {name} is {value}; use a finite number that is not negative")).into())
}
