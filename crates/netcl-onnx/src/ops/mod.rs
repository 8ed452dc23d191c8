//! The operators, one file for each family; every file has a table of operators and the functions that compute them.

mod activation;
mod attention;
mod control;
mod conv;
mod elementwise;
mod image;
mod layout;
mod linear;
mod loss;
mod norm;
mod pool;
mod quantized;
mod random;
mod recurrent;
mod reduce;
mod select;
mod sequence;

use netcl_nn::autograd::Result;

use crate::run::Call;
use crate::value::Value;

/// What computes the outputs of a node.
pub(crate) type Op = fn(&Call<'_>) -> Result<Vec<Value>>;

/// Operators and their functions; those of other domains than ONNX's own carry the domain's name.
type Table = &'static [(&'static str, Op)];

const FAMILIES: &[Table] = &[
    elementwise::TABLE,
    layout::TABLE,
    select::TABLE,
    reduce::TABLE,
    linear::TABLE,
    conv::TABLE,
    pool::TABLE,
    norm::TABLE,
    activation::TABLE,
    attention::TABLE,
    recurrent::TABLE,
    quantized::TABLE,
    loss::TABLE,
    image::TABLE,
    control::TABLE,
    sequence::TABLE,
    random::TABLE,
];

pub(crate) use control::{begin_run, call_body};

/// The function of an operator.
pub(crate) fn find(operator: &str) -> Option<Op> {
    FAMILIES.iter().flat_map(|table| table.iter()).find(|(name, _)| *name == operator).map(|&(_, op)| op)
}

/// Every operator that can run.
pub(crate) fn names() -> Vec<&'static str> {
    let mut names: Vec<_> = FAMILIES.iter().flat_map(|table| table.iter().map(|&(name, _)| name)).collect();
    names.sort_unstable();
    names
}

/// The only output of an operation.
fn one(value: impl Into<Value>) -> Result<Vec<Value>> {
    Ok(vec![value.into()])
}
