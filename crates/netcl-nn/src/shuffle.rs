//! Channels exchanged for places, and places for channels: the layouts of sub-pixel convolution.

use netcl_autograd::ops::shuffle::{pixel_shuffle, pixel_unshuffle};
use netcl_autograd::{Error, Result, Tensor};

use crate::Module;
use crate::settings::Settings;

/// `[..., C * r * r, H, W]` to `[..., C, H * r, W * r]`: each group of `r * r` channels becomes a block of pixels.
///
/// ```
/// use netcl_nn::autograd::{Tensor, manager};
/// use netcl_nn::{Module, PixelShuffle, PixelUnshuffle};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32, 2.0, 3.0, 4.0], [4, 1, 1])?;
/// let y = PixelShuffle::new(2).forward(&x)?;
/// assert_eq!(y.shape()[..], [1, 2, 2]);
/// assert_eq!(PixelUnshuffle::new(2).forward(&y)?.to_host::<f32>()?, x.to_host::<f32>()?);
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
#[derive(Clone, Copy, Module, Settings)]
#[module(settings)]
pub struct PixelShuffle {
    /// The height and width of a block.
    #[setting(least = 1)]
    pub upscale_factor: usize,
}

impl PixelShuffle {
    /// The result for an input.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || {
            let r = self.upscale_factor;
            match (&input.shape()[..], r.checked_mul(r)) {
                (&[.., channels, _, _], Some(block)) if block > 0 && channels.is_multiple_of(block) => {
                    pixel_shuffle(input, r)
                }
                _ => Err(Error::input(
                    format!("PixelShuffle({r})"),
                    format!("(..., C * {r} * {r}, H, W)"),
                    input.shape(),
                )),
            }
        })
    }
}

/// `[..., C, H * r, W * r]` to `[..., C * r * r, H, W]`: undoes [`PixelShuffle`].
#[derive(Clone, Copy, Module, Settings)]
#[module(settings)]
pub struct PixelUnshuffle {
    /// The height and width of a block.
    #[setting(least = 1)]
    pub downscale_factor: usize,
}

impl PixelUnshuffle {
    /// The result for an input.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || {
            let r = self.downscale_factor;
            match input.shape()[..] {
                [.., _, height, width] if r > 0 && height.is_multiple_of(r) && width.is_multiple_of(r) => {
                    pixel_unshuffle(input, r)
                }
                _ => Err(Error::input(
                    format!("PixelUnshuffle({r})"),
                    format!("(..., C, H * {r}, W * {r})"),
                    input.shape(),
                )),
            }
        })
    }
}
