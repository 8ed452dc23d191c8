//! Patches of images as columns, and images from such columns.

use netcl_autograd::ops::unfold::{Patches, fold, unfold};
use netcl_autograd::{Result, Tensor};

use crate::Module;
use crate::settings::Settings;
use crate::size::Size;

/// The patches of images `[N, C, H, W]` as columns `[N, C * kernel height * kernel width, patches]`.
///
/// ```
/// use netcl_nn::autograd::{Tensor, manager};
/// use netcl_nn::{Fold, Module, Unfold};
///
/// let x = Tensor::from_host(&manager().cpu().queue, &[0.5f32; 32], [1, 2, 4, 4])?;
/// let columns = Unfold { stride: 2.into(), ..Unfold::new(2) }.forward(&x)?;
/// assert_eq!(columns.shape()[..], [1, 8, 4]);
/// let back = Fold { stride: 2.into(), ..Fold::new(4, 2) }.forward(&columns)?;
/// assert_eq!(back.to_host::<f32>()?, x.to_host::<f32>()?);
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
#[derive(Clone, Copy, Module, Settings)]
#[module(settings)]
pub struct Unfold {
    /// The lengths of a patch.
    #[setting(least = 1)]
    pub kernel_size: Size<2>,
    /// The distances between the elements of a patch.
    #[setting(default = Size::All(1), least = 1)]
    pub dilation: Size<2>,
    /// Zeros on both sides.
    #[setting(default = Size::All(0))]
    pub padding: Size<2>,
    /// The distances between patches.
    #[setting(default = Size::All(1), least = 1)]
    pub stride: Size<2>,
}

impl Unfold {
    /// The result for an input.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let patches = patches(self.kernel_size, self.dilation, self.padding, self.stride);
        crate::scope::run(self, || unfold(input, &patches))
    }
}

/// Images `[N, C, H, W]` from columns `[N, C * kernel height * kernel width, patches]`: patches are added up where they overlap.
#[derive(Clone, Copy, Module, Settings)]
#[module(settings)]
pub struct Fold {
    /// Height and width of the images.
    #[setting(least = 1)]
    pub output_size: Size<2>,
    /// The lengths of a patch.
    #[setting(least = 1)]
    pub kernel_size: Size<2>,
    /// The distances between the elements of a patch.
    #[setting(default = Size::All(1), least = 1)]
    pub dilation: Size<2>,
    /// Zeros that were on both sides.
    #[setting(default = Size::All(0))]
    pub padding: Size<2>,
    /// The distances between patches.
    #[setting(default = Size::All(1), least = 1)]
    pub stride: Size<2>,
}

impl Fold {
    /// The result for an input.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let patches = patches(self.kernel_size, self.dilation, self.padding, self.stride);
        crate::scope::run(self, || fold(input, self.output_size.axes(), &patches))
    }
}

fn patches(kernel_size: Size<2>, dilation: Size<2>, padding: Size<2>, stride: Size<2>) -> Patches {
    Patches {
        kernel_size: kernel_size.axes(),
        dilation: dilation.axes(),
        padding: padding.axes(),
        stride: stride.axes(),
    }
}
