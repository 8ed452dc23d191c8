//! The compiler as `netcl.autograd.jit` uses it: tensors in and out; structures of arguments are Python's business.

use std::sync::Arc;

use netcl::Tensor as Recorded;
use netcl::autograd::jit::{self, Body, Cache, Style};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};
use smallvec::SmallVec;

use crate::autograd::site;
use crate::error::{IntoPyResult, carry, kind};
use crate::index::Made;
use crate::tensor::Tensor;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<JitCache>()?;
    module.add_class::<Captures>()?;
    module.add_function(wrap_pyfunction!(runs_op_by_op, module)?)
}

/// Whether compiled functions run op by op at the moment: ``NETCL_JIT=0``, or inside of another one's trace.
#[pyfunction]
fn runs_op_by_op() -> bool {
    jit::runs_op_by_op()
}

/// Tensors that a function uses beside its arguments, looked at once for many calls.
#[pyclass(module = "netcl.autograd", frozen)]
struct Captures(jit::Captures);

#[pymethods]
impl Captures {
    #[new]
    fn new(tensors: Vec<Bound<'_, PyAny>>) -> PyResult<Self> {
        let owned = |tensor| unwrap(tensor).map(Arc::unwrap_or_clone);
        Ok(Captures(jit::Captures::new(tensors.iter().map(owned).collect::<PyResult<_>>()?)))
    }

    /// Whether what matters of the tensors is as it was when they were looked at.
    fn are_current(&self) -> bool {
        self.0.are_current()
    }

    /// The same for the same memory, seen in the same way.
    fn identity<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.identity())
    }
}

/// The compiled forms of one function, by the kind of its arguments.
#[pyclass(module = "netcl.autograd", frozen)]
struct JitCache(Cache);

#[pymethods]
impl JitCache {
    #[new]
    #[pyo3(signature = (name, fast_math=false))]
    fn new(name: String, fast_math: bool) -> Self {
        JitCache(Cache::new(fast_math).named(name))
    }

    /// Calls ``body``, a function of a list of tensors, compiled; gives the number of the plan and a list of tensors.
    fn call<'py>(
        &self,
        py: Python<'py>,
        statics: &Bound<'py, PyBytes>,
        inputs: &Bound<'py, PyTuple>,
        captures: &Captures,
        body: Py<PyAny>,
    ) -> PyResult<(u64, Bound<'py, PyList>)> {
        let (statics, inputs, body) = (statics.as_bytes(), all(inputs)?, to_body(body));
        let inputs: SmallVec<[&Recorded; 8]> = inputs.iter().map(AsRef::as_ref).collect();
        // A clone: the function is released here, since without the interpreter's lock that takes a queue and another lock.
        let (plan, made) = site::detach(py, || self.0.call(statics, &inputs, &captures.0, body.clone())).py()?;
        let made = made.into_iter().map(|tensor| wrap(py, tensor)).collect::<PyResult<Vec<_>>>()?;
        Ok((plan, PyList::new(py, made)?))
    }

    /// What fused and what did not; ``what`` is ``"explain"``, ``"source"``, ``"dot"`` or ``"mermaid"``.
    fn describe(
        &self,
        py: Python<'_>,
        what: &str,
        statics: &Bound<'_, PyBytes>,
        inputs: &Bound<'_, PyTuple>,
        captures: &Captures,
        body: Py<PyAny>,
    ) -> PyResult<String> {
        let (statics, inputs, body) = (statics.as_bytes(), all(inputs)?, to_body(body));
        let (own, captured): (Vec<&Recorded>, _) = (inputs.iter().map(AsRef::as_ref).collect(), &captures.0);
        py.detach(|| match what {
            "explain" => self.0.explain(statics, &own, captured, body).py(),
            "source" => self.0.source(statics, &own, captured, body).py(),
            "dot" => self.0.graph(statics, &own, captured, body, Style::Dot).py(),
            "mermaid" => self.0.graph(statics, &own, captured, body, Style::Mermaid).py(),
            other => {
                Err(PyValueError::new_err(format!("there is no description {other:?}; use \"dot\" or \"mermaid\"")))
            }
        })
    }

    /// How often the function was traced, how often a call found its plan, and how many plans there are.
    fn counters(&self) -> (u64, u64, u64) {
        let counters = self.0.counters();
        (counters.traces, counters.hits, counters.plans)
    }
}

fn all(objects: &Bound<'_, PyTuple>) -> PyResult<SmallVec<[Arc<Recorded>; 8]>> {
    objects.iter().map(|object| unwrap(&object)).collect()
}

fn unwrap(object: &Bound<'_, PyAny>) -> PyResult<Arc<Recorded>> {
    match object.cast::<Tensor>() {
        Ok(tensor) => Ok(tensor.get().inner()),
        Err(_) => Err(PyTypeError::new_err(format!("jit takes tensors here, not {}", kind(object)))),
    }
}

fn wrap(py: Python<'_>, tensor: Recorded) -> PyResult<Py<PyAny>> {
    Ok(Made::new(tensor).into_pyobject(py)?.into_any().unbind())
}

fn to_body(function: Py<PyAny>) -> Body {
    Arc::new(move |tensors: &[Recorded]| {
        Python::attach(|py| {
            let given = tensors.iter().map(|tensor| wrap(py, tensor.clone())).collect::<PyResult<Vec<_>>>()?;
            let made = function.bind(py).call1((PyList::new(py, given)?,))?;
            made.try_iter()?.map(|object| unwrap(&object?).map(Arc::unwrap_or_clone)).collect::<PyResult<Vec<_>>>()
        })
        .map_err(carry)
    })
}
