//! Dropout.

use netcl_core::random::Generator;
use netcl_ops::dropout as raw;

use super::linear_map::LinearMap;
use crate::error::Result;
use crate::tensor::Tensor;

/// Elements set to zero with probability `p`, the others divided by `1 - p`. The mask comes from the generator (the process-wide
/// one where none is given) and is never stored: the gradient draws it again.
#[track_caller]
pub fn dropout(x: &Tensor, p: f64, generator: Option<&mut Generator>) -> Result<Tensor> {
    let (output, place) = raw::dropout(x.raw(), p, generator)?;
    let again = place.clone();
    let names = ["dropout", "dropout_backward"];
    LinearMap::new(names, move |x| raw::dropout_at(x, p, &place), move |grad| raw::dropout_backward(grad, p, &again))
        .record(x, output)
}
