//! Joining axes.

use netcl_autograd::ops::layout::flatten;
use netcl_autograd::{Result, Tensor};

use crate::Module;
use crate::settings::Settings;

/// Joins the axes from `start` to `end`, both included, into one; all but the first unless told otherwise.
///
/// ```
/// use netcl_nn::autograd::{Tensor, manager};
/// use netcl_nn::{Flatten, Module};
///
/// let images = Tensor::from_host(&manager().cpu().queue, &[0.0f32; 24], [2, 3, 2, 2])?;
/// assert_eq!(Flatten::default().forward(&images)?.shape()[..], [2, 12]);
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
#[derive(Clone, Copy, Module, Settings)]
#[module(settings)]
pub struct Flatten {
    /// The first axis to join.
    #[setting(default = 1, name = "start_dim")]
    pub start: isize,
    /// The last axis to join.
    #[setting(default = -1, name = "end_dim")]
    pub end: isize,
}

impl Flatten {
    /// The result for an input.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        flatten(input, self.start, self.end)
    }
}
