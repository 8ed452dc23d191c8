//! Joining and splitting axes.

use netcl_autograd::ops::layout::{flatten, reshape};
use netcl_autograd::{Error, Result, Tensor};

use crate::Module;
use crate::settings::{Setting, Settings};

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
        crate::scope::run(self, || flatten(input, self.start, self.end))
    }
}

/// Splits an axis into several; one of their lengths may be -1, which is what is left.
///
/// ```
/// use netcl_nn::autograd::{Tensor, manager};
/// use netcl_nn::{Module, Unflatten};
///
/// let rows = Tensor::from_host(&manager().cpu().queue, &[0.0f32; 24], [2, 12])?;
/// assert_eq!(Unflatten::new(1, [3, 2, -1]).forward(&rows)?.shape()[..], [2, 3, 2, 2]);
/// # Ok::<(), netcl_nn::autograd::Error>(())
/// ```
#[derive(Clone, Module, Settings)]
#[module(settings)]
pub struct Unflatten {
    /// The axis.
    pub dim: isize,
    /// The lengths that it is split into.
    pub unflattened_size: Vec<isize>,
}

impl Unflatten {
    /// The result for an input.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        crate::scope::run(self, || {
            let shape = &input.shape()[..];
            let from_start = if self.dim < 0 { self.dim + shape.len() as isize } else { self.dim };
            let Some((axis, &length)) =
                usize::try_from(from_start).ok().and_then(|axis| Some((axis, shape.get(axis)?)))
            else {
                let what = format!("the input of shape {} has no axis {}", input.shape(), self.dim);
                return Err(Error::argument("Unflatten", what));
            };
            let mut known = self.unflattened_size.iter().filter(|&&length| length != -1);
            let known = known.try_fold(1usize, |all, &length| all.checked_mul(usize::try_from(length).ok()?));
            let free = self.unflattened_size.iter().filter(|&&length| length == -1).count();
            let left = match (known, free) {
                (Some(known), 0) if known == length => 1,
                (Some(known), 1) if known > 0 && length.is_multiple_of(known) => length / known,
                _ => {
                    let into = self.unflattened_size.write();
                    let what = format!("an axis of length {length} cannot be split into {into}");
                    return Err(Error::argument("Unflatten", what));
                }
            };
            let lengths = self.unflattened_size.iter().map(|&length| usize::try_from(length).unwrap_or(left));
            reshape(
                input,
                shape[..axis]
                    .iter()
                    .copied()
                    .chain(lengths)
                    .chain(shape[axis + 1..].iter().copied())
                    .collect::<Vec<_>>(),
            )
        })
    }
}
