//! Buffers: device memory, pinned host memory, aliases of host memory, and parts of those.

use std::any::Any;
use std::ffi::c_void;
use std::ops::{BitOr, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use opencl_sys::*;

use super::api::api;
use super::context::Context;
use super::error::{ClError, ClResult, check};
use super::handle::{Handle, MemObject};
use super::info;

/// How a buffer is made and used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemFlags(cl_mem_flags);

impl MemFlags {
    /// Kernels read and write it.
    pub const READ_WRITE: MemFlags = MemFlags(CL_MEM_READ_WRITE);
    /// Kernels only read it.
    pub const READ_ONLY: MemFlags = MemFlags(CL_MEM_READ_ONLY);
    /// Kernels only write it.
    pub const WRITE_ONLY: MemFlags = MemFlags(CL_MEM_WRITE_ONLY);
    /// Allocate where the host reaches it: page-locked on discrete GPUs, shared on integrated ones.
    pub const ALLOC_HOST_PTR: MemFlags = MemFlags(CL_MEM_ALLOC_HOST_PTR);

    /// The bits of `cl_mem_flags`.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// True when all bits of `other` are set.
    pub fn contains(self, other: MemFlags) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for MemFlags {
    type Output = MemFlags;
    fn bitor(self, other: MemFlags) -> MemFlags {
        MemFlags(self.0 | other.0)
    }
}

/// Host memory that stays where it is while its owner lives, whatever happens to the owner itself, and that a device may write into.
///
/// # Safety
/// `bytes_mut` returns the same region every time until the value is dropped, also after the value was moved, and the region has no
/// other owner.
pub unsafe trait StableBytes: Send + 'static {
    /// The memory.
    fn bytes_mut(&mut self) -> &mut [u8];
}

// SAFETY: a vector owns its heap block, which does not move with the vector, and we never push to it.
unsafe impl<T: bytemuck::Pod + Send> StableBytes for Vec<T> {
    fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(self)
    }
}

// SAFETY: a box owns its block, which does not move with the box.
unsafe impl<T: bytemuck::Pod + Send> StableBytes for Box<[T]> {
    fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(self)
    }
}

/// A piece of memory that kernels work on; clones are the same memory.
#[derive(Clone)]
pub struct Buffer(Arc<Inner>);

struct Inner {
    handle: Handle<MemObject>,
    context: Context,
    size: usize,
    flags: MemFlags,
    /// The buffer this one is a part of, and where it begins there.
    parent: Option<(Buffer, usize)>,
    /// A mapping is alive; kept in the outermost parent, since parts share its memory.
    mapped: AtomicBool,
}

impl Buffer {
    /// Allocates `size` bytes. Drivers allocate late: lack of memory may show only at the first use.
    pub fn new(context: &Context, flags: MemFlags, size: usize) -> ClResult<Buffer> {
        // SAFETY: no host pointer is passed.
        let handle = unsafe { create(context, flags.0, size, std::ptr::null_mut())? };
        Ok(Buffer::wrap(handle, context, size, flags, None))
    }

    /// A buffer that *is* the owner's memory (`USE_HOST_PTR`). The owner is dropped when the driver has deleted the buffer,
    /// after the last command that uses it.
    pub fn from_host_memory<T: StableBytes>(context: &Context, flags: MemFlags, mut owner: T) -> ClResult<Buffer> {
        let memory = owner.bytes_mut();
        let (pointer, size) = (memory.as_mut_ptr(), memory.len());
        // SAFETY: `StableBytes` promises memory of this size that stays in place while `owner` lives, and `owner` passes
        // to the buffer below.
        unsafe { Buffer::from_host_ptr(context, flags, pointer, size, Box::new(owner)) }
    }

