//! Pools, leases and statistics: device blocks are recycled instead of going back to the driver.
//!
//! Three pools share one engine ([`Pool`]) and differ only in their bucket table and limits:
//!
//! | pool | buckets | limit on cached bytes | for |
//! |---|---|---|---|
//! | [`BufferPool`] | powers of two from 256 B | none | scripts, custom pools |
//! | [`PersistentBufferPool`] | 289 from 1 KB to 256 MB, steps of 1/16; larger blocks exact | 4 GB, `NETCL_MAX_CACHED_GB` | tensors |
//! | [`PinnedBufferPool`] | powers of two from 4 KB | 512 MB | page-locked staging memory |
//!
//! A pool asks a [`BlockSource`] for blocks and hands them out as [`BufferHandle`]s, one-shot leases that return their
//! block when released or dropped. Handles keep the pool alive. Sizes are binary: 1 KB is 1024 bytes, 1 GB is 2^30.
//!
//! Commands run asynchronously, so a released block may still be in use by the queue that ran them. The handle remembers
//! on which queues it was used ([`BufferHandle::note_use`]); when the next lease of the block meets another queue, the
//! source is asked to make that queue wait ([`BlockSource::hand_over`]). The same queue again costs nothing.
//!
//! When the source is out of memory the pool empties its own cache, then the caches of all other pools of the same device,
//! tries again, and only then fails, with a text that names who holds what ([`holders`]).
//!
//! ```
//! use netcl_core::memory::{BlockSource, BufferPool, QueueId};
//!
//! struct Host;
//! impl BlockSource for Host {
//!     type Block = Box<[u8]>;
//!     fn allocate(&self, bytes: usize) -> netcl_core::Result<Self::Block> {
//!         Ok(vec![0; bytes].into())
//!     }
//!     fn device(&self) -> String {
//!         "host".into()
//!     }
//!     fn hand_over(&self, _: &Self::Block, _: QueueId, _: QueueId) -> netcl_core::Result<()> {
//!         Ok(()) // host memory has no commands in flight
//!     }
//! }
//!
//! let pool = BufferPool::new(Host);
//! let mut handle = pool.allocate(1000)?; // a block of 1024 bytes
//! assert_eq!((handle.nbytes(), handle.block()?.len()), (1000, 1024));
//! handle.release(); // back to the pool
//! let again = pool.allocate(700)?; // the same block
//! let stats = pool.stats();
//! assert_eq!((stats.hits, stats.misses, stats.bytes_in_use, stats.bytes_cached), (1, 1, 1024, 0));
//! # drop(again);
//! # Ok::<(), netcl_core::Error>(())
//! ```

mod arena;
mod bucket;
mod cache;
mod cpu;
mod handle;
mod helpers;
mod kinds;
mod leases;
mod lock;
mod pool;
mod queues;
mod registry;
mod stats;

use std::sync::atomic::{AtomicU64, Ordering};

pub use arena::Arena;
pub use bucket::{BucketTable, Limits};
pub use cpu::{CpuSource, SharedCpuLease, native_pinned_pool, native_pool};
pub use handle::BufferHandle;
pub use helpers::{ZeroCopyRules, create_pinned_buffer, create_zero_copy_buffer, has_svm_support, is_integrated_gpu};
pub use kinds::{BufferPool, PersistentBufferPool, PinnedBufferPool};
pub use pool::Pool;
pub use registry::{holders, trim_device};
pub use stats::{BucketStats, PersistentPoolStats, PoolStats};

use crate::error::Result;

/// Where a pool's blocks come from: an OpenCL context, pinned host memory, or a test's fake device.
///
/// The pool's lock is never held while one of these methods runs or a block is dropped.
pub trait BlockSource: Send + Sync + 'static {
    /// One block. Dropping it frees it, which must be safe while commands that use it are still enqueued (OpenCL defers
    /// the release) and must leave the driver alone in a forked child.
    type Block: Send + Sync + 'static;

    /// Allocates a block of at least `bytes` bytes.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) makes the pool empty its caches and try again; any other error is
    /// passed on at once.
    fn allocate(&self, bytes: usize) -> Result<Self::Block>;

    /// The memory that blocks come from, in words. Sources with equal answers share that memory: when one pool runs out,
    /// the caches of the others are emptied, so two devices of the same model need different texts.
    fn device(&self) -> String;

    /// The largest block that can be had (`CL_DEVICE_MAX_MEM_ALLOC_SIZE`, or what `NETCL_LIMITS` allows).
    fn largest(&self) -> usize {
        usize::MAX
    }

    /// Called after caches were emptied for want of memory and before the next try: waits until the dropped blocks are really
    /// free. OpenCL keeps a released buffer for as long as enqueued commands use it, so its source finishes its queues.
    fn settle(&self) {}

    /// Called before `to` first uses a block whose earlier lease was used by `from`: makes `to` wait for all that `from` was
    /// given so far.
    ///
    /// # Errors
    /// Whatever the driver says; the block must then not be used on `to`.
    fn hand_over(&self, block: &Self::Block, from: QueueId, to: QueueId) -> Result<()>;

    /// Whether a released block may serve the next lease; otherwise it is dropped. Host memory that an ndarray still sees may not.
    fn is_reusable(&self, _block: &Self::Block) -> bool {
        true
    }

    /// The cache in which the source recycles dropped blocks by itself, where that is the pool's only cache: the pool then shows the
    /// counters of that cache as its own.
    fn recycler(&self) -> Option<&dyn Recycler> {
        None
    }
}

/// A cache of blocks beneath a pool: see [`BlockSource::recycler`].
pub trait Recycler {
    /// The counters and the sizes that have cached blocks, smallest first, of one moment.
    fn snapshot(&self) -> (PoolStats, Vec<BucketStats>);

    /// Frees cached blocks until at most `keep` bytes are cached; answers how many bytes were freed.
    fn trim(&self, keep: usize) -> usize;

    /// The most bytes that wait for reuse.
    fn max_cached_bytes(&self) -> usize;

    /// The peaks start anew from now.
    fn reset_peak(&self);
}

/// Identifies a command queue for as long as the process lives.
///
/// ```
/// use netcl_core::memory::QueueId;
/// assert_ne!(QueueId::next(), QueueId::next());
/// ```
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct QueueId(pub u64);

impl QueueId {
    /// A new identifier; never given twice in a process, never `QueueId(0)`.
    pub fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        QueueId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
