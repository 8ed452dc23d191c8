//! Images in another size.

use netcl_ops::resample as raw;
pub use netcl_ops::resample::Resize;

use super::linear_map::LinearMap;
use crate::error::Result;
use crate::tensor::Tensor;

/// Each pixel is the nearest one of the input, for `[N, C, H, W]`.
#[track_caller]
pub fn upsample_nearest(x: &Tensor, to: impl Into<Resize>) -> Result<Tensor> {
    let (shape, to) = (x.shape().clone(), to.into());
    LinearMap::new(
        ["upsample_nearest", "upsample_nearest_backward"],
        move |x| raw::upsample_nearest(x, to),
        move |grad| raw::upsample_nearest_backward(grad, &shape, to),
    )
    .apply(x)
}

/// Each pixel is interpolated between its four neighbours in the input, for `[N, C, H, W]`.
#[track_caller]
pub fn upsample_bilinear(x: &Tensor, to: impl Into<Resize>, align_corners: bool) -> Result<Tensor> {
    let (shape, to) = (x.shape().clone(), to.into());
    LinearMap::new(
        ["upsample_bilinear", "upsample_bilinear_backward"],
        move |x| raw::upsample_bilinear(x, to, align_corners),
        move |grad| raw::upsample_bilinear_backward(grad, &shape, to, align_corners),
    )
    .apply(x)
}
