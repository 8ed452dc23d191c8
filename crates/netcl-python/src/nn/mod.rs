//! `netcl.nn`: layers, which are written in Rust, and first values of parameters.

mod embedding;
mod fuse;
mod init;
mod layer;
mod linear;
mod loss;
mod module;
mod rnn;
mod text;
mod values;

pub(crate) use layer::{held, object};
pub(crate) use module::PythonModule;
use pyo3::prelude::*;

/// Fills the module `netcl._netcl.nn`.
pub(crate) fn register(parent: &Bound<'_, PyModule>) -> PyResult<()> {
    let module = PyModule::new(parent.py(), "nn")?;
    module.add("__doc__", "The extension's part of ``netcl.nn``.")?;
    embedding::register(&module)?;
    fuse::register(&module)?;
    init::register(&module)?;
    layer::register(&module)?;
    linear::register(&module)?;
    loss::register(&module)?;
    module::register(&module)?;
    rnn::register(&module)?;
    text::register(&module)?;
    parent.add_submodule(&module)?;
    // Without this the module is an attribute, from which nothing can be imported.
    parent.py().import("sys")?.getattr("modules")?.set_item("netcl._netcl.nn", &module)
}
