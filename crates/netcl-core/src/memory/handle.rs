//! A lease of one block.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::bucket::Class;
use super::pool::{Leased, Pool, Shared};
use super::queues::Uses;
use super::{BlockSource, QueueId};
use crate::error::{Error, Result};

/// A one-shot lease of a block: [`release`](BufferHandle::release) or dropping the handle puts the block back into its pool.
///
/// The handle keeps the pool's insides alive: it works, and returns its block, after the last [`Pool`] is gone.
///
/// ```
/// # use netcl_core::memory::{BlockSource, PersistentBufferPool, QueueId};
/// # struct Host;
/// # impl BlockSource for Host {
/// #     type Block = Box<[u8]>;
/// #     fn allocate(&self, bytes: usize) -> netcl_core::Result<Self::Block> { Ok(vec![0; bytes].into()) }
/// #     fn device(&self) -> String { "host".into() }
/// #     fn hand_over(&self, _: &Self::Block, _: QueueId, _: QueueId) -> netcl_core::Result<()> { Ok(()) }
/// # }
/// let pool = PersistentBufferPool::new(Host);
/// let compute = QueueId::next();
///
/// let mut handle = pool.allocate_labelled(1500, "activations")?;
/// handle.note_use(compute)?; // before every command that touches the block
/// assert_eq!((handle.nbytes(), handle.size()), (1500, 1536));
///
/// handle.release();
/// handle.release(); // harmless
/// assert!(handle.is_released() && handle.block().is_err());
/// assert_eq!(pool.stats().bytes_cached, 1536);
///
/// let weights = pool.allocate(1500)?; // the same block
/// weights.set_persistent(true);
/// drop(weights); // freed, not pooled
/// assert_eq!(pool.stats().bytes_allocated, 0);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub struct BufferHandle<S: BlockSource> {
    shared: Arc<Shared<S>>,
    /// `None` once released.
    block: Option<S::Block>,
    uses: Uses,
    class: Class,
    slot: u32,
    size: usize,
    nbytes: usize,
    label: &'static str,
    persistent: AtomicBool,
}

impl<S: BlockSource> BufferHandle<S> {
    #[inline]
    pub(super) fn new(shared: Arc<Shared<S>>, leased: Leased<S::Block>, nbytes: usize, label: &'static str) -> Self {
        let Leased { block, class, size, slot, users } = leased;
        let uses = Uses::new(shared.owner(), users);
        BufferHandle {
            shared,
            block: Some(block),
            uses,
            class,
            slot,
            size,
            nbytes,
            label,
            persistent: AtomicBool::new(false),
        }
    }

    /// The block.
    ///
    /// # Errors
    /// [`Error::State`] after [`BufferHandle::release`].
    #[inline]
    pub fn block(&self) -> Result<&S::Block> {
        self.block.as_ref().ok_or_else(|| Error::State {
            op: "buffer",
            what: format!("the lease {:?} of {} bytes was released; allocate another", self.label, self.nbytes),
        })
    }

    /// Notes that a command on `queue` is about to use the block. The first time, the queue is made to wait for every other
    /// queue that used the block under an earlier lease; after that it is one load. Call it before enqueueing; ordering
    /// between the queues of *this* lease is the caller's affair.
    ///
    /// # Errors
    /// [`Error::State`] after a release; what [`BlockSource::hand_over`] says, and then the queue must not use the block.
    #[inline]
    pub fn note_use(&self, queue: QueueId) -> Result<()> {
        let block = self.block()?;
        self.uses.note(queue, |from| self.shared.source().hand_over(block, from, queue))
    }

    /// Ends the lease: the block goes back to the pool, or is freed if the handle is persistent. Releasing again does nothing.
    pub fn release(&mut self) {
        let Some(block) = self.block.take() else { return };
        let users = self.uses.finish();
        let leased = Leased { block, class: self.class, size: self.size, slot: self.slot, users };
        self.shared.give_back(leased, !self.is_persistent());
    }

    /// Whether the lease has ended.
    pub fn is_released(&self) -> bool {
        self.block.is_none()
    }

    /// Says whether the block is freed (`true`) instead of pooled (`false`, the default) when the lease ends: for weights, whose
    /// odd sizes and long lives make them poor candidates for reuse.
    pub fn set_persistent(&self, persistent: bool) {
        self.persistent.store(persistent, Ordering::Relaxed);
    }

    /// Whether the block is freed instead of pooled when the lease ends.
    pub fn is_persistent(&self) -> bool {
        self.persistent.load(Ordering::Relaxed)
    }

    /// The number of bytes asked for.
    pub fn nbytes(&self) -> usize {
        self.nbytes
    }

    /// The size of the block: at least [`BufferHandle::nbytes`].
    pub fn size(&self) -> usize {
        self.size
    }

    /// The name under which it was asked for.
    pub fn label(&self) -> &'static str {
        self.label
    }

    /// The pool that the block goes back to.
    pub fn pool(&self) -> Pool<S> {
        Pool::of(&self.shared)
    }
}

impl<S: BlockSource> Drop for BufferHandle<S> {
    #[inline]
    fn drop(&mut self) {
        self.release();
    }
}

impl<S: BlockSource> fmt::Debug for BufferHandle<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferHandle")
            .field("label", &self.label)
            .field("nbytes", &self.nbytes)
            .field("size", &self.size)
            .field("released", &self.is_released())
            .field("persistent", &self.is_persistent())
            .finish_non_exhaustive()
    }
}
