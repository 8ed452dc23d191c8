//! Batches on a device: uploads ahead of the step, and random changes of images that are there already.
//!
//! Transforms are those of [`netcl_data::transforms`]: what happens to an image is drawn on the host, as steps without any chance
//! left, and one launch applies the steps of all images. Steps mean the same here as there, so a run may move its augmentation
//! from the loader's threads to the device and back.
//!
//! ```
//! use netcl_augment::Augment;
//! use netcl_core::{device::manager, tensor::Tensor};
//! use netcl_data::transforms::{Border, Compose, Transform};
//!
//! let augment = Augment::new(
//!     Compose::new(vec![
//!         Transform::Crop { size: [32, 32], padding: 4, border: Border::Reflect },
//!         Transform::HorizontalFlip { probability: 0.5 },
//!         Transform::Normalize { mean: vec![0.5; 3], deviation: vec![0.25; 3] },
//!     ])?,
//!     42,
//! );
//! let queue = manager().cpu().queue;
//! let images = Tensor::from_host(&queue, &vec![255u8; 8 * 3 * 32 * 32], [8, 3, 32, 32])?;
//! let changed = augment.apply(&images, 0, &[0, 1, 2, 3, 4, 5, 6, 7])?;
//! assert_eq!(changed.to_host::<f32>()?[0], 2.0);
//! # Ok::<(), netcl_augment::Error>(())
//! ```

pub mod ahead;
pub mod batch;
pub mod error;
pub mod mix;
pub mod upload;

pub use ahead::{OnDevice, on_device};
pub use batch::{Augment, apply_steps};
pub use error::{Error, Result};
pub use mix::mix;
pub use upload::{Uploaded, Uploader, arrived};
