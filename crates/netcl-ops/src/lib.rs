//! Forward-only operations on tensors; nothing in this crate knows what a gradient is.
//!
//! Elementwise operations come from one table ([`core::kernels::expr::table`]); a heavy operation is one folder with its
//! checks and shape rule (`mod.rs`), native code (`cpu.rs`), launch code (`opencl.rs`) and kernel (`.cl`).
//!
//! ```
//! use netcl_ops::core::{device::manager, tensor::Tensor};
//!
//! let queue = manager().cpu().queue;
//! let x = Tensor::from_host(&queue, &[-1.0f32, 0.0, 2.0], [3])?;
//! let y = netcl_ops::relu(&netcl_ops::mul(&x, 3.0)?)?;
//! assert_eq!(y.to_host::<f32>()?, [0.0, 0.0, 6.0]);
//! # Ok::<(), netcl_ops::core::Error>(())
//! ```

pub mod elementwise;
pub mod layout;
mod lines;
mod lines_opencl;
pub mod matmul;
pub mod pick;
pub mod random;
pub mod reduce;
pub mod scan;
pub mod softmax;

pub use netcl_core as core;

pub use elementwise::*;
pub use layout::*;
pub use matmul::{bias_add, build_matmul_kernel, linear, matmul, matmul_with};
pub use pick::{pick, unpick};
pub use reduce::{Axes, all, any, argmax, argmin, logsumexp, max, mean, min, norm, prod, std, sum, var};
pub use scan::cumsum;
pub use softmax::{log_softmax, softmax};
