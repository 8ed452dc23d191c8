//! Questions and buffers for host memory: does a device share it, and how does a kernel get at it without a copy.

use super::{BlockSource, holders};
use crate::backend::Queue;
use crate::backend::opencl::{Buffer, ClSource, Context, DeviceType, MemFlags, StableBytes};
use crate::error::{Error, Result};

/// What `malloc` and NumPy align to, and the width of the vectors that kernels load.
const PLAIN_ALIGNMENT: usize = 16;

/// Whether host and device share memory: integrated GPUs, CPU devices of OpenCL, and the native CPU.
///
/// ```
/// use netcl_core::{device::manager, memory::is_integrated_gpu};
/// assert!(is_integrated_gpu(&manager().cpu().queue));
/// ```
pub fn is_integrated_gpu(queue: &Queue) -> bool {
    match queue {
        Queue::Cpu(_) => true,
        Queue::OpenCl(stream) => {
            let device = stream.device();
            device.info().host_unified_memory || device.device_type() == DeviceType::Cpu
        }
    }
}

/// Whether the device offers shared virtual memory of any kind (`CL_DEVICE_SVM_CAPABILITIES`); not a notion of the native CPU.
pub fn has_svm_support(queue: &Queue) -> bool {
    match queue {
        Queue::Cpu(_) => false,
        Queue::OpenCl(stream) => stream.device().info().svm_capabilities != 0,
    }
}

/// One buffer of page-locked host memory (`ALLOC_HOST_PTR`), outside any pool.
///
/// # Errors
/// [`Error::Argument`] for zero bytes; [`Error::OutOfMemory`] when there is no such memory.
pub fn create_pinned_buffer(context: &Context, nbytes: usize) -> Result<Buffer> {
    const OP: &str = "create_pinned_buffer";
    if nbytes == 0 {
        return Err(Error::argument(OP, "a buffer needs at least one byte"));
    }
    let device = context.devices().first().ok_or_else(|| Error::argument(OP, "the context has no device"))?;
    let source = ClSource::pinned_memory(context, device);
    let why = if nbytes > source.largest() {
        format!("the device allows at most {} bytes in one block", source.largest())
    } else {
        match source.allocate(nbytes) {
            Err(Error::OutOfMemory { holders, .. }) => holders,
            other => return other,
        }
    };
    let device = source.device();
    let holders = format!("{why}; {}", holders(&device));
    Err(Error::OutOfMemory { device, bytes: nbytes, holders })
}

/// What host memory must look like for a context's devices to work on it in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZeroCopyRules {
    /// The first byte's address is a multiple of this.
    pub alignment: usize,
    /// The number of bytes is a multiple of this.
    pub size_multiple: usize,
}

impl ZeroCopyRules {
    /// The rules of a context: the strictest of its devices'.
    pub fn of(context: &Context) -> ZeroCopyRules {
        let quirks = || context.devices().iter().map(|device| device.quirks());
        ZeroCopyRules {
            alignment: quirks().filter_map(|q| q.zero_copy_align).max().unwrap_or(PLAIN_ALIGNMENT),
            size_multiple: quirks().filter_map(|q| q.zero_copy_size_multiple).max().unwrap_or(1),
        }
    }

    /// An error that says how to do better, unless memory at `address` of `nbytes` bytes keeps the rules.
    ///
    /// ```
    /// use netcl_core::memory::ZeroCopyRules;
    /// let pages = ZeroCopyRules { alignment: 4096, size_multiple: 64 };
    /// assert!(pages.check(8192, 128).is_ok());
    /// assert!(pages.check(8192 + 16, 128).is_err());
    /// assert!(pages.check(8192, 100).is_err());
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`].
    pub fn check(&self, address: usize, nbytes: usize) -> Result<()> {
        let what = if nbytes == 0 {
            "the memory is empty".to_owned()
        } else if !address.is_multiple_of(self.alignment) {
            format!(
                "the memory begins at {address:#x}, which is not a multiple of {}: allocate it aligned \
                 (in Python with netcl.core.memory.aligned_array(shape, dtype))",
                self.alignment
            )
        } else if !nbytes.is_multiple_of(self.size_multiple) {
            format!(
                "the memory has {nbytes} bytes, which is not a multiple of {}: make it {} bytes long",
                self.size_multiple,
                nbytes.next_multiple_of(self.size_multiple)
            )
        } else {
            return Ok(());
        };
        Err(Error::argument("create_zero_copy_buffer", what))
    }
}

/// A buffer that *is* the owner's memory (`USE_HOST_PTR`): kernels work on it in place where the device shares memory with the
/// host. The owner is dropped when the driver has let go of it.
///
/// # Errors
/// [`Error::Argument`] when the memory does not keep the [`ZeroCopyRules`]; what the driver says.
pub fn create_zero_copy_buffer<T: StableBytes>(context: &Context, mut owner: T) -> Result<Buffer> {
    let memory = owner.bytes_mut();
    ZeroCopyRules::of(context).check(memory.as_ptr().addr(), memory.len())?;
    Ok(Buffer::from_host_memory(context, MemFlags::READ_WRITE, owner)?)
}
