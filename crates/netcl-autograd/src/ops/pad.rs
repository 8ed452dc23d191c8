//! Margins around the last axes.

use netcl_ops::pad as raw;
pub use netcl_ops::pad::PadMode;

use super::linear_map::LinearMap;
use super::whole;
use crate::error::Result;
use crate::tensor::Tensor;
use crate::trace;

/// Margins before and after each of the last axes (in the order of the axes); negative ones cut off, where a constant pads.
#[track_caller]
pub fn pad(x: &Tensor, pads: &[(isize, isize)], mode: PadMode) -> Result<Tensor> {
    if !x.dtype().is_float() {
        return whole::through_floats(x, |x, _| pad(x, pads, mode));
    }
    let output = raw::pad(x.raw(), pads, mode)?;
    let (shape, own, again) = (x.shape().clone(), pads.to_vec(), pads.to_vec());
    trace::settings("pad", || {
        let (mode, value) = match mode {
            PadMode::Constant(value) => ("constant", value),
            PadMode::Reflect => ("reflect", 0.0),
            PadMode::Replicate => ("edge", 0.0),
            PadMode::Circular => ("wrap", 0.0),
        };
        let flat: Vec<isize> = pads.iter().flat_map(|&(before, after)| [before, after]).collect();
        [("pads", flat[..].into()), ("mode", mode.into()), ("value", value.into())]
    });
    // A constant is added, not mapped: it has no part in derivatives.
    let linear = if let PadMode::Constant(_) = mode { PadMode::Constant(0.0) } else { mode };
    LinearMap::new(
        ["pad", "pad_backward"],
        move |x| raw::pad(x, &own, linear),
        move |grad| raw::pad_backward(grad, &shape, &again, linear),
    )
    .record(x, output)
}
