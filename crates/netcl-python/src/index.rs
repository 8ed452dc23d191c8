//! `IndexTensor`: whole numbers and truth values, and the class that a result's dtype asks for.

use netcl::core::backend::Queue;
use netcl::core::dtype::DType;
use netcl::core::index::IndexTensor as Core;
use netcl::core::tensor::{HostOptions, Tensor as Raw};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::device::{queue_from_py, resolve_queue};
use crate::error::IntoPyResult;
use crate::ndarray::HostData;
use crate::tensor::Tensor;

/// A tensor of whole numbers (int32 or int64) or truth values (bool), which is not differentiated: labels, indices, positions, masks.
///
/// It has the methods of ``Tensor``: arithmetic is exact, comparisons give truth values, and beside a float tensor it becomes one.
#[pyclass(module = "netcl.core.index", extends = Tensor, subclass, frozen)]
pub(crate) struct IndexTensor;

#[pymethods]
impl IndexTensor {
    /// Copies an array of whole numbers or truth values to a device; other values are an error. ``from_host(data)`` works too.
    #[classmethod]
    #[pyo3(signature = (queue=None, data=None, dtype="int64"))]
    fn from_host(
        _cls: &Bound<'_, PyType>,
        py: Python<'_>,
        queue: Option<&Bound<'_, PyAny>>,
        data: Option<&Bound<'_, PyAny>>,
        dtype: &str,
    ) -> PyResult<Made> {
        let dtype = match DType::parse_any(dtype) {
            Ok(dtype) if !dtype.is_float() => dtype,
            _ => return Err(PyValueError::new_err(format!("unsupported dtype {dtype:?}: use int32, int64 or bool"))),
        };
        let (queue, data) = match (queue, data) {
            (queue, Some(data)) => (queue, data),
            (Some(data), None) if !data.is_none() && queue_from_py(data)?.is_none() => (None, data),
            _ => return Err(PyTypeError::new_err("from_host: no data given")),
        };
        let queue = resolve_queue(py, queue, None)?;
        let whole = if dtype == DType::U8 { DType::I64 } else { dtype };
        let index: netcl::Tensor = index_from_host(&queue, data, whole)?.tensor().clone().into();
        Ok(Made::new(index.cast(dtype).py()?))
    }
}

/// A result on its way to Python, where its dtype decides the class: `Tensor` for floats, else `IndexTensor`.
pub(crate) struct Made(pub(crate) Tensor);

impl Made {
    pub(crate) fn new(tensor: netcl::Tensor) -> Self {
        Made(Tensor::new(tensor))
    }
}

impl From<Core> for Made {
    fn from(index: Core) -> Self {
        Made::new(index.tensor().clone().into())
    }
}

impl<'py> IntoPyObject<'py> for Made {
    type Target = Tensor;
    type Output = Bound<'py, Tensor>;
    type Error = PyErr;

    fn into_pyobject(mut self, py: Python<'py>) -> PyResult<Bound<'py, Tensor>> {
        if self.0.is_float() {
            return Bound::new(py, self.0);
        }
        let initializer = PyClassInitializer::from(self.0).add_subclass(IndexTensor);
        Ok(Bound::new(py, initializer)?.into_super())
    }
}

/// A tensor of whole numbers as the operations that take indices see it.
pub(crate) fn core(tensor: &Tensor) -> PyResult<Core> {
    Core::from_tensor(tensor.inner().raw().clone()).py()
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
