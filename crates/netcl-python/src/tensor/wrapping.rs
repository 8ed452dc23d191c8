//! Tensors over memory that exists already: an ndarray, a buffer (ours or PyOpenCL's), or a lease.

use std::any::Any;
use std::sync::Arc;

use netcl::core::backend::Queue;
use netcl::core::backend::opencl as cl;
use netcl::core::backend::opencl::ClMemory;
use netcl::core::dtype::DType;
use netcl::core::shape::{Layout, Shape};
use netcl::core::tensor::{HostOptions, Tensor as Raw};
use numpy::PyUntypedArray;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt, PyList, PyTuple};

use crate::cpu_buffer;
use crate::device::resolve_queue;
use crate::error::IntoPyResult;
use crate::memory::{AnyLease, BufferHandle};
use crate::ndarray::{self, HostData};
use crate::opencl::{Owner, buffer_from_py, context_from_py, event_from_py};

/// The keywords of the constructor that say which memory it is and how to read it.
pub(super) struct Wrapping<'a, 'py> {
    pub(super) buffer: Option<&'a Bound<'py, PyAny>>,
    pub(super) array: Option<&'a Bound<'py, PyAny>>,
    pub(super) pool_handle: Option<&'a Bound<'py, PyAny>>,
    pub(super) context: Option<&'a Bound<'py, PyAny>>,
    pub(super) queue: Option<&'a Bound<'py, PyAny>>,
    pub(super) backend: Option<&'a str>,
    pub(super) shape: Option<Shape>,
    pub(super) dtype: DType,
}

/// Whether an object holds numbers rather than memory of a device.
fn is_data(object: &Bound<'_, PyAny>) -> bool {
    object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() || object.cast::<PyUntypedArray>().is_ok()
}

/// The lengths of PyTorch's other constructor, ``Tensor(2, 3)``, where the first argument is a number.
pub(super) fn sizes<'py>(positional: [Option<&Bound<'py, PyAny>>; 5]) -> Option<PyResult<Bound<'py, PyAny>>> {
    let first = positional[0].filter(|first| first.is_instance_of::<PyInt>() && !first.is_instance_of::<PyBool>())?;
    let given: Vec<_> = positional.into_iter().map_while(|length| length).collect();
    Some(PyTuple::new(first.py(), given).map(Bound::into_any))
}

impl Wrapping<'_, '_> {
    /// The tensor over that memory.
    pub(super) fn tensor(self, py: Python<'_>) -> PyResult<Raw> {
        match (self.array, self.buffer, self.pool_handle) {
            (Some(array), None, None) => self.over_array(py, array),
            (Some(_), ..) => Err(PyValueError::new_err("Tensor: give array= or buffer=, not both")),
            (None, None, None) => self.empty(py),
            // PyTorch's constructor: ``Tensor([1, 2, 3])`` copies.
            (None, Some(data), None) if self.shape.is_none() && is_data(data) => {
                let queue = resolve_queue(py, self.queue, self.backend)?;
                let host = HostData::new(data, self.dtype)?;
                let options = HostOptions { dtype: Some(self.dtype), ..HostOptions::default() };
                Raw::from_host_bytes(&queue, host.bytes(), host.dtype, host.shape.clone(), options).py()
            }
            (None, buffer, handle) if cpu_buffer::is_native(buffer, handle) => {
                resolve_queue(py, self.queue, self.backend.or(Some("cpu")))?;
                let shape = self.shape.ok_or_else(|| PyValueError::new_err("Tensor: buffer= needs shape="))?;
                cpu_buffer::wrap(buffer, handle, shape, self.dtype)
            }
            (None, buffer, handle) => {
                let queue = self.opencl_queue(py)?;
                let shape = self.shape.ok_or_else(|| PyValueError::new_err("Tensor: buffer= needs shape="))?;
                over_buffer(&queue, buffer, handle, shape, self.dtype)
            }
        }
    }