    /// As [`Buffer::from_host_memory`] for memory that Rust does not own, for example a NumPy array.
    ///
    /// # Safety
    /// `pointer` is valid for reads and writes of `size` bytes for as long as `owner` lives, and nobody uses the memory while
    /// commands on the buffer run.
    pub unsafe fn from_host_ptr(
        context: &Context,
        flags: MemFlags,
        pointer: *mut u8,
        size: usize,
        owner: Box<dyn Any + Send>,
    ) -> ClResult<Buffer> {
        const CALL: &str = "clSetMemObjectDestructorCallback";
        let api = api(CALL)?;
        // SAFETY: the caller vouches for the memory.
        let handle = unsafe { create(context, flags.0 | CL_MEM_USE_HOST_PTR, size, pointer.cast())? };
        // A thin pointer for C around the wide one.
        let keep = Box::into_raw(Box::new(owner)).cast::<c_void>();
        // SAFETY: the callback takes back exactly this box, once, when the driver deletes the object.
        let code = unsafe { (api.clSetMemObjectDestructorCallback)(handle.raw(), Some(drop_owner), keep) };
        if let Err(error) = check(CALL, code) {
            drop(handle); // the driver lets go of the memory before its owner goes
            // SAFETY: the callback was refused, so the box is still ours.
            drop(unsafe { Box::from_raw(keep.cast::<Box<dyn Any + Send>>()) });
            return Err(error);
        }
        Ok(Buffer::wrap(handle, context, size, MemFlags(flags.0 | CL_MEM_USE_HOST_PTR), None))
    }

    /// Wraps a `cl_mem` made by other code; a reference is added.
    ///
    /// # Safety
    /// `ptr` is a valid buffer object of the loaded library.
    pub unsafe fn from_int_ptr(ptr: usize) -> ClResult<Buffer> {
        const CALL: &str = "clGetMemObjectInfo";
        let api = api(CALL)?;
        // SAFETY: the caller vouches for the pointer.
        let handle = unsafe { Handle::<MemObject>::share(ptr as *mut c_void)? };
        // SAFETY: the object is alive, and `info` passes a matching capacity.
        let query = |what| move |size, to, got| unsafe { (api.clGetMemObjectInfo)(ptr as cl_mem, what, size, to, got) };
        let kind: cl_mem_object_type = info::scalar(CALL, query(CL_MEM_TYPE))?;
        if kind != CL_MEM_OBJECT_BUFFER {
            return Err(ClError::usage(CALL, format!("the object is no buffer (its type is {kind:#x})")));
        }
        let size: usize = info::scalar(CALL, query(CL_MEM_SIZE))?;
        let flags: cl_mem_flags = info::scalar(CALL, query(CL_MEM_FLAGS))?;
        let context = info::pointer(CALL, query(CL_MEM_CONTEXT))?;
        // SAFETY: the driver names the buffer's own context.
        let context = unsafe { Context::from_int_ptr(context as usize)? };
        Ok(Buffer::wrap(handle, &context, size, MemFlags(flags), None))
    }

    fn wrap(
        handle: Handle<MemObject>,
        context: &Context,
        size: usize,
        flags: MemFlags,
        parent: Option<(Buffer, usize)>,
    ) -> Buffer {
        Buffer(Arc::new(Inner {
            handle,
            context: context.clone(),
            size,
            flags,
            parent,
            mapped: AtomicBool::new(false),
        }))
    }

    /// A part of this buffer as a buffer of its own. The start must be a multiple of every device's
    /// [`base_addr_align`](super::DeviceInfo::base_addr_align).
    pub fn sub_buffer(&self, range: Range<usize>) -> ClResult<Buffer> {
        const CALL: &str = "clCreateSubBuffer";
        let api = api(CALL)?;
        if self.0.parent.is_some() {
            return Err(ClError::usage(CALL, "a part of a part is not allowed; take it from the whole buffer"));
        }
        self.check_range(CALL, range.start, range.end.saturating_sub(range.start))?;
        if range.is_empty() {
            return Err(ClError::usage(CALL, "the range is empty"));
        }
        let align = self.context().devices().iter().map(|d| d.info().base_addr_align).max().unwrap_or(1);
        if !range.start.is_multiple_of(align) {
            let what = format!("the part begins at byte {}, which is not a multiple of {align}", range.start);
            return Err(ClError::usage(CALL, what));
        }
        let region = cl_buffer_region { origin: range.start, size: range.len() };
        let mut code = 0;
        // SAFETY: the parent is alive, and the region struct is the one this creation type asks for.
        let raw = unsafe {
            (api.clCreateSubBuffer)(self.raw(), 0, CL_BUFFER_CREATE_TYPE_REGION, (&raw const region).cast(), &mut code)
        };
        check(CALL, code).map_err(|e| e.about(|| format!("bytes {range:?} of {}", self.size())))?;
        // SAFETY: the call returned a new reference.
        let handle = unsafe { Handle::adopt(CALL, raw)? };
        Ok(Buffer::wrap(handle, self.context(), range.len(), self.flags(), Some((self.clone(), range.start))))
    }

