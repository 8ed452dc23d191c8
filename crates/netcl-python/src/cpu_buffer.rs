//! `netcl.core.backend.cpu.CPUBuffer`: a piece of the native CPU's memory, where OpenCL devices have a `Buffer`.

use std::sync::{Arc, Mutex, PoisonError};

use netcl::core::backend::cpu;
use netcl::core::device::manager;
use netcl::core::dtype::DType;
use netcl::core::memory::SharedCpuLease;
use netcl::core::shape::{Layout, Shape};
use netcl::core::storage::Storage;
use netcl::core::tensor::Tensor as Raw;
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::error::IntoPyResult;
use crate::memory::{AnyLease, BufferHandle};
use crate::ndarray;

/// A piece of the native CPU's memory; ``array`` is its bytes.
///
/// While the object lives, the memory is not given to anybody else.
#[pyclass(name = "CPUBuffer", module = "netcl.core.backend.cpu", frozen, weakref)]
pub(crate) struct CpuBuffer {
    memory: Mutex<Option<Arc<Storage>>>,
    size: usize,
}

impl CpuBuffer {
    pub(crate) fn new(memory: cpu::CpuBuffer) -> Self {
        CpuBuffer { size: memory.nbytes(), memory: Mutex::new(Some(Arc::new(Storage::cpu(memory)))) }
    }

    /// The block of a lease, which lives at least as long.
    pub(crate) fn leased(lease: &SharedCpuLease) -> PyResult<Self> {
        let block = Arc::clone(lease.read().unwrap_or_else(PoisonError::into_inner).block().py()?);
        let (first, nbytes) = (block.as_ptr(), block.nbytes());
        // SAFETY: the block has this many initialised bytes, and the owner keeps it alive.
        Ok(CpuBuffer::new(unsafe { cpu::CpuBuffer::foreign(first, nbytes, Box::new((lease.clone(), block))) }))
    }

    /// The memory; an error after `release`.
    pub(crate) fn storage(&self) -> PyResult<Arc<Storage>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner).clone().ok_or_else(|| {
            let text = format!("this buffer of {} bytes was released; it can no longer be used", self.size);
            PyRuntimeError::new_err(text)
        })
    }

    fn bytes(&self) -> PyResult<Raw> {
        over(self.storage()?, Shape::from([self.size]), DType::U8)
    }

    fn address(&self) -> PyResult<usize> {
        Ok(self.bytes()?.cpu_ptr().map_or(0, |first| first.addr()))
    }
}

#[pymethods]
impl CpuBuffer {
    /// Its size in bytes: that of the whole block, which may be larger than what was asked for.
    #[getter]
    fn size(&self) -> usize {
        self.size
    }

    /// The memory as an ndarray of bytes; ``array[:n].view("float32")`` reads it as something else.
    #[getter]
    fn array<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        ndarray::share_bytes(py, &self.bytes()?)
    }

    /// The OpenCL context: always ``None`` here.
    #[getter]
    fn context(&self) -> Option<Py<PyAny>> {
        None
    }

    /// Lets go of the memory now instead of when the object is dropped. Releasing again does nothing.
    fn release(&self) {
        let _memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn __eq__(&self, other: &CpuBuffer) -> bool {
        matches!((self.address(), other.address()), (Ok(a), Ok(b)) if a == b)
    }

    fn __hash__(&self) -> PyResult<usize> {
        self.address()
    }

    fn __repr__(&self) -> String {
        let state = if self.storage().is_ok() { "" } else { ", released" };
        format!("<CPUBuffer of {} bytes{state}>", self.size)
    }
}

fn over(storage: Arc<Storage>, shape: Shape, dtype: DType) -> PyResult<Raw> {
    Raw::from_storage(&manager().cpu().queue, storage, Layout::contiguous(shape), dtype).py()
}

/// Whether ``Tensor(buffer=, pool_handle=)`` names memory of the native CPU.
pub(crate) fn is_native(buffer: Option<&Bound<'_, PyAny>>, handle: Option<&Bound<'_, PyAny>>) -> bool {
    let leased = handle.and_then(|handle| handle.cast::<BufferHandle>().ok());
    leased.is_some_and(|handle| matches!(handle.get().0, AnyLease::Cpu(_)))
        || buffer.is_some_and(|buffer| buffer.cast::<CpuBuffer>().is_ok())
}

/// The tensor over a ``CPUBuffer``, a lease of native memory, or both.
pub(crate) fn wrap(
    buffer: Option<&Bound<'_, PyAny>>,
    handle: Option<&Bound<'_, PyAny>>,
    shape: Shape,
    dtype: DType,
) -> PyResult<Raw> {
    let unlike = || PyTypeError::new_err("Tensor: buffer= and pool_handle= must both belong to the native CPU");
    let buffer = buffer.map(|buffer| buffer.cast::<CpuBuffer>().map_err(|_| unlike())).transpose()?;
    let raw = match (handle, buffer) {
        (None, None) => return Err(PyValueError::new_err("Tensor: no buffer given")),
        (None, Some(buffer)) => over(buffer.get().storage()?, shape, dtype)?,
        (Some(handle), buffer) => {
            let handle = handle.cast::<BufferHandle>().map_err(|_| unlike())?;
            let AnyLease::Cpu(lease) = &handle.get().0 else { return Err(unlike()) };
            if let Some(buffer) = buffer
                && CpuBuffer::leased(lease)?.address()? != buffer.get().address()?
            {
                return Err(PyValueError::new_err("Tensor: buffer= is not the buffer of pool_handle="));
            }
            over(Arc::new(Storage::cpu_lease(lease.clone()).py()?), shape, dtype)?
        }
    };
    match raw.cpu_ptr().is_some_and(|first| !first.addr().is_multiple_of(dtype.size())) {
        true => Err(PyValueError::new_err(format!("Tensor: the buffer's memory is not aligned for {dtype}"))),
        false => Ok(raw),
    }
}
