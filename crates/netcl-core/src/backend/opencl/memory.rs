//! A tensor's OpenCL memory: a lease or a foreign buffer, the queue that used it last, and an upload under way.

use std::any::Any;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use super::buffer::{Buffer, StableBytes};
use super::event::{Deps, Event};
use super::queue::Queue;
use super::source::ClSource;
use super::stream::{self, Stream};
use super::transfer::{MapMode, Transfer};
use crate::backend::cpu::copy;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::memory::{BufferHandle, QueueId};
use crate::observe::{self, Kind};

/// A lease that a tensor's storage and a Python `BufferHandle` hold together.
pub type SharedLease = Arc<RwLock<BufferHandle<ClSource>>>;

/// The memory of an OpenCL storage.
pub struct ClMemory {
    block: Block,
    nbytes: usize,
    /// The queue that used the memory last; 0 for none.
    last: AtomicU64,
    upload: Mutex<Option<Upload>>,
}

enum Block {
    Lease(SharedLease),
    /// A part of the block of a lease that other parts share; the lease ends with the last of them.
    Part {
        buffer: Buffer,
        lease: SharedLease,
    },
    /// Made by the user or by other code; no pool of ours will take it back. The owner is what keeps it from being used anew.
    Foreign {
        buffer: Buffer,
        _owner: Option<Arc<dyn Any + Send + Sync>>,
    },
}

/// A host-to-device copy that may still be under way.
pub struct Upload {
    /// Complete when the data has arrived.
    pub event: Event,
    /// The queue that copies.
    queue: QueueId,
    /// The page-locked memory the data goes through.
    pub pinned: Option<SharedLease>,
    /// The data itself, where it does not go through page-locked memory.
    pub snapshot: Option<Arc<[u8]>>,
}

/// How host data travels.
#[derive(Clone, Copy, Debug)]
pub struct UploadPath {
    /// Return before the data has arrived.
    pub asynchronous: bool,
    /// Go through page-locked memory.
    pub pinned: bool,
}

impl ClMemory {
    /// Memory of a pool.
    pub fn leased(lease: BufferHandle<ClSource>) -> Self {
        ClMemory::shared(Arc::new(RwLock::new(lease)))
    }

    /// Memory of a lease that somebody else holds, too. Whoever ends it first ends it for both.
    pub fn shared(lease: SharedLease) -> Self {
        let nbytes = read(&lease).nbytes();
        ClMemory::over(Block::Lease(lease), nbytes)
    }

    /// A part of a lease's block as a buffer. It begins at a multiple of the device's
    /// [`base_addr_align`](super::DeviceInfo::base_addr_align).
    pub fn cut(lease: &SharedLease, range: Range<usize>) -> Result<Buffer> {
        Ok(read(lease).block()?.sub_buffer(range)?)
    }

    /// The first bytes of a part of a lease's block.
    pub fn part(lease: SharedLease, part: Buffer, nbytes: usize) -> Self {
        ClMemory::over(Block::Part { buffer: part, lease }, nbytes)
    }

    /// Memory that somebody else made.
    pub fn foreign(buffer: Buffer) -> Self {
        ClMemory::foreign_of(buffer, None)
    }

    /// Memory that somebody else made, with what must live as long as it is in use.
    pub fn foreign_of(buffer: Buffer, owner: Option<Arc<dyn Any + Send + Sync>>) -> Self {
        let nbytes = buffer.size();
        ClMemory::over(Block::Foreign { buffer, _owner: owner }, nbytes)
    }

    fn over(block: Block, nbytes: usize) -> Self {
        ClMemory { block, nbytes, last: AtomicU64::new(0), upload: Mutex::new(None) }
    }

    /// The bytes that were asked for.
    pub fn nbytes(&self) -> usize {
        self.nbytes
    }

    /// The lease, if the memory came from a pool.
    pub fn lease(&self) -> Option<&SharedLease> {
        match &self.block {
            Block::Lease(lease) => Some(lease),
            Block::Part { .. } | Block::Foreign { .. } => None,
        }
    }

    /// The buffer; an error if somebody has released the lease by hand.
    pub fn buffer(&self) -> Result<Buffer> {
        match &self.block {
            Block::Lease(lease) => read(lease).block().cloned(),
            Block::Part { buffer, .. } | Block::Foreign { buffer, .. } => Ok(buffer.clone()),
        }
    }

    /// Released memory goes to the driver instead of to the pool.
    pub fn set_persistent(&self, persistent: bool) {
        if let Block::Lease(lease) = &self.block {
            read(lease).set_persistent(persistent);
        }
    }

