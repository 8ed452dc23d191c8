//! Data on the host: data sets, files, samplers, a loader with worker threads, transforms. Nothing here knows a device.
//!
//! A [`Dataset`] gives samples by number, a [`DataLoader`] makes batches of them ahead of the training loop:
//!
//! ```
//! use netcl_data::transforms::{Border, Compose, Transform};
//! use netcl_data::{DataLoader, ImageSplits, Sample};
//!
//! let digits = ImageSplits::digits()?;
//! let augment = Compose::new(vec![
//!     Transform::Crop { size: [8, 8], padding: 1, border: Border::Constant(0.0) },
//!     Transform::Normalize { mean: vec![0.3], deviation: vec![0.4] },
//! ])?;
//! let loader = DataLoader::of(digits.train)
//!     .batch_size(64)
//!     .shuffle(true)
//!     .seed(42)
//!     .workers(2)
//!     .transform(augment.on_field(0))
//!     .build()?;
//! for batch in loader.epoch(0)? {
//!     let batch = batch?;
//!     let images = batch.get(0).and_then(Sample::array).unwrap(); // float32 of shape [64, 1, 8, 8], the last one smaller
//!     assert_eq!(images.shape()[1..], [1, 8, 8]);
//! }
//! # Ok::<(), netcl_data::Error>(())
//! ```
//!
//! | to do this | see |
//! |---|---|
//! | describe samples | [`Sample`], [`Array`] |
//! | put data sets together | [`Subset`], [`Concat`], [`random_split`], [`TensorDataset`], [`IterableDataset`] |
//! | read files | [`Source`] (whatever it is), [`catalog`], [`ImageFolder`], [`Table`] (CSV), [`NpyArray`] and [`NpzFile`], [`text`], [`idx`], [`cifar`] |
//! | decide the order | [`sampler`] |
//! | load, resume, measure | [`DataLoader`], [`Epoch`], [`LoaderState`], [`LoaderStats`] |
//! | change images | [`transforms`], [`Normalization`] |
//! | convert and pad | [`filters`] |
//! | hand batches to another process | `shared_batch` (Linux) |
//!
//! Orders and random changes are functions of a seed, an epoch and a sample's number: the batches are the same whatever the number of
//! workers, and a run goes on in the middle of an epoch without any saved random state.
//!
//! [`digits`] says who made the digits that come with this crate, and under which licence.

pub mod array;
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
pub mod normalization;
pub mod npy;
pub mod picture;
pub mod random;
pub mod resize;
pub mod sample;
pub mod sampler;
#[cfg(target_os = "linux")]
pub mod shared_batch;
pub mod source;
pub mod table;
pub mod text;
pub mod transforms;

pub use array::{Array, DType, Element, Elements};
pub use dataset::{Concat, Dataset, ListDataset, Rows, SplitSizes, Subset, TensorDataset, random_split};
pub use error::{Error, Result};
pub use folder::ImageFolder;
pub use images::{ImageSet, ImageSplits};
pub use loader::{DataLoader, Epoch, IterableDataset, LoaderBuilder, LoaderState, LoaderStats};
pub use normalization::Normalization;
pub use npy::{NpyArray, NpzFile};
pub use picture::Picture;
pub use random::Random;
pub use resize::Resize;
pub use sample::Sample;
pub use sampler::{
    BatchSampler, DistributedSampler, FixedBatches, LengthBatches, RandomSampler, Sampler, SequentialSampler, Uneven,
    WeightedSampler,
};
pub use source::{Source, SourceOptions, TableSet, TableSplits, TextSplits};
pub use table::{Column, CsvOptions, Table};
pub use text::{CharTokenizer, TokenWindows, Tokenizer};
