//! `netcl.autograd`: recorded operations, the walk backwards, and operations of the user's own.

mod checks;
mod elementwise;
mod engine;
mod function;
mod layout;
mod linalg;
mod losses;
mod pointwise;
mod products;
mod rearrange;
mod reduce;
mod scope;
mod select;
pub(crate) mod site;
mod statistics;

use std::sync::Arc;

use netcl::autograd::graph::{self, anomaly_enabled};
use netcl::core::backend::Queue;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyType;
use smallvec::SmallVec;

use crate::device::queue_to_py;
use crate::error::IntoPyResult;
use crate::index::Made;
use crate::tensor::{DETACH_ABOVE, Tensor};
pub(crate) use elementwise::Given;
pub(crate) use engine::{HookHandle, Node, seed, walk};
pub(crate) use losses::{Labels, Sequences};
pub(crate) use reduce::OwnAxes;
pub(crate) use scope::Scope;

/// Fills the modules `netcl._netcl.autograd` and, with the recorded functions, `netcl._netcl.functions`.
pub(crate) fn register(parent: &Bound<'_, PyModule>) -> PyResult<()> {
    let module = PyModule::new(parent.py(), "autograd")?;
    module.add("__doc__", "The extension's part of ``netcl.autograd``.")?;
    module.add_function(wrap_pyfunction!(tensor, &module)?)?;
    module.add_function(wrap_pyfunction!(elementwise::elementwise_, &module)?)?;
    engine::register(&module)?;
    scope::register(&module)?;
    checks::register(&module)?;
    function::register(&module)?;
    crate::jit::register(&module)?;
    add(parent, &module)?;

    let functions = PyModule::new(parent.py(), "functions")?;
    functions.add("__doc__", "The recorded functions.")?;
    elementwise::register(&functions)?;
    layout::register(&functions)?;
    reduce::register(&functions)?;
    products::register(&functions)?;
    rearrange::register(&functions)?;
    select::register(&functions)?;
    statistics::register(&functions)?;
    pointwise::register(&functions)?;
    losses::register(&functions)?;
    crate::layer_ops::register_recorded(&functions)?;
    functions.add_function(wrap_pyfunction!(crate::ops::argmax, &functions)?)?;
    functions.add_function(wrap_pyfunction!(crate::ops::argmin, &functions)?)?;
    let algebra = PyModule::new(parent.py(), "linalg")?;
    algebra.add("__doc__", "The extension's part of ``netcl.linalg``.")?;
    linalg::register(&algebra)?;
    add(parent, &algebra)?;
    add(parent, &functions)
}

fn add(parent: &Bound<'_, PyModule>, module: &Bound<'_, PyModule>) -> PyResult<()> {
    parent.add_submodule(module)?;
    // Without this the module is an attribute, from which nothing can be imported.
    let name = format!("netcl._netcl.{}", module.name()?);
    parent.py().import("sys")?.getattr("modules")?.set_item(name, module)
}

/// Runs an operation on a tensor: other Python threads go on meanwhile, unless it is too short for that to pay.
pub(crate) fn run<T: Send>(py: Python<'_>, on: &netcl::Tensor, operation: impl FnOnce() -> T + Send) -> T {
    let short = matches!(on.queue(), Queue::Cpu(_)) && on.size() * on.dtype().size() < DETACH_ABOVE;
    if short { operation() } else { site::detach(py, operation) }
}

/// [`run`] of an operation that gives a tensor.
pub(crate) fn record(
    py: Python<'_>,
    on: &netcl::Tensor,
    operation: impl FnOnce() -> netcl::Result<netcl::Tensor> + Send,
) -> PyResult<Made> {
    wrap(py, run(py, on, operation).py()?)
}

/// A result as Python sees it; in anomaly mode it remembers the line of Python that asked for it.
pub(crate) fn wrap(py: Python<'_>, result: netcl::Tensor) -> PyResult<Made> {
    if anomaly_enabled() {
        site::note(py, &result)?;
    }
    Ok(Made::new(result))
}

/// What the result of an operation that does not record remembers of these inputs: its name, if one of them wants a gradient.
pub(crate) fn unrecorded(op: &'static str, inputs: &[&Tensor]) -> Option<&'static str> {
    let inputs: SmallVec<[Arc<netcl::Tensor>; 4]> = inputs.iter().map(|input| input.inner()).collect();
    graph::unrecorded(op, inputs.iter().map(Arc::as_ref))
}

/// An operand that may be given as a tensor or as data, which becomes a tensor like another one.
pub(crate) fn like(object: &Bound<'_, PyAny>, other: &netcl::Tensor) -> PyResult<netcl::Tensor> {
    if let Ok(tensor) = object.cast::<Tensor>() {
        return Ok(tensor.get().inner().as_ref().clone());
    }
    let py = object.py();
    if object.is_none() {
        return Err(PyTypeError::new_err("a Tensor, an array or a number is needed, not None"));
    }
    let made = py
        .get_type::<Tensor>()
        .call_method1("from_host", (queue_to_py(py, other.queue())?, object, other.dtype().name()))?;
    Ok(made.cast::<Tensor>()?.get().inner().as_ref().clone())
}

/// A leaf: a tensor that shares ``x``'s memory (of the same device and dtype), or a new one with the values of an array.
#[pyfunction]
#[pyo3(signature = (x, requires_grad=true, dtype=None, queue=None))]
fn tensor(
    py: Python<'_>,
    x: &Bound<'_, PyAny>,
    requires_grad: bool,
    dtype: Option<&Bound<'_, PyAny>>,
    queue: Option<&Bound<'_, PyAny>>,
) -> PyResult<Made> {
    let (made, base) = match x.cast::<Tensor>() {
        Ok(x) => (Tensor::to(x, py, queue, dtype)?.into_bound(py), Some(x)),
        Err(_) => {
            let class: Bound<'_, PyType> = py.get_type::<Tensor>();
            (class.call_method1("from_host", (queue, x, dtype))?.cast_into::<Tensor>()?, None)
        }
    };
    let inner = made.get().inner().detach();
    inner.set_requires_grad(requires_grad).py()?;
    Ok(Made(match base {
        Some(base) if base.get().inner().shares_storage(&inner) => Tensor::view(inner, base, None),
        _ => Tensor::new(inner),
    }))
}
