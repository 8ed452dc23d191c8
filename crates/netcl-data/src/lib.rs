//! Data on the host: data sets, batches and images from files. Nothing here knows a device.
//!
//! ```
//! use netcl_data::{Batches, Dataset, Normalization};
//!
//! let digits = Dataset::digits()?;
//! assert_eq!((digits.train.len(), digits.test.len()), (1437, 360));
//!
//! let normalization = Normalization::of(&digits.train);
//! let mut images = 0;
//! for batch in Batches::new(&digits.train, 64).normalized(normalization).shuffled(42, 0) {
//!     assert_eq!(batch.pixels.len(), batch.len() * 64); // float32, ready for a tensor of shape [len, 1, 8, 8]
//!     images += batch.len();
//! }
//! assert_eq!(images, digits.train.len()); // the last batch is smaller
//! # Ok::<(), netcl_data::Error>(())
//! ```
//!
//! [`digits`] says who made the digits that come with this crate, and under which licence.

pub mod augment;
pub mod batches;
pub mod catalog;
pub mod dataset;
pub mod digits;
pub mod error;
pub mod idx;
pub mod picture;
pub mod random;

pub use augment::Augment;
pub use batches::{Batch, Batches, Normalization};
pub use dataset::{Dataset, ImageSet};
pub use error::{Error, Result};
pub use picture::Picture;
pub use random::Random;
