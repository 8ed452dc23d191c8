//! Copies beside compute.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use netcl::core::dtype::DType;
use netcl::core::index::IndexTensor as Labels;
use netcl::runtime::scheduler as core;
use netcl::runtime::scheduler::HostArray;
use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::Value;
use crate::device::resolve_queue;
use crate::error::IntoPyResult;
use crate::ndarray::{HostData, numpy};

/// Uploads batches on the device's copy queue ahead of the steps that use them, each into memory that is used in turn.
///
/// ``submit(*arrays)`` starts an upload, ``next()`` gives the tensors of the oldest batch: a ``Tensor`` for floats, an
/// ``IndexTensor`` for whole numbers. They are overwritten ``depth`` batches later: use them for one step.
#[pyclass(module = "netcl.runtime", frozen, weakref)]
pub(crate) struct Scheduler {
    inner: Mutex<core::Scheduler>,
    depth: usize,
}

impl Scheduler {
    fn lock(&self) -> MutexGuard<'_, core::Scheduler> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Scheduler {
    #[new]
    #[pyo3(signature = (queue, depth=2))]
    fn new(py: Python<'_>, queue: Option<&Bound<'_, PyAny>>, depth: usize) -> PyResult<Scheduler> {
        let queue = resolve_queue(py, queue, None)?;
        Ok(Scheduler { inner: Mutex::new(core::Scheduler::new(&queue, depth).py()?), depth })
    }

    /// Starts the upload of a batch of arrays, which may be changed as soon as this returns.
    ///
    /// Floats keep their type, and so do int32 and int64; other whole numbers and truth values become int64.
    #[pyo3(signature = (*arrays))]
    fn submit(&self, py: Python<'_>, arrays: &Bound<'_, PyTuple>) -> PyResult<()> {
        if arrays.is_empty() {
            return Err(PyTypeError::new_err("submit: a batch is one array or more"));
        }
        let arrays = arrays
            .iter()
            .enumerate()
            .map(|(at, array)| host_data("submit", at, &array))
            .collect::<PyResult<Vec<_>>>()?;
        let batch: Vec<HostArray<'_>> =
            arrays.iter().map(|host| HostArray::bytes(host.bytes(), host.dtype, host.shape.clone())).collect();
        py.detach(|| self.lock().submit(&batch)).py()
    }

    /// The tensors of the oldest batch, as a tuple. What the queue was given until now is taken for the work that uses the batch before.
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let tensors = py.detach(|| self.lock().next().map(<[_]>::to_vec)).py()?;
        let value = |tensor: netcl::core::tensor::Tensor| match tensor.dtype() {
            DType::I32 | DType::I64 => Labels::from_tensor(tensor).py().map(Value::Whole),
            _ => Ok(Value::Float(Arc::new(tensor.into()))),
        };
        let objects = tensors.into_iter().map(|tensor| value(tensor)?.into_py(py)).collect::<PyResult<Vec<_>>>()?;
        PyTuple::new(py, objects)
    }

    /// How many batches have been submitted and not been asked for.
    #[getter]
    fn waiting(&self, py: Python<'_>) -> usize {
        py.detach(|| self.lock().waiting())
    }

    /// How many batches there is memory for.
    #[getter]
    fn depth(&self) -> usize {
        self.depth
    }
}

/// An array as it travels; `at` is its place among those of the call.
pub(crate) fn host_data<'py>(op: &str, at: usize, object: &Bound<'py, PyAny>) -> PyResult<HostData<'py>> {
    let py = object.py();
    let array = match object.cast::<PyUntypedArray>() {
        Ok(array) => array.clone(),
        Err(_) => numpy(py)?.call_method1("asarray", (object,))?.cast_into::<PyUntypedArray>()?,
    };
    let dtype = array.dtype();
    let exact = matches!((dtype.kind(), dtype.itemsize()), (b'i', 4 | 8));
    match dtype.kind() {
        b'f' | b'V' => HostData::new(&array, DType::F32),
        b'i' if exact && dtype.is_native_byteorder() != Some(false) => HostData::new(&array, DType::F32),
        b'i' | b'u' | b'b' if numpy(py)?.call_method1("can_cast", (&dtype, "int64"))?.is_truthy()? => {
            HostData::new(&array.call_method1("astype", ("int64",))?, DType::F32)
        }
        _ => {
            let text = format!("{op}: array {at} is of dtype {dtype}; floats and whole numbers up to int64 travel");
            Err(PyTypeError::new_err(text))
        }
    }
}
