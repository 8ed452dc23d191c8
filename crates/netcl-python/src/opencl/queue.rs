//! Contexts and queues.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use netcl::core::backend::Queue;
use netcl::core::backend::opencl as cl;
use netcl::core::backend::opencl::shutdown::finish_timeout;
use pyo3::exceptions::{PyTimeoutError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyType, PyWeakrefReference};

use super::platform::Device;
use super::{context_from_py, device_from_py, same_object};
use crate::device::resolve_queue;
use crate::error::IntoPyResult;
use crate::list::List;

/// An OpenCL context: what buffers, programs and queues of one platform share.
#[pyclass(module = "netcl.core.backend.opencl", frozen, eq, hash)]
pub(crate) struct Context(pub(crate) cl::Context);
same_object!(Context, |context| context.0.int_ptr());

#[pymethods]
impl Context {
    /// A context over devices (ours or PyOpenCL's) of one platform.
    #[new]
    fn new(py: Python<'_>, devices: List<Bound<'_, PyAny>>) -> PyResult<Self> {
        let devices = devices.iter().map(need_device).collect::<PyResult<Vec<_>>>()?;
        py.detach(|| cl::Context::new(&devices)).map(Context).py()
    }

    /// Wraps a ``cl_context`` made by other code; a reference is added.
    #[classmethod]
    fn from_int_ptr(_cls: &Bound<'_, PyType>, int_ptr: usize) -> PyResult<Self> {
        // SAFETY: that the number is a context's address is this method's contract, as in PyOpenCL.
        unsafe { cl::Context::from_int_ptr(int_ptr) }.map(Context).py()
    }

    /// The ``cl_context`` as a number, for ``pyopencl.Context.from_int_ptr``.
    #[getter]
    fn int_ptr(&self) -> usize {
        self.pointer()
    }

    /// The context's devices.
    #[getter]
    fn devices(&self) -> Vec<Device> {
        self.0.devices().iter().cloned().map(Device).collect()
    }

    fn __repr__(&self) -> String {
        let names: Vec<&str> = self.0.devices().iter().map(cl::Device::name).collect();
        format!("<Context on {}>", names.join(", "))
    }
}

fn need_device(object: &Bound<'_, PyAny>) -> PyResult<cl::Device> {
    match device_from_py(object)? {
        Some(device) => Ok(device),
        None => Err(PyTypeError::new_err(format!("an OpenCL device is needed, not {}", object.get_type().name()?))),
    }
}

/// An in-order OpenCL command queue.
#[pyclass(module = "netcl.core.backend.opencl", frozen, eq, hash, weakref)]
pub(crate) struct CommandQueue {
    /// `None` only while it is dropped.
    stream: Option<Arc<cl::Stream>>,
    pointer: usize,
}
same_object!(CommandQueue, |queue| queue.pointer);

impl CommandQueue {
    pub(crate) fn new(stream: Arc<cl::Stream>) -> Self {
        CommandQueue { pointer: stream.queue().int_ptr(), stream: Some(stream) }
    }

    /// The object of a stream: the one that Python has, or a new one.
    pub(crate) fn of(py: Python<'_>, stream: &Arc<cl::Stream>) -> PyResult<Py<CommandQueue>> {
        static QUEUES: Mutex<Vec<Py<PyWeakrefReference>>> = Mutex::new(Vec::new());
        let queues = || QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
        let alive = |known: &Py<PyWeakrefReference>| known.bind(py).upgrade_as::<CommandQueue>().ok().flatten();
        let known = queues().iter().filter_map(alive).find(|known| Arc::ptr_eq(known.get().stream(), stream));
        if let Some(known) = known {
            return Ok(known.unbind());
        }
        // Made without the lock: the garbage collector may run, and with it other threads.
        let new = Bound::new(py, CommandQueue::new(stream.clone()))?;
        let reference = PyWeakrefReference::new(&new)?.unbind();
        let mut queues = queues();
        queues.retain(|known| alive(known).is_some());
        queues.push(reference);
        Ok(new.unbind())
    }

    #[expect(clippy::expect_used, reason = "taken by drop alone, after which nobody can call")]
    pub(crate) fn stream(&self) -> &Arc<cl::Stream> {
        self.stream.as_ref().expect("a live queue has its stream")
    }
}

impl Drop for CommandQueue {
    fn drop(&mut self) {
        // The last owner of a stream waits for its work: other Python threads run meanwhile.
        if let Some(stream) = self.stream.take().filter(|stream| Arc::strong_count(stream) == 1) {
            let mut stream = Some(stream);
            if Python::try_attach(|py| py.detach(|| drop(stream.take()))).is_none() {
                drop(stream);
            }
        }
    }
}

