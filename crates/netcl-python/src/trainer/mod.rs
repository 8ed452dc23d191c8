//! `netcl.trainer`: the training loop, metrics and callbacks.

use pyo3::prelude::*;

/// Fills the module `netcl._netcl.trainer`.
pub(crate) fn register(parent: &Bound<'_, PyModule>) -> PyResult<()> {
    let module = PyModule::new(parent.py(), "trainer")?;
    module.add("__doc__", "The extension's part of ``netcl.trainer``.")?;
    parent.add_submodule(&module)?;
    // Without this the module is an attribute, from which nothing can be imported.
    parent.py().import("sys")?.getattr("modules")?.set_item("netcl._netcl.trainer", &module)
}
