//! The differentiable tensor, the tape, gradient rules and the JIT compiler.
//!
//! [`Tensor`] wraps the core's raw tensor and is what users hold, in Rust and in Python. What layers and models need of the
//! core (queues, dtypes, shapes, random generators) has its name here; the rest of the core stays below.
//!
//! ```
//! use netcl_autograd::{Tensor, manager, ops::{elementwise::mul, reduce::sum}};
//!
//! let queue = manager().cpu().queue;
//! let x = Tensor::from_host(&queue, &[1.0f32, 2.0, 3.0], [3])?.with_grad();
//! sum(&mul(&x, &x)?, (), false)?.backward()?;
//! assert_eq!(x.grad().unwrap().to_host::<f32>()?, [2.0, 4.0, 6.0]);
//! # Ok::<(), netcl_autograd::Error>(())
//! ```

pub mod autocast;
mod capture;
mod checkpoint;
pub mod constants;
pub mod error;
pub mod factories;
pub mod function;
pub mod gradcheck;
pub mod graph;
pub mod host;
pub mod in_place;
pub mod jit;
mod methods;
/// Which module runs, for whoever observes launches: what layers need of it.
pub mod observe {
    pub use netcl_core::observe::{Command, Observer, Scope, enter, module, observe, wants_places};
}

pub mod ops;
pub mod tensor;
pub mod trace;

pub use netcl_core::backend::Queue;
pub use netcl_core::device::{AsDevice, DeviceHandle, manager};
pub use netcl_core::dtype::DType;
pub use netcl_core::index::IndexTensor;
pub use netcl_core::random::{Generator, default_generator, manual_seed, set_default_generator};
pub use netcl_core::shape::{Shape, Slice};
pub use netcl_core::tensor::{HostOptions, Tensor as RawTensor};
pub use netcl_core::{Error as CoreError, ErrorKind};
pub use netcl_runtime::capture::capture;

pub use checkpoint::checkpoint;
pub use error::{Error, Result};
pub use function::{Function, call};
pub use graph::{BackwardOptions, Tape, backward, detect_anomaly, enable_grad, grad, no_grad};
pub use jit::{Jit, JitOptions, jit};
pub use ops::layout::reshape;
pub use tensor::Tensor;
