//! A figure that is gathered over batches on the device.

use netcl_distributed::Group;
use netcl_nn::autograd::Tensor;
use netcl_nn::autograd::ops::loss::Target;

use super::ranks;
use crate::error::Result;

/// A figure over all samples since [`Metric::reset`]: `update` only puts work on the device, `compute` waits and reads.
///
/// Sums and counts are kept, never means of means, so that an uneven last batch counts by its samples.
pub trait Metric: Send {
    /// The key in results: `accuracy`.
    fn name(&self) -> String;

    /// Adds a batch. Nothing is read back.
    ///
    /// # Errors
    /// For shapes that do not fit, and what the device says.
    fn update(&mut self, predictions: &Tensor, target: Target<'_>) -> Result<()>;

    /// The figure. This waits for the device.
    ///
    /// # Errors
    /// Before the first batch, and what the device says.
    fn compute(&self) -> Result<f64>;

    /// Starts over, in the memory that is there.
    ///
    /// # Errors
    /// What the device says.
    fn reset(&mut self) -> Result<()>;

    /// Whether `update` always does the same launches on the same memory once it has seen a batch, so that it may be a part of a
    /// captured step. A metric that keeps every batch answers `false`.
    fn can_capture(&self) -> bool {
        true
    }

    /// What is added over ranks before [`Metric::compute`]: writing the sums of all ranks into these tensors gives the figure of
    /// all samples. Empty where it cannot be had so.
    fn sums(&self) -> Vec<Tensor>;

    /// Takes in what the other ranks have gathered; all ranks call it. `false` where that cannot be had: the figure of a run is then
    /// the mean of its ranks' figures.
    ///
    /// # Errors
    /// If a rank is lost, and what the device says.
    fn merge(&mut self, group: &Group) -> Result<bool> {
        ranks::add_sums(&self.name(), &self.sums(), group)
    }

    /// Another one with the same settings that has seen nothing: training and validation count apart.
    ///
    /// # Errors
    /// What a metric that is written in Python raises.
    fn fresh(&self) -> Result<Box<dyn Metric>>;
}
