//! `netcl.core.device`: handles, the manager, the active-device scope, and the CPU's queue.

use std::cell::RefCell;
use std::sync::{Mutex, PoisonError};

use netcl::core::backend::Queue;
use netcl::core::backend::cpu::{self, threads};
use netcl::core::device as core;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyString;

use crate::error::IntoPyResult;
use crate::opencl::{CommandQueue, Context, Device, Platform, stream_from_py};

/// The machine's own processor, as a queue's ``device``.
#[pyclass(name = "CPUDevice", module = "netcl.core.device", frozen, eq)]
#[derive(Clone, PartialEq)]
pub(crate) struct CpuDevice(pub(crate) cpu::CpuDevice);

#[pymethods]
impl CpuDevice {
    /// The processor's name.
    #[getter]
    fn name(&self) -> &'static str {
        self.0.name()
    }

    /// Always ``"cpu"``.
    #[getter(r#type)]
    fn kind(&self) -> &'static str {
        self.0.device_type()
    }

    /// Always ``"cpu"``.
    #[getter]
    fn device_type(&self) -> &'static str {
        self.0.device_type()
    }

    /// How many threads the backend computes with.
    #[getter]
    fn max_compute_units(&self) -> usize {
        self.0.compute_units()
    }

    /// The instruction set that loops were dispatched to.
    #[getter]
    fn simd(&self) -> &'static str {
        self.0.simd()
    }

    fn __hash__(&self) -> u64 {
        1
    }

    fn __repr__(&self) -> String {
        format!("<CPUDevice {:?}, {} threads, {}>", self.name(), self.max_compute_units(), self.simd())
    }
}

/// The platform of the native CPU: netcl itself.
#[pyclass(name = "CPUPlatform", module = "netcl.core.device", frozen, eq, hash)]
#[derive(Clone, PartialEq, Hash)]
pub(crate) struct CpuPlatform;

#[pymethods]
impl CpuPlatform {
    /// Always ``"netcl"``.
    #[getter]
    fn name(&self) -> String {
        core::manager().cpu().platform_name
    }

    /// Always ``"netcl"``.
    #[getter]
    fn vendor(&self) -> String {
        self.name()
    }

    /// The package's version.
    #[getter]
    fn version(&self) -> &'static str {
        env!("CARGO_PKG_VERSION")
    }

    /// The native CPU.
    fn get_devices(&self) -> Vec<CpuDevice> {
        vec![CpuDevice(cpu::CpuQueue::default().device())]
    }

    fn __repr__(&self) -> String {
        format!("<CPUPlatform {:?}>", self.name())
    }
}

/// The queue of the native CPU backend. Work is done when the call that asked for it returns.
#[pyclass(name = "CPUQueue", module = "netcl.core.device", frozen, eq, from_py_object)]
#[derive(Clone, PartialEq)]
pub(crate) struct CpuQueue(cpu::CpuQueue);

#[pymethods]
impl CpuQueue {
    #[new]
    fn new() -> Self {
        CpuQueue(cpu::CpuQueue::default())
    }

    /// The device behind the queue.
    #[getter]
    fn device(&self) -> CpuDevice {
        CpuDevice(self.0.device())
    }

    /// The OpenCL context: always ``None`` here.
    #[getter]
    fn context(&self) -> Option<Py<PyAny>> {
        None
    }

    /// Always ``"cpu"``.
    #[getter]
    fn backend(&self) -> &'static str {
        "cpu"
    }

    /// Returns at once: nothing is ever outstanding.
    fn finish(&self) -> PyResult<()> {
        self.0.finish().py()
    }

    /// Returns at once: nothing is ever outstanding.
    fn flush(&self) -> PyResult<()> {
        self.0.flush().py()
    }

    fn __hash__(&self) -> u64 {
        2
    }

    fn __repr__(&self) -> String {
        format!("<CPUQueue on {:?}>", self.0.device().name())
    }
}

/// A chosen device: platform and device name, backend, device type, context and queue. Immutable.
#[pyclass(module = "netcl.core.device", frozen, from_py_object)]
#[derive(Clone, PartialEq)]
pub(crate) struct DeviceHandle(pub(crate) core::DeviceHandle);

