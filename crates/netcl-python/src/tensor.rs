//! `netcl.core.tensor`: the Tensor class and `reshape`.

use std::sync::{Mutex, PoisonError};

use netcl::core::dtype::DType;
use netcl::core::shape::{Layout, Shape, Slice};
use netcl::core::tensor::{HostOptions, Tensor as Raw};
use numpy::PyUntypedArray;
use pyo3::exceptions::{PyAttributeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyEllipsis, PySlice, PyTuple, PyType};

use crate::device::{queue_from_py, queue_to_py, resolve_queue};
use crate::dlpack;
use crate::error::IntoPyResult;
use crate::ndarray::{self, HostData};

/// Copies below this size are not worth letting other Python threads run meanwhile.
const DETACH_ABOVE: usize = 1 << 18;

/// An n-dimensional array on a device.
///
/// Make one with ``Tensor.from_host(queue, data)`` or ``Tensor.from_shape(queue, shape)``. The constructor takes every
/// attribute as a keyword but allocates nothing; it is for wrapping memory that exists already.
#[pyclass(module = "netcl.core.tensor", frozen, weakref, dict, subclass)]
pub(crate) struct Tensor {
    pub(crate) inner: netcl::Tensor,
    /// The tensor this one is a view of.
    base: Option<Py<PyAny>>,
    grad_fn: Mutex<Option<Py<PyAny>>>,
    /// The ndarray over CPU memory: made once, so that `t.to_host() is t.array`.
    array: PyOnceLock<Option<Py<PyAny>>>,
}

impl Tensor {
    pub(crate) fn new(inner: netcl::Tensor) -> Self {
        Tensor { inner, base: None, grad_fn: Mutex::new(None), array: PyOnceLock::new() }
    }

    fn view(inner: netcl::Tensor, base: &Bound<'_, Tensor>) -> Self {
        Tensor { base: Some(base.clone().into_any().unbind()), ..Tensor::new(inner) }
    }

    fn shared<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let made = self.array.get_or_try_init(py, || {
            if self.inner.backend().name() != "cpu" {
                return Ok(None);
            }
            let array = match ndarray::share(py, self.inner.raw())? {
                None if self.inner.size() == 0 => Some(ndarray::copy_out(py, self.inner.raw())?),
                other => other,
            };
            Ok::<_, PyErr>(array.map(Bound::unbind))
        })?;
        Ok(made.as_ref().map(|array| array.bind(py).clone()))
    }
}

/// Reads a dtype argument: one of the table's names, or the default.
pub(crate) fn parse_dtype(dtype: Option<&Bound<'_, PyAny>>) -> PyResult<DType> {
    let Some(given) = dtype.filter(|d| !d.is_none()) else { return Ok(DType::F32) };
    match given.extract::<&str>() {
        Ok(name) => DType::parse(name).py(),
        Err(_) => DType::parse(&given.repr()?.to_string()).py(),
    }
}

fn parse_shape(shape: &Bound<'_, PyAny>) -> PyResult<Shape> {
    let one = |n: &Bound<'_, PyAny>| -> PyResult<usize> {
        let n: i64 = match n.extract() {
            Ok(n) => n,
            Err(_) => n
                .call_method0("__int__")
                .and_then(|n| n.extract())
                .map_err(|_| PyTypeError::new_err(format!("a shape is made of whole numbers, not {}", n.get_type())))?,
        };
        usize::try_from(n).map_err(|_| PyValueError::new_err(format!("a shape cannot hold the negative length {n}")))
    };
    if let Ok(items) = shape.try_iter() {
        return items.map(|n| one(&n?)).collect();
    }
    Ok(Shape::from([one(shape)?]))
}

