//! Models and checkpoints in files.
//!
//! A `.netcl` file is an NPZ archive: `np.load(path, allow_pickle=False)` opens it, and each tensor is an array under its
//! dotted name. One entry more, [`archive::METADATA`], is text: JSON that says what the file is.
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
pub mod atomic;
pub mod checkpoint;
mod directory;
pub mod error;
pub mod model;
pub mod npy;
pub mod reader;
pub mod rotation;

pub use archive::Archive;
pub use atomic::{remove_leftovers, write_atomically};
pub use checkpoint::Checkpoint;
pub use error::{Error, Result};
pub use model::{load_weights, save_model};
pub use npy::Array;
pub use reader::Reader;
pub use rotation::{Rotation, newest, write_rotating};
