//! `IndexTensor`: labels and indices.

use netcl::core::backend::Queue;
use netcl::core::dtype::DType;
use netcl::core::index::IndexTensor as Core;
use netcl::core::tensor::{HostOptions, Tensor as Raw};
use netcl::ops::compare::compare;
use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::basic::CompareOp;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFloat, PyInt, PyList, PyString, PyTuple, PyType};

use crate::device::{queue_from_py, queue_to_py, resolve_queue};
use crate::error::IntoPyResult;
use crate::ndarray::{self, HostData};
use crate::tensor::{Tensor, comparison, ufunc};

/// Whole numbers that are not differentiated: labels, indices, positions (int32 or int64).
#[pyclass(module = "netcl.core.index", frozen, weakref)]
pub(crate) struct IndexTensor(pub(crate) Core);

#[pymethods]
impl IndexTensor {
    /// Copies an array of whole numbers to a device; other values are an error. ``from_host(data)`` works too.
    #[classmethod]
    #[pyo3(signature = (queue=None, data=None, dtype="int64"))]
    fn from_host(
        _cls: &Bound<'_, PyType>,
        py: Python<'_>,
        queue: Option<&Bound<'_, PyAny>>,
        data: Option<&Bound<'_, PyAny>>,
        dtype: &str,
    ) -> PyResult<Self> {
        let dtype = match dtype {
            "int32" => DType::I32,
            "int64" => DType::I64,
            other => return Err(PyValueError::new_err(format!("unsupported dtype {other:?}: use int32 or int64"))),
        };
        let (queue, data) = match (queue, data) {
            (queue, Some(data)) => (queue, data),
            (Some(data), None) if !data.is_none() && queue_from_py(data)?.is_none() => (None, data),
            _ => return Err(PyTypeError::new_err("from_host: no data given")),
        };
        let queue = resolve_queue(py, queue, None)?;
        Ok(IndexTensor(index_from_host(&queue, data, dtype)?))
    }

    /// The lengths of the axes.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.tensor().shape().iter())
    }

    /// ``"int32"`` or ``"int64"``.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.0.tensor().dtype().name()
    }

    /// The number of elements.
    #[getter]
    fn size(&self) -> usize {
        self.0.tensor().size()
    }

    /// The number of axes.
    #[getter]
    fn ndim(&self) -> usize {
        self.0.tensor().shape().len()
    }

    /// The same values in another shape; one length may be -1. The memory is shared.
    #[pyo3(signature = (*shape))]
    fn reshape(&self, shape: &Bound<'_, PyTuple>) -> PyResult<Self> {
        // Not any sequence: a tensor is one as well, and may have more elements than there is memory.
        let mut lengths: Vec<i64> = match shape.get_item(0) {
            Ok(only) if shape.len() == 1 && (only.is_instance_of::<PyTuple>() || only.is_instance_of::<PyList>()) => {
                only.extract()?
            }
            _ => shape.extract()?,
        };
        let tensor = self.0.tensor();
        let known = lengths.iter().filter(|&&length| length >= 0).fold(1i64, |all, &length| all.saturating_mul(length));
        let unknown: Vec<usize> = (0..lengths.len()).filter(|&axis| lengths[axis] < 0).collect();
        match (&unknown[..], tensor.size() as i64) {
            ([], _) => {}
            (&[axis], size) if lengths[axis] == -1 && known > 0 && size % known == 0 => lengths[axis] = size / known,
            _ => {
                let what = format!("reshape: {lengths:?} is no shape for {} elements", tensor.size());
                return Err(PyValueError::new_err(what));
            }
        }
        let lengths: Vec<usize> = lengths.into_iter().map(|length| length as usize).collect();
        let reshaped = netcl::core::tensor::reshape(tensor, lengths).py()?;
        Ok(IndexTensor(Core::from_tensor(reshaped).py()?))
    }

    /// The queue the tensor was created on.
    #[getter]
    fn queue(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        queue_to_py(py, self.0.tensor().queue())
    }

    /// The only element as a number.
    fn item(&self, py: Python<'_>) -> PyResult<i64> {
        match py.detach(|| self.0.to_host()).py()?[..] {
            [only] => Ok(only),
            ref all => {
                let what = format!("item: an IndexTensor of {} elements is not one number; use to_host()", all.len());
                Err(PyValueError::new_err(what))
            }
        }
    }

    fn __int__(&self, py: Python<'_>) -> PyResult<i64> {
        self.item(py)
    }

    fn __index__(&self, py: Python<'_>) -> PyResult<i64> {
        self.item(py)
    }

    /// The values on another device; the tensor itself if it is there already.
    #[pyo3(signature = (queue=None))]
    fn to(slf: &Bound<'_, Self>, queue: Option<&Bound<'_, PyAny>>) -> PyResult<Py<Self>> {
        let (py, tensor) = (slf.py(), slf.get().0.tensor());
        let Some(queue) = queue.filter(|queue| !queue.is_none()) else { return Ok(slf.clone().unbind()) };
        let queue = resolve_queue(py, Some(queue), None)?;
        let moved = py.detach(|| tensor.to(&queue)).py()?;
        if moved.shares_storage(tensor) {
            return Ok(slf.clone().unbind());
        }
        Py::new(py, IndexTensor(Core::from_tensor(moved).py()?))
    }

    /// A copy in memory of its own.
    fn clone(&self, py: Python<'_>) -> PyResult<Self> {
        let tensor = self.0.tensor();
        let copy = || {
            let own = Raw::uninit(tensor.queue(), tensor.shape().clone(), tensor.dtype())?;
            own.assign(tensor)?;
            Core::from_tensor(own)
        };
        Ok(IndexTensor(py.detach(copy).py()?))
    }

    /// Element by element, with broadcasting: 1 where it holds, else 0. The other operand is an ``IndexTensor``, an int, or an array
    /// or list of integers.
    fn __richcmp__(&self, py: Python<'_>, other: &Bound<'_, PyAny>, op: CompareOp) -> PyResult<Py<PyAny>> {
        let comparison = comparison(op);
        let Some(other) = comparable(comparison.name(), other, self.0.tensor().queue())? else {
            return Ok(py.NotImplemented());
        };
        let result = py.detach(|| compare(comparison, &self.0, &other)).py()?;
        Ok(Py::new(py, Tensor::new(result.into()))?.into_any())
    }

    /// By identity: equality is elementwise.
    fn __hash__(slf: &Bound<'_, Self>) -> usize {
        slf.as_ptr() as usize >> 4
    }

    /// What NumPy's ufuncs do with indices: comparisons are those of the ``IndexTensor``, other operators are refused, and any other
    /// ufunc gives an array.
    #[pyo3(signature = (ufunc, method, *inputs, **kwargs))]
    fn __array_ufunc__<'py>(
        &self,
        ufunc: &Bound<'py, PyAny>,
        method: &Bound<'py, PyString>,
        inputs: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        ufunc::apply(ufunc, method, inputs, kwargs)
    }

    /// A fresh ndarray with the values.
    fn to_host<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        ndarray::copy_out(py, self.0.tensor())
    }

    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if copy == Some(false) {
            return Err(PyValueError::new_err("an IndexTensor's values are always copied out"));
        }
        let array = self.to_host(py)?;
        match dtype.filter(|d| !d.is_none()) {
            Some(dtype) => array.call_method1("astype", (dtype,)),
            None => Ok(array),
        }
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let rebuild = py.get_type::<IndexTensor>().getattr("from_host")?;
        Ok((rebuild, (py.None(), self.to_host(py)?, self.dtype()).into_pyobject(py)?))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let values = ndarray::numpy(py)?.call_method1("array2string", (self.to_host(py)?,))?;
        let (tensor, device) = (self.0.tensor(), self.0.tensor().queue().device_name());
        Ok(format!("IndexTensor({values}, shape={}, dtype={}, device={device:?})", tensor.shape(), tensor.dtype()))
    }
}

