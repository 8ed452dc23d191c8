//! Channels exchanged for places, and places for channels: layouts of sub-pixel convolution and of grouped convolution.

use super::layout::{permute, reshape, transpose};
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Splits a shape into the axes before the last three, and those three.
fn image<'s>(op: &'static str, x: &'s Tensor) -> Result<(&'s [usize], [usize; 3])> {
    match &x.shape()[..] {
        [outer @ .., channels, height, width] => Ok((outer, [*channels, *height, *width])),
        _ => Err(Error::shape(op, x.shape(), "it takes [..., C, H, W]")),
    }
}

/// `[..., C * r * r, H, W]` to `[..., C, H * r, W * r]`: each group of r * r channels becomes a block of pixels.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::shuffle::{pixel_shuffle, pixel_unshuffle}};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32, 2.0, 3.0, 4.0], [4, 1, 1])?;
/// let y = pixel_shuffle(&x, 2)?;
/// assert_eq!(y.shape().to_vec(), [1, 2, 2]);
/// assert_eq!(pixel_unshuffle(&y, 2)?.to_host::<f32>()?, x.to_host::<f32>()?);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn pixel_shuffle(x: &Tensor, factor: usize) -> Result<Tensor> {
    let op = "pixel_shuffle";
    let (outer, [channels, height, width]) = image(op, x)?;
    let block = factor.checked_mul(factor).filter(|&block| block > 0 && channels.is_multiple_of(block));
    let (Some(block), Some(rows), Some(columns)) = (block, height.checked_mul(factor), width.checked_mul(factor))
    else {
        let why = format!(
            "its {channels} channels are no multiple of the square of the factor {factor}, which is at least 1"
        );
        return Err(Error::shape(op, x.shape(), why));
    };
    let filters = channels / block;
    let parts = [outer, &[filters, factor, factor, height, width]].concat();
    let blocks = permute(&reshape(x, parts)?, &order(outer.len(), [0, 3, 1, 4, 2]))?;
    reshape(&blocks, [outer, &[filters, rows, columns]].concat())
}

/// `[..., C, H * r, W * r]` to `[..., C * r * r, H, W]`: undoes [`pixel_shuffle`].
#[track_caller]
pub fn pixel_unshuffle(x: &Tensor, factor: usize) -> Result<Tensor> {
    let op = "pixel_unshuffle";
    let (outer, [channels, height, width]) = image(op, x)?;
    let divides = factor > 0 && height.is_multiple_of(factor) && width.is_multiple_of(factor);
    let filters = factor.checked_mul(factor).and_then(|block| block.checked_mul(channels));
    let Some(filters) = filters.filter(|_| divides) else {
        let why = format!("height and width must be multiples of the factor {factor}, which is at least 1");
        return Err(Error::shape(op, x.shape(), why));
    };
    let (height, width) = (height / factor, width / factor);
    let parts = [outer, &[channels, height, factor, width, factor]].concat();
    let blocks = permute(&reshape(x, parts)?, &order(outer.len(), [0, 2, 4, 1, 3]))?;
    reshape(&blocks, [outer, &[filters, height, width]].concat())
}

/// The channels (axis 1) of `[N, C, ...]` in another order: channel i of group g becomes channel g of group i, so that the next
/// grouped convolution sees all of them.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::shuffle::channel_shuffle};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[0.0f32, 1.0, 2.0, 3.0], [1, 4])?;
/// assert_eq!(channel_shuffle(&x, 2)?.to_host::<f32>()?, [0.0, 2.0, 1.0, 3.0]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn channel_shuffle(x: &Tensor, groups: usize) -> Result<Tensor> {
    let op = "channel_shuffle";
    let &[samples, channels, ref places @ ..] = &x.shape()[..] else {
        return Err(Error::shape(op, x.shape(), "it takes [N, C, ...]"));
    };
    if groups == 0 || !channels.is_multiple_of(groups) {
        return Err(Error::shape(op, x.shape(), format!("its {channels} channels do not make {groups} equal groups")));
    }
    let parts = reshape(x, [&[samples, groups, channels / groups], places].concat())?;
    reshape(&transpose(&parts, 1, 2)?, x.shape().clone())
}

/// The outer axes as they are, then the inner ones in another order.
pub(super) fn order(outer: usize, inner: [usize; 5]) -> Vec<isize> {
    (0..outer).chain(inner.map(|axis| outer + axis)).map(|axis| axis as isize).collect()
}
