//! Images in another size.

use netcl_autograd::ops::resample::{upsample_bilinear, upsample_nearest};
use netcl_autograd::{Result, Tensor};

pub use netcl_autograd::ops::resample::Resize;

use crate::module::{Module, print_as_module};
use crate::size::tuple;

/// Images `[N, C, H, W]` in another size.
///
/// ```
/// use netcl_nn::autograd::{Tensor, manager};
/// use netcl_nn::{Module, Upsample};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32, 2.0], [1, 1, 1, 2])?;
/// assert_eq!(Upsample::nearest(2.0).forward(&x)?.to_host::<f32>()?, [1.0, 1.0, 2.0, 2.0, 1.0, 1.0, 2.0, 2.0]);
/// assert_eq!(Upsample::bilinear([1, 3], true).forward(&x)?.to_host::<f32>()?, [1.0, 1.5, 2.0]);
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct Upsample {
    /// The height and width, or factors.
    pub to: Resize,
    /// Where pixels take their values from.
    pub mode: UpsampleMode,
}

/// Where the pixels of an [`Upsample`] take their values from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpsampleMode {
    /// The nearest pixel.
    Nearest,
    /// The four neighbours.
    Bilinear {
        /// Whether the corners keep their values, rather than the edges their places.
        align_corners: bool,
    },
}

impl Upsample {
    /// Repeats pixels: to a `[height, width]`, or by a factor.
    pub fn nearest(to: impl Into<Resize>) -> Upsample {
        Upsample { to: to.into(), mode: UpsampleMode::Nearest }
    }

    /// Interpolates between pixels: to a `[height, width]`, or by a factor.
    pub fn bilinear(to: impl Into<Resize>, align_corners: bool) -> Upsample {
        Upsample { to: to.into(), mode: UpsampleMode::Bilinear { align_corners } }
    }
}

impl Module for Upsample {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        match self.mode {
            UpsampleMode::Nearest => upsample_nearest(input, self.to),
            UpsampleMode::Bilinear { align_corners } => upsample_bilinear(input, self.to, align_corners),
        }
    }

    fn arguments(&self) -> String {
        let to = match self.to {
            Resize::Size(lengths) => format!("size={}", tuple(&lengths)),
            Resize::Scale([down, right]) => format!("scale_factor=({down}, {right})"),
        };
        match self.mode {
            UpsampleMode::Nearest => format!("{to}, mode=nearest"),
            UpsampleMode::Bilinear { align_corners } => format!("{to}, mode=bilinear, align_corners={align_corners}"),
        }
    }
}

print_as_module!(Upsample);
