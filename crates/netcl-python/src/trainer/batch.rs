//! Batches of Python's: tensors in tuples, lists and dicts.

use std::hash::{DefaultHasher, Hash, Hasher};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use crate::tensor::Tensor;

/// What a batch is, without its values.
pub(super) struct Look {
    /// The length of the first tensor's first axis.
    pub(super) samples: Option<usize>,
    pub(super) bytes: usize,
    /// Equal for batches of equal shapes and dtypes.
    pub(super) kind: DefaultHasher,
    /// Whether everything in it is a tensor already.
    pub(super) ready: bool,
}

impl Look {
    pub(super) fn at(batch: &Bound<'_, PyAny>) -> PyResult<Look> {
        let mut look = Look { samples: None, bytes: 0, kind: DefaultHasher::new(), ready: true };
        look.walk(batch, 0)?;
        Ok(look)
    }

    fn see(&mut self, tensor: &netcl::core::tensor::Tensor) {
        self.samples.get_or_insert(tensor.shape().first().copied().unwrap_or(1));
        self.bytes += tensor.size() * tensor.dtype().size();
        (&tensor.shape()[..], tensor.dtype().name()).hash(&mut self.kind);
    }

    fn walk(&mut self, value: &Bound<'_, PyAny>, depth: usize) -> PyResult<()> {
        if let Ok(tensor) = value.cast::<Tensor>() {
            self.see(tensor.get().inner().raw());
        } else if depth > 16 {
            self.ready = false;
        } else if let Ok(tuple) = value.cast::<PyTuple>() {
            tuple.len().hash(&mut self.kind);
            tuple.iter().try_for_each(|part| self.walk(&part, depth + 1))?;
        } else if let Ok(list) = value.cast::<PyList>() {
            list.len().hash(&mut self.kind);
            list.iter().try_for_each(|part| self.walk(&part, depth + 1))?;
        } else if let Ok(dict) = value.cast::<PyDict>() {
            for (key, part) in dict.iter() {
                self.see_value(&key)?;
                self.walk(&part, depth + 1)?;
            }
        } else if !value.hasattr("__array__")? && !value.hasattr("__dlpack__")? {
            // A number or a text stays what it is, and is a part of the kind.
            self.see_value(value)?;
        } else {
            self.ready = false;
        }
        Ok(())
    }

    /// What a text hashes to differs between processes; ranks compare kinds.
    fn see_value(&mut self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        match value.is_none() || value.is_instance_of::<PyString>() {
            true => value.repr()?.to_string().hash(&mut self.kind),
            false => value.hash().unwrap_or(0).hash(&mut self.kind),
        }
        Ok(())
    }

    /// The kind as a number.
    pub(super) fn kind(&self) -> u64 {
        self.kind.finish()
    }
}
