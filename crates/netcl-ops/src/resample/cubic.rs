//! Bicubic resampling: one axis after the other, as four gathers times their weights. The backward pass adds the same elements up
//! in a fixed order.

use netcl_core::index::IndexTensor;
use netcl_core::shape::Shape;
use netcl_core::tensor::{HostOptions, Tensor, reshape};
use netcl_core::{Result, host};

use super::{Axis, Plan, Resize, bilinear};
use crate::dense::check_shape;
use crate::elementwise::{add, mul};
use crate::indexing::{index_select, index_select_backward};

/// The free parameter of the cubic convolution, as in PyTorch.
const A: f64 = -0.75;

/// Each result lies between sixteen elements of the input, of which those past the edge are the edge itself.
///
/// ```
/// use netcl_core::{device::manager, tensor::Tensor};
/// use netcl_ops::resample::upsample_bicubic;
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[0.0f32, 4.0], [1, 1, 2])?;
/// assert_eq!(upsample_bicubic(&x, [1, 3], true)?.to_host::<f32>()?, [0.0, 2.0, 4.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn upsample_bicubic(x: &Tensor, to: impl Into<Resize>, align_corners: bool) -> Result<Tensor> {
    let op = "upsample_bicubic";
    x.check_float(op)?;
    let plan = Plan::new(op, x.shape(), to.into(), bilinear(align_corners))?;
    let mut out = x.cast(x.dtype().accumulator())?;
    for (i, axis) in [(-1, plan.axes[1]), (-2, plan.axes[0])] {
        let mut sum: Option<Tensor> = None;
        for tap in 0..4 {
            let (at, weight) = axis.tap(op, &out, i, tap, align_corners)?;
            let part = mul(&index_select(&out, i, &at)?, &weight)?;
            sum = Some(sum.map_or(Ok(part.clone()), |sum| add(&sum, &part))?);
        }
        out = sum.unwrap_or(out);
    }
    out.cast(x.dtype())
}

/// The gradient of the input of [`upsample_bicubic`], whose shape is `shape`.
pub fn upsample_bicubic_backward(
    grad: &Tensor,
    shape: &Shape,
    to: impl Into<Resize>,
    align_corners: bool,
) -> Result<Tensor> {
    let op = "upsample_bicubic_backward";
    grad.check_float(op)?;
    let plan = Plan::new(op, shape, to.into(), bilinear(align_corners))?;
    check_shape(op, "the output's gradient", grad, &plan.outputs(shape))?;
    let mut out = grad.cast(grad.dtype().accumulator())?;
    for (i, axis) in [(-2, plan.axes[0]), (-1, plan.axes[1])] {
        let mut sum: Option<Tensor> = None;
        for tap in 0..4 {
            let (at, weight) = axis.tap(op, &out, i, tap, align_corners)?;
            let part = index_select_backward(&mul(&out, &weight)?, i, &at, axis.input)?;
            sum = Some(sum.map_or(Ok(part.clone()), |sum| add(&sum, &part))?);
        }
        out = sum.unwrap_or(out);
    }
    out.cast(grad.dtype())
}

impl Axis {
    /// One of the four elements that each result lies between, and its weight along axis -1 or -2 of a tensor.
    fn tap(
        &self,
        op: &'static str,
        x: &Tensor,
        axis: isize,
        tap: isize,
        corners: bool,
    ) -> Result<(IndexTensor, Tensor)> {
        let place = |o: usize| {
            let at = if corners { o as f64 * self.scale } else { (o as f64 + 0.5) * self.scale - 0.5 };
            let first = at.floor();
            (first as isize + tap - 1, at - first)
        };
        let last = self.input as isize - 1;
        let at = host::collect(op, (0..self.output).map(|o| place(o).0.clamp(0, last) as i32))?;
        let weight = host::collect(op, (0..self.output).map(|o| cubic((place(o).1 - (tap - 1) as f64).abs())))?;
        let options = HostOptions { dtype: Some(x.dtype()), ..Default::default() };
        let weight = Tensor::from_host_with(x.queue(), &weight, [self.output], options)?;
        let weight = if axis == -1 { weight } else { reshape(&weight, [self.output, 1])? };
        Ok((IndexTensor::from_host(x.queue(), &at, [self.output])?, weight))
    }
}

/// The weight of an element at a distance below 2.
fn cubic(d: f64) -> f64 {
    if d <= 1.0 { ((A + 2.0) * d - (A + 3.0)) * d * d + 1.0 } else { ((A * d - 5.0 * A) * d + 8.0 * A) * d - 4.0 * A }
}
