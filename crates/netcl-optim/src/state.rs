//! State under plain names, and how it is compared with what is expected.

use std::collections::BTreeMap;

use netcl_autograd::{Error, Result, Tensor};
use netcl_core::shape::Shape;

/// The state of an optimizer, a schedule or an average under plain names, ready to be stored.
///
/// An optimizer's numbers of groups are `"groups.0.lr"`; what belongs to a parameter, counted over all groups, is
/// `"3.step"` and `"3.exp_avg"`.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Settings and counters.
    pub numbers: BTreeMap<String, f64>,
    /// Tensors. They share the optimizer's memory: store or duplicate them before the next step.
    pub tensors: BTreeMap<String, Tensor>,
}

impl State {
    /// A number that a check has found.
    pub(crate) fn number(&self, name: &str) -> f64 {
        self.numbers.get(name).copied().unwrap_or_default()
    }

    /// A list of numbers `"name.0"`, `"name.1"`, ...
    pub(crate) fn insert_list(&mut self, name: &str, values: impl IntoIterator<Item = f64>) {
        for (i, value) in values.into_iter().enumerate() {
            self.numbers.insert(format!("{name}.{i}"), value);
        }
    }

    /// The numbers of a list.
    pub(crate) fn list(&self, name: &str, len: usize) -> Vec<f64> {
        (0..len).map(|i| self.number(&format!("{name}.{i}"))).collect()
    }

    /// An error unless there are exactly these numbers and no tensors.
    pub(crate) fn check_numbers(&self, op: &'static str, expected: &State) -> Result<()> {
        let mut check = StateCheck::default();
        check.numbers(self, expected.numbers.keys().map(String::as_str), |_| false);
        check.tensors(self, &BTreeMap::new());
        check.finish(op)
    }
}

/// Collects everything that is wrong with a state, so that it can be said at once.
#[derive(Default)]
pub(crate) struct StateCheck {
    problems: Vec<String>,
}

impl StateCheck {
    /// All of `expected` must be there, and nothing else that is not `optional`.
    pub(crate) fn numbers<'a>(
        &mut self,
        state: &State,
        expected: impl Iterator<Item = &'a str> + Clone,
        optional: impl Fn(&str) -> bool,
    ) {
        for name in expected.clone().filter(|name| !state.numbers.contains_key(*name)) {
            self.problems.push(format!("has no number {name:?}"));
        }
        for name in state.numbers.keys() {
            if !optional(name) && !expected.clone().any(|known| known == name) {
                self.problems.push(format!("has an unknown number {name:?}"));
            }
        }
    }

    /// Exactly the expected tensors must be there, each in its shape.
    pub(crate) fn tensors(&mut self, state: &State, expected: &BTreeMap<String, Shape>) {
        for (name, shape) in expected {
            match state.tensors.get(name) {
                None => self.problems.push(format!("has no tensor {name:?}")),
                Some(tensor) if tensor.shape() != shape => {
                    let got = tensor.shape();
                    let what = format!("has {name:?}, which has shape {got}, its parameter has shape {shape}");
                    self.problems.push(what);
                }
                Some(_) => {}
            }
        }
        for name in state.tensors.keys().filter(|name| !expected.contains_key(*name)) {
            self.problems.push(format!("has an unknown tensor {name:?}"));
        }
    }

    /// Anything else.
    pub(crate) fn problem(&mut self, what: String) {
        self.problems.push(what);
    }

    /// One error for all problems.
    pub(crate) fn finish(self, op: &'static str) -> Result<()> {
        if self.problems.is_empty() {
            return Ok(());
        }
        Err(Error::argument(op, format!("the state {}", self.problems.join("; it "))))
    }
}
