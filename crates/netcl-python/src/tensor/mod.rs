//! `netcl.core.tensor`: the Tensor class and `reshape`.

mod arguments;
mod differentiation;
mod held;
mod in_place;
mod indexing;
// The operators come from a macro, where the lint takes what PyO3 writes for ours.
#[allow(unsafe_op_in_unsafe_fn)]
mod operators;
pub(crate) mod ufunc;
mod wrapping;

use std::sync::{Mutex, PoisonError};

use netcl::autograd::graph::anomaly_enabled;
use netcl::autograd::ops::layout;
use netcl::core::backend::Queue;
use netcl::core::dtype::DType;
use netcl::core::shape::Shape;
use netcl::core::tensor::{HostOptions, Tensor as Raw};
use pyo3::exceptions::{PyAttributeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyTuple, PyType};

use crate::autograd::{self, site};
use crate::axis;
use crate::device::{DeviceHandle, handle_of, queue_from_py, queue_to_py, resolve_queue};
use crate::dlpack;
use crate::error::IntoPyResult;
use crate::index::Made;
use crate::memory::{AnyLease, BufferHandle, Pool};
use crate::ndarray::{self, HostData};
use crate::opencl::{Buffer, Context, Event, Owner, download};
pub(crate) use arguments::{inferred_shape, parse_shape};
use held::{Held, reshaping};
use indexing::subscript;
use wrapping::Wrapping;

pub(crate) use arguments::{parse_any_dtype, parse_dtype};

/// Copies below this size are not worth letting other Python threads run meanwhile.
pub(crate) const DETACH_ABOVE: usize = 1 << 18;

/// An n-dimensional array on a device.
///
/// Make one with ``Tensor.from_host(queue, data)`` or ``Tensor.from_shape(queue, shape)``. The constructor takes every
/// attribute as a keyword but allocates nothing; it is for wrapping memory that exists already.
#[pyclass(module = "netcl.core.tensor", frozen, weakref, dict, subclass)]
pub(crate) struct Tensor {
    held: Mutex<Held>,
    grad_fn: Mutex<Option<Py<PyAny>>>,
}

