//! Buffers.

use std::sync::{Arc, Mutex, PoisonError};

use netcl::core::backend::opencl as cl;
use netcl::core::backend::opencl::SharedLease;
use netcl::core::storage::Storage;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyType;

use super::queue::Context;
use crate::error::IntoPyResult;

/// What keeps a buffer's memory from being used anew while somebody looks at it.
#[derive(Clone)]
pub(crate) enum Owner {
    /// Nothing: the buffer is its own.
    Nobody,
    /// A tensor's memory.
    Storage(Arc<Storage>),
    /// A lease of a pool.
    Lease(SharedLease),
    /// A PyOpenCL object.
    Foreign(Arc<Py<PyAny>>),
}

/// A piece of device memory.
///
/// While the object lives, the memory is not given to anybody else (unless its lease is released by hand).
#[pyclass(module = "netcl.core.backend.opencl", frozen, weakref)]
pub(crate) struct Buffer {
    parts: Mutex<Option<(cl::Buffer, Owner)>>,
    size: usize,
}

impl Buffer {
    pub(crate) fn new(buffer: cl::Buffer, owner: Owner) -> Self {
        Buffer { size: buffer.size(), parts: Mutex::new(Some((buffer, owner))) }
    }

    /// The driver's buffer and its owner; an error after `release`.
    pub(crate) fn parts(&self) -> PyResult<(cl::Buffer, Owner)> {
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.clone().ok_or_else(|| {
            let text = format!("this buffer of {} bytes was released; it can no longer be used", self.size);
            PyRuntimeError::new_err(text)
        })
    }
}

#[pymethods]
impl Buffer {
    /// Wraps a ``cl_mem`` made by other code; a reference is added.
    #[classmethod]
    fn from_int_ptr(_cls: &Bound<'_, PyType>, int_ptr: usize) -> PyResult<Self> {
        // SAFETY: that the number is a buffer's address is this method's contract, as in PyOpenCL.
        let buffer = unsafe { cl::Buffer::from_int_ptr(int_ptr) }.py()?;
        Ok(Buffer::new(buffer, Owner::Nobody))
    }

    /// The ``cl_mem`` as a number, for ``pyopencl.Buffer.from_int_ptr``.
    #[getter]
    fn int_ptr(&self) -> PyResult<usize> {
        Ok(self.parts()?.0.int_ptr())
    }

    /// Its size in bytes: that of the whole block, which may be larger than what was asked for.
    #[getter]
    fn size(&self) -> usize {
        self.size
    }

    /// The bits of ``cl_mem_flags`` it was made with.
    #[getter]
    fn flags(&self) -> PyResult<u64> {
        Ok(self.parts()?.0.flags().bits())
    }

    /// Its context.
    #[getter]
    fn context(&self) -> PyResult<Context> {
        Ok(Context(self.parts()?.0.context().clone()))
    }

    /// Lets go of the memory now instead of when the object is dropped. Releasing again does nothing.
    fn release(&self) {
        // Dropped after the lock: what comes with it may take its time.
        let _parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn __eq__(&self, other: &Buffer) -> bool {
        matches!((self.parts(), other.parts()), (Ok(a), Ok(b)) if a.0 == b.0)
    }

    fn __hash__(&self) -> PyResult<usize> {
        self.int_ptr()
    }

    fn __repr__(&self) -> String {
        let state = if self.parts().is_ok() { "" } else { ", released" };
        format!("<Buffer of {} bytes{state}>", self.size)
    }
}