    fn over_array(self, py: Python<'_>, array: &Bound<'_, PyAny>) -> PyResult<Raw> {
        resolve_queue(py, self.queue, self.backend.or(Some("cpu")))?;
        let array = array
            .cast::<PyUntypedArray>()
            .map_err(|_| PyTypeError::new_err("array must be an ndarray; use Tensor.from_host for other data"))?;
        let raw = ndarray::alias(array, self.dtype)?;
        match self.shape {
            Some(shape) => netcl::core::tensor::reshape(&raw, shape).py(),
            None => Ok(raw),
        }
    }

    /// Only a tensor without elements needs no memory.
    fn empty(self, py: Python<'_>) -> PyResult<Raw> {
        let queue = resolve_queue(py, self.queue, self.backend)?;
        match self.shape {
            Some(shape) if shape.size() == 0 => Raw::uninit(&queue, shape, self.dtype).py(),
            _ => {
                let text = "Tensor(...) allocates nothing: give array= (or buffer=), or call Tensor.from_shape";
                Err(PyValueError::new_err(text))
            }
        }
    }

    fn opencl_queue(&self, py: Python<'_>) -> PyResult<Queue> {
        let queue = resolve_queue(py, self.queue, self.backend.or(Some("cl")))?;
        if let (Some(context), Queue::OpenCl(stream)) = (self.context.filter(|c| !c.is_none()), &queue)
            && context_from_py(context)? != *stream.context()
        {
            return Err(PyValueError::new_err("Tensor: context= is not the queue's context"));
        }
        Ok(queue)
    }
}

fn over_buffer(
    queue: &Queue,
    buffer: Option<&Bound<'_, PyAny>>,
    handle: Option<&Bound<'_, PyAny>>,
    shape: Shape,
    dtype: DType,
) -> PyResult<Raw> {
    let buffer = match buffer {
        None => None,
        Some(object) => Some(buffer_from_py(object)?.ok_or_else(|| {
            PyTypeError::new_err(format!("Tensor: buffer must be an OpenCL buffer, not {}", object.get_type()))
        })?),
    };
    if let Some(handle) = handle {
        let handle = handle.cast::<BufferHandle>().map_err(|_| {
            PyTypeError::new_err(format!("Tensor: pool_handle must be a BufferHandle, not {}", handle.get_type()))
        })?;
        let AnyLease::OpenCl(lease) = &handle.get().0 else {
            return Err(PyTypeError::new_err("Tensor: pool_handle= belongs to the native CPU, buffer= to OpenCL"));
        };
        let memory = ClMemory::shared(lease.clone());
        return match buffer {
            Some((buffer, _)) if memory.buffer().py()? != buffer => {
                Err(PyValueError::new_err("Tensor: buffer= is not the buffer of pool_handle="))
            }
            _ => Raw::from_cl_memory(queue, memory, shape, dtype).py(),
        };
    }
    match buffer {
        // The tensor whose buffer this is knows what is under way in it: share its storage.
        Some((buffer, Owner::Storage(storage))) if same_context(queue, &buffer) => {
            Raw::from_storage(queue, storage, Layout::contiguous(shape), dtype).py()
        }
        Some((buffer, owner)) => {
            let owner: Option<Arc<dyn Any + Send + Sync>> = match owner {
                Owner::Nobody => None,
                Owner::Storage(storage) => Some(storage),
                Owner::Lease(lease) => Some(lease),
                Owner::Foreign(object) => Some(object),
            };
            Raw::from_cl_memory(queue, ClMemory::foreign_of(buffer, owner), shape, dtype).py()
        }
        None => Err(PyValueError::new_err("Tensor: no buffer given")),
    }
}

fn same_context(queue: &Queue, buffer: &cl::Buffer) -> bool {
    matches!(queue, Queue::OpenCl(stream) if stream.context() == buffer.context())
}

/// Waits for a copy into the memory that the caller started, and releases what it went through.
pub(super) fn settle(
    py: Python<'_>,
    event: Option<&Bound<'_, PyAny>>,
    release: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    if let Some(object) = event {
        let event = event_from_py(object)?.ok_or_else(|| {
            PyTypeError::new_err(format!("Tensor: pending_event must be an OpenCL event, not {}", object.get_type()))
        })?;
        py.detach(|| event.wait()).py()?;
    }
    if let Some(handle) = release {
        handle.call_method0("release")?;
    }
    Ok(())
}
