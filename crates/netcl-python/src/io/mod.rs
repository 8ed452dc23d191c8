//! `netcl.io`: models and checkpoints in files.

mod checkpoint;
mod file;

use pyo3::prelude::*;

/// Fills the module `netcl._netcl.io`.
pub(crate) fn register(parent: &Bound<'_, PyModule>) -> PyResult<()> {
    let module = PyModule::new(parent.py(), "io")?;
    module.add("__doc__", "The extension's part of ``netcl.io``.")?;
    module.add_class::<checkpoint::Checkpoint>()?;
    macro_rules! functions {
        ($($function:path),* $(,)?) => {$(module.add_function(wrap_pyfunction!($function, &module)?)?;)*};
    }
    functions!(
        file::load_tensors,
        file::load_weights,
        file::metadata,
        file::rename,
        file::save_model,
        file::save_tensors
    );
    parent.add_submodule(&module)?;
    // Without this the module is an attribute, from which nothing can be imported.
    parent.py().import("sys")?.getattr("modules")?.set_item("netcl._netcl.io", &module)
}

/// Metadata as Python's `json` writes it.
pub(crate) fn parse<T: serde::de::DeserializeOwned>(json: &str) -> PyResult<T> {
    serde_json::from_str(json).map_err(|error| pyo3::exceptions::PyValueError::new_err(error.to_string()))
}