#[pymethods]
impl Tensor {
    /// Wraps existing memory: ``array`` on the CPU backend, ``buffer`` on OpenCL. Nothing is allocated or copied.
    #[new]
    #[pyo3(signature = (buffer=None, shape=None, dtype=None, context=None, queue=None, pool_handle=None, persistent=false,
        requires_grad=false, grad=None, grad_fn=None, pending_event=None, pending_release=None, host_ref=None,
        array=None, backend=None),
        text_signature = "(buffer=None, shape=None, dtype='float32', context=None, queue=None, pool_handle=None, \
        persistent=False, requires_grad=False, grad=None, grad_fn=None, pending_event=None, pending_release=None, \
        host_ref=None, array=None, backend=None)")]
    #[expect(clippy::too_many_arguments, reason = "the documented constructor has every attribute as a keyword")]
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
        if let Some(sizes) = wrapping::sizes([buffer, shape, dtype, context, queue]) {
            let queue = resolve_queue(py, None, backend)?;
            return Ok(Tensor::new(Raw::full(&queue, parse_shape(&sizes?)?, DType::F32, 0.0).py()?.into()));
        }
        let dtype = parse_dtype(dtype)?;
        let shape = shape.map(parse_shape).transpose()?;
        let wrapping = Wrapping { buffer, array, pool_handle, context, queue, backend, shape, dtype };
        let raw = wrapping.tensor(py)?;
        wrapping::settle(py, pending_event, pending_release)?;
        // Only a copy under way needs its source, and there is none any more.
        let _ = host_ref;
        let tensor = Tensor::new(raw.into());
        let inner = tensor.inner();
        inner.storage().set_persistent(persistent);
        inner.set_requires_grad(requires_grad).py()?;
        inner.set_grad(grad.map(|grad| grad.get().inner().as_ref().clone()));
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
            (Some(first), second) if !first.is_none() && queue_from_py(first)?.is_none() => match (second, dtype) {
                (None, dtype) => (None, first, dtype),
                (second @ Some(_), None) => (None, first, second),
                _ => return Err(PyTypeError::new_err("from_host: the first of two arguments must be a queue or None")),
            },
            (queue, Some(data)) => (queue, data, dtype),
            (Some(_), None) => return Err(PyTypeError::new_err("from_host: a queue but no data given")),
        };
        let dtype = parse_dtype(dtype)?;
        let queue = resolve_queue(py, queue, backend)?;
        let host = HostData::new(data, dtype)?;
        let options = HostOptions { dtype: Some(dtype), async_copy, use_pinned };
        let (bytes, shape) = (host.bytes(), host.shape.clone());
        let make = || Raw::from_host_bytes(&queue, bytes, host.dtype, shape, options);
        // Drivers may wait or compile; a small copy on the CPU does neither.
        let raw = if bytes.len() < DETACH_ABOVE && queue.backend().name() == "cpu" {
            make()
        } else {
            let (bytes, from, shape) = (bytes, host.dtype, host.shape.clone());
            site::detach(py, || Raw::from_host_bytes(&queue, bytes, from, shape, options))
        };
        Ok(Tensor::new(raw.py()?.into()))
    }

    /// A new tensor of a shape, filled with a value (zero unless named).
    #[classmethod]
    #[pyo3(signature = (queue, shape, dtype=None, fill=0.0, pool=None, backend=None),
        text_signature = "($cls, queue, shape, dtype='float32', fill=0.0, pool=None, backend=None)")]
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
        let pool = match pool.filter(|pool| !pool.is_none()) {
            None => None,
            Some(pool) => Some(pool.cast::<Pool>().map(|pool| pool.get().0.clone()).map_err(|_| {
                let kind = pool.get_type();
                PyTypeError::new_err(format!(
                    "from_shape: pool must be a BufferPool of the queue's context, not {kind}"
                ))
            })?),
        };
        let dtype = parse_dtype(dtype)?;
        let queue = resolve_queue(py, queue, backend)?;
        let shape = parse_shape(shape)?;
        let make = || match &pool {
            Some(pool) => pool.full(&queue, shape, dtype, fill),
            None => Raw::full(&queue, shape, dtype, fill),
        };
        Ok(Tensor::new(py.detach(make).py()?.into()))
    }

    // ---- attributes --------------------------------------------------------------------------------------------

    /// The OpenCL buffer; ``None`` on the CPU backend and for zero-size tensors. Commands that others enqueue on the tensor's queue
    /// after this call see the tensor's values, also where an upload is still under way.
    #[getter]
    fn buffer(&self, py: Python<'_>) -> PyResult<Option<Buffer>> {
        let inner = self.inner();
        let (Queue::OpenCl(stream), Some(memory)) = (inner.queue(), inner.storage().cl_memory()) else {
            return Ok(None);
        };
        let buffer = py.detach(|| memory.acquire(stream)).py()?;
        Ok(Some(Buffer::new(buffer, Owner::Storage(inner.storage().clone()))))
    }

    /// Where the first element lies in the memory, in elements: not 0 for some views.
    #[getter]
    fn offset(&self) -> usize {
        self.inner().layout().offset()
    }

    /// The lengths of the axes.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.inner().shape().iter())
    }

    /// The distance between neighbours along each axis, in elements.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.inner().layout().strides().iter())
    }

    /// ``"float32"``, ``"float16"``, ``"float64"`` or ``"bfloat16"``; of an ``IndexTensor`` ``"int32"``, ``"int64"`` or ``"bool"``.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.inner().dtype().name()
    }

    /// The OpenCL context; ``None`` on the CPU backend.
    #[getter]
    fn context(&self) -> Option<Context> {
        match self.inner().queue() {
            Queue::OpenCl(stream) => Some(Context(stream.context().clone())),
            Queue::Cpu(_) => None,
        }
    }

    /// The queue the tensor was created on.
    #[getter]
    fn queue(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        queue_to_py(py, self.inner().queue())
    }

    /// The device, as a handle: it prints as its selector and is equal to one.
    #[getter]
    fn device(&self, py: Python<'_>) -> PyResult<Py<DeviceHandle>> {
        handle_of(py, self.inner().queue())
    }

    /// The lease of the pool the memory came from, if any.
    #[getter]
    fn pool_handle(&self) -> Option<BufferHandle> {
        AnyLease::of(self.inner().storage()).map(BufferHandle)
    }

    /// If true, the memory is released instead of pooled when the last reference drops.
    #[getter]
    fn persistent(&self) -> bool {
        self.inner().storage().persistent()
    }

    #[setter]
    fn set_persistent(&self, persistent: bool) {
        self.inner().storage().set_persistent(persistent);
    }

    /// The event of an upload that is still under way.
    #[getter]
    fn pending_event(&self) -> Option<Event> {
        self.inner().storage().cl_memory()?.upload().as_ref().map(|upload| Event::new(upload.event.clone()))
    }

    /// The page-locked memory of an upload that is still under way.
    #[getter]
    fn pending_release(&self) -> Option<BufferHandle> {
        self.inner()
            .storage()
            .cl_memory()?
            .upload()
            .as_ref()
            .and_then(|upload| upload.pinned.clone())
            .map(AnyLease::OpenCl)
            .map(BufferHandle)
    }

    /// The host data of an upload that is still under way (read-only), where it does not go through page-locked memory.
    #[getter]
    fn host_ref<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let inner = self.inner();
        let memory = inner.storage().cl_memory();
        let bytes = memory.and_then(|memory| memory.upload().as_ref().and_then(|upload| upload.snapshot.clone()));
        bytes.map(|bytes| ndarray::snapshot(py, bytes, inner.raw())).transpose()
    }

    /// On the CPU backend the tensor's memory as an ndarray (``None`` for bfloat16, which NumPy lacks); else ``None``.
    #[getter]
    fn array<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.shared(py)
    }

    /// ``"cl"`` or ``"cpu"``.
    #[getter]
    fn backend(&self) -> &'static str {
        self.inner().backend().name()
    }

    /// The number of elements.
    #[getter]
    fn size(&self) -> usize {
        self.inner().size()
    }

    /// The number of axes.
    #[getter]
    fn ndim(&self) -> usize {
        self.inner().ndim()
    }

    /// The tensor this one is a view of.
    #[getter]
    fn _base(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.base(py).map(Bound::into_any).map(Bound::unbind)
    }

    // ---- reading -----------------------------------------------------------------------------------------------

    /// The values as an ndarray; on the CPU backend the tensor's own memory (``array``), not a copy: ``numpy()`` is one on every
    /// backend. bfloat16 becomes float32.
    fn to_host<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.shared(py)? {
            Some(array) => Ok(array),
            None => ndarray::copy_out(py, self.inner().raw()),
        }
    }

    /// Like ``to_host`` without waiting: the array holds the values once the event is complete (``None``: it does already). The
    /// array's memory lives until then, whatever is dropped meanwhile.
    fn to_host_async<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Option<Event>)> {
        match self.shared(py)? {
            Some(array) => Ok((array, None)),
            None => download(py, self.inner().raw()),
        }
    }

    /// The values as a new ndarray: a copy on every backend, which may be written to. bfloat16 becomes float32.
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        ndarray::copy_out(py, self.inner().raw())
    }

    /// The only element: a float, of whole numbers an int, of truth values a bool.
    fn item<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let inner = self.inner();
        match inner.dtype() {
            DType::U8 => Ok(PyBool::new(py, number(py, &inner)? != 0.0).to_owned().into_any()),
            DType::I64 if inner.size() == 1 => {
                let values = site::detach(py, || inner.to_host::<i64>()).py()?;
                Ok(values[0].into_pyobject(py)?.into_any())
            }
            DType::I32 => Ok((number(py, &inner)? as i64).into_pyobject(py)?.into_any()),
            _ => Ok(PyFloat::new(py, number(py, &inner)?).into_any()),
        }
    }

    /// The same elements in another shape, where one length may be -1: a view wherever strides can express it.
    #[pyo3(signature = (*shape))]
    fn reshape(slf: &Bound<'_, Self>, shape: &Bound<'_, PyTuple>) -> PyResult<Made> {
        let shape = inferred_shape("reshape", shape, slf.get().inner().size())?;
        reshaped(slf, shape)
    }

    /// Two axes exchanged as in PyTorch: ``x.transpose(1, 2)``; or all in the order of ``axes``, or reversed where none is given,
    /// as in NumPy: ``x.transpose(axes=(2, 0, 1))``, ``x.transpose()``. A view.
    #[pyo3(signature = (*dims, dim0=None, dim1=None, axes=None))]
    fn transpose(
        &self,
        py: Python<'_>,
        dims: &Bound<'_, PyTuple>,
        dim0: Option<isize>,
        dim1: Option<isize>,
        axes: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Made> {
        let tensor = &self.inner();
        let pair = match dim0.zip(dim1) {
            None if dims.len() == 2 => Some(dims.extract()?),
            named => named,
        };
        if let (Some((first, second)), None) = (pair, axes) {
            return autograd::record(py, tensor, || layout::transpose(tensor, first, second));
        }
        let order = match (axes, dims.len()) {
            (Some(axes), _) => crate::ops::axes(Some(axes))?,
            (None, 0) => (0..tensor.ndim() as isize).rev().collect(),
            (None, 1) => crate::ops::axes(Some(&dims.get_item(0)?))?,
            (None, _) => crate::ops::axes(Some(dims.as_any()))?,
        };
        autograd::record(py, tensor, || layout::permute(tensor, &order))
    }

    /// A copy in memory of its own, through which gradients flow.
    fn clone(&self, py: Python<'_>) -> PyResult<Made> {
        autograd::record(py, &self.inner(), || self.inner().duplicate())
    }

    /// Waits for an upload that is still under way and clears the pending fields. Safe to call twice.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.inner().wait()).py()
    }

    fn _clear_pending(&self, py: Python<'_>) -> PyResult<()> {
        self.wait(py)
    }

    /// The values on another device (a selector, a handle or a queue), or in another dtype, or both, or those of another tensor; the
    /// gradient comes back in the tensor's own.
    #[pyo3(
        name = "to",
        signature = (queue=None, dtype=None, *, device=None, non_blocking=false, copy=false),
        text_signature = "($self, queue=None, dtype=None, *, device=None, non_blocking=False, copy=False)"
    )]
    fn to_form(
        slf: &Bound<'_, Self>,
        py: Python<'_>,
        queue: Option<&Bound<'_, PyAny>>,
        dtype: Option<&Bound<'_, PyAny>>,
        device: Option<&Bound<'_, PyAny>>,
        non_blocking: bool,
        copy: bool,
    ) -> PyResult<Py<PyAny>> {
        // Copies wait only where they must, whoever asks.
        let _ = non_blocking;
        let queue = axis::either("to", ["queue", "device"], queue, device)?;
        let moved = match queue.and_then(|object| object.cast::<Tensor>().ok()) {
            Some(other) => {
                let (place, dtype) = (other.get().queue(py)?, other.get().dtype().into_pyobject(py)?);
                Tensor::to(slf, py, Some(place.bind(py)), Some(dtype.as_any()))?
            }
            None => Tensor::to(slf, py, queue, dtype)?,
        };
        if copy && moved.as_ptr() == slf.as_ptr() {
            return Ok(slf.call_method0("clone")?.unbind());
        }
        Ok(moved.into_any())
    }
}

