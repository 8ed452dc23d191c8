//! Contexts: the world that buffers, programs and queues of one platform share.

use std::ffi::c_void;
use std::sync::Arc;

use opencl_sys::*;

use super::api::api;
use super::device::Device;
use super::error::{ClError, ClResult, check};
use super::handle::{ContextObject, Handle};
use super::info;

/// An OpenCL context; clones are the same context.
///
/// ```
/// use netcl_core::backend::opencl::{Buffer, Context, MemFlags, Queue, discover};
/// let devices = discover().map(|found| found.devices()).unwrap_or_default();
/// for device in &devices {
///     let context = Context::new(std::slice::from_ref(device))?;
///     let queue = Queue::new(&context, device)?;
///     let buffer = Buffer::new(&context, MemFlags::READ_WRITE, 12)?;
///     queue.write(&buffer, 0, &[1.0_f32, 2.0, 3.0])?;
///     let mut back = [0.0_f32; 3];
///     queue.read(&buffer, 0, &mut back)?;
///     assert_eq!(back, [1.0, 2.0, 3.0]);
/// }
/// # Ok::<(), netcl_core::backend::opencl::ClError>(())
/// ```
#[derive(Clone)]
pub struct Context(Arc<Inner>);

struct Inner {
    handle: Handle<ContextObject>,
    devices: Vec<Device>,
    max_alloc: u64,
}

impl Context {
    /// A context over devices of one platform.
    pub fn new(devices: &[Device]) -> ClResult<Context> {
        const CALL: &str = "clCreateContext";
        let api = api(CALL)?;
        let first = devices.first().ok_or_else(|| ClError::usage(CALL, "a context needs a device"))?;
        if let Some(other) = devices.iter().find(|d| d.platform() != first.platform()) {
            let what = format!("{first:?} and {other:?} belong to different platforms; make one context each");
            return Err(ClError::usage(CALL, what));
        }
        let ids: Vec<cl_device_id> = devices.iter().map(Device::raw_id).collect();
        let properties = [CL_CONTEXT_PLATFORM, first.platform().int_ptr() as cl_context_properties, 0];
        let mut code = 0;
        // SAFETY: the property list ends with a zero, the ids are valid, and no callback is registered.
        let raw = unsafe {
            (api.clCreateContext)(
                properties.as_ptr(),
                ids.len() as cl_uint,
                ids.as_ptr(),
                None,
                std::ptr::null_mut(),
                &mut code,
            )
        };
        check(CALL, code).map_err(|e| e.about(|| format!("{devices:?}")))?;
        // SAFETY: the call returned a new reference.
        let handle = unsafe { Handle::adopt(CALL, raw)? };
        Ok(Context::wrap(handle, devices.to_vec()))
    }

    /// Wraps a `cl_context` made by other code; a reference is added.
    ///
    /// # Safety
    /// `ptr` is a valid `cl_context` of the loaded library.
    pub unsafe fn from_int_ptr(ptr: usize) -> ClResult<Context> {
        const CALL: &str = "clGetContextInfo";
        let api = api(CALL)?;
        // SAFETY: the caller vouches for the pointer.
        let handle = unsafe { Handle::<ContextObject>::share(ptr as *mut c_void)? };
        // SAFETY: the context is alive, and `info` passes a matching capacity.
        let ids: Vec<usize> = info::list(CALL, |size, to, got| unsafe {
            (api.clGetContextInfo)(handle.raw(), CL_CONTEXT_DEVICES, size, to, got)
        })?;
        // SAFETY: the ids are the driver's own.
        let devices = ids.into_iter().map(|id| unsafe { Device::from_int_ptr(id) }).collect::<ClResult<Vec<_>>>()?;
        Ok(Context::wrap(handle, devices))
    }

    fn wrap(handle: Handle<ContextObject>, devices: Vec<Device>) -> Context {
        let max_alloc = devices.iter().map(|d| d.info().max_mem_alloc_size).min().unwrap_or(u64::MAX);
        Context(Arc::new(Inner { handle, devices, max_alloc }))
    }

    /// The `cl_context` as a number.
    pub fn int_ptr(&self) -> usize {
        self.0.handle.raw() as usize
    }

    pub(super) fn raw(&self) -> cl_context {
        self.0.handle.raw()
    }

    /// The context's devices.
    pub fn devices(&self) -> &[Device] {
        &self.0.devices
    }

    /// The largest buffer that all its devices take, in bytes.
    pub fn max_alloc(&self) -> u64 {
        self.0.max_alloc
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Context({:?})", self.devices())
    }
}

impl PartialEq for Context {
    fn eq(&self, other: &Self) -> bool {
        self.int_ptr() == other.int_ptr()
    }
}

impl Eq for Context {}
