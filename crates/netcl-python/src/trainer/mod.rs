//! `netcl.trainer`: the training loop, metrics and callbacks.

mod batch;
mod fit;
mod session;

use std::sync::{Arc, Mutex};

use netcl::trainer::Error;
use netcl::trainer::trainer::Session as Shared;
use pyo3::exceptions::{PyMemoryError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::amp::GradScaler;
use crate::error::{io_to_py, to_py};
use crate::optim::{Ema, Optimizer};

/// Fills the module `netcl._netcl.trainer`.
pub(crate) fn register(parent: &Bound<'_, PyModule>) -> PyResult<()> {
    let module = PyModule::new(parent.py(), "trainer")?;
    module.add("__doc__", "The extension's part of ``netcl.trainer``.")?;
    module.add_class::<session::Session>()?;
    module.add_class::<fit::Loop>()?;
    module.add_function(wrap_pyfunction!(new_session, &module)?)?;
    parent.add_submodule(&module)?;
    // Without this the module is an attribute, from which nothing can be imported.
    parent.py().import("sys")?.getattr("modules")?.set_item("netcl._netcl.trainer", &module)
}

/// The part of a step that does not depend on the model, for what trains it.
#[pyfunction]
#[pyo3(signature = (optimizer, scaler, ema, grad_clip))]
fn new_session(
    optimizer: Py<Optimizer>,
    scaler: Option<Py<GradScaler>>,
    ema: Option<Py<Ema>>,
    grad_clip: Option<f64>,
) -> session::Session {
    let inner = Arc::new(Mutex::new(Shared::new(grad_clip)));
    session::Session { inner, optimizer, scaler, ema }
}

/// The exception that an error of a run becomes. One of a callback keeps its type and gets a note with the callback's name.
fn raised(py: Python<'_>, error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Tensor(error) => to_py(error),
        Error::Io(error) => io_to_py(error),
        Error::Callback { name, inner } => {
            let error = raised(py, *inner);
            // Without the note the exception is as it was.
            let _ = error.value(py).call_method1("add_note", (format!("in the callback {name}"),));
            error
        }
        Error::Memory { .. } => PyMemoryError::new_err(text),
        Error::NotFinite { .. } => PyRuntimeError::new_err(text),
        _ => PyValueError::new_err(text),
    }
}
