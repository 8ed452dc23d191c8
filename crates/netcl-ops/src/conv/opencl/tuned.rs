//! Configurations of convolutions that were measured, and when they are asked.

use netcl_core::kernel_selector::{KernelConfig, KernelVariant, Problem, get_kernel_selector};
use netcl_core::kernels::launch;
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result, tuner};

use super::super::geometry::Geometry;
use super::winograd_fits;

/// Convolutions below this many multiply-adds are not worth measuring.
const WORTH_MEASURING: usize = 128 * 128 * 128;

/// The configuration that is forced on this thread or was measured for convolutions like this one; with `NETCL_AUTOTUNE=1` it
/// is measured now, if nobody did.
pub(in crate::conv) fn configuration(op: &'static str, g: &Geometry, x: &Tensor) -> Result<Option<KernelConfig>> {
    let (shape, dtype) = (g.selector_shape(), x.dtype());
    let problem = Problem::conv2d(shape, dtype);
    let selector = get_kernel_selector(Some(x.queue()))?;
    let able = |config: &KernelConfig| config.variant != KernelVariant::Conv2dWinograd || winograd_fits(g, dtype);
    if let Some(forced) = tuner::forced(|variant| problem.concerns(variant)) {
        return match able(&forced) && selector.fits(&forced, dtype) {
            true => Ok(Some(forced)),
            false => Err(Error::argument(op, format!("{forced} does not fit this convolution or this device"))),
        };
    }
    let known = selector.measured(&problem).filter(able);
    let work = g.n * g.groups * g.filters * g.pixels() * g.channels * g.taps();
    // While launches are written down for later, there is nothing to measure. One-sided padding is not what would be measured.
    let even = g.before == g.after;
    if known.is_some() || !tuner::autotune() || work < WORTH_MEASURING || !even || launch::has_sink() {
        return Ok(known);
    }
    crate::tuning::first_use_of_conv2d(x.queue(), shape, dtype)?;
    Ok(selector.measured(&problem).filter(able))
}
