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

pub mod activation;
pub mod batch_norm;
pub mod conv;
pub mod dropout;
pub mod flatten;
pub mod functional;
pub mod fuse;
pub mod init;
pub mod linear;
pub mod models;
pub mod module;
pub mod pool;
pub mod sequential;
mod size;

pub use netcl_autograd as autograd;

pub use activation::*;
pub use batch_norm::{BatchNorm, BatchNorm1d, BatchNorm2d, BatchNormOptions};
pub use conv::{Conv1d, Conv1dOptions, Conv2d, Conv2dOptions, ConvTranspose2d, ConvTranspose2dOptions};
pub use dropout::{Dropout, Dropout2d};
pub use flatten::Flatten;
pub use fuse::fuse_conv_bn;
pub use init::Init;
pub use linear::{Linear, LinearOptions};
pub use models::resnet::{Depth, ResNet, ResNetOptions, Stem};
pub use module::{Member, MemberMut, Module};
pub use pool::{AdaptiveAvgPool2d, AdaptiveMaxPool2d, AvgPool1d, AvgPool2d, MaxPool1d, MaxPool2d};
pub use sequential::Sequential;
pub use size::Size;
