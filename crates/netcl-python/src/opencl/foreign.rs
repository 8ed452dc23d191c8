//! PyOpenCL's objects: accepted wherever ours are, without importing PyOpenCL.
//!
//! A PyOpenCL object is recognised by its class (or a base of it) coming from the module `pyopencl`, and stands for the driver
//! object that its `int_ptr` names. Both packages talk to the same driver, so the pointer means the same to both; we add a
//! reference of our own.

use std::sync::Arc;

use netcl::core::backend::Queue;
use netcl::core::backend::opencl as cl;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::{Buffer, CommandQueue, Context, Device, Event, Owner};
use crate::device::{CpuQueue, DeviceHandle};
use crate::error::IntoPyResult;

/// The attribute under which a PyOpenCL queue keeps our side of it: the stream, with its pools and kernels, lives as long.
const KNOWN_AS: &str = "_netcl_queue";

/// The address in a PyOpenCL object whose class is, or derives from, `pyopencl.<class>`; `None` for any other object.
fn pyopencl(object: &Bound<'_, PyAny>, class: &str) -> PyResult<Option<usize>> {
    for base in object.get_type().getattr("__mro__")?.cast::<PyTuple>()?.iter() {
        let module = base.getattr("__module__")?;
        let Ok(module) = module.extract::<&str>() else { continue };
        let ours = module.strip_prefix("pyopencl").is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        if ours && base.getattr("__name__")?.extract::<&str>()? == class {
            return object.getattr("int_ptr")?.extract().map(Some);
        }
    }
    Ok(None)
}

/// The device behind an object: ours or PyOpenCL's.
pub(crate) fn device_from_py(object: &Bound<'_, PyAny>) -> PyResult<Option<cl::Device>> {
    if let Ok(device) = object.cast::<Device>() {
        return Ok(Some(device.get().0.clone()));
    }
    let Some(pointer) = pyopencl(object, "Device")? else { return Ok(None) };
    // SAFETY: PyOpenCL keeps the object alive while its wrapper lives, and the wrapper is alive here.
    unsafe { cl::Device::from_int_ptr(pointer) }.map(Some).py()
}

/// The context of an object: a context, a queue or a device handle, ours or PyOpenCL's.
pub(crate) fn context_from_py(object: &Bound<'_, PyAny>) -> PyResult<cl::Context> {
    if let Ok(context) = object.cast::<Context>() {
        return Ok(context.get().0.clone());
    }
    if let Some(pointer) = pyopencl(object, "Context")? {
        // SAFETY: as for devices.
        return unsafe { cl::Context::from_int_ptr(pointer) }.py();
    }
    if let Some(stream) = stream_from_py(object)? {
        return Ok(stream.context().clone());
    }
    let what = match object.cast::<DeviceHandle>() {
        Ok(handle) => match &handle.get().0.queue {
            Queue::OpenCl(stream) => return Ok(stream.context().clone()),
            Queue::Cpu(_) => "the native CPU, which has none".to_owned(),
        },
        Err(_) if object.is_none() || object.cast::<CpuQueue>().is_ok() => "the native CPU, which has none".to_owned(),
        Err(_) => object.get_type().name()?.to_string(),
    };
    Err(PyTypeError::new_err(format!("an OpenCL context (queue.context) or an OpenCL queue is needed, not {what}")))
}

/// The stream of an OpenCL queue, ours or PyOpenCL's; `None` for anything else.
pub(crate) fn stream_from_py(object: &Bound<'_, PyAny>) -> PyResult<Option<Arc<cl::Stream>>> {
    if let Ok(queue) = object.cast::<CommandQueue>() {
        return Ok(Some(queue.get().stream().clone()));
    }
    let Some(pointer) = pyopencl(object, "CommandQueue")? else { return Ok(None) };
    if let Ok(known) = object.getattr(KNOWN_AS)
        && let Ok(queue) = known.cast::<CommandQueue>()
    {
        return Ok(Some(queue.get().stream().clone()));
    }
    // SAFETY: as for devices.
    let queue = unsafe { cl::Queue::from_int_ptr(pointer) }.py()?;
    let stream = cl::Stream::new(&queue).py()?;
    // An object that takes no attribute gets its stream anew each time: slower, not wrong.
    let _ = object.setattr(KNOWN_AS, CommandQueue::new(stream.clone()));
    Ok(Some(stream))
}

/// The buffer behind an object, ours or PyOpenCL's, and what keeps its memory from being used anew.
pub(crate) fn buffer_from_py(object: &Bound<'_, PyAny>) -> PyResult<Option<(cl::Buffer, Owner)>> {
    if let Ok(buffer) = object.cast::<Buffer>() {
        return buffer.get().parts().map(Some);
    }
    let Some(pointer) = pyopencl(object, "MemoryObjectHolder")? else { return Ok(None) };
    // SAFETY: as for devices; an image is refused by its type.
    let buffer = unsafe { cl::Buffer::from_int_ptr(pointer) }.py()?;
    // PyOpenCL's own pools take memory back when the wrapper goes, so the wrapper is what must stay.
    Ok(Some((buffer, Owner::Foreign(Arc::new(object.clone().unbind())))))
}

/// The event behind an object, ours or PyOpenCL's.
pub(crate) fn event_from_py(object: &Bound<'_, PyAny>) -> PyResult<Option<cl::Event>> {
    if let Ok(event) = object.cast::<Event>() {
        return Ok(Some(event.get().event().clone()));
    }
    let Some(pointer) = pyopencl(object, "Event")? else { return Ok(None) };
    // SAFETY: as for devices.
    unsafe { cl::Event::from_int_ptr(pointer) }.map(Some).py()
}