#[pymethods]
impl DeviceHandle {
    /// The platform, e.g. ``"NVIDIA CUDA"``; ``"netcl"`` for the native CPU.
    #[getter]
    fn platform_name(&self) -> &str {
        &self.0.platform_name
    }

    /// The device, e.g. ``"Tesla T4"``.
    #[getter]
    fn device_name(&self) -> &str {
        &self.0.device_name
    }

    /// ``"cl"`` or ``"cpu"``.
    #[getter]
    fn backend(&self) -> &'static str {
        self.0.backend.name()
    }

    /// ``"gpu"``, ``"cpu"``, ``"accel"`` or ``"other"``.
    #[getter]
    fn device_type(&self) -> &'static str {
        self.0.device_type.as_str()
    }

    /// ``device_type``, under PyTorch's name.
    #[getter(r#type)]
    fn kind(&self) -> &'static str {
        self.device_type()
    }

    /// The ``Platform``; a ``CPUPlatform`` for the native CPU.
    #[getter]
    fn platform(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match &self.0.queue {
            Queue::Cpu(_) => Ok(Py::new(py, CpuPlatform)?.into_any()),
            Queue::OpenCl(stream) => Ok(Py::new(py, Platform(stream.device().platform().clone()))?.into_any()),
        }
    }

    /// The ``Device``; a ``CPUDevice`` for the native CPU.
    #[getter]
    fn device(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match &self.0.queue {
            Queue::Cpu(queue) => Ok(Py::new(py, CpuDevice(queue.device()))?.into_any()),
            Queue::OpenCl(stream) => Ok(Py::new(py, Device(stream.device().clone()))?.into_any()),
        }
    }

    /// The OpenCL context; ``None`` for the native CPU.
    #[getter]
    fn context(&self) -> Option<Context> {
        self.0.context().cloned().map(Context)
    }

    /// The queue that tensors are created on.
    #[getter]
    fn queue(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        queue_to_py(py, &self.0.queue)
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }

    /// A selector that names the device: ``"cpu"`` for the native CPU, else its name.
    fn __str__(&self) -> &str {
        match self.0.queue {
            Queue::Cpu(_) => "cpu",
            Queue::OpenCl(_) => &self.0.device_name,
        }
    }

    fn __hash__(&self) -> usize {
        self.0.device_name.len()
    }

    /// Equal to a handle of the same device, and to a selector that names it: ``"cpu"`` is the native CPU, ``"gpu"`` any GPU.
    fn __eq__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<bool> {
        if let Ok(other) = other.cast::<DeviceHandle>() {
            return Ok(self.0 == other.get().0);
        }
        let Ok(selector) = other.extract::<&str>() else { return Ok(false) };
        let native = matches!(self.0.queue, Queue::Cpu(_));
        match selector {
            "cpu" => Ok(native),
            "opencl" => Ok(!native),
            "gpu" | "accel" => Ok(self.device_type() == selector),
            _ => Ok(py.detach(|| core::manager().default(selector)).py()?.is_some_and(|handle| handle == self.0)),
        }
    }
}

/// Finds devices and hands out one cached handle per selector. Use the ``manager`` singleton.
#[pyclass(module = "netcl.core.device", frozen)]
pub(crate) struct DeviceManager;

#[pymethods]
impl DeviceManager {
    #[new]
    fn new() -> Self {
        DeviceManager
    }

    /// Every OpenCL device of every platform as ``(platform, device)``; none where there is no OpenCL.
    #[staticmethod]
    fn discover(py: Python<'_>) -> PyResult<Vec<(Platform, Device)>> {
        let devices = py.detach(|| core::manager().discover()).py()?;
        Ok(devices.into_iter().map(|device| (Platform(device.platform().clone()), Device(device))).collect())
    }

