//! `netcl.runtime`: captured functions and kept launches.

use std::sync::{Mutex, TryLockError};

use netcl::core::index::IndexTensor as Labels;
use netcl::core::tensor::Tensor as Raw;
use netcl::runtime::capture::{self, CaptureStats, Tensors};
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::error::IntoPyResult;
use crate::index::IndexTensor;
use crate::tensor::Tensor;

/// Fills the module `netcl._netcl.runtime`.
pub(crate) fn register(parent: &Bound<'_, PyModule>) -> PyResult<()> {
    let module = PyModule::new(parent.py(), "runtime")?;
    module.add("__doc__", "The extension's part of ``netcl.runtime``.")?;
    module.add_class::<Captured>()?;
    module.add_class::<KernelCapture>()?;
    parent.add_submodule(&module)?;
    // Without this the module is an attribute, from which nothing can be imported.
    parent.py().import("sys")?.getattr("modules")?.set_item("netcl._netcl.runtime", &module)
}

/// What goes in and comes out of a captured function.
enum Value {
    Float(netcl::Tensor),
    Whole(Labels),
}

impl Value {
    fn from_py(object: &Bound<'_, PyAny>) -> PyResult<Value> {
        if let Ok(tensor) = object.cast::<Tensor>() {
            return Ok(Value::Float(tensor.get().inner.clone()));
        }
        match object.cast::<IndexTensor>() {
            Ok(labels) => Ok(Value::Whole(labels.get().0.clone())),
            Err(_) => {
                let text = format!("a Tensor or IndexTensor is needed, not {}", object.get_type().name()?);
                Err(PyTypeError::new_err(text))
            }
        }
    }

    fn to_py<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(match self {
            Value::Float(tensor) => Bound::new(py, Tensor::new(tensor.clone()))?.into_any(),
            Value::Whole(labels) => Bound::new(py, IndexTensor(labels.clone()))?.into_any(),
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
            Value::Float(tensor) => tensor.replace(with).map(Value::Float),
            Value::Whole(labels) => labels.replace(with).map(Value::Whole),
        }
    }
}

type Function = Box<dyn FnMut(&Vec<Value>) -> netcl::Result<Vec<Value>> + Send>;
type Inner = capture::Captured<Vec<Value>, Vec<Value>, netcl::Error, Function>;

/// A function of tensors that is recorded at its first call and replayed from then on.
///
/// It takes tensors and returns a list of tensors; ``netcl.runtime.capture`` takes any arguments and results.
#[pyclass(module = "netcl.runtime", frozen, weakref)]
pub(crate) struct Captured(Mutex<Inner>);

impl Captured {
    fn with<R: Send>(&self, py: Python<'_>, run: impl FnOnce(&mut Inner) -> netcl::Result<R> + Send) -> PyResult<R> {
        let busy = || PyRuntimeError::new_err("a captured function was called while it is running; make a second one");
        py.detach(|| match self.0.try_lock() {
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

fn objects<'py>(py: Python<'py>, values: &[Value]) -> PyResult<Bound<'py, PyList>> {
    PyList::new(py, values.iter().map(|value| value.to_py(py)).collect::<PyResult<Vec<_>>>()?)
}

#[pymethods]
impl Captured {
    #[new]
    fn new(function: Py<PyAny>) -> Captured {
        let function: Function = Box::new(move |inputs| {
            let run = |py: Python<'_>| -> PyResult<Vec<Value>> {
                let inputs = PyTuple::new(py, objects(py, inputs)?)?;
                let results = function.bind(py).call1(inputs)?;
                results.try_iter()?.map(|result| Value::from_py(&result?)).collect()
            };
            Python::attach(run).map_err(|raised| netcl::Error::Custom(Box::new(raised)))
        });
        Captured(Mutex::new(capture::capture(function)))
    }

    /// One step with these tensors.
    #[pyo3(signature = (*inputs))]
    fn __call__<'py>(&self, py: Python<'py>, inputs: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyList>> {
        let inputs = values(inputs)?;
        let results = self.with(py, |inner| inner.call(&inputs))?;
        objects(py, &results)
    }

    /// The step of the last call once more, with the same inputs.
    fn replay<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let results = self.with(py, Inner::replay)?;
        objects(py, &results)
    }

    /// One step, made by the function and by a replay, which are compared bit by bit.
    #[pyo3(signature = (*inputs))]
    fn verify<'py>(&self, py: Python<'py>, inputs: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyList>> {
        let inputs = values(inputs)?;
        let results = self.with(py, |inner| inner.verify(&inputs))?;
        objects(py, &results)
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

    /// Forgets all programs; the next call records.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |inner| {
            inner.clear();
            Ok(())
        })
    }
}

/// Runs launches and keeps them, between ``begin`` and ``end``, to be run again on the same memory.
#[pyclass(module = "netcl.runtime", unsendable, weakref, subclass)]
pub(crate) struct KernelCapture(capture::KernelCapture);

#[pymethods]
impl KernelCapture {
    #[new]
    fn new() -> KernelCapture {
        KernelCapture(capture::KernelCapture::new())
    }

    /// Starts to keep the launches of this thread; what was kept before is forgotten.
    fn begin(&mut self) -> PyResult<()> {
        self.0.begin().py()
    }

    /// Runs ``kernel(queue, global_size, local_size, *args)``, which is kept like any other launch after ``begin()``.
    #[pyo3(signature = (kernel, queue, global_size, local_size, *args))]
    fn record<'py>(
        &self,
        kernel: &Bound<'py, PyAny>,
        queue: &Bound<'py, PyAny>,
        global_size: &Bound<'py, PyAny>,
        local_size: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let sizes = [queue, global_size, local_size].map(Clone::clone);
        let all: Vec<Bound<'py, PyAny>> = sizes.into_iter().chain(args).collect();
        kernel.call1(PyTuple::new(kernel.py(), all)?)
    }

    /// Stops, and returns how many launches were kept.
    fn end(&mut self) -> PyResult<usize> {
        self.0.end().py()
    }

    /// Runs everything that was kept once more. ``rebind`` maps ``(launch, argument)`` to a tensor whose memory takes the place
    /// of what the launch had there, from now on.
    #[pyo3(signature = (rebind=None))]
    fn replay(&mut self, rebind: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        for (place, tensor) in rebind.into_iter().flatten() {
            let (launch, arg): (usize, usize) = place.extract()?;
            let mut storage = None;
            Value::from_py(&tensor)?.visit(&mut |tensor| storage = Some(tensor.storage().clone()));
            if let Some(storage) = storage {
                self.0.rebind(launch, arg, &storage).py()?;
            }
        }
        self.0.replay().py()
    }

    /// Forgets everything.
    fn clear(&mut self) {
        self.0.clear();
    }

    /// Whether launches are being kept.
    #[getter]
    fn capturing(&self) -> bool {
        self.0.is_capturing()
    }

    /// The names of the launches that were kept.
    #[getter]
    fn names(&self) -> Vec<String> {
        self.0.launches().map(|launch| launch.name.to_string()).collect()
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }
}
