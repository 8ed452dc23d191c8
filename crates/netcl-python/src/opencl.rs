//! `netcl.core.backend.opencl`: the OpenCL objects, ours and foreign.

use std::sync::Arc;

use netcl::core::backend::opencl::Stream;
use pyo3::prelude::*;

use crate::error::IntoPyResult;

/// An in-order OpenCL command queue.
#[pyclass(module = "netcl.core.backend.opencl", frozen)]
pub(crate) struct CommandQueue(pub(crate) Arc<Stream>);

#[pymethods]
impl CommandQueue {
    /// Always ``"cl"``.
    #[getter]
    fn backend(&self) -> &'static str {
        "cl"
    }

    /// The ``cl_command_queue`` as a number, for ``pyopencl.CommandQueue.from_int_ptr``.
    #[getter]
    fn int_ptr(&self) -> usize {
        self.0.queue().int_ptr()
    }

    /// Waits until everything enqueued so far is done.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.finish()).map_err(netcl::Error::from).py()
    }

    /// Hands everything enqueued so far to the device.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.flush()).map_err(netcl::Error::from).py()
    }

    fn __eq__(&self, other: &CommandQueue) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn __hash__(&self) -> usize {
        self.int_ptr()
    }

    fn __repr__(&self) -> String {
        format!("<CommandQueue on {:?}>", self.0.device().name())
    }
}
