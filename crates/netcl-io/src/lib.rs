//! Models and checkpoints in files.
//!
//! A `.netcl` file is an NPZ archive: `np.load(path, allow_pickle=False)` opens it, and each tensor is an array under its
//! dotted name. One entry more, [`archive::METADATA`], is text: JSON that says what the file is.
//!
//! Beside it plain NPZ archives, safetensors, safetensors in shards and PyTorch files are read ([`open`]) and written ([`write()`]),
//! one tensor at a time. [`Tensors`] is what files and arrays in memory have in common.
//!
//! ```
//! use netcl_nn::{Linear, Module, ReLU, autograd::manager, sequential};
//! use netcl_io::{Archive, load_weights, save_model};
//!
//! let folder = std::env::temp_dir().join(format!("netcl-io-{}", std::process::id()));
//! let path = folder.join("model.netcl");
//! let queue = manager().cpu().queue;
//! let model = sequential![Linear::new(&queue, 2, 8)?, ReLU, Linear::new(&queue, 8, 1)?];
//! save_model(&path, &model, Default::default())?;
//!
//! let mut other = sequential![Linear::new(&queue, 2, 8)?, ReLU, Linear::new(&queue, 8, 1)?];
//! load_weights(&path, &mut other)?;
//! assert_eq!(other.parameters()[0].to_host::<f32>()?, model.parameters()[0].to_host::<f32>()?);
//! assert_eq!(Archive::read(&path)?.names().next(), Some("0.weight"));
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod archive;
pub mod array;
pub mod atomic;
mod bytes;
pub mod checkpoint;
mod directory;
mod element;
pub mod error;
mod members;
pub mod model;
pub mod npy;
mod npz;
mod published;
mod rename;
pub mod rotation;
mod safetensors;
mod shards;
mod stats;
pub mod tensor_file;
mod tensors;
mod torch;
mod writer;

pub use archive::Archive;
pub use array::Array;
pub use atomic::{remove_leftovers, write_atomically};
pub use bytes::Bytes;
pub use checkpoint::Checkpoint;
pub use element::Element;
pub use error::{Error, Result};
pub use model::{LoadOptions, Loaded, load_model, load_weights, load_weights_with, save_model};
pub use rename::{Rename, Renamed};
pub use rotation::{Rotation, newest, write_rotating};
pub use shards::MAX_SHARD_SIZE;
pub use stats::Stats;
pub use tensor_file::{Kind, TensorFile, open};
pub use tensors::{Info, Tensors};
pub use writer::{WriteOptions, write};
