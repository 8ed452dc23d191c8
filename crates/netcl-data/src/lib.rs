//! Data on the host: data sets, batches and images from files. Nothing here knows a device.
//!
//! ```
//! use netcl_data::{Batches, ImageSplits, Normalization};
//!
//! let digits = ImageSplits::digits()?;
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

pub mod array;
pub mod augment;
pub mod batches;
pub mod catalog;
pub mod cifar;
pub mod dataset;
pub mod decode;
pub mod digits;
pub mod error;
mod file;
pub mod filters;
pub mod folder;
pub mod idx;
pub mod images;
pub mod loader;
pub mod npy;
pub mod picture;
pub mod random;
pub mod resize;
pub mod sample;
pub mod sampler;
pub mod table;
pub mod text;
pub mod transforms;

pub use array::{Array, DType, Element, Elements};
pub use augment::Augment;
pub use batches::{Batch, Batches, Normalization};
pub use dataset::{Concat, Dataset, ListDataset, Rows, SplitSizes, Subset, TensorDataset, random_split};
pub use error::{Error, Result};
pub use folder::ImageFolder;
pub use images::{ImageSet, ImageSplits};
pub use loader::{DataLoader, Epoch, IterableDataset, LoaderBuilder, LoaderState, LoaderStats};
pub use npy::{NpyArray, NpzFile};
pub use picture::Picture;
pub use random::Random;
pub use resize::Resize;
pub use sample::Sample;
pub use sampler::{
    BatchSampler, DistributedSampler, FixedBatches, LengthBatches, RandomSampler, Sampler, SequentialSampler, Uneven,
    WeightedSampler,
};
pub use table::{Column, CsvOptions, Table};
pub use text::{CharTokenizer, TokenWindows};
