//! Images in another size.

use netcl_core::Error as CoreError;
use netcl_ops::resample as raw;
pub use netcl_ops::resample::Resize;

use super::linear_map::LinearMap;
use super::pool::adaptive_avg_pool2d;
use crate::error::Result;
use crate::tensor::Tensor;
use crate::trace;

/// An error unless a tensor is a batch of images: other last axes might be channels.
fn check_images(op: &'static str, x: &Tensor) -> Result<()> {
    if x.ndim() == 4 {
        return Ok(());
    }
    let why = "it takes images [N, C, H, W]; reshape sequences [N, C, L] to [N, C, 1, L]".to_owned();
    Err(CoreError::Shape { op, shape: x.shape().clone(), why }.into())
}

/// Each pixel is the nearest one of the input, for `[N, C, H, W]`.
#[track_caller]
pub fn upsample_nearest(x: &Tensor, to: impl Into<Resize>) -> Result<Tensor> {
    check_images("upsample_nearest", x)?;
    let (shape, to) = (x.shape().clone(), to.into());
    trace::settings("upsample_nearest", || [("align_corners", false.into())]);
    LinearMap::new(
        ["upsample_nearest", "upsample_nearest_backward"],
        move |x| raw::upsample_nearest(x, to),
        move |grad| raw::upsample_nearest_backward(grad, &shape, to),
    )
    .apply(x)
}

/// Each pixel is interpolated between its sixteen neighbours in the input, for `[N, C, H, W]`.
#[track_caller]
pub fn upsample_bicubic(x: &Tensor, to: impl Into<Resize>, align_corners: bool) -> Result<Tensor> {
    check_images("upsample_bicubic", x)?;
    let (shape, to) = (x.shape().clone(), to.into());
    trace::settings("upsample_bicubic", || [("align_corners", align_corners.into())]);
    LinearMap::new(
        ["upsample_bicubic", "upsample_bicubic_backward"],
        move |x| raw::upsample_bicubic(x, to, align_corners),
        move |grad| raw::upsample_bicubic_backward(grad, &shape, to, align_corners),
    )
    .apply(x)
}

/// Each pixel is the mean of the part of the input that it covers, for `[N, C, H, W]`.
#[track_caller]
pub fn upsample_area(x: &Tensor, to: impl Into<Resize>) -> Result<Tensor> {
    check_images("upsample_area", x)?;
    adaptive_avg_pool2d(x, raw::resized("upsample_area", x.shape(), to.into())?)
}

/// Each pixel is interpolated between its four neighbours in the input, for `[N, C, H, W]`.
#[track_caller]
pub fn upsample_bilinear(x: &Tensor, to: impl Into<Resize>, align_corners: bool) -> Result<Tensor> {
    check_images("upsample_bilinear", x)?;
    let (shape, to) = (x.shape().clone(), to.into());
    trace::settings("upsample_bilinear", || [("align_corners", align_corners.into())]);
    LinearMap::new(
        ["upsample_bilinear", "upsample_bilinear_backward"],
        move |x| raw::upsample_bilinear(x, to, align_corners),
        move |grad| raw::upsample_bilinear_backward(grad, &shape, to, align_corners),
    )
    .apply(x)
}
