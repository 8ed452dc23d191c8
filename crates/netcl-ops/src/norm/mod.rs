//! Normalisations: batch, layer, group and root-mean-square, each with its backward pass.
//!
//! Statistics are computed in float32 for 16-bit types (float64 for its own), around the mean and never as a difference
//! of large squares; the order of every addition depends on shapes and the device alone. Parameters may have another float
//! dtype than the input, as under autocast; saved statistics have the type of the computation.
//!
//! The row engine (`core/kernels/region`), which compiles the same expressions, reaches 0.74 to 1.07 of these kernels' speed forward on an
//! H200 and 0.56 to 0.87 both ways, on the native CPU 0.3 to 0.9 (`benches/row_engine.py`): what it saves is not worth that.
//!
//! | file | subject |
//! |---|---|
//! | `batch.rs` | statistics per channel, over all other axes |
//! | `statistics.rs` | statistics per channel that something else found |
//! | `rows.rs` | statistics per row of the last axes: layer, group and root-mean-square normalisation |
//! | `cpu/` | the native loops: `moments.rs`, `rows.rs`, `batch.rs` |
//! | `opencl.rs` | how kernels are launched |
//! | `row_moments.cl`, `norm_registers.cl`, `norm_planes.cl` | rows in registers, and planes in vectors |
//! | `norm.cl`, `norm_backward.cl` | what these do not fit |

mod batch;
pub(crate) mod cpu;
mod opencl;
mod pointwise;
mod rows;
pub(crate) mod statistics;

use netcl_core::dtype::DType;
use netcl_core::kernels::launch::Cost;
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};

use crate::dense;

pub use batch::{Running, batch_norm, batch_norm_backward, batch_norm_eval, batch_norm_with};
pub use rows::{group_norm, group_norm_backward, layer_norm, layer_norm_backward, rms_norm, rms_norm_backward};
pub use statistics::ChannelStatistics;

/// The learnt scale and shift of a normalisation; either may be left out.
///
/// ```
/// use netcl_core::{device::manager, dtype::DType, tensor::Tensor};
/// use netcl_ops::norm::{Affine, layer_norm};
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::from_host(&queue, &[1.0f32, 3.0, -2.0, 2.0], [2, 2])?;
/// let scale = Tensor::full(&queue, [2], DType::F32, 10.0)?;
/// let affine = Affine { weight: Some(&scale), bias: None };
/// assert_eq!(layer_norm(&x, 1, affine, 0.0)?.output.to_host::<f32>()?, [-10.0, 10.0, -10.0, 10.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Affine<'t> {
    /// What normalised values are multiplied by.
    pub weight: Option<&'t Tensor>,
    /// What is added to them afterwards.
    pub bias: Option<&'t Tensor>,
}

/// A normalised tensor and the statistics its backward pass needs.
#[derive(Clone, Debug)]
pub struct Normalized {
    /// The result, with the shape and dtype of the input.
    pub output: Tensor,
    /// The means.
    pub mean: Tensor,
    /// One divided by the standard deviations.
    pub rstd: Tensor,
}

/// What the backward pass of a normalisation gives.
#[derive(Clone, Debug)]
pub struct NormGradients {
    /// The gradient of the input.
    pub input: Tensor,
    /// The gradient of the weight, where there is one.
    pub weight: Option<Tensor>,
    /// The gradient of the bias, where there is one.
    pub bias: Option<Tensor>,
}

/// Checked parameters, dense and in the type of the computation.
struct Parameters {
    weight: Option<Tensor>,
    bias: Option<Tensor>,
}

impl Affine<'_> {
    /// Checks the parameters against the shape they must have, and makes them ready for the kernels.
    fn prepare(&self, op: &'static str, x: &Tensor, shape: &[usize]) -> Result<Parameters> {
        let prepare = |what: &str, t: Option<&Tensor>| -> Result<Option<Tensor>> {
            let Some(t) = t else { return Ok(None) };
            t.check_float(op)?;
            x.queue().check_same_device(op, t.queue())?;
            dense::check_shape(op, what, t, shape)?;
            Ok(Some(t.cast(x.dtype().accumulator())?.contiguous()?))
        };
        Ok(Parameters { weight: prepare("weight", self.weight)?, bias: prepare("bias", self.bias)? })
    }

    /// Gives gradients the dtype and shape of their parameters; those without a parameter are dropped.
    fn finish(&self, input: Tensor, weight: Tensor, bias: Tensor) -> Result<NormGradients> {
        let give = |parameter: Option<&Tensor>, gradient: Tensor| {
            parameter.map(|p| netcl_core::tensor::reshape(&gradient.cast(p.dtype())?, p.shape().clone())).transpose()
        };
        Ok(NormGradients { input, weight: give(self.weight, weight)?, bias: give(self.bias, bias)? })
    }
}

/// An error unless the number added to variances can be used.
fn check_eps(op: &'static str, eps: f64) -> Result<()> {
    if eps.is_finite() && eps >= 0.0 {
        return Ok(());
    }
    Err(Error::argument(op, format!("eps is {eps}; use a small number that is not negative, such as 1e-5")))
}

/// A gradient or saved statistic: checked, dense, of the expected dtype.
fn checked(op: &'static str, what: &str, t: &Tensor, like: &Tensor, shape: &[usize], saved: bool) -> Result<Tensor> {
    let expected = if saved { like.dtype().accumulator() } else { like.dtype() };
    check_like(op, what, t, like, shape, expected)?;
    t.contiguous()
}

/// An error unless a tensor has this shape and dtype, and another one's device.
fn check_like(op: &'static str, what: &str, t: &Tensor, like: &Tensor, shape: &[usize], dtype: DType) -> Result<()> {
    like.queue().check_same_device(op, t.queue())?;
    dense::check_shape(op, what, t, shape)?;
    if t.dtype() != dtype {
        return Err(Error::DtypeMismatch { op, lhs: dtype, rhs: t.dtype() });
    }
    Ok(())
}

/// The cost of passing over a tensor so many times with so many operations per element.
fn cost(x: &Tensor, tensors: usize, flops: usize) -> Cost {
    Cost { flops: (flops * x.size()) as f64, bytes: (tensors * x.size() * x.dtype().size()) as f64 }
}
