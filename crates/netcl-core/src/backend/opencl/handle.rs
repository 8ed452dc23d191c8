//! Reference-counted driver objects: one generic owner instead of six hand-written ones.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::NonNull;

use opencl_sys::cl_int;

use super::api::{Api, api};
use super::error::{ClError, ClResult, check};
use super::fork;

/// A kind of driver object with a reference count.
pub(super) trait Object {
    const RETAIN: &'static str;
    /// # Safety
    /// `ptr` is a live object of this kind.
    unsafe fn retain(api: &Api, ptr: *mut c_void) -> cl_int;
    /// # Safety
    /// `ptr` is a live object of this kind, and the caller owns one reference.
    unsafe fn release(api: &Api, ptr: *mut c_void) -> cl_int;
}

/// One owned reference to a driver object.
pub(super) struct Handle<O: Object> {
    ptr: NonNull<c_void>,
    _kind: PhantomData<fn() -> O>,
}

// SAFETY: the standard makes every call thread-safe except clSetKernelArg on one kernel object, and `Kernel` serialises
// that itself. The pointer is only ever handed to such calls.
unsafe impl<O: Object> Send for Handle<O> {}
// SAFETY: as above.
unsafe impl<O: Object> Sync for Handle<O> {}

impl<O: Object> Handle<O> {
    /// Takes over the reference that a `clCreate...` call returned.
    ///
    /// # Safety
    /// `ptr` is null or a live object of this kind, and its reference passes to the handle.
    pub(super) unsafe fn adopt(call: &'static str, ptr: *mut c_void) -> ClResult<Self> {
        let ptr = NonNull::new(ptr).ok_or_else(|| ClError::usage(call, "the driver returned a null object"))?;
        Ok(Self { ptr, _kind: PhantomData })
    }

    /// Adds a reference to a foreign object.
    ///
    /// # Safety
    /// `ptr` is null or a live object of this kind.
    pub(super) unsafe fn share(ptr: *mut c_void) -> ClResult<Self> {
        let api = api(O::RETAIN)?;
        if ptr.is_null() {
            return Err(ClError::usage(O::RETAIN, "the pointer is null"));
        }
        // SAFETY: the caller vouches for the pointer.
        check(O::RETAIN, unsafe { O::retain(api, ptr) })?;
        // SAFETY: the reference was added above.
        unsafe { Self::adopt(O::RETAIN, ptr) }
    }

    #[inline]
    pub(super) fn raw(&self) -> *mut c_void {
        self.ptr.as_ptr()
    }
}

impl<O: Object> Clone for Handle<O> {
    fn clone(&self) -> Self {
        if let Ok(api) = api(O::RETAIN) {
            // SAFETY: the handle owns a reference, so the object lives; retaining a live object cannot fail.
            unsafe { O::retain(api, self.raw()) };
        }
        Self { ptr: self.ptr, _kind: PhantomData }
    }
}

impl<O: Object> Drop for Handle<O> {
    fn drop(&mut self) {
        // In a forked child the object is the parent's: releasing it would reach into a driver that is not there.
        if fork::is_forked_child() {
            return;
        }
        if let Ok(api) = Api::get() {
            // SAFETY: the handle owns one reference, given up here. Errors have nobody to go to in a drop.
            unsafe { O::release(api, self.raw()) };
        }
    }
}

macro_rules! object {
    ($kind:ident, $retain:ident, $release:ident) => {
        pub(super) struct $kind;

        impl Object for $kind {
            const RETAIN: &'static str = stringify!($retain);
            unsafe fn retain(api: &Api, ptr: *mut c_void) -> cl_int {
                // SAFETY: the caller vouches for the object.
                unsafe { (api.$retain)(ptr) }
            }
            unsafe fn release(api: &Api, ptr: *mut c_void) -> cl_int {
                // SAFETY: the caller vouches for the object and gives up its reference.
                unsafe { (api.$release)(ptr) }
            }
        }
    };
}

object!(DeviceObject, clRetainDevice, clReleaseDevice);
object!(ContextObject, clRetainContext, clReleaseContext);
object!(QueueObject, clRetainCommandQueue, clReleaseCommandQueue);
object!(MemObject, clRetainMemObject, clReleaseMemObject);
object!(ProgramObject, clRetainProgram, clReleaseProgram);
object!(KernelObject, clRetainKernel, clReleaseKernel);
object!(EventObject, clRetainEvent, clReleaseEvent);
