//! The compiler as `netcl.autograd.jit` uses it: tensors in and out; structures of arguments are Python's business.

use std::sync::Arc;

use netcl::Tensor as Recorded;
use netcl::autograd::jit::{Body, Cache, Style};
use netcl::core::dtype::DType;
use netcl::core::index::IndexTensor as Index;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::error::{IntoPyResult, carry};
use crate::index::IndexTensor;
use crate::tensor::Tensor;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<JitCache>()
}

/// The compiled forms of one function, by the kind of its arguments.
#[pyclass(module = "netcl.autograd", frozen)]
struct JitCache(Cache);

/// Tensors of one call as the compiler sees them.
struct Call {
    inputs: Vec<Recorded>,
    captures: Vec<Recorded>,
    body: Body,
}

impl Call {
    fn new(inputs: &[Bound<'_, PyAny>], captures: &[Bound<'_, PyAny>], body: Py<PyAny>) -> PyResult<Self> {
        let all = |objects: &[Bound<'_, PyAny>]| objects.iter().map(unwrap).collect::<PyResult<Vec<Recorded>>>();
        Ok(Call { inputs: all(inputs)?, captures: all(captures)?, body: to_body(body) })
    }

    fn inputs(&self) -> Vec<&Recorded> {
        self.inputs.iter().collect()
    }

    fn captures(&self) -> Vec<&Recorded> {
        self.captures.iter().collect()
    }
}

#[pymethods]
impl JitCache {
    #[new]
    #[pyo3(signature = (name, fast_math=false))]
    fn new(name: String, fast_math: bool) -> Self {
        JitCache(Cache::new(fast_math).named(name))
    }

    /// Calls ``body`` with a list of tensors, compiled; the result is a list of tensors.
    fn call<'py>(
        &self,
        py: Python<'py>,
        statics: &Bound<'py, PyBytes>,
        inputs: Vec<Bound<'py, PyAny>>,
        captures: Vec<Bound<'py, PyAny>>,
        body: Py<PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let call = Call::new(&inputs, &captures, body)?;
        let statics = statics.as_bytes();
        let made = py.detach(|| self.0.call(statics, &call.inputs(), &call.captures(), call.body.clone())).py()?;
        PyList::new(py, made.into_iter().map(|tensor| wrap(py, tensor)).collect::<PyResult<Vec<_>>>()?)
    }

    /// The key of a plan: ``statics`` and what matters of the tensors.
    fn key<'py>(
        &self,
        py: Python<'py>,
        statics: &Bound<'py, PyBytes>,
        inputs: Vec<Bound<'py, PyAny>>,
        captures: Vec<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let call = Call::new(&inputs, &captures, py.None())?;
        Ok(PyBytes::new(py, &Cache::key(statics.as_bytes(), &call.inputs(), &call.captures())))
    }

    /// What fused and what did not; ``what`` is ``"explain"``, ``"source"``, ``"dot"`` or ``"mermaid"``.
    fn describe(
        &self,
        py: Python<'_>,
        what: &str,
        statics: &Bound<'_, PyBytes>,
        inputs: Vec<Bound<'_, PyAny>>,
        captures: Vec<Bound<'_, PyAny>>,
        body: Py<PyAny>,
    ) -> PyResult<String> {
        let call = Call::new(&inputs, &captures, body)?;
        let statics = statics.as_bytes();
        let (own, captured, body) = (call.inputs(), call.captures(), call.body.clone());
        py.detach(|| match what {
            "explain" => self.0.explain(statics, &own, &captured, body).py(),
            "source" => self.0.source(statics, &own, &captured, body).py(),
            "dot" => self.0.graph(statics, &own, &captured, body, Style::Dot).py(),
            "mermaid" => self.0.graph(statics, &own, &captured, body, Style::Mermaid).py(),
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

fn unwrap(object: &Bound<'_, PyAny>) -> PyResult<Recorded> {
    if let Ok(tensor) = object.cast::<Tensor>() {
        return Ok(tensor.get().inner.clone());
    }
    match object.cast::<IndexTensor>() {
        Ok(index) => Ok(index.get().0.tensor().clone().into()),
        Err(_) => Err(PyTypeError::new_err(format!("jit takes tensors here, not {}", object.get_type()))),
    }
}

/// Whole numbers are an `IndexTensor` in Python.
fn wrap(py: Python<'_>, tensor: Recorded) -> PyResult<Py<PyAny>> {
    match tensor.dtype() {
        DType::I32 | DType::I64 => {
            Ok(Py::new(py, IndexTensor(Index::from_tensor(tensor.raw().clone()).py()?))?.into_any())
        }
        _ => Ok(Py::new(py, Tensor::new(tensor))?.into_any()),
    }
}

fn to_body(function: Py<PyAny>) -> Body {
    Arc::new(move |tensors: &[Recorded]| {
        Python::attach(|py| {
            let given = tensors.iter().map(|tensor| wrap(py, tensor.clone())).collect::<PyResult<Vec<_>>>()?;
            let made = function.bind(py).call1((PyList::new(py, given)?,))?;
            made.try_iter()?.map(|object| unwrap(&object?)).collect::<PyResult<Vec<Recorded>>>()
        })
        .map_err(carry)
    })
}
