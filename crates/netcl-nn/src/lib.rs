//! Modules, layers and models, built on autograd alone.
//!
//! ```
//! use netcl_nn::autograd::{Tape, Tensor, core::device::manager};
//! use netcl_nn::{Linear, Module, ReLU, functional as F, sequential};
//!
//! let queue = manager().cpu().queue;
//! let model = sequential![Linear::new(&queue, 2, 32)?, ReLU, Linear::new(&queue, 32, 2)?];
//! let x = Tensor::from_host(&queue, &[0.5f32, -1.0, 2.0, 0.0], [2, 2])?;
//!
//! let tape = Tape::new();
//! let loss = F::cross_entropy(&model.forward(&x)?, &[0, 1], &F::CrossEntropyOptions::default())?;
//! tape.backward(&loss)?;
//! assert!(model.parameters().iter().all(|parameter| parameter.grad().is_some()));
//! # Ok::<(), netcl_nn::autograd::Error>(())
//! ```

// So that what the derive macro writes resolves in this crate as well.
extern crate self as netcl_nn;

pub mod activation;
pub mod config;
pub mod flatten;
pub mod functional;
pub mod hooks;
pub mod init;
pub mod lambda;
pub mod linear;
mod members;
pub mod module;
pub mod module_list;
mod print;
pub mod residual;
pub mod sequential;
pub mod state;
mod walk;

pub use netcl_autograd as autograd;
/// The macro that makes a struct a module; [`trait@Module`] documents it.
pub use netcl_derive::Module;

pub use activation::*;
pub use config::{Build, Configured, LayerConfig, build_layer, build_sequential, layer_config, register_layer};
pub use flatten::Flatten;
pub use hooks::{ForwardHook, Hooked};
pub use init::Init;
pub use lambda::Lambda;
pub use linear::{Linear, LinearOptions};
pub use module::{Member, MemberMut, Module, Summary};
pub use module_list::ModuleList;
pub use residual::Residual;
pub use sequential::Sequential;
pub use state::{LoadReport, StateDict, StateMismatch, Strict};
