//! Named tensors that are read one by one: what files and archives have in common.

use std::path::Path;

use netcl_nn::autograd::DType;
use serde_json::{Map, Value};

use crate::array::Array;
use crate::element::Element;
use crate::error::Result;

/// What is known of a tensor before its elements are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// The dotted name.
    pub name: String,
    /// The type of the elements in the file.
    pub element: Element,
    /// The length of each axis.
    pub shape: Vec<usize>,
}

impl Info {
    /// The number of elements.
    pub fn count(&self) -> usize {
        // Every reader has checked that the product fits.
        self.shape.iter().product()
    }

    /// The bytes of the elements in their file.
    pub fn size(&self) -> u64 {
        self.count() as u64 * self.element.size() as u64
    }

    /// The dtype as which it is read; `None` where no dtype holds its values.
    pub fn dtype(&self) -> Option<DType> {
        self.element.dtype()
    }
}

/// Named tensors with metadata: a [`TensorFile`](crate::TensorFile), an [`Archive`](crate::Archive) in memory, or one of these
/// with other names and dtypes.
pub trait Tensors: Send + Sync {
    /// Where they come from; empty for what was made in memory.
    fn path(&self) -> &Path;

    /// What the file says of itself.
    fn metadata(&self) -> &Map<String, Value>;

    /// The tensors in order.
    fn infos(&self) -> &[Info];

    /// Reads the tensor of an index.
    ///
    /// # Errors
    /// If it is damaged, or of an element type that no dtype holds.
    fn read(&self, index: usize) -> Result<Array>;
}
