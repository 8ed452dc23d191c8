//! Data-parallel training: every device or rank computes the gradients of its part of a batch, and all apply their sum.

pub mod gradients;
pub mod overlap;

pub use overlap::OverlappedSync;
