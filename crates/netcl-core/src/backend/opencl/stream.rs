//! A stream: one device's compute queue and copy queue, with the pools and kernels they share.
//!
//! Work of a stream runs in the order it was given. What crosses queues (an upload on the copy queue, a tensor made on another
//! stream of the same context) is joined by an event at its first use, never by waiting on the host.

use std::any::Any;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use smallvec::SmallVec;

use super::ahead;
use super::build::Source;
use super::context::Context;
use super::device::Device;
use super::error::{ClError, ClResult};
use super::event::Deps;
use super::exit;
use super::fork;
use super::kernel::Kernel;
use super::queue::Queue;
use super::source::ClSource;
use crate::error::{Error, Result};
use crate::memory::{BlockSource, PersistentBufferPool, PinnedBufferPool, QueueId, holders, trim_device};

/// How many [`counters`](Stream::counters) a stream has.
pub const COUNTERS: usize = 4096;

/// A compute queue and what belongs to it.
pub struct Stream {
    queue: Queue,
    id: QueueId,
    /// Made when the first asynchronous copy needs it.
    copies: OnceLock<(Queue, QueueId)>,
    kept: OnceLock<Arc<dyn Any + Send + Sync>>,
    shared: Arc<Shared>,
}

/// What all streams of one device in one context share.
struct Shared {
    context: Context,
    device: Device,
    pool: PersistentBufferPool<ClSource>,
    pinned: PinnedBufferPool<ClSource>,
    kernels: Mutex<HashMap<Box<[u8]>, Kernel>>,
}

#[derive(Default)]
struct Registry {
    /// By the address of the `cl_command_queue`.
    streams: HashMap<usize, Weak<Stream>>,
    /// By the addresses of context and device.
    shared: HashMap<(usize, usize), Weak<Shared>>,
    /// By the identifiers of compute and copy queues.
    queues: HashMap<QueueId, Queue>,
}

static REGISTRY: LazyLock<Mutex<Registry>> = LazyLock::new(Mutex::default);

/// An error in a forked child, before it can meet a lock that a thread of the parent held.
fn check_process(call: &'static str) -> ClResult<()> {
    if fork::is_forked_child() { Err(ClError::Forked { call }) } else { Ok(()) }
}

fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stream {
    /// A stream on a device with a context of its own.
    pub fn on_device(device: &Device) -> Result<Arc<Stream>> {
        let context = Context::new(std::slice::from_ref(device))?;
        Stream::new(&Queue::new(&context, device)?)
    }

    /// The stream of a queue; the same queue always gives the same stream.
    pub fn new(queue: &Queue) -> Result<Arc<Stream>> {
        check_process("Stream::new")?;
        if let Some(stream) = registry().streams.get(&queue.int_ptr()).and_then(Weak::upgrade) {
            return Ok(stream);
        }
        let shared = Shared::of(queue.context(), queue.device())?;
        let made = Arc::new(Stream {
            queue: queue.clone(),
            id: QueueId::next(),
            copies: OnceLock::new(),
            kept: OnceLock::new(),
            shared,
        });
        let mut registry = registry();
        // Another thread may have been faster; its stream wins.
        if let Some(stream) = registry.streams.get(&queue.int_ptr()).and_then(Weak::upgrade) {
            return Ok(stream);
        }
        registry.streams.insert(queue.int_ptr(), Arc::downgrade(&made));
        registry.queues.insert(made.id, queue.clone());
        drop(registry);
        exit::stream_made();
        Ok(made)
    }

    /// The compute queue.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// The stream as its owners share it.
    pub(crate) fn shared(&self) -> Option<Arc<Stream>> {
        registry().streams.get(&self.queue.int_ptr()).and_then(Weak::upgrade)
    }

    /// The compute queue's identifier in leases.
    pub fn id(&self) -> QueueId {
        self.id
    }

    /// The context.
    pub fn context(&self) -> &Context {
        &self.shared.context
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.shared.device
    }

    /// The pool that tensors of this device come from.
    pub fn pool(&self) -> &PersistentBufferPool<ClSource> {
        &self.shared.pool
    }

    /// The pool of page-locked memory that uploads go through.
    pub fn pinned_pool(&self) -> &PinnedBufferPool<ClSource> {
        &self.shared.pinned
    }

    /// The queue for copies that overlap with compute, and its identifier.
    pub fn copy_queue(&self) -> Result<(&Queue, QueueId)> {
        check_process("Stream::copy_queue")?;
        if let Some((queue, id)) = self.copies.get() {
            return Ok((queue, *id));
        }
        let queue = Queue::with_profiling(self.context(), self.device(), self.queue.made_for_profiling())?;
        let (queue, id) = self.copies.get_or_init(|| (queue, QueueId::next()));
        registry().queues.insert(*id, queue.clone());
        Ok((queue, *id))
    }

    /// A place for one thing that a layer above keeps as long as the stream lives: [`Stream::counters`].
    pub(crate) fn kept(&self) -> &OnceLock<Arc<dyn Any + Send + Sync>> {
        &self.kept
    }

    /// The statement that makes what a work-item wrote visible to all others of the device.
    pub fn device_fence(&self) -> &'static str {
        // OpenCL 1.2 promises this of no fence; where that matters, PTX has one.
        if self.device().quirks().ptx {
            "asm volatile(\"membar.gl;\" ::: \"memory\")"
        } else {
            "mem_fence(CLK_GLOBAL_MEM_FENCE)"
        }
    }

    /// Whether tensors of two streams can meet in one op: they share a context and a device.
    pub fn same_device(&self, other: &Stream) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Waits for everything given to either queue.
    pub fn finish(&self) -> ClResult<()> {
        if let Some((queue, _)) = self.copies.get() {
            queue.finish()?;
        }
        self.queue.finish()
    }

    /// As [`Stream::finish`], for a thread that nobody depends on.
    pub(super) fn finish_uncounted(&self) -> ClResult<()> {
        if let Some((queue, _)) = self.copies.get() {
            queue.finish_uncounted()?;
        }
        self.queue.finish_uncounted()
    }

    /// Sends everything given to either queue on its way.
    pub fn flush(&self) -> ClResult<()> {
        if let Some((queue, _)) = self.copies.get() {
            queue.flush()?;
        }
        self.queue.flush()
    }

    /// Makes a driver call that may fail for want of memory, since drivers allocate lazily: then the caches are emptied, and it is made
    /// once more. `bytes` is for the report.
    pub(crate) fn with_room<R>(&self, bytes: impl FnOnce() -> usize, call: impl Fn() -> ClResult<R>) -> Result<R> {
        match call() {
            Err(error) if error.is_out_of_memory() => {
                let device = self.pool().source().device();
                trim_device(&device);
                finish_device(self.device());
                call().map_err(|error| match error.is_out_of_memory() {
                    true => Error::OutOfMemory { holders: holders(&device), device, bytes: bytes() },
                    false => error.into(),
                })
            }
            other => Ok(other?),
        }
    }

    /// A kernel that was made before under this key, or the one that `make` describes: a source and the kernel's name in it.
    ///
    /// While [kernels are deferred](ahead::Deferred) it is only promised, and built when it is needed.
    ///
    /// The key must hold everything that the source depends on. It is a value rather than a string: every launch asks for its kernel,
    /// and formatting a key took 1.3 us of a product's launch, with an epilogue 10.
    pub fn kernel<'n>(&self, key: &(impl Hash + ?Sized), make: impl FnOnce() -> (Source, &'n str)) -> Result<Kernel> {
        check_process("Stream::kernel")?;
        let mut bytes = KeyBytes::default();
        key.hash(&mut bytes);
        let kernels = || self.shared.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = kernels().get(&*bytes.0) {
            return Ok(kernel.clone());
        }
        let (source, name) = make();
        let kernel = Kernel::promised(self.context(), self.device(), source, name);
        if !ahead::is_deferred() {
            // Built without the lock: a build takes long, and building the same kernel twice is harmless.
            kernel.build()?;
        }
        Ok(kernels().entry(bytes.0.as_slice().into()).or_insert(kernel).clone())
    }
}