impl Tensor {
    /// [`Tensor::to_form`] of a queue, a dtype or both.
    pub(crate) fn to(
        slf: &Bound<'_, Self>,
        py: Python<'_>,
        queue: Option<&Bound<'_, PyAny>>,
        dtype: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<Tensor>> {
        let named = queue.and_then(|object| object.extract::<&str>().ok().and_then(|name| DType::parse_any(name).ok()));
        let dtype = match (named, dtype) {
            (Some(dtype), None) => dtype,
            (None, Some(dtype)) => parse_any_dtype(dtype)?,
            (None, None) => slf.get().inner().dtype(),
            (Some(_), Some(_)) => return Err(PyTypeError::new_err("to: give one dtype, not two")),
        };
        let tensor = &slf.get().inner();
        let target = match queue.filter(|object| named.is_none() && !object.is_none()) {
            Some(_) => resolve_queue(py, queue, None)?,
            None => tensor.queue().clone(),
        };
        if dtype == tensor.dtype() && target.same_device(tensor.queue()) {
            return Ok(slf.clone().unbind());
        }
        let moved = py.detach(|| tensor.cast(dtype)?.to(&target)).py()?;
        Ok(autograd::wrap(py, moved)?.into_pyobject(py)?.unbind())
    }
}

#[pymethods]
impl Tensor {
    /// The values for ``np.asarray`` (``copy=None``: the tensor's own memory where NumPy can see it, which is on the CPU backend;
    /// else a copy) and ``np.array`` (a copy).
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
        dlpack::export(py, self.inner().raw(), stream, max_version, dl_device, copy)
    }