/// What indices can be compared with; `None` for what is neither a tensor nor a number, an array or a list.
fn comparable(op: &str, other: &Bound<'_, PyAny>, queue: &Queue) -> PyResult<Option<Core>> {
    if let Ok(index) = other.cast::<IndexTensor>() {
        return Ok(Some(index.get().0.clone()));
    }
    let wrong = || {
        let kind = other.get_type();
        let text = format!(
            "{op}: an IndexTensor compares with an IndexTensor, an int, or an array or list of integers, not with {kind}; see \
             IndexTensor.from_host"
        );
        PyTypeError::new_err(text)
    };
    if let Ok(number) = other.extract::<i64>() {
        return Core::from_host(queue, &[number], ()).py().map(Some);
    }
    if other.is_instance_of::<PyInt>() {
        return Err(PyValueError::new_err(format!("{op}: {other} does not fit into int64")));
    }
    let array = if other.is_instance_of::<PyList>() || other.is_instance_of::<PyTuple>() {
        ndarray::numpy(other.py())?.call_method1("asarray", (other,))?
    } else if other.hasattr("__array__")? || other.is_instance_of::<PyFloat>() {
        other.clone()
    } else {
        return Ok(None);
    };
    let array = array.cast::<PyUntypedArray>().map_err(|_| wrong())?;
    if !matches!(array.dtype().kind(), b'i' | b'u' | b'b') && array.len() > 0 {
        return Err(wrong());
    }
    index_from_host(queue, array, DType::I64).map(Some)
}

/// Copies an array of whole numbers to a device.
pub(crate) fn index_from_host(queue: &Queue, data: &Bound<'_, PyAny>, dtype: DType) -> PyResult<Core> {
    let host = HostData::new(data, DType::F64)?;
    let options = HostOptions { dtype: Some(dtype), ..HostOptions::default() };
    let (bytes, from, shape) = (host.bytes(), host.dtype, host.shape.clone());
    let make = || {
        if from.is_float() {
            let float = Raw::from_host_bytes(queue, bytes, from, shape, HostOptions::default())?;
            return Core::from_tensor(Core::from_float(&float)?.tensor().cast(dtype)?);
        }
        Core::from_tensor(Raw::from_host_bytes(queue, bytes, from, shape, options)?)
    };
    data.py().detach(make).py()
}
