//! `netcl.distributed`: collectives over devices and ranks, data-parallel training.

mod collectives;
mod data_parallel;
pub(crate) mod group;

use pyo3::prelude::*;

/// Fills the module `netcl._netcl.distributed`.
pub(crate) fn register(parent: &Bound<'_, PyModule>) -> PyResult<()> {
    let module = PyModule::new(parent.py(), "distributed")?;
    module.add("__doc__", "The extension's part of ``netcl.distributed``.")?;
    collectives::register(&module)?;
    module.add_class::<group::Group>()?;
    module.add_function(wrap_pyfunction!(group::init, &module)?)?;
    module.add_function(wrap_pyfunction!(group::threads, &module)?)?;
    data_parallel::register(&module)?;
    parent.add_submodule(&module)?;
    // Without this the module is an attribute, from which nothing can be imported.
    parent.py().import("sys")?.getattr("modules")?.set_item("netcl._netcl.distributed", &module)
}