#[pymethods]
impl Tensor {
    /// Wraps existing memory: ``array`` on the CPU backend, ``buffer`` on OpenCL. Nothing is allocated or copied.
    #[new]
    #[pyo3(signature = (buffer=None, shape=None, dtype=None, context=None, queue=None, pool_handle=None, persistent=false,
        requires_grad=false, grad=None, grad_fn=None, pending_event=None, pending_release=None, host_ref=None,
        array=None, backend=None))]
    #[expect(clippy::too_many_arguments, reason = "the documented constructor has every attribute as a keyword")]
    #[expect(unused_variables, reason = "accepted for the documented signature; the memory carries them here")]
    fn construct(
        py: Python<'_>,
        buffer: Option<&Bound<'_, PyAny>>,
        shape: Option<&Bound<'_, PyAny>>,
        dtype: Option<&Bound<'_, PyAny>>,
        context: Option<&Bound<'_, PyAny>>,
        queue: Option<&Bound<'_, PyAny>>,
        pool_handle: Option<&Bound<'_, PyAny>>,
        persistent: bool,
        requires_grad: bool,
        grad: Option<Bound<'_, Tensor>>,
        grad_fn: Option<Py<PyAny>>,
        pending_event: Option<&Bound<'_, PyAny>>,
        pending_release: Option<&Bound<'_, PyAny>>,
        host_ref: Option<&Bound<'_, PyAny>>,
        array: Option<&Bound<'_, PyAny>>,
        backend: Option<&str>,
    ) -> PyResult<Self> {
        let dtype = parse_dtype(dtype)?;
        let queue = resolve_queue(queue, backend.or(array.map(|_| "cpu")))?;
        let shape = shape.map(parse_shape).transpose()?;
        let raw = match array {
            Some(array) => {
                let array = array.cast::<PyUntypedArray>().map_err(|_| {
                    PyTypeError::new_err("array must be an ndarray; use Tensor.from_host for other data")
                })?;
                let raw = ndarray::alias(array, dtype)?;
                match shape {
                    Some(shape) => netcl::core::tensor::reshape(&raw, shape).py()?,
                    None => raw,
                }
            }
            None => match shape {
                Some(shape) if shape.size() == 0 => Raw::uninit(&queue, shape, dtype).py()?,
                _ => {
                    let text = "Tensor(...) allocates nothing: give array= (or buffer=), or call Tensor.from_shape";
                    return Err(PyValueError::new_err(text));
                }
            },
        };
        let tensor = Tensor::new(raw.into());
        tensor.inner.storage().set_persistent(persistent);
        tensor.inner.set_requires_grad(requires_grad);
        tensor.inner.set_grad(grad.map(|grad| grad.get().inner.clone()));
        *tensor.grad_fn.lock().unwrap_or_else(PoisonError::into_inner) = grad_fn;
        Ok(tensor)
    }

    /// Copies host data (anything ``np.asarray`` accepts) to a device.
    ///
    /// ``from_host(queue, data, dtype=None, backend=None, async_copy=None, use_pinned=None)``; the queue may be left
    /// out or ``None``: then the active or default device is used. The dtype is float32 unless named.
    #[classmethod]
    #[pyo3(signature = (queue=None, data=None, dtype=None, backend=None, async_copy=None, use_pinned=None))]
    #[expect(clippy::too_many_arguments, reason = "the documented signature")]
    fn from_host(
        _cls: &Bound<'_, PyType>,
        py: Python<'_>,
        queue: Option<&Bound<'_, PyAny>>,
        data: Option<&Bound<'_, PyAny>>,
        dtype: Option<&Bound<'_, PyAny>>,
        backend: Option<&str>,
        async_copy: Option<bool>,
        use_pinned: Option<bool>,
    ) -> PyResult<Self> {
        let (queue, data, dtype) = match (queue, data) {
            (None, None) => return Err(PyTypeError::new_err("from_host: no data given")),
            (Some(first), second) if !first.is_none() && queue_from_py(first).is_none() => match (second, dtype) {
                (None, dtype) => (None, first, dtype),
                (second @ Some(_), None) => (None, first, second),
                _ => return Err(PyTypeError::new_err("from_host: the first of two arguments must be a queue or None")),
            },
            (queue, Some(data)) => (queue, data, dtype),
            (Some(_), None) => return Err(PyTypeError::new_err("from_host: a queue but no data given")),
        };
        let dtype = parse_dtype(dtype)?;
        let queue = resolve_queue(queue, backend)?;
        let host = HostData::new(data, dtype)?;
        let options = HostOptions { dtype: Some(dtype), async_copy, use_pinned };
        let (bytes, shape) = (host.bytes(), host.shape.clone());
        let make = || Raw::from_host_bytes(&queue, bytes, host.dtype, shape, options);
        let raw = if bytes.len() < DETACH_ABOVE {
            make()
        } else {
            let (bytes, from, shape) = (bytes, host.dtype, host.shape.clone());
            py.detach(|| Raw::from_host_bytes(&queue, bytes, from, shape, options))
        };
        Ok(Tensor::new(raw.py()?.into()))
    }

    /// A new tensor of a shape, filled with a value (zero unless named).
    #[classmethod]
    #[pyo3(signature = (queue, shape, dtype=None, fill=0.0, pool=None, backend=None))]
    #[expect(clippy::too_many_arguments, reason = "the documented signature")]
    fn from_shape(
        _cls: &Bound<'_, PyType>,
        py: Python<'_>,
        queue: Option<&Bound<'_, PyAny>>,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        fill: f64,
        pool: Option<&Bound<'_, PyAny>>,
        backend: Option<&str>,
    ) -> PyResult<Self> {
        if let Some(pool) = pool.filter(|p| !p.is_none()) {
            let text = format!("from_shape: pool must be a BufferPool of an OpenCL context, not {}", pool.get_type());
            return Err(PyTypeError::new_err(text));
        }
        let dtype = parse_dtype(dtype)?;
        let queue = resolve_queue(queue, backend)?;
        let shape = parse_shape(shape)?;
        Ok(Tensor::new(py.detach(|| netcl::Tensor::full(&queue, shape, dtype, fill)).py()?))
    }

    // ---- attributes --------------------------------------------------------------------------------------------

    /// The OpenCL buffer; ``None`` on the CPU backend.
    #[getter]
    fn buffer(&self) -> Option<Py<PyAny>> {
        None
    }

    /// The lengths of the axes.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.inner.shape().iter())
    }

    /// The distance between neighbours along each axis, in elements.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.inner.layout().strides().iter())
    }

    /// ``"float32"``, ``"float16"``, ``"float64"`` or ``"bfloat16"``.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.inner.dtype().name()
    }

    /// The OpenCL context; ``None`` on the CPU backend.
    #[getter]
    fn context(&self) -> Option<Py<PyAny>> {
        None
    }

    /// The queue the tensor was created on.
    #[getter]
    fn queue(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        queue_to_py(py, self.inner.queue())
    }

    /// The lease of the pool the memory came from, if any.
    #[getter]
    fn pool_handle(&self) -> Option<Py<PyAny>> {
        None
    }

    /// If true, the memory is released instead of pooled when the last reference drops.
    #[getter]
    fn persistent(&self) -> bool {
        self.inner.storage().persistent()
    }

    #[setter]
    fn set_persistent(&self, persistent: bool) {
        self.inner.storage().set_persistent(persistent);
    }

    /// If true, operations that consume this tensor are recorded.
    #[getter]
    fn requires_grad(&self) -> bool {
        self.inner.requires_grad()
    }

    #[setter]
    fn set_requires_grad(&self, requires_grad: bool) {
        self.inner.set_requires_grad(requires_grad);
    }

    /// The accumulated gradient.
    #[getter]
    fn grad(&self) -> Option<Tensor> {
        self.inner.grad().map(Tensor::new)
    }

    #[setter]
    fn set_grad(&self, grad: Option<Bound<'_, Tensor>>) {
        self.inner.set_grad(grad.map(|grad| grad.get().inner.clone()));
    }

    /// The local-gradient callback.
    #[getter]
    fn grad_fn(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.grad_fn.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|f| f.clone_ref(py))
    }

    #[setter]
    fn set_grad_fn(&self, grad_fn: Option<Py<PyAny>>) {
        let _old = std::mem::replace(&mut *self.grad_fn.lock().unwrap_or_else(PoisonError::into_inner), grad_fn);
    }

    /// The event of an upload that is still under way.
    #[getter]
    fn pending_event(&self) -> Option<Py<PyAny>> {
        None
    }

    /// The page-locked memory of an upload that is still under way.
    #[getter]
    fn pending_release(&self) -> Option<Py<PyAny>> {
        None
    }

    /// The host data of an upload that is still under way.
    #[getter]
    fn host_ref(&self) -> Option<Py<PyAny>> {
        None
    }

    /// On the CPU backend the tensor's memory as an ndarray (``None`` for bfloat16, which NumPy lacks); else ``None``.
    #[getter]
    fn array<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.shared(py)
    }

    /// ``"cl"`` or ``"cpu"``.
    #[getter]
    fn backend(&self) -> &'static str {
        self.inner.backend().name()
    }

    /// The number of elements.
    #[getter]
    fn size(&self) -> usize {
        self.inner.size()
    }

    /// The number of axes.
    #[getter]
    fn ndim(&self) -> usize {
        self.inner.ndim()
    }

    /// The tensor this one is a view of.
    #[getter]
    fn _base(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.base.as_ref().map(|base| base.clone_ref(py))
    }

    // ---- reading -----------------------------------------------------------------------------------------------

    /// The values as an ndarray; on the CPU backend the tensor's own memory, not a copy. bfloat16 becomes float32.
    fn to_host<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.shared(py)? {
            Some(array) => Ok(array),
            None => ndarray::copy_out(py, self.inner.raw()),
        }
    }

    /// Like ``to_host``; also returns the event that marks the copy as complete (``None`` on the CPU backend).
    fn to_host_async<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Option<Py<PyAny>>)> {
        Ok((self.to_host(py)?, None))
    }

    /// The same as ``to_host()``.
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.to_host(py)
    }

    /// The only element as a float.
    fn item(&self, py: Python<'_>) -> PyResult<f64> {
        py.detach(|| self.inner.item()).py()
    }

    /// Waits for an upload that is still under way and clears the pending fields. Safe to call twice.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.inner.wait()).py()
    }

    fn _clear_pending(&self, py: Python<'_>) -> PyResult<()> {
        self.wait(py)
    }

    /// The same values, cut off from autograd; the memory is shared.
    fn detach(slf: &Bound<'_, Self>) -> Tensor {
        Tensor::view(slf.get().inner.detach(), slf)
    }

    /// The values on another queue's device, or in another dtype.
    #[pyo3(signature = (queue=None, dtype=None))]
    fn to(
        slf: &Bound<'_, Self>,
        py: Python<'_>,
        queue: Option<&Bound<'_, PyAny>>,
        dtype: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<Tensor>> {
        let named = queue.and_then(|object| object.extract::<&str>().ok().and_then(|name| DType::parse(name).ok()));
        let dtype = match (named, dtype) {
            (Some(dtype), None) => dtype,
            (None, Some(_)) => parse_dtype(dtype)?,
            (None, None) => slf.get().inner.dtype(),
            (Some(_), Some(_)) => return Err(PyTypeError::new_err("to: give one dtype, not two")),
        };
        let tensor = &slf.get().inner;
        let target = match queue.filter(|object| named.is_none() && !object.is_none()) {
            Some(_) => resolve_queue(queue, None)?,
            None => tensor.queue().clone(),
        };
        if dtype == tensor.dtype() && target.same_device(tensor.queue()) {
            return Ok(slf.clone().unbind());
        }
        let moved = py.detach(|| tensor.cast(dtype)?.to(&target)).py()?;
        Py::new(py, Tensor::new(moved.into()))
    }

    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let shares = self.shared(py)?.is_some();
        if copy == Some(false) && !shares {
            let text = "the values live on a device (or are bfloat16), so an ndarray without a copy is impossible";
            return Err(PyValueError::new_err(text));
        }
        let array = self.to_host(py)?;
        let numpy = ndarray::numpy(py)?;
        let dtype = dtype.filter(|d| !d.is_none());
        let same = dtype.is_none_or(|d| array.getattr("dtype").is_ok_and(|own| own.eq(d).unwrap_or(false)));
        match (copy, same) {
            (Some(true), _) if shares || !same => numpy.call_method1("array", (array, dtype)),
            (Some(false), false) => {
                Err(PyValueError::new_err("another dtype was asked for, so an ndarray without a copy is impossible"))
            }
            (_, false) => array.call_method1("astype", (dtype,)),
            _ => Ok(array),
        }
    }

    /// The CPU memory in NumPy's exchange format.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.shared(py)? {
            Some(array) => array.getattr("__array_interface__"),
            None => Err(PyAttributeError::new_err("only CPU tensors of a NumPy dtype have __array_interface__")),
        }
    }

    /// The memory as a DLPack capsule.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        dlpack::export(py, self.inner.raw(), stream, max_version, dl_device, copy)
    }

    /// DLPack's device type and number.
    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::device_of(self.inner.raw())
    }

    fn __len__(&self) -> PyResult<usize> {
        self.inner.shape().first().copied().ok_or_else(|| PyTypeError::new_err("a scalar tensor has no length"))
    }

    fn __float__(&self, py: Python<'_>) -> PyResult<f64> {
        self.item(py)
    }

    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        if self.inner.size() != 1 {
            let text = "the truth of a tensor with other than one element is ambiguous";
            return Err(PyValueError::new_err(text));
        }
        Ok(self.item(py)? != 0.0)
    }

    /// Reading by whole numbers, slices, ``...`` and ``None``: always a view.
    fn __getitem__(slf: &Bound<'_, Self>, key: &Bound<'_, PyAny>) -> PyResult<Tensor> {
        let keys: Vec<Bound<'_, PyAny>> = match key.cast::<PyTuple>() {
            Ok(tuple) => tuple.iter().collect(),
            Err(_) => vec![key.clone()],
        };
        let tensor = &slf.get().inner;
        let layout = index_layout(tensor.layout(), &keys)?;
        Ok(Tensor::view(tensor.with_layout(layout).py()?.into(), slf))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        py.detach(|| self.inner.to_string())
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let rebuild = py.import("netcl.core.tensor")?.getattr("_rebuild")?;
        let tensor = &slf.get().inner;
        let state = PyDict::new(py);
        state.set_item("dtype", tensor.dtype().name())?;
        state.set_item("requires_grad", tensor.requires_grad())?;
        Ok((rebuild, PyTuple::new(py, [ndarray::copy_out(py, tensor.raw())?, state.into_any()])?))
    }
}

