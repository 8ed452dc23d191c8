//! netcl: deep learning on any OpenCL device. The facade that Rust users depend on.
//!
//! The modules mirror the documentation: `netcl.core.tensor` is [`core::tensor`], `netcl.nn` is [`nn`], and so on.
//! [`prelude`] holds what most programs start with.
//!
//! ```
//! use netcl::prelude::*;
//!
//! let x = Tensor::new("auto", [[1.0, 2.0], [3.0, 4.0]])?.with_grad(); // on a GPU or accelerator, else the native CPU
//! let y = (x.matmul(&x)? - 2.0 * &x)?.relu()?;
//! y.sum((), false)?.backward()?;
//! assert_eq!(y.to_host::<f32>()?, [5.0, 6.0, 9.0, 14.0]);
//! assert!(x.grad().is_some());
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
/// The operations as functions of a [`Tensor`], which record where a gradient is wanted; also [`nn::functional`].
#[doc(inline)]
pub use netcl_nn::functional as ops;
pub use netcl_onnx as onnx;
/// Forward-only operations on raw tensors ([`core::tensor::Tensor`]), for kernel writers: nothing is recorded, and nothing can say so
/// later. Everybody else uses [`ops`].
pub use netcl_ops as raw_ops;
pub use netcl_optim as optim;
pub use netcl_profiling as profiling;
pub use netcl_runtime as runtime;
pub use netcl_trainer as trainer;

pub use netcl_autograd::{Error, Result, Tensor, manual_seed, reshape};
pub use netcl_core::ErrorKind;
pub use netcl_core::backend::opencl::compiler::compile_in_processes;
pub use netcl_core::device::{AsDevice, device, manager};
pub use netcl_core::dtype::DType;

/// Modules, layers and models.
pub mod nn {
    // This derive writes paths that crates with no more than the facade can resolve; it hides the one of netcl-nn.
    pub use netcl_derive::{FacadeModule as Module, FacadeSettings as Settings};
    #[doc(inline)]
    pub use netcl_nn::*;
}

/// What most programs start with.
pub mod prelude {
    pub use crate::nn::{
        BatchNorm2d, Conv2d, Dropout, Embedding, Flatten, LayerNorm, Linear, MaxPool2d, Module, ReLU, Sequential,
        functional as F, sequential,
    };
    pub use netcl_augment::on_device;
    pub use netcl_autograd::{Tape, Tensor, enable_grad, manual_seed, no_grad, reshape};
    pub use netcl_core::backend::Queue;
    pub use netcl_core::device::{DeviceHandle, device, get_active_device, manager};
    pub use netcl_core::dtype::DType;
    pub use netcl_core::index::IndexTensor;
    pub use netcl_core::shape::Shape;
    pub use netcl_core::tensor::HostOptions;
    pub use netcl_data::{DataLoader, ImageSplits};
    pub use netcl_optim::{Adam, AdamW, Optimizer, SGD, SgdOptions};
}
