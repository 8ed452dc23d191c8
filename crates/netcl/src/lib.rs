//! netcl: deep learning on any OpenCL device. The facade that Rust users depend on.
//!
//! The modules mirror the documentation: `netcl.core.tensor` is [`core::tensor`], `netcl.nn` is [`nn`], and so on.
//! [`prelude`] holds what most programs start with.
//!
//! ```
//! use netcl::prelude::*;
//!
//! let q = manager().get("auto")?.queue;
//! let host: Vec<f32> = (0..12).map(|i| i as f32).collect();
//! let dev = Tensor::from_host(&q, &host, [3, 4])?;
//! let back = dev.to_host::<f32>()?;
//! assert_eq!(host, back);
//! # Ok::<(), netcl::Error>(())
//! ```

mod book;

pub use netcl_amp as amp;
pub use netcl_augment as augment;
pub use netcl_autograd as autograd;
pub use netcl_core as core;
pub use netcl_data as data;
pub use netcl_distributed as distributed;
pub use netcl_io as io;
/// Forward-only operations: they see the raw values of a [`Tensor`] and cannot know that it requires a gradient, so that nothing is
/// recorded and nothing can say so later. Use [`autograd::ops`] where a gradient is wanted.
pub use netcl_ops as ops;
pub use netcl_optim as optim;
pub use netcl_profiling as profiling;
pub use netcl_runtime as runtime;
pub use netcl_trainer as trainer;

pub use netcl_autograd::{Error, Result, Tensor, reshape};
pub use netcl_core::ErrorKind;

/// Modules, layers and models.
pub mod nn {
    // This derive writes paths that crates with no more than the facade can resolve; it hides the one of netcl-nn.
    pub use netcl_derive::{FacadeModule as Module, FacadeSettings as Settings};
    #[doc(inline)]
    pub use netcl_nn::*;
}

/// What most programs start with.
pub mod prelude {
    pub use crate::nn::{Linear, Module, ReLU, Sequential, functional as F, sequential};
    pub use netcl_autograd::{Tape, Tensor, enable_grad, no_grad, reshape};
    pub use netcl_core::backend::Queue;
    pub use netcl_core::device::{DeviceHandle, device, get_active_device, manager};
    pub use netcl_core::dtype::DType;
    pub use netcl_core::index::IndexTensor;
    pub use netcl_core::shape::Shape;
    pub use netcl_core::tensor::HostOptions;
    pub use netcl_optim::{Optimizer, SGD, SgdOptions};
}