    /// The upload that may still be under way.
    pub fn upload(&self) -> MutexGuard<'_, Option<Upload>> {
        self.upload.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the upload, then gives its page-locked memory back. Harmless without one.
    pub fn wait(&self) -> Result<()> {
        // The event is cloned out so that others may look at the upload while this one waits.
        let event = self.upload().as_ref().map(|upload| upload.event.clone());
        if let Some(event) = event {
            event.wait()?;
            *self.upload() = None;
        }
        Ok(())
    }

    /// The buffer, ready for a command on a queue: whatever another queue does with the memory comes first.
    fn ready(&self, queue: &Queue, id: QueueId) -> Result<Buffer> {
        if let Block::Lease(lease) | Block::Part { lease, .. } = &self.block {
            read(lease).note_use(id)?;
        }
        let last = self.last.swap(id.0, Ordering::AcqRel);
        if last != 0 && last != id.0 {
            match &*self.upload() {
                Some(upload) if upload.queue.0 == last => {
                    queue.barrier(Deps::after(&[&upload.event]))?;
                }
                _ => stream::order(QueueId(last), id)?,
            }
        }
        self.buffer()
    }

    /// The buffer for commands that others enqueue on the stream's own queue: they run after whatever is under way in the
    /// memory, an upload included.
    pub fn acquire(&self, stream: &Stream) -> Result<Buffer> {
        self.ready(stream.queue(), stream.id())
    }

    /// Copies dense host data to the start of the memory, casting on the way.
    pub fn write(&self, stream: &Stream, data: &[u8], from: DType, to: DType, path: UploadPath) -> Result<()> {
        let nbytes = data.len() / from.size() * to.size();
        observe::copy_on(stream, Kind::Upload, nbytes, || self.write_now(stream, data, from, to, path))
    }

    fn write_now(&self, stream: &Stream, data: &[u8], from: DType, to: DType, path: UploadPath) -> Result<()> {
        let n = data.len() / from.size();
        let nbytes = n * to.size();
        if nbytes > self.nbytes {
            let what = format!("{nbytes} bytes do not fit a buffer of {}", self.nbytes);
            return Err(Error::argument("from_host", what));
        }
        if !path.asynchronous && from == to && !path.pinned {
            let buffer = self.ready(stream.queue(), stream.id())?;
            stream.queue().write(&buffer, 0, data)?;
            return Ok(());
        }
        let (queue, id) = stream.copy_queue()?;
        let upload = if path.pinned {
            let lease = stream.pinned_pool().allocate_on(nbytes, "upload", id)?;
            let staging = lease.block()?.clone();
            // The map waits for earlier copies out of this block, which the copy queue ran in order.
            let mut mapped = queue.map(&staging, 0..nbytes, MapMode::Overwrite, &[])?;
            convert(data, from, mapped.bytes_mut().unwrap_or_default(), to, n)?;
            mapped.unmap(Deps::NONE)?;
            let target = self.ready(queue, id)?;
            let event = queue.copy(&staging, 0, &target, 0, nbytes, Deps::EVENT)?;
            Upload::new(event, id, Some(Arc::new(RwLock::new(lease))), None)?
        } else {
            let mut snapshot = vec![0u8; nbytes];
            convert(data, from, &mut snapshot, to, n)?;
            let snapshot: Arc<[u8]> = snapshot.into();
            let target = self.ready(queue, id)?;
            // SAFETY: the snapshot never moves and lives in the upload until its event is complete: `wait` waits for it, and so
            // does the upload's drop.
            let event = unsafe { queue.write_raw(&target, 0, snapshot.as_ptr(), nbytes, false, Deps::EVENT)? };
            Upload::new(event, id, None, Some(snapshot))?
        };
        queue.flush()?;
        *self.upload() = Some(upload);
        if path.asynchronous { Ok(()) } else { self.wait() }
    }

    /// Overwrites the start of the memory on the copy queue, after `free` and nothing else: the caller vouches that nobody uses the
    /// memory once that event is complete. Later commands wait for the copy.
    pub fn write_after(&self, stream: &Stream, staged: Staged, free: Option<&Event>) -> Result<()> {
        let Staged { lease, nbytes } = staged;
        if nbytes > self.nbytes {
            let what = format!("{nbytes} bytes do not fit a buffer of {}", self.nbytes);
            return Err(Error::argument("upload", what));
        }
        let (queue, id) = stream.copy_queue()?;
        if let Block::Lease(lease) | Block::Part { lease, .. } = &self.block {
            read(lease).note_use(id)?;
        }
        self.last.store(id.0, Ordering::Release);
        let wait: smallvec::SmallVec<[&Event; 1]> = free.into_iter().collect();
        let copy = || Ok(queue.copy(lease.block()?, 0, &self.buffer()?, 0, nbytes, Deps::after(&wait).event())?);
        let event = observe::copy_on(stream, Kind::Upload, nbytes, copy)?;
        let upload = Upload::new(event, id, Some(Arc::new(RwLock::new(lease))), None)?;
        queue.flush()?;
        *self.upload() = Some(upload);
        Ok(())
    }