    /// The device a selector names, or ``None`` where there is no such device.
    #[staticmethod]
    #[pyo3(signature = (selector=None, *, device=None))]
    fn default(
        py: Python<'_>,
        selector: Option<&Bound<'_, PyAny>>,
        device: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<Py<DeviceHandle>>> {
        let selector = match (selector, device) {
            (Some(_), Some(_)) => return Err(PyTypeError::new_err("default: give the selector or device=, not both")),
            (Some(one), None) | (None, Some(one)) => selector_text(one)?,
            (None, None) => "auto".to_owned(),
        };
        let handle = py.detach(|| core::manager().default(&selector)).py()?;
        handle.map(|handle| handle_to_py(py, handle)).transpose()
    }

    /// ``"gpu"``, ``"cpu"``, ``"accel"`` or ``"other"`` for a device (ours, PyOpenCL's, the native CPU's) or its ``type`` bits.
    #[staticmethod]
    fn _device_type(dev: &Bound<'_, PyAny>) -> PyResult<&'static str> {
        if dev.cast::<CpuDevice>().is_ok() {
            return Ok(core::DeviceType::Cpu.as_str());
        }
        let bits = match dev.extract::<u64>() {
            Ok(bits) => bits,
            Err(_) => dev.getattr("type").and_then(|bits| bits.extract()).map_err(|_| {
                PyTypeError::new_err(format!(
                    "_device_type: a device or its type bits are needed, not {}",
                    dev.get_type()
                ))
            })?,
        };
        Ok(core::DeviceType::from_bits(bits).as_str())
    }
}

fn selector_text(selector: &Bound<'_, PyAny>) -> PyResult<String> {
    if let Ok(text) = selector.cast::<PyString>() {
        return Ok(text.to_str()?.to_owned());
    }
    match selector.extract::<usize>() {
        Ok(index) => Ok(index.to_string()),
        Err(_) => {
            let kind = selector.get_type().name()?;
            Err(PyTypeError::new_err(format!("a device selector is a str or an index from discover(), not {kind}")))
        }
    }
}

/// ``with device("gpu") as dev:`` makes a device the thread's active one; on exit the previous one is restored.
#[pyclass(name = "device", module = "netcl.core.device", unsendable)]
pub(crate) struct DeviceScope {
    handle: core::DeviceHandle,
    scopes: RefCell<Vec<core::DeviceScope>>,
}

#[pymethods]
impl DeviceScope {
    #[new]
    #[pyo3(signature = (selector=None))]
    fn new(py: Python<'_>, selector: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let handle = match selector {
            None => py.detach(core::current_device).py()?,
            Some(given) => match given.extract::<DeviceHandle>() {
                Ok(handle) => handle.0,
                Err(_) => {
                    let selector = selector_text(given)?;
                    py.detach(|| core::manager().get(&selector)).py()?
                }
            },
        };
        Ok(DeviceScope { handle, scopes: RefCell::default() })
    }

    /// The chosen device.
    #[getter]
    fn handle(&self, py: Python<'_>) -> PyResult<Py<DeviceHandle>> {
        handle_to_py(py, self.handle.clone())
    }

    /// What kind of device it is: ``"cpu"``, ``"gpu"``, ...
    #[getter]
    fn r#type(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        handle_to_py(py, self.handle.clone())?.getattr(py, "type")
    }

    /// The queue of the chosen device: ``netcl.device("gpu").queue``, with an error that lists the devices where there is none.
    #[getter]
    fn queue(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        queue_to_py(py, &self.handle.queue)
    }

    fn __repr__(&self) -> String {
        format!("device({:?})", self.handle)
    }

    fn __enter__(&self, py: Python<'_>) -> PyResult<Py<DeviceHandle>> {
        let handle = handle_to_py(py, self.handle.clone())?;
        self.scopes.borrow_mut().push(core::activate(self.handle.clone()));
        Ok(handle)
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyAny>) -> bool {
        self.scopes.borrow_mut().pop();
        false
    }
}

/// The thread's active device, or ``None`` outside any ``with device(...)`` block.
#[pyfunction]
pub(crate) fn get_active_device(py: Python<'_>) -> PyResult<Option<Py<DeviceHandle>>> {
    core::get_active_device().map(|handle| handle_to_py(py, handle)).transpose()
}

/// How many threads the native CPU backend computes with.
#[pyfunction]
pub(crate) fn num_threads() -> usize {
    threads::num_threads()
}

/// Sets how many threads the native CPU backend computes with.
#[pyfunction]
pub(crate) fn set_num_threads(n: usize) -> PyResult<()> {
    if n == 0 {
        return Err(PyValueError::new_err("set_num_threads: at least one thread is needed"));
    }
    threads::set_num_threads(n);
    Ok(())
}

