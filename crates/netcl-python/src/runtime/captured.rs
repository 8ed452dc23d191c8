//! Captured functions.

use std::sync::{Arc, Mutex, TryLockError};

use netcl::runtime::capture::{self, CaptureStats};
use pyo3::exceptions::PyRuntimeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use super::Value;
use crate::autograd::site;
use crate::error::IntoPyResult;

type Function = Box<dyn FnMut(&Vec<Value>) -> netcl::Result<Vec<Value>> + Send>;
type Inner = capture::Captured<Vec<Value>, Vec<Value>, netcl::Error, Function>;

/// A function of tensors that is recorded at its first call and replayed from then on.
///
/// It takes tensors and returns a list of tensors; ``netcl.runtime.capture`` takes any arguments and results.
#[pyclass(module = "netcl.runtime", frozen, weakref)]
pub(crate) struct Captured {
    inner: Mutex<Inner>,
    /// The one reference to the function, which is shared with what calls it, so that the garbage collector sees all of them.
    function: Arc<Py<PyAny>>,
}

impl Captured {
    fn with<R: Send>(&self, py: Python<'_>, run: impl FnOnce(&mut Inner) -> netcl::Result<R> + Send) -> PyResult<R> {
        let busy = || PyRuntimeError::new_err("a captured function was called while it is running; make a second one");
        site::detach(py, || match self.inner.try_lock() {
            Ok(mut inner) => Ok(run(&mut inner)),
            Err(TryLockError::Poisoned(poisoned)) => Ok(run(&mut poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => Err(busy()),
        })?
        .py()
    }
}

fn values(tensors: &Bound<'_, PyTuple>) -> PyResult<Vec<Value>> {
    tensors.iter().map(|tensor| Value::from_py(&tensor)).collect()
}

fn objects(py: Python<'_>, values: Vec<Value>) -> PyResult<Bound<'_, PyList>> {
    PyList::new(py, values.into_iter().map(|value| value.into_py(py)).collect::<PyResult<Vec<_>>>()?)
}

#[pymethods]
impl Captured {
    #[new]
    fn new(function: Py<PyAny>) -> Captured {
        let function = Arc::new(function);
        let called = function.clone();
        let run: Function = Box::new(move |inputs| {
            let run = |py: Python<'_>| -> PyResult<Vec<Value>> {
                let inputs = PyTuple::new(py, objects(py, inputs.clone())?)?;
                // Whoever profiles the replays asks which module a launch belongs to.
                let watching = py.import("netcl.nn._scope")?.getattr("watching")?;
                watching.call_method1("append", (py.None(),))?;
                let results = called.bind(py).call1(inputs);
                watching.call_method0("pop")?;
                let results = results?;
                results.try_iter()?.map(|result| Value::from_py(&result?)).collect()
            };
            Python::attach(run).map_err(|raised| netcl::Error::Custom(Box::new(raised)))
        });
        Captured { inner: Mutex::new(capture::capture(run)), function }
    }

    /// One step with these tensors.
    #[pyo3(signature = (*inputs))]
    fn __call__<'py>(&self, py: Python<'py>, inputs: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyList>> {
        let inputs = values(inputs)?;
        let results = self.with(py, |inner| inner.call(&inputs))?;
        objects(py, results)
    }

    /// The step of the last call once more, with the same inputs.
    fn replay<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let results = self.with(py, Inner::replay)?;
        objects(py, results)
    }

    /// One step, made by the function and by a replay, which are compared bit by bit.
    #[pyo3(signature = (*inputs))]
    fn verify<'py>(&self, py: Python<'py>, inputs: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyList>> {
        let inputs = values(inputs)?;
        let results = self.with(py, |inner| inner.verify(&inputs))?;
        objects(py, results)
    }

    /// Launches and bytes of the program used last; ``None`` before the first call.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(stats) = self.with(py, |inner| Ok(inner.stats().cloned()))? else { return Ok(None) };
        let CaptureStats { launches, host_actions, names, planned_bytes, blocks, eager_bytes, requested_bytes } = stats;
        let dict = PyDict::new(py);
        let counts = [("launches", launches), ("host_actions", host_actions), ("planned_bytes", planned_bytes)];
        let bytes = [("blocks", blocks), ("eager_bytes", eager_bytes), ("requested_bytes", requested_bytes)];
        for (name, count) in counts.into_iter().chain(bytes) {
            dict.set_item(name, count)?;
        }
        dict.set_item("names", names)?;
        Ok(Some(dict))
    }

    /// How often the function was recorded.
    #[getter]
    fn recordings(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |inner| Ok(inner.recordings()))
    }

    /// Which recording was used last, counted from 1.
    #[getter]
    fn current(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |inner| Ok(inner.current()))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&*self.function)
    }

    /// Forgets all programs; the next call records.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |inner| {
            inner.clear();
            Ok(())
        })
    }
}
