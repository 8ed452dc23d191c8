//! Numbers that groups share or have of their own.

use netcl_autograd::{Error, Result};

/// One number for all groups, or one for each: made from either.
#[derive(Clone, Debug, PartialEq)]
pub struct PerGroup(Vec<f64>);

impl From<f64> for PerGroup {
    fn from(value: f64) -> Self {
        PerGroup(vec![value])
    }
}

impl From<Vec<f64>> for PerGroup {
    fn from(values: Vec<f64>) -> Self {
        PerGroup(values)
    }
}

impl PerGroup {
    /// A number for each of so many groups.
    pub(super) fn spread(&self, op: &'static str, name: &str, groups: usize) -> Result<Vec<f64>> {
        match self.0.as_slice() {
            [one] => Ok(vec![*one; groups]),
            many if many.len() == groups => Ok(many.to_vec()),
            many => {
                let what = format!("{} values of {name} for {groups} groups; give one, or one for each", many.len());
                Err(Error::argument(op, what))
            }
        }
    }
}