    /// DLPack's device type and number.
    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::device_of(self.inner().raw())
    }

    fn __len__(&self) -> PyResult<usize> {
        self.inner().shape().first().copied().ok_or_else(|| PyTypeError::new_err("a scalar tensor has no length"))
    }

    fn __float__(&self, py: Python<'_>) -> PyResult<f64> {
        number(py, &self.inner())
    }

    fn __int__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.get_type::<PyInt>().call1((self.item(py)?,))
    }

    fn __index__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.inner().check_whole("index").py()?;
        self.__int__(py)
    }

    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        let tensor = self.inner();
        if tensor.size() != 1 {
            let text = "the truth of a tensor with other than one element is ambiguous";
            return Err(PyValueError::new_err(text));
        }
        Ok(number(py, &tensor)? != 0.0)
    }

    /// Reading by NumPy's rules: a view for whole numbers, slices, ``...`` and ``None``, a copy where lists, arrays or tensors of
    /// indices, or masks, choose elements.
    fn __getitem__(slf: &Bound<'_, Self>, key: &Bound<'_, PyAny>) -> PyResult<Made> {
        let (py, tensor) = (slf.py(), slf.get().inner());
        let subscript = subscript(&tensor, key)?;
        if !subscript.is_view() {
            return autograd::record(py, &tensor, || subscript.read(&tensor));
        }
        let part = subscript.read(&tensor).py()?;
        if anomaly_enabled() {
            site::note(py, &part)?;
        }
        Ok(Made(Tensor::part_of(part, (slf, &tensor), Some(subscript.view()))))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        py.detach(|| self.inner().to_string())
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let rebuild = py.import("netcl.core.tensor")?.getattr("_rebuild")?;
        let tensor = slf.get().inner();
        let state = PyDict::new(py);
        state.set_item("dtype", tensor.dtype().name())?;
        state.set_item("requires_grad", tensor.requires_grad())?;
        Ok((rebuild, PyTuple::new(py, [ndarray::copy_out(py, tensor.raw())?, state.into_any()])?))
    }
}

/// The only element.
fn number(py: Python<'_>, tensor: &netcl::Tensor) -> PyResult<f64> {
    autograd::run(py, tensor, || tensor.item()).py()
}

/// The same elements with another shape: a view that shares the storage, whose ``_base`` is ``t``. One length may be -1: what the
/// others leave.
#[pyfunction]
pub(crate) fn reshape(t: &Bound<'_, Tensor>, shape: &Bound<'_, PyAny>) -> PyResult<Made> {
    let shape = match parse_shape(shape) {
        Ok(shape) => shape,
        Err(error) => {
            inferred_shape("reshape", &PyTuple::new(t.py(), [shape])?, t.get().inner().size()).map_err(|_| error)?
        }
    };
    reshaped(t, shape)
}

fn reshaped(t: &Bound<'_, Tensor>, shape: Shape) -> PyResult<Made> {
    let (tensor, to) = (t.get().inner(), shape.clone());
    let reshaped = autograd::run(t.py(), &tensor, || netcl::reshape(&tensor, to)).py()?;
    if anomaly_enabled() {
        site::note(t.py(), &reshaped)?;
    }
    Ok(Made(Tensor::part_of(reshaped, (t, &tensor), Some(reshaping(shape)))))
}
