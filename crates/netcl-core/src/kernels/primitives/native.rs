//! Kernels of one's own on the native CPU: an OpenCL driver for CPUs runs them on the tensors' own memory.
//!
//! Such a launch is a native one to everybody else: the call returns when the kernel has run, its buffers are guarded while it
//! runs, and capture, profiling and launch counts see it like any other. PoCL's and Intel's drivers both compute in the host memory
//! that a buffer was made from (`USE_HOST_PTR`); making the buffers anew for each run costs microseconds and leaves no second owner
//! of a tensor's memory behind.

use std::any::Any;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::backend::Queue;
use crate::backend::cpu::buffer::ALIGN;
use crate::backend::cpu::{CpuArgs, CpuBuffer, CpuKernel};
use crate::backend::opencl::{Arg as ClArg, Buffer, Deps, Grid, Kernel, MapMode, MemFlags, Stream};
use crate::device::manager;
use crate::error::{Error, Result};
use crate::kernels::launch::{Access, Arg, Work};
use crate::kernels::opencl;
use crate::storage::Storage;

/// Where kernels for a queue are built and run: its own stream, or for the native CPU that of an OpenCL driver for CPUs.
///
/// # Errors
/// [`Error::Unsupported`] for the native CPU where no such driver is installed.
pub fn kernel_stream(queue: &Queue) -> Result<Arc<Stream>> {
    match queue {
        Queue::OpenCl(stream) => Ok(stream.clone()),
        Queue::Cpu(_) => match manager().cpu_driver()?.map(|driver| driver.queue) {
            Some(Queue::OpenCl(stream)) => Ok(stream),
            _ => Err(Error::Unsupported {
                op: "KernelSpec",
                device: queue.device_name(),
                why: "the native CPU runs OpenCL kernels through an OpenCL driver for CPUs, and none is installed; \
                      install PoCL (Debian and Ubuntu: apt install pocl-opencl-icd) or Intel's (pip install intel-opencl-rt)"
                    .to_owned(),
            }),
        },
    }
}

/// A launch's work: the kernel on the memory of the native CPU.
pub(super) fn native_work(stream: Arc<Stream>, kernel: Kernel, grid: Grid) -> Work {
    Work::Cpu(CpuKernel::new(move |args| run(&stream, &kernel, grid, args)))
}

/// One piece of native memory as the driver sees it.
struct Shared {
    identity: usize,
    buffer: Buffer,
    written: bool,
    /// Memory that is less aligned than a buffer may be expected to be goes through a copy: where from.
    staged: Option<(*mut u8, Arc<CpuBuffer>)>,
}

impl Shared {
    fn new(stream: &Stream, storage: &Arc<Storage>) -> Result<Shared> {
        let (pointer, nbytes) = storage.cpu_memory()?;
        // A kernel may load vectors of up to 64 bytes through any pointer. Blocks of ours are aligned to that; an ndarray's memory
        // need not be.
        let staged = match pointer.addr().is_multiple_of(ALIGN) {
            true => None,
            false => Some((pointer, Arc::new(CpuBuffer::uninit(nbytes)?))),
        };
        let (place, owner): (_, Box<dyn Any + Send>) = match &staged {
            None => (pointer, Box::new(storage.clone())),
            Some((_, copy)) => {
                // SAFETY: both hold `nbytes` bytes; the launch guards the storage, and nobody else knows the copy.
                unsafe { std::ptr::copy_nonoverlapping(pointer, copy.as_ptr(), nbytes) };
                (copy.as_ptr(), Box::new(copy.clone()))
            }
        };
        // SAFETY: the memory has `nbytes` bytes and lives as long as its owner; the launch's guards keep others out until the run
        // is over.
        let buffer = unsafe { Buffer::from_host_ptr(stream.context(), MemFlags::READ_WRITE, place, nbytes, owner)? };
        Ok(Shared { identity: storage.identity(), buffer, written: false, staged })
    }

    /// Makes what the kernel wrote visible in the host's memory.
    fn publish(&self, stream: &Stream) -> Result<()> {
        if !self.written {
            return Ok(());
        }
        // The standard promises the values in the host's memory only while it is mapped. Blocking, so the kernel has run.
        let size = self.buffer.size();
        let mapped = stream.queue().map(&self.buffer, 0..size, MapMode::Read, &[])?;
        if let Some((home, copy)) = &self.staged {
            // SAFETY: as in `new`, the other way round.
            unsafe { std::ptr::copy_nonoverlapping(copy.as_ptr(), *home, size) };
        }
        mapped.unmap(Deps::NONE)?;
        Ok(())
    }
}

/// Runs the kernel and waits for it.
fn run(stream: &Stream, kernel: &Kernel, grid: Grid, args: &CpuArgs<'_>) -> Result<()> {
    // One buffer for each memory: two buffers over the same bytes would be undefined.
    let mut shared: SmallVec<[Shared; 8]> = SmallVec::new();
    let mut places: SmallVec<[usize; 8]> = SmallVec::new();
    for arg in args.all() {
        if let Arg::Buffer(storage, access) = arg {
            let known = shared.iter().position(|one| one.identity == storage.identity());
            let at = known.unwrap_or(shared.len());
            if known.is_none() {
                shared.push(Shared::new(stream, storage)?);
            }
            shared[at].written |= *access == Access::Write;
            places.push(at);
        }
    }
    let mut places = places.into_iter();
    let cl_args: SmallVec<[ClArg<'_>; 16]> = args
        .all()
        .iter()
        .map(|arg| match arg {
            // One place was noted per buffer argument.
            Arg::Buffer(..) => places.next().map_or(ClArg::Null, |at| ClArg::Buffer(&shared[at].buffer)),
            Arg::Local(bytes) => ClArg::Local(*bytes),
            Arg::Null => ClArg::Null,
            Arg::Scalar(scalar) => opencl::scalar_arg(scalar),
        })
        .collect();
    stream.queue().launch(kernel, grid, &cl_args, Deps::NONE)?;
    shared.iter().try_for_each(|one| one.publish(stream))?;
    Ok(stream.queue().finish()?)
}
