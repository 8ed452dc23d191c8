//! The differentiable tensor, the tape, gradient rules and the JIT compiler.
//!
//! [`Tensor`] wraps the core's raw tensor and is what users hold, in Rust and in Python. The core's names are re-exported
//! so that the layers above need only this crate.
//!
//! ```
//! use netcl_autograd::{Tensor, core::device::manager, ops::{elementwise::mul, reduce::sum}};
//!
//! let queue = manager().cpu().queue;
//! let x = Tensor::from_host(&queue, &[1.0f32, 2.0, 3.0], [3])?.with_grad();
//! sum(&mul(&x, &x)?, (), false)?.backward()?;
//! assert_eq!(x.grad().unwrap().to_host::<f32>()?, [2.0, 4.0, 6.0]);
//! # Ok::<(), netcl_autograd::Error>(())
//! ```

mod capture;
mod checkpoint;
pub mod error;
pub mod function;
pub mod gradcheck;
pub mod graph;
pub mod in_place;
pub mod jit;
mod methods;
pub mod ops;
pub mod tensor;

pub use netcl_core as core;

pub use checkpoint::checkpoint;
pub use error::{Error, Result};
pub use function::{Function, call};
pub use graph::{BackwardOptions, Tape, backward, detect_anomaly, enable_grad, grad, no_grad};
pub use jit::{Jit, JitOptions, jit};
pub use ops::layout::reshape;
pub use tensor::Tensor;
