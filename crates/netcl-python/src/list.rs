//! Sequences as Python gives them.

use std::ops::Deref;

use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::tensor::Tensor;

/// The elements of a sequence. PyO3's `Vec` believes `__len__` and reserves as much before it looks at the first element: a view of
/// 10^12 elements, or an object that counts wrongly, would abort the process.
pub(crate) struct List<T>(pub(crate) Vec<T>);

impl<T> Deref for List<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<'py, T: FromPyObjectOwned<'py>> FromPyObject<'_, 'py> for List<T> {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        // A tensor is a sequence of its rows, which nobody means here, and of which there may be any number.
        let other =
            given.is_instance_of::<PyString>() || given.is_instance_of::<PyDict>() || given.is_instance_of::<Tensor>();
        if other || !given.hasattr("__getitem__")? {
            return Err(PyTypeError::new_err(format!("a sequence is wanted, not {}", given.get_type())));
        }
        let items = given.try_iter()?;
        items.map(|item| item?.extract::<T>().map_err(Into::into)).collect::<PyResult<_>>().map(List)
    }
}
