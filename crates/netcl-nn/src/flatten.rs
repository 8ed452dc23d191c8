//! Joining axes.

use netcl_autograd::ops::layout::flatten;
use netcl_autograd::{Result, Tensor};

use crate::module::{Module, print_as_module};

/// Joins the axes from `start` to `end`, both included, into one; all but the first unless told otherwise.
///
/// ```
/// use netcl_nn::autograd::{Tensor, core::device::manager};
/// use netcl_nn::{Flatten, Module};
///
/// let images = Tensor::from_host(&manager().cpu().queue, &[0.0f32; 24], [2, 3, 2, 2])?;
/// assert_eq!(Flatten::default().forward(&images)?.shape()[..], [2, 12]);
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct Flatten {
    /// The first axis to join.
    pub start: isize,
    /// The last axis to join.
    pub end: isize,
}

impl Default for Flatten {
    fn default() -> Self {
        Flatten { start: 1, end: -1 }
    }
}

impl Module for Flatten {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        flatten(input, self.start, self.end)
    }

    fn arguments(&self) -> String {
        format!("start_dim={}, end_dim={}", self.start, self.end)
    }
}

print_as_module!(Flatten);