    /// The `cl_mem` as a number.
    pub fn int_ptr(&self) -> usize {
        self.0.handle.raw() as usize
    }

    pub(super) fn raw(&self) -> cl_mem {
        self.0.handle.raw()
    }

    /// Its size in bytes.
    pub fn size(&self) -> usize {
        self.0.size
    }

    /// The flags it was made with.
    pub fn flags(&self) -> MemFlags {
        self.0.flags
    }

    /// Its context.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// The buffer this one is a part of, and the byte where it begins there.
    pub fn parent(&self) -> Option<(&Buffer, usize)> {
        self.0.parent.as_ref().map(|(parent, start)| (parent, *start))
    }

    /// Refuses what reaches past the end: drivers differ in how they take it.
    pub(super) fn check_range(&self, call: &'static str, offset: usize, len: usize) -> ClResult<()> {
        if offset.checked_add(len).is_none_or(|end| end > self.size()) {
            let what =
                format!("{len} bytes at offset {offset} reach past the end of a buffer of {} bytes", self.size());
            return Err(ClError::usage(call, what));
        }
        Ok(())
    }

    /// Marks the memory as mapped; false when it already was.
    pub(super) fn begin_map(&self) -> bool {
        !self.root().0.mapped.swap(true, Ordering::Acquire)
    }

    pub(super) fn end_map(&self) {
        self.root().0.mapped.store(false, Ordering::Release);
    }

    fn root(&self) -> &Buffer {
        self.0.parent.as_ref().map_or(self, |(parent, _)| parent)
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.size())
    }
}

impl PartialEq for Buffer {
    fn eq(&self, other: &Self) -> bool {
        self.int_ptr() == other.int_ptr()
    }
}

impl Eq for Buffer {}

/// # Safety
/// `host` is null, or memory of `size` bytes that outlives the object.
unsafe fn create(
    context: &Context,
    flags: cl_mem_flags,
    size: usize,
    host: *mut c_void,
) -> ClResult<Handle<MemObject>> {
    const CALL: &str = "clCreateBuffer";
    let api = api(CALL)?;
    let about = |e: ClError| e.about(|| format!("{size} bytes, at most {} per buffer", context.max_alloc()));
    // Drivers differ in whether they enforce this, and NETCL_LIMITS must hold everywhere.
    if size as u64 > context.max_alloc() || size == 0 {
        return Err(about(ClError::call(CALL, CL_INVALID_BUFFER_SIZE)));
    }
    let mut code = 0;
    // SAFETY: the context is alive; the caller vouches for the host memory.
    let raw = unsafe { (api.clCreateBuffer)(context.raw(), flags, size, host, &mut code) };
    check(CALL, code).map_err(about)?;
    // SAFETY: the call returned a new reference.
    unsafe { Handle::adopt(CALL, raw) }
}

unsafe extern "C" fn drop_owner(_object: cl_mem, owner: *mut c_void) {
    // SAFETY: this is the box that `from_host_ptr` made, and the driver calls back once.
    let owner = unsafe { Box::from_raw(owner.cast::<Box<dyn Any + Send>>()) };
    // A panic must not unwind into the driver; a destructor that panics has nobody to tell.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || drop(owner)));
}