    /// Reads bytes, after everything given to the stream so far.
    pub fn read(&self, stream: &Stream, offset: usize, out: &mut [u8]) -> Result<()> {
        let buffer = self.ready(stream.queue(), stream.id())?;
        observe::copy_on(stream, Kind::Download, out.len(), || Ok(stream.queue().read(&buffer, offset, out)?))?;
        // The read came after the upload, so this only gives the upload's page-locked memory back.
        self.wait()
    }

    /// Starts a read of as many bytes as `out` has; the transfer keeps `out` until it is done.
    pub fn download<T: StableBytes>(&self, stream: &Stream, offset: usize, mut out: T) -> Result<Transfer<T>> {
        let buffer = self.ready(stream.queue(), stream.id())?;
        let nbytes = out.bytes_mut().len();
        let read = || Ok(stream.queue().read_async(&buffer, offset, out, &[])?);
        let transfer = observe::copy_on(stream, Kind::Download, nbytes, read)?;
        stream.queue().flush()?;
        Ok(transfer)
    }

    /// Starts a read and returns its event.
    ///
    /// # Safety
    /// `out` is valid for writes of `len` bytes until the event is complete, and nobody else uses it meanwhile.
    pub unsafe fn read_async(&self, stream: &Stream, offset: usize, out: *mut u8, len: usize) -> Result<Option<Event>> {
        let buffer = self.ready(stream.queue(), stream.id())?;
        // SAFETY: the caller vouches for the memory.
        let read = || unsafe { Ok(stream.queue().read_raw(&buffer, offset, out, len, false, Deps::EVENT)?) };
        let event = observe::copy_on(stream, Kind::Download, len, read)?;
        stream.queue().flush()?;
        Ok(event)
    }
}

impl Drop for ClMemory {
    fn drop(&mut self) {
        // The lease ends with the last tensor, also where somebody still holds its handle.
        if let Block::Lease(lease) = &self.block {
            lease.write().unwrap_or_else(PoisonError::into_inner).release();
        }
    }
}

impl Upload {
    fn new(
        event: Option<Event>,
        queue: QueueId,
        pinned: Option<SharedLease>,
        snapshot: Option<Arc<[u8]>>,
    ) -> Result<Upload> {
        let what = "the driver made no event for an upload".to_owned();
        let event = event.ok_or(Error::State { op: "from_host", what })?;
        Ok(Upload { event, queue, pinned, snapshot })
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // The driver may still read the snapshot. (Page-locked memory needs no wait: its next use is ordered behind the copy.)
        if let Some(snapshot) = self.snapshot.take()
            && self.event.wait().is_err()
        {
            std::mem::forget(snapshot);
        }
    }
}

fn read(lease: &SharedLease) -> RwLockReadGuard<'_, BufferHandle<ClSource>> {
    lease.read().unwrap_or_else(PoisonError::into_inner)
}

/// Copies or casts `n` elements between host memories of the right sizes.
fn convert(data: &[u8], from: DType, out: &mut [u8], to: DType, n: usize) -> Result<()> {
    if data.len() < n * from.size() || out.len() < n * to.size() {
        return Err(Error::argument("from_host", "the staging memory is too small"));
    }
    // SAFETY: both slices hold `n` elements, as just checked, and cannot overlap.
    unsafe {
        if from == to {
            copy::copy(data.as_ptr(), out.as_mut_ptr(), data.len())
        } else {
            copy::cast(data.as_ptr(), from, out.as_mut_ptr(), to, n)
        }
    }
}

/// Host data in page-locked memory, for [`ClMemory::write_after`].
pub struct Staged {
    lease: BufferHandle<ClSource>,
    nbytes: usize,
}

impl Staged {
    /// Copies the data; waits for what the copy queue was given before.
    ///
    /// # Errors
    /// Want of memory; what the driver says.
    pub fn new(stream: &Stream, data: &[u8]) -> Result<Staged> {
        let (queue, id) = stream.copy_queue()?;
        let lease = stream.pinned_pool().allocate_on(data.len(), "upload", id)?;
        let mut mapped = queue.map(lease.block()?, 0..data.len(), MapMode::Overwrite, &[])?;
        let bytes = mapped.bytes_mut().unwrap_or_default();
        convert(data, DType::U8, bytes, DType::U8, data.len())?;
        mapped.unmap(Deps::NONE)?;
        Ok(Staged { lease, nbytes: data.len() })
    }
}