/// The Python object for a handle: always the same one. There are as many as devices, and they stay.
fn handle_to_py(py: Python<'_>, handle: core::DeviceHandle) -> PyResult<Py<DeviceHandle>> {
    static HANDLES: Mutex<Vec<(Py<DeviceHandle>, Py<PyAny>)>> = Mutex::new(Vec::new());
    let handles = || HANDLES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((known, _)) = handles().iter().find(|(known, _)| known.get().0 == handle) {
        return Ok(known.clone_ref(py));
    }
    // Made without the lock: the garbage collector may run, and with it other threads. The queue is kept, too, so that it stays
    // the same object.
    let queue = queue_to_py(py, &handle.queue)?;
    let new = Py::new(py, DeviceHandle(handle))?;
    handles().push((new.clone_ref(py), queue));
    Ok(new)
}

/// The handle of a queue's device, as a Python object.
pub(crate) fn handle_of(py: Python<'_>, queue: &Queue) -> PyResult<Py<DeviceHandle>> {
    let handle = match queue {
        Queue::Cpu(_) => core::manager().cpu(),
        Queue::OpenCl(stream) => py.detach(|| core::manager().handle(stream.device())).py()?,
    };
    handle_to_py(py, handle)
}

/// The Python object for a queue: the same one as long as it lives.
pub(crate) fn queue_to_py(py: Python<'_>, queue: &Queue) -> PyResult<Py<PyAny>> {
    static CPU: PyOnceLock<Py<CpuQueue>> = PyOnceLock::new();
    match queue {
        Queue::Cpu(queue) => {
            let queue = CPU.get_or_try_init(py, || Py::new(py, CpuQueue(*queue)))?;
            Ok(queue.clone_ref(py).into_any())
        }
        Queue::OpenCl(stream) => Ok(CommandQueue::of(py, stream)?.into_any()),
    }
}

/// The queue behind a Python object: one of ours, one of PyOpenCL's, a handle or `device(...)`; `None` for anything else.
pub(crate) fn queue_from_py(object: &Bound<'_, PyAny>) -> PyResult<Option<Queue>> {
    if let Ok(queue) = object.cast::<CpuQueue>() {
        return Ok(Some(Queue::Cpu(queue.get().0)));
    }
    if let Ok(handle) = object.cast::<DeviceHandle>() {
        return Ok(Some(handle.get().0.queue.clone()));
    }
    if let Ok(scope) = object.cast::<DeviceScope>() {
        return Ok(Some(scope.borrow().handle.queue.clone()));
    }
    Ok(stream_from_py(object)?.map(Queue::OpenCl))
}

/// The queue an argument names; the active or default device's where it is `None`. `backend` must agree with it.
pub(crate) fn resolve_queue(
    py: Python<'_>,
    queue: Option<&Bound<'_, PyAny>>,
    backend: Option<&str>,
) -> PyResult<Queue> {
    if let Some(name) = backend
        && !matches!(name, "cl" | "cpu")
    {
        return Err(PyValueError::new_err(format!("unknown backend {name:?}: use \"cl\" or \"cpu\"")));
    }
    let resolved = match queue.filter(|object| !object.is_none()) {
        Some(object) => match object.extract::<&str>() {
            Ok(selector) => py.detach(|| core::manager().get(selector)).py()?.queue,
            Err(_) => queue_from_py(object)?.ok_or_else(|| {
                let kind = object.get_type().name().map_or_else(|_| "object".to_owned(), |name| name.to_string());
                PyTypeError::new_err(format!(
                    "a device is needed (a selector such as \"gpu\", a handle or a queue) or None, not {kind}"
                ))
            })?,
        },
        None => {
            let current = py.detach(core::current_device).py()?;
            match backend {
                Some("cpu") if current.queue.backend().name() != "cpu" => core::manager().cpu().queue,
                Some("cl") if current.queue.backend().name() != "cl" => {
                    py.detach(|| core::manager().get("opencl")).py()?.queue
                }
                _ => current.queue,
            }
        }
    };
    match backend {
        Some(name) if name != resolved.backend().name() => Err(PyValueError::new_err(format!(
            "backend={name:?} was asked for, but the queue belongs to the {:?} backend",
            resolved.backend().name()
        ))),
        _ => Ok(resolved),
    }
}
