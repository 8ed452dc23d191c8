//! Events.

use std::sync::Arc;

use netcl::core::backend::opencl as cl;
use netcl::core::backend::opencl::EventStatus;
use pyo3::prelude::*;
use pyo3::types::PyType;

use super::download::Download;
use super::same_object;
use crate::error::IntoPyResult;

/// The completion of one command.
#[pyclass(module = "netcl.core.backend.opencl", frozen, eq, hash)]
pub(crate) struct Event {
    event: cl::Event,
    /// The host memory that the command writes.
    _download: Option<Arc<Download>>,
}
same_object!(Event, |event| event.event.int_ptr());

impl Event {
    pub(crate) fn new(event: cl::Event) -> Self {
        Event { event, _download: None }
    }

    pub(super) fn of_download(download: Arc<Download>) -> Self {
        Event { event: download.event().clone(), _download: Some(download) }
    }

    pub(crate) fn event(&self) -> &cl::Event {
        &self.event
    }
}

#[pymethods]
impl Event {
    /// Wraps a ``cl_event`` made by other code; a reference is added.
    #[classmethod]
    fn from_int_ptr(_cls: &Bound<'_, PyType>, int_ptr: usize) -> PyResult<Self> {
        // SAFETY: that the number is an event's address is this method's contract, as in PyOpenCL.
        unsafe { cl::Event::from_int_ptr(int_ptr) }.map(Event::new).py()
    }

    /// The ``cl_event`` as a number, for ``pyopencl.Event.from_int_ptr``.
    #[getter]
    fn int_ptr(&self) -> usize {
        self.pointer()
    }

    /// Waits until the command is done.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.event.wait()).py()
    }

    /// ``"queued"``, ``"submitted"``, ``"running"``, ``"complete"`` or ``"failed"``.
    #[getter]
    fn status(&self) -> PyResult<&'static str> {
        Ok(match self.event.status().py()? {
            EventStatus::Queued => "queued",
            EventStatus::Submitted => "submitted",
            EventStatus::Running => "running",
            EventStatus::Complete => "complete",
            EventStatus::Failed(_) => "failed",
        })
    }

    /// OpenCL's own number for the status, as in PyOpenCL: 3 queued, 2 submitted, 1 running, 0 complete, negative an error.
    #[getter]
    fn command_execution_status(&self) -> PyResult<i32> {
        Ok(match self.event.status().py()? {
            EventStatus::Queued => 3,
            EventStatus::Submitted => 2,
            EventStatus::Running => 1,
            EventStatus::Complete => 0,
            EventStatus::Failed(code) => code,
        })
    }

    /// Whether the command is over, well or badly.
    #[getter]
    fn is_complete(&self) -> PyResult<bool> {
        self.event.is_complete().py()
    }

    /// The command's device times; its queue must have been made for profiling, and it must be done.
    #[getter]
    fn profile(&self) -> PyResult<EventProfile> {
        self.event.times().map(EventProfile).py()
    }

    fn __repr__(&self) -> String {
        format!("<Event {}>", self.status().unwrap_or("unknown"))
    }
}

/// Device times of a command, in nanoseconds of the device's clock.
#[pyclass(module = "netcl.core.backend.opencl", frozen)]
pub(crate) struct EventProfile(cl::EventTimes);

#[pymethods]
impl EventProfile {
    /// When the command entered the queue.
    #[getter]
    fn queued(&self) -> u64 {
        self.0.queued
    }

    /// When it was handed to the device.
    #[getter]
    fn submit(&self) -> u64 {
        self.0.submitted
    }

    /// When it began to run.
    #[getter]
    fn start(&self) -> u64 {
        self.0.started
    }

    /// When it ended.
    #[getter]
    fn end(&self) -> u64 {
        self.0.ended
    }

    fn __repr__(&self) -> String {
        format!("<EventProfile: {:?}>", self.0.duration())
    }
}
