//! `netcl.data`: data sets, the loader, transforms, batches in shared memory.

use pyo3::prelude::*;

/// Fills the module `netcl._netcl.data`.
pub(crate) fn register(parent: &Bound<'_, PyModule>) -> PyResult<()> {
    let module = PyModule::new(parent.py(), "data")?;
    module.add("__doc__", "The extension's part of ``netcl.data``.")?;
    parent.add_submodule(&module)?;
    // Without this the module is an attribute, from which nothing can be imported.
    parent.py().import("sys")?.getattr("modules")?.set_item("netcl._netcl.data", &module)
}
