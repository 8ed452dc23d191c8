//! `netcl.runtime`: captured functions, kept launches, copies beside compute, the program cache.

mod cache;
mod captured;
mod kernel_capture;
mod readings;
mod scheduler;

use std::sync::Arc;

use netcl::core::index::IndexTensor as Labels;
use netcl::core::tensor::Tensor as Raw;
use netcl::runtime::capture::Tensors;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::index::Made;
use crate::tensor::Tensor;

/// Fills the module `netcl._netcl.runtime`.
pub(crate) fn register(parent: &Bound<'_, PyModule>) -> PyResult<()> {
    let module = PyModule::new(parent.py(), "runtime")?;
    module.add("__doc__", "The extension's part of ``netcl.runtime``.")?;
    module.add_class::<captured::Captured>()?;
    module.add_class::<kernel_capture::KernelCapture>()?;
    module.add_class::<kernel_capture::CaptureDisabled>()?;
    module.add_class::<readings::Readings>()?;
    module.add_class::<readings::SameCall>()?;
    module.add_class::<scheduler::Scheduler>()?;
    cache::register(&module)?;
    parent.add_submodule(&module)?;
    // Without this the module is an attribute, from which nothing can be imported.
    parent.py().import("sys")?.getattr("modules")?.set_item("netcl._netcl.runtime", &module)
}

pub(crate) use scheduler::host_data;

/// What goes in and comes out of a captured function.
#[derive(Clone)]
pub(crate) enum Value {
    Float(Arc<netcl::Tensor>),
    Whole(Labels),
}

impl Value {
    pub(crate) fn from_py(object: &Bound<'_, PyAny>) -> PyResult<Value> {
        match object.cast::<Tensor>() {
            Ok(tensor) => Ok(Value::Float(tensor.get().inner())),
            Err(_) => {
                let text = format!("a Tensor or IndexTensor is needed, not {}", object.get_type().name()?);
                Err(PyTypeError::new_err(text))
            }
        }
    }

    pub(crate) fn into_py(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        Ok(match self {
            Value::Float(tensor) => Made::new(Arc::unwrap_or_clone(tensor)).into_pyobject(py)?.into_any(),
            Value::Whole(labels) => Made::from(labels).into_pyobject(py)?.into_any(),
        })
    }
}

impl Tensors for Value {
    fn visit<'t>(&'t self, see: &mut dyn FnMut(&'t Raw)) {
        match self {
            Value::Float(tensor) => tensor.visit(see),
            Value::Whole(labels) => labels.visit(see),
        }
    }

    fn replace(&self, with: &mut dyn FnMut(&Raw) -> netcl::core::Result<Raw>) -> netcl::core::Result<Self> {
        match self {
            Value::Float(tensor) => tensor.replace(with).map(Arc::new).map(Value::Float),
            Value::Whole(labels) => labels.replace(with).map(Value::Whole),
        }
    }
}
