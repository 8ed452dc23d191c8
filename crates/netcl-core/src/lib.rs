//! Devices, tensors, memory, backends and kernels: the layer that talks to OpenCL and to the native CPU.
//!
//! Nothing here knows what a gradient is. File names follow the documentation: `netcl.core.device` is [`device`],
//! `netcl.core.memory` is [`memory`], and so on.

pub mod backend;
pub mod capabilities;
pub mod conv;
pub mod debug;
pub mod device;
pub mod device_profile;
pub mod dtype;
pub mod env;
pub mod error;
pub mod host;
pub mod index;
pub mod kernel_selector;
pub mod kernels;
pub mod memory;
pub mod observe;
pub mod precision;
pub mod quirks;
pub mod random;
pub mod shape;
pub mod storage;
pub mod tensor;
pub mod tuner;

pub use half;

pub use error::{Error, ErrorKind, Result};
