//! `netcl.data`: data sets, the loader, transforms, batches in shared memory.

mod dataset;
mod device;
mod filters;
mod gate;
mod loader;
mod sample;
mod sampler;
#[cfg(target_os = "linux")]
mod shared_batch;
mod transforms;

use netcl::data::Error;
use pyo3::exceptions::{
    PyFileNotFoundError, PyIndexError, PyOSError, PyRuntimeError, PyStopIteration, PyTimeoutError, PyValueError,
};
use pyo3::prelude::*;
use pyo3::types::PyList;

/// Fills the module `netcl._netcl.data`.
pub(crate) fn register(parent: &Bound<'_, PyModule>) -> PyResult<()> {
    let module = PyModule::new(parent.py(), "data")?;
    module.add("__doc__", "The extension's part of ``netcl.data``.")?;
    dataset::register(&module)?;
    filters::register(&module)?;
    loader::register(&module)?;
    sampler::register(&module)?;
    transforms::register(&module)?;
    #[cfg(target_os = "linux")]
    module.add_class::<shared_batch::BatchRing>()?;
    device::register(&module)?;
    parent.add_submodule(&module)?;
    // Without this the module is an attribute, from which nothing can be imported.
    parent.py().import("sys")?.getattr("modules")?.set_item("netcl._netcl.data", &module)
}

/// An exception on its way through netcl-data.
fn carry(raised: PyErr) -> Error {
    Error::Custom(Box::new(raised))
}

/// The exception that an error becomes. One that was raised by Python code keeps its type and traceback and gets a note with the
/// number of the sample.
pub(crate) fn raised(py: Python<'_>, error: Error) -> PyErr {
    let (text, which) = (error.to_string(), error.samples());
    match error {
        Error::Sample { reason, .. } | Error::Batch { reason, .. } => match *reason {
            Error::Custom(custom) => {
                noted(py, raised(py, Error::Custom(custom)), format!("netcl.data: {}", which.unwrap_or_default()))
            }
            reason => by_kind(&reason, text),
        },
        Error::Custom(custom) => match custom.downcast::<PyErr>() {
            // `next` must not let it out: the loop would take it for the end of the epoch.
            Ok(stop) if stop.is_instance_of::<PyStopIteration>(py) => {
                let error = PyRuntimeError::new_err("the data set, a transform or collate_fn raised StopIteration");
                error.set_cause(py, Some(*stop));
                error
            }
            Ok(raised) => *raised,
            Err(other) => PyRuntimeError::new_err(other.to_string()),
        },
        other => by_kind(&other, text),
    }
}

fn by_kind(error: &Error, text: String) -> PyErr {
    match error {
        Error::NotFound { .. } => PyFileNotFoundError::new_err(text),
        Error::Read { reason, .. } if reason.kind() == std::io::ErrorKind::NotFound => {
            PyFileNotFoundError::new_err(text)
        }
        Error::Read { .. } => PyOSError::new_err(text),
        Error::Index { .. } => PyIndexError::new_err(text),
        Error::Timeout { .. } => PyTimeoutError::new_err(text),
        Error::Panic { .. } => PyRuntimeError::new_err(text),
        _ => PyValueError::new_err(text),
    }
}

/// The exception with a line below its text: what `add_note` of Python 3.11 does.
pub(crate) fn noted(py: Python<'_>, error: PyErr, note: String) -> PyErr {
    let value = error.value(py);
    let add = || -> PyResult<()> {
        let notes = match value.getattr("__notes__") {
            Ok(notes) => notes.cast_into::<PyList>()?,
            Err(_) => PyList::empty(py),
        };
        notes.append(note)?;
        value.setattr("__notes__", notes)
    };
    // An exception that takes no attributes goes without.
    let _ = add();
    error
}

/// `result.data(py)?` in a function that returns a `PyResult`.
trait IntoPy<T> {
    fn data(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> IntoPy<T> for Result<T, Error> {
    fn data(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| raised(py, error))
    }
}