#[pymethods]
impl CommandQueue {
    /// A queue on a device of a context, the first one unless named. Its events carry device times if ``profiling`` (by default
    /// if ``NETCL_PROFILE_EVENTS=1``).
    #[new]
    #[pyo3(signature = (context, device=None, profiling=None))]
    fn construct(
        py: Python<'_>,
        context: &Bound<'_, PyAny>,
        device: Option<&Bound<'_, PyAny>>,
        profiling: Option<bool>,
    ) -> PyResult<Self> {
        let context = context_from_py(context)?;
        let device = match device {
            Some(device) => need_device(device)?,
            None => context.devices().first().cloned().ok_or_else(|| PyValueError::new_err("the context is empty"))?,
        };
        let make = || -> netcl::core::Result<_> {
            let queue = match profiling {
                Some(profiling) => cl::Queue::with_profiling(&context, &device, profiling)?,
                None => cl::Queue::new(&context, &device)?,
            };
            cl::Stream::new(&queue)
        };
        py.detach(make).map(CommandQueue::new).py()
    }

    /// Wraps a ``cl_command_queue`` made by other code; a reference is added. It must be in order.
    #[classmethod]
    fn from_int_ptr(_cls: &Bound<'_, PyType>, int_ptr: usize) -> PyResult<Self> {
        // SAFETY: that the number is a queue's address is this method's contract, as in PyOpenCL.
        let queue = unsafe { cl::Queue::from_int_ptr(int_ptr) }.py()?;
        cl::Stream::new(&queue).map(CommandQueue::new).py()
    }

    /// Always ``"cl"``.
    #[getter]
    fn backend(&self) -> &'static str {
        "cl"
    }

    /// The device behind the queue.
    #[getter]
    fn device(&self) -> Device {
        Device(self.stream().device().clone())
    }

    /// The queue's context.
    #[getter]
    fn context(&self) -> Context {
        Context(self.stream().context().clone())
    }

    /// Whether its events carry device times.
    #[getter]
    fn profiling(&self) -> bool {
        self.stream().queue().profiling()
    }

    /// The ``cl_command_queue`` as a number, for ``pyopencl.CommandQueue.from_int_ptr``.
    #[getter]
    fn int_ptr(&self, py: Python<'_>) -> usize {
        // Whoever knows the number enqueues on this very queue.
        py.detach(|| self.stream().queue().share());
        self.pointer
    }

    /// Waits until everything enqueued so far is done.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.stream().finish()).py()
    }

    /// Hands everything enqueued so far to the device.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.stream().flush()).py()
    }

    fn __repr__(&self) -> String {
        format!("<CommandQueue on {:?}>", self.stream().device().name())
    }
}

/// Waits for a queue while signals are still answered: Ctrl+C raises ``KeyboardInterrupt`` at once.
///
/// Returns ``True`` when all is done and raises ``TimeoutError`` after ``timeout`` seconds (``None``: never). In both the
/// interrupted and the timed-out case the device goes on.
#[pyfunction]
#[pyo3(signature = (queue, timeout=Some(30.0)), text_signature = "(queue, timeout=30.0)")]
pub(super) fn interruptible_finish(py: Python<'_>, queue: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<bool> {
    let limit = timeout.map(Duration::try_from_secs_f64).transpose().map_err(|error| {
        PyValueError::new_err(format!("interruptible_finish: timeout={}: {error}", timeout.unwrap_or(f64::NAN)))
    })?;
    let Queue::OpenCl(stream) = resolve_queue(py, Some(queue), None)? else { return Ok(true) };
    let outcome = py.detach(|| {
        finish_timeout(&stream, limit.unwrap_or(Duration::MAX), || {
            Python::attach(|py| py.check_signals()).map_err(WaitError::Signal)
        })
    });
    match outcome {
        Ok(true) => Ok(true),
        Ok(false) => Err(PyTimeoutError::new_err(format!(
            "interruptible_finish: {} is still busy after {} s; it goes on",
            stream.device().name(),
            timeout.unwrap_or(f64::INFINITY)
        ))),
        Err(WaitError::Signal(raised)) => Err(raised),
        Err(WaitError::Driver(error)) => Err(error).py(),
    }
}

/// Why a wait ended early.
enum WaitError {
    Signal(PyErr),
    Driver(netcl::core::Error),
}

impl From<netcl::core::Error> for WaitError {
    fn from(error: netcl::core::Error) -> Self {
        WaitError::Driver(error)
    }
}
