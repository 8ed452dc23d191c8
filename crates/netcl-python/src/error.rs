//! Errors of the Rust layers as Python exceptions.

use netcl::ErrorKind;
use pyo3::create_exception;
use pyo3::exceptions::{
    PyFileNotFoundError, PyIndexError, PyMemoryError, PyOSError, PyRuntimeError, PyTypeError, PyValueError,
};
use pyo3::prelude::*;

create_exception!(
    netcl,
    BuildError,
    PyRuntimeError,
    "A kernel did not compile; the text holds the compiler's log and the numbered source."
);

/// The exception an error becomes.
pub(crate) fn to_py(error: netcl::Error) -> PyErr {
    let text = error.to_string();
    match error.kind() {
        ErrorKind::Value => PyValueError::new_err(text),
        ErrorKind::Type => PyTypeError::new_err(text),
        ErrorKind::Index => PyIndexError::new_err(text),
        ErrorKind::Memory => PyMemoryError::new_err(text),
        ErrorKind::NotFound => PyFileNotFoundError::new_err(text),
        ErrorKind::Io => PyOSError::new_err(text),
        ErrorKind::Build => BuildError::new_err(text),
        ErrorKind::Runtime => PyRuntimeError::new_err(text),
    }
}

/// `result.py()?` in a function that returns a `PyResult`.
pub(crate) trait IntoPyResult<T> {
    fn py(self) -> PyResult<T>;
}

impl<T, E: Into<netcl::Error>> IntoPyResult<T> for Result<T, E> {
    fn py(self) -> PyResult<T> {
        self.map_err(|error| to_py(error.into()))
    }
}
