//! Sliding windows: views of them, the columns of image patches (im2col), and the sums that undo both.

use netcl_core::shape::Slice;
use netcl_ops as ops;
pub use netcl_ops::layout::Windows;

use super::layout::{permute, reshape, slice};
use super::linear_map::LinearMap;
use super::pad::{PadMode, pad};
use super::shuffle::order;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Windows along an axis, as a view: the axis counts them, a new last axis their elements.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::unfold::{Windows, windows}};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32, 2.0, 3.0, 4.0], [4])?.with_grad();
/// let pairs = windows(&x, 0, Windows { size: 2, step: 1, dilation: 1 })?;
/// assert_eq!(pairs.to_host::<f32>()?, [1.0, 2.0, 2.0, 3.0, 3.0, 4.0]);
/// pairs.sum((), false)?.backward()?;
/// assert_eq!(x.grad().unwrap().to_host::<f32>()?, [1.0, 2.0, 2.0, 1.0]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn windows(x: &Tensor, axis: isize, windows: Windows) -> Result<Tensor> {
    let at = x.shape().axis("unfold", axis)?;
    let length = x.shape()[at];
    LinearMap::new(
        ["unfold", "unfold_backward"],
        move |x| ops::unfold(x, at as isize, windows),
        move |grad| ops::unfold_backward(grad, at as isize, windows, length),
    )
    .apply(x)
}

/// Sums of windows at their places along an axis of so many elements: the adjoint of [`windows`].
#[track_caller]
fn joined(x: &Tensor, axis: usize, windows: Windows, length: usize) -> Result<Tensor> {
    LinearMap::new(
        ["fold", "fold_backward"],
        move |x| ops::unfold_backward(x, axis as isize, windows, length),
        move |grad| ops::unfold(grad, axis as isize, windows),
    )
    .apply(x)
}

/// Which patches of an image [`unfold`] takes: height and width of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patches {
    /// The size of a patch.
    pub kernel_size: [usize; 2],
    /// From an element of a patch to the next.
    pub dilation: [usize; 2],
    /// Zeros around the image, on both sides.
    pub padding: [usize; 2],
    /// From a patch to the next.
    pub stride: [usize; 2],
}

impl Patches {
    /// Neighbouring elements of every place of an image without a margin.
    pub fn new(kernel_size: [usize; 2]) -> Self {
        Patches { kernel_size, dilation: [1, 1], padding: [0, 0], stride: [1, 1] }
    }

    fn windows(&self, axis: usize) -> Windows {
        Windows { size: self.kernel_size[axis], step: self.stride[axis], dilation: self.dilation[axis] }
    }

    /// The length of an axis with its margins, and the number of patches along it.
    fn along(&self, op: &'static str, axis: usize, length: usize) -> Result<(usize, usize)> {
        let whole = self.padding[axis].checked_mul(2).and_then(|margins| margins.checked_add(length));
        let Some(whole) = whole.filter(|&whole| whole <= isize::MAX as usize) else {
            return Err(Error::argument(op, format!("the padding {} is too large", self.padding[axis])));
        };
        Ok((whole, self.windows(axis).count(op, whole)?))
    }
}

/// The patches of images `[N, C, H, W]` as columns `[N, C * kernel height * kernel width, patches]` (im2col); of one image
/// likewise, without the first axis.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::unfold::{Patches, fold, unfold}};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [1, 1, 2, 3])?;
/// let patches = Patches::new([2, 2]);
/// let columns = unfold(&x, &patches)?;
/// assert_eq!(columns.to_host::<f32>()?, [1.0, 2.0, 2.0, 3.0, 4.0, 5.0, 5.0, 6.0]);
/// // The middle column of the image is in both patches.
/// assert_eq!(fold(&columns, [2, 3], &patches)?.to_host::<f32>()?, [1.0, 4.0, 3.0, 4.0, 10.0, 6.0]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn unfold(x: &Tensor, patches: &Patches) -> Result<Tensor> {
    let op = "unfold";
    let (outer, [channels, height, width]) = match x.shape()[..] {
        [channels, height, width] => (vec![], [channels, height, width]),
        [images, channels, height, width] => (vec![images], [channels, height, width]),
        _ => return Err(Error::shape(op, x.shape(), "it takes images [N, C, H, W] or one [C, H, W]")),
    };
    let ((_, rows), (_, columns)) = (patches.along(op, 0, height)?, patches.along(op, 1, width)?);
    let padded = match patches.padding {
        [0, 0] => x.clone(),
        margins => pad(x, &margins.map(|n| (n as isize, n as isize)), PadMode::Constant(0.0))?,
    };
    // The height, then the width: [..., C, rows, columns, kernel height, kernel width]
    let places = windows(&windows(&padded, -2, patches.windows(0))?, -2, patches.windows(1))?;
    let elements = channels.checked_mul(patches.kernel_size[0]).and_then(|n| n.checked_mul(patches.kernel_size[1]));
    let Some(elements) = elements else {
        return Err(Error::shape(op, x.shape(), "its patches have more elements than can be counted"));
    };
    reshape(
        &permute(&places, &order(outer.len(), [0, 3, 4, 1, 2]))?,
        [&outer[..], &[elements, rows * columns]].concat(),
    )
}

/// Images `[N, C, H, W]` of the given height and width from columns `[N, C * kernel height * kernel width, patches]`: where patches
/// overlap, they are added up. The adjoint of [`unfold`].
#[track_caller]
pub fn fold(x: &Tensor, output_size: [usize; 2], patches: &Patches) -> Result<Tensor> {
    let op = "fold";
    let (outer, [elements, count]) = match x.shape()[..] {
        [elements, count] => (vec![], [elements, count]),
        [images, elements, count] => (vec![images], [elements, count]),
        _ => {
            return Err(Error::shape(
                op,
                x.shape(),
                "it takes columns [N, C * kernel elements, patches], or of one image",
            ));
        }
    };
    let [(height, rows), (width, columns)] =
        [patches.along(op, 0, output_size[0])?, patches.along(op, 1, output_size[1])?];
    let [tall, wide] = patches.kernel_size;
    let block = tall.saturating_mul(wide);
    if !elements.is_multiple_of(block) || rows.checked_mul(columns) != Some(count) {
        let why = format!(
            "an image of {} x {} has {rows} x {columns} patches of {tall} x {wide} elements; the last axes must be a multiple of \
             {block}, and {}",
            output_size[0],
            output_size[1],
            rows.saturating_mul(columns)
        );
        return Err(Error::shape(op, x.shape(), why));
    }
    let parts = reshape(x, [&outer[..], &[elements / block, tall, wide, rows, columns]].concat())?;
    let places = permute(&parts, &order(outer.len(), [0, 3, 4, 1, 2]))?;
    let (down, right) = (outer.len() + 1, outer.len() + 2);
    let lines = joined(&places, right, patches.windows(1), width)?;
    let padded = joined(&lines, down, patches.windows(0), height)?;
    let inner = |x: &Tensor, axis: usize, i: usize| match (patches.padding[i] as isize, output_size[i] as isize) {
        (0, _) => Ok(x.clone()),
        (margin, length) => slice(x, axis as isize, Slice::new(Some(margin), Some(margin + length), 1)),
    };
    inner(&inner(&padded, down, 0)?, right, 1)
}
