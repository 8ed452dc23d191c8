//! Models from ONNX files as modules, and modules as ONNX files: they run on any device, op by op, compiled and captured, and train where their operators
//! have gradients.
//!
//! ```no_run
//! use netcl_nn::Module;
//! use netcl_nn::autograd::{Tensor, manager};
//!
//! let queue = manager().cpu().queue;
//! let model = netcl_onnx::load("model.onnx", &queue)?;
//! let y = model.forward(&Tensor::zeros(&queue, [1, 3, 224, 224])?)?;
//! # Ok::<(), netcl_nn::autograd::Error>(())
//! ```
//!
//! | file | subject |
//! |---|---|
//! | `wire.rs`, `proto.rs` | protobuf within limits; the parts of the format that are read |
//! | `tensors.rs`, `graph.rs` | stored tensors, external data; nodes, functions, checks |
//! | `module.rs`, `fold.rs` | the module; what is computed once, at load time |
//! | `kind.rs`, `array.rs`, `value.rs` | element types; arrays on the host; what flows along edges |
//! | `run.rs`, `ops/` | running nodes; the operators by family |
//! | `export/` | modules of any kind as files |

mod array;
mod error;
mod export;
mod fold;
mod graph;
mod kind;
mod module;
mod ops;
pub mod proto;
mod run;
mod tensors;
mod value;
pub mod wire;

pub use array::{Array, Data};
pub use error::{Error, Result};
pub use export::{DynamicAxis, SaveOptions, save, save_with};
pub use graph::Port;
pub use kind::Kind;
pub use module::{OnnxModule, Report, inspect, load, read};
pub use value::Value;

/// Every operator that can run, with the domain where that is not ONNX's own.
pub fn operators() -> Vec<&'static str> {
    ops::names()
}

/// A stored tensor as an array.
///
/// # Errors
/// If its type is not supported, or its data do not fit its shape.
pub fn tensor(stored: &proto::Tensor) -> std::result::Result<Array, String> {
    tensors::read(stored, &tensors::Beside::new(None))
}
