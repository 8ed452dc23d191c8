//! The differentiable tensor, the tape, gradient rules and the JIT compiler.
//!
//! [`Tensor`] wraps the core's raw tensor and is what users hold, in Rust and in Python. The core's names are re-exported
//! so that the layers above need only this crate.

pub mod tensor;

pub use netcl_core as core;
pub use tensor::{Tensor, reshape};
