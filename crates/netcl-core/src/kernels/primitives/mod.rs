//! Kernels of one's own: from a string to a launch that profiling and capture see like any other.
//!
//! | file | subject |
//! |---|---|
//! | `spec` | [`KernelSpec`]: a kernel's source, declared |
//! | `program` | [`KernelProgram`]: the built spec; checks and launches |
//! | `native` | kernels on the native CPU's memory, through an OpenCL driver for CPUs |
//! | `signature`, `argument` | what a kernel's parameters are, and values made to fit them |
//! | `builder` | [`PrimitiveBuilder`]: elementwise kernels from expressions |
//!
//! ```
//! use netcl_core::{device::manager, kernels::primitives::{KernelArg, KernelSpec}, tensor::Tensor};
//!
//! let spec = KernelSpec::from_source(
//!     "scale_by_two",
//!     "__kernel void scale_by_two(__global float* x) { x[get_global_id(0)] *= 2.0f; }",
//! )?;
//! if let Some(device) = manager().default("opencl")? {
//!     let x = Tensor::from_host(&device.queue, &[1.0f32, 2.0, 3.0], [3])?;
//!     spec.build(&device.queue)?.run(&device.queue, &[3], None, &[KernelArg::from(&x)])?;
//!     assert_eq!(x.to_host::<f32>()?, [2.0, 4.0, 6.0]);
//! }
//! # Ok::<(), netcl_core::Error>(())
//! ```

mod argument;
mod builder;
mod native;
mod program;
mod signature;
mod spec;

pub use argument::KernelArg;
pub use builder::{PrimitiveBuilder, build_elementwise_kernel};
pub use native::kernel_stream;
pub use program::{KernelFunction, KernelProgram, Tuned};
pub use signature::{ElementType, Parameter, ParameterKind, ScalarType};
pub use spec::{KernelSpec, PRIMITIVE_PREAMBLE};

pub use super::work_group::WorkGroupTuner;