/// What a key feeds to a hasher. Kernels are told apart by these bytes, not by a hash of them: equal bytes are equal keys.
#[derive(Default)]
struct KeyBytes(SmallVec<[u8; 256]>);

impl Hasher for KeyBytes {
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn finish(&self) -> u64 {
        0
    }
}

impl Shared {
    fn of(context: &Context, device: &Device) -> Result<Arc<Shared>> {
        let key = (context.int_ptr(), device.int_ptr());
        if let Some(shared) = registry().shared.get(&key).and_then(Weak::upgrade) {
            return Ok(shared);
        }
        let made = Arc::new(Shared {
            context: context.clone(),
            device: device.clone(),
            pool: PersistentBufferPool::new(ClSource::device_memory(context, device)),
            pinned: PinnedBufferPool::new(ClSource::pinned_memory(context, device)),
            kernels: Mutex::default(),
        });
        let mut registry = registry();
        if let Some(shared) = registry.shared.get(&key).and_then(Weak::upgrade) {
            return Ok(shared);
        }
        registry.shared.insert(key, Arc::downgrade(&made));
        Ok(made)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // In a forked child the registry's lock may belong to a thread that is not there.
        if fork::is_forked_child() {
            return;
        }
        // Blocks of this stream may be handed to another queue once it is unknown: their work must be over by then.
        let _ = self.finish();
        let mut registry = registry();
        registry.streams.retain(|_, stream| stream.strong_count() > 0);
        registry.shared.retain(|_, shared| shared.strong_count() > 0);
        registry.queues.remove(&self.id);
        if let Some((_, id)) = self.copies.get() {
            registry.queues.remove(id);
        }
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stream({:?})", self.queue)
    }
}

/// Makes everything `to` is given from now on wait for everything `from` was given so far. A queue that is gone has finished.
pub(super) fn order(from: QueueId, to: QueueId) -> Result<()> {
    check_process("Stream::order")?;
    let (from, to) = {
        let registry = registry();
        match (registry.queues.get(&from), registry.queues.get(&to)) {
            (Some(from), Some(to)) => (from.clone(), to.clone()),
            _ => return Ok(()),
        }
    };
    let marker = from.marker(&[])?;
    // Without the flush the marker might never reach its device, and the other queue would wait for ever.
    from.flush()?;
    to.barrier(Deps::after(&[&marker]))?;
    Ok(())
}

/// Waits for every known queue of a device, so that released memory is really free. Errors have nobody to go to here.
pub(super) fn finish_device(device: &Device) {
    if fork::is_forked_child() {
        return;
    }
    let queues: Vec<Queue> = registry().queues.values().filter(|q| q.device() == device).cloned().collect();
    for queue in queues {
        let _ = queue.finish();
    }
}
