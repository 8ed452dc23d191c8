//! Images and sequences in another size.

use netcl_autograd::ops::layout::{squeeze, unsqueeze};
pub use netcl_autograd::ops::resample::Resize;
use netcl_autograd::ops::resample::{upsample_area, upsample_bicubic, upsample_bilinear, upsample_nearest};
use netcl_autograd::{Error, Result, Tensor};

use crate::Module;
use crate::settings::{Setting, Settings};
use crate::size::Size;

crate::choices! {
    /// Where the elements of an [`Upsample`] take their values from.
    pub enum UpsampleMode {
        /// The nearest element.
        #[default]
        Nearest = "nearest",
        /// The two neighbours in a sequence.
        Linear = "linear",
        /// The four neighbours in an image.
        Bilinear = "bilinear",
        /// The sixteen neighbours in an image.
        Bicubic = "bicubic",
        /// The mean of what an element covers.
        Area = "area",
    }
}

/// Images `[N, C, H, W]` or sequences `[N, C, L]` in another size.
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
#[derive(Clone, Copy, Module, Settings)]
#[module(settings)]
#[settings(check = Upsample::check)]
pub struct Upsample {
    /// The lengths of the result: this, or the factors.
    #[setting(default = None, least = 1)]
    pub size: Option<Size<2>>,
    /// How many times as long the result is, rounded down.
    #[setting(default = None)]
    pub scale_factor: Option<Size<2, f64>>,
    /// Where elements take their values from.
    #[setting(default)]
    pub mode: UpsampleMode,
    /// Whether the corners keep their values, rather than the edges their places.
    #[setting(default = Some(false))]
    pub align_corners: Option<bool>,
}

impl Upsample {
    /// Repeats pixels: to a `[height, width]`, or by a factor.
    pub fn nearest(to: impl Into<Resize>) -> Upsample {
        let (size, scale_factor) = match to.into() {
            Resize::Size(lengths) => (Some(lengths.into()), None),
            Resize::Scale(factors) => (None, Some(factors.into())),
        };
        Upsample { size, scale_factor, ..Default::default() }
    }

    /// Interpolates between pixels: to a `[height, width]`, or by a factor.
    pub fn bilinear(to: impl Into<Resize>, align_corners: bool) -> Upsample {
        let align_corners = Some(align_corners);
        Upsample { mode: UpsampleMode::Bilinear, align_corners, ..Upsample::nearest(to) }
    }

    fn check(&self, layer: &'static str) -> Result<()> {
        let given = match (&self.size, &self.scale_factor) {
            (Some(_), Some(_)) => "both",
            (None, None) => "neither",
            _ if matches!(self.mode, UpsampleMode::Nearest | UpsampleMode::Area)
                && self.align_corners == Some(true) =>
            {
                return Err(Error::argument(layer, "align_corners is for mode='bilinear', 'bicubic' or 'linear' only"));
            }
            _ => return Ok(()),
        };
        Err(Error::argument(layer, format!("give either size or scale_factor, not {given}")))
    }

    /// Where to: sequences are images of one row.
    fn to(&self, axes: usize) -> Result<Resize> {
        match (self.size, self.scale_factor) {
            (Some(Size::All(length)), _) if axes == 1 => Ok(Resize::Size([1, length])),
            (None, Some(Size::All(factor))) if axes == 1 => Ok(Resize::Scale([1.0, factor])),
            (Some(size), _) if axes == 2 => Ok(Resize::Size(size.axes())),
            (None, Some(factor)) if axes == 2 => Ok(Resize::Scale(factor.axes())),
            (size, factor) => {
                let given = size.map_or_else(|| factor.write(), |size| size.write());
                Err(Error::argument("Upsample", format!("a sequence needs one number, not {given}")))
            }
        }
    }

    /// The result for an input.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || {
            let axes = match (input.ndim(), self.mode) {
                (3, UpsampleMode::Nearest | UpsampleMode::Area | UpsampleMode::Linear) => 1,
                (4, mode) if mode != UpsampleMode::Linear => 2,
                (_, mode) => {
                    let takes = match mode {
                        UpsampleMode::Nearest | UpsampleMode::Area => "(N, C, L) or (N, C, H, W)",
                        UpsampleMode::Linear => "(N, C, L)",
                        UpsampleMode::Bilinear | UpsampleMode::Bicubic => "(N, C, H, W)",
                    };
                    return Err(Error::input(format!("Upsample(mode='{}')", mode.name()), takes, input.shape()));
                }
            };
            let (to, corners) = (self.to(axes)?, self.align_corners.unwrap_or(false));
            let resample = |x: &Tensor| match self.mode {
                UpsampleMode::Nearest => upsample_nearest(x, to),
                UpsampleMode::Area => upsample_area(x, to),
                UpsampleMode::Bicubic => upsample_bicubic(x, to, corners),
                UpsampleMode::Linear | UpsampleMode::Bilinear => upsample_bilinear(x, to, corners),
            };
            if axes == 2 { resample(input) } else { squeeze(&resample(&unsqueeze(input, 2)?)?, &[2]) }
        })
    }
}