/// The part of a layout that a subscript names.
fn index_layout(layout: &Layout, keys: &[Bound<'_, PyAny>]) -> PyResult<Layout> {
    let consumed = keys.iter().filter(|k| !k.is_none() && !k.is_instance_of::<PyEllipsis>()).count();
    let axes = layout.shape().ndim();
    if consumed > axes || keys.iter().filter(|k| k.is_instance_of::<PyEllipsis>()).count() > 1 {
        let text = format!("{consumed} indices (and at most one ...) for a tensor of shape {}", layout.shape());
        return Err(pyo3::exceptions::PyIndexError::new_err(text));
    }
    let mut out = layout.clone();
    let mut axis = 0;
    for key in keys {
        if key.is_none() {
            out = out.unsqueeze("indexing", axis as isize).py()?;
            axis += 1;
        } else if key.is_instance_of::<PyEllipsis>() {
            axis += axes - consumed;
        } else if let Ok(slice) = key.cast::<PySlice>() {
            let part = |name: &str| -> PyResult<Option<isize>> {
                let value = slice.getattr(name)?;
                if value.is_none() { Ok(None) } else { value.extract().map(Some) }
            };
            let slice = Slice::new(part("start")?, part("stop")?, part("step")?.unwrap_or(1));
            out = out.slice(axis, slice).py()?;
            axis += 1;
        } else if let Ok(index) = key.extract::<isize>() {
            out = out.select("indexing", axis, index).py()?;
        } else {
            let text = format!("a tensor is indexed by whole numbers, slices, ... and None, not {}", key.get_type());
            return Err(PyTypeError::new_err(text));
        }
    }
    Ok(out)
}

/// The same elements with another shape: a view that shares the storage, whose ``_base`` is ``t``.
#[pyfunction]
pub(crate) fn reshape(t: &Bound<'_, Tensor>, shape: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let reshaped = netcl::reshape(&t.get().inner, parse_shape(shape)?).py()?;
    Ok(Tensor::view(reshaped, t))
}
