//! The engine that all pools share.

use std::fmt;
use std::sync::Arc;

use super::bucket::{BucketTable, Class, Limits};
use super::cache::{Cache, Evicted};
use super::leases::LeaseTable;
use super::lock::ProcessMutex;
use super::queues::QueueSet;
use super::registry::{self, Registered};
use super::stats::{BucketStats, Bytes, PoolStats};
use super::{BlockSource, BufferHandle, QueueId};
use crate::error::{Error, Result};

/// The label of a lease that nobody named.
const UNNAMED: &str = "buffer";

/// What the lock protects.
struct State<B> {
    cache: Cache<B>,
    leases: LeaseTable,
    stats: PoolStats,
}

/// A pool's insides, kept alive by the pool and by every handle.
pub(super) struct Shared<S: BlockSource> {
    name: &'static str,
    source: S,
    device: String,
    largest: usize,
    table: BucketTable,
    limits: Limits,
    state: ProcessMutex<State<S::Block>>,
}

/// A block on its way from the pool to a handle.
pub(super) struct Leased<B> {
    pub(super) block: B,
    pub(super) class: Class,
    pub(super) size: usize,
    pub(super) slot: u32,
    /// Who used it before.
    pub(super) users: QueueSet,
}

/// The tries to get a new block, in order.
enum Attempt {
    AsIs,
    OwnCacheEmptied,
    AllCachesEmptied,
    CutToMeasure,
}

/// Recycles the blocks of a [`BlockSource`]; cloning gives another reference to the same pool.
///
/// [`BufferPool`](super::BufferPool), [`PersistentBufferPool`](super::PersistentBufferPool) and
/// [`PinnedBufferPool`](super::PinnedBufferPool) deref to this: code that takes any of them takes a `&Pool`.
pub struct Pool<S: BlockSource> {
    shared: Arc<Shared<S>>,
}

impl<S: BlockSource> Pool<S> {
    /// A pool with its own bucket table and limits; `name` appears in out-of-memory messages.
    pub fn with_policy(name: &'static str, source: S, table: BucketTable, limits: Limits) -> Self {
        let state = State { cache: Cache::new(&table), leases: LeaseTable::default(), stats: PoolStats::default() };
        let state = ProcessMutex::owned_by(std::process::id(), state);
        let (device, largest) = (source.device(), source.largest());
        let shared = Arc::new(Shared { name, source, device, largest, table, limits, state });
        let registered: Arc<dyn Registered> = shared.clone();
        registry::register(Arc::downgrade(&registered));
        Pool { shared }
    }

    /// Leases a block of at least `bytes` bytes, possibly a used one: its contents are whatever was there.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] when neither the source nor the caches have it, or it is larger than the device allows;
    /// [`Error::Argument`] for zero bytes (an empty tensor needs no block, so asking for one is a mistake);
    /// [`Error::State`] in a forked child whose parent was inside the pool; any other error of the source.
    pub fn allocate(&self, bytes: usize) -> Result<BufferHandle<S>> {
        self.allocate_labelled(bytes, UNNAMED)
    }

    /// [`Pool::allocate`] under a name that an out-of-memory message can show.
    ///
    /// # Errors
    /// Those of [`Pool::allocate`].
    #[inline]
    pub fn allocate_labelled(&self, bytes: usize, label: &'static str) -> Result<BufferHandle<S>> {
        let leased = self.shared.lease(bytes, label)?;
        Ok(BufferHandle::new(Arc::clone(&self.shared), leased, bytes, label))
    }

    /// [`Pool::allocate_labelled`] for use on a queue: the queue is noted ([`BufferHandle::note_use`]) and already waits for
    /// earlier users.
    ///
    /// # Errors
    /// Those of [`Pool::allocate`] and of [`BlockSource::hand_over`].
    pub fn allocate_on(&self, bytes: usize, label: &'static str, queue: QueueId) -> Result<BufferHandle<S>> {
        let handle = self.allocate_labelled(bytes, label)?;
        handle.note_use(queue)?;
        Ok(handle)
    }

    /// The counters now. (All zero in a forked child whose parent was inside the pool.)
    pub fn stats(&self) -> PoolStats {
        if let Some(recycler) = self.source().recycler() {
            return recycler.snapshot().0;
        }
        self.shared.state.lock().map(|state| state.stats).unwrap_or_default()
    }

    /// The counters and the sizes that have cached blocks, smallest first, of one moment.
    pub fn snapshot(&self) -> (PoolStats, Vec<BucketStats>) {
        if let Some(recycler) = self.source().recycler() {
            return recycler.snapshot();
        }
        self.shared.state.lock().map(|state| (state.stats, state.cache.occupied())).unwrap_or_default()
    }

    /// Starts the peaks anew from what is allocated and in use now, to measure a part of a program.
    pub fn reset_peak(&self) {
        if let Some(recycler) = self.source().recycler() {
            return recycler.reset_peak();
        }
        if let Ok(mut state) = self.shared.state.lock() {
            state.stats.reset_peak();
        }
    }

    /// Frees cached blocks until at most `keep` bytes are cached; answers how many bytes were freed. Blocks above the bucket
    /// table go first (largest first), then those released longest ago.
    pub fn trim(&self, keep: usize) -> usize {
        self.shared.trim(keep)
    }

    /// Frees all cached blocks; answers how many bytes were freed.
    pub fn clear(&self) -> usize {
        self.trim(0)
    }

    /// The size of the block that a request of `bytes` bytes gets.
    pub fn block_size(&self, bytes: usize) -> usize {
        self.shared.class(bytes).1
    }

    /// The source of the blocks.
    pub fn source(&self) -> &S {
        &self.shared.source
    }

    /// The bucket table.
    pub fn table(&self) -> BucketTable {
        self.shared.table
    }

    /// The limits on cached blocks.
    pub fn limits(&self) -> Limits {
        match self.source().recycler() {
            Some(recycler) => Limits::bytes(recycler.max_cached_bytes()),
            None => self.shared.limits,
        }
    }

    /// The pool that a handle belongs to.
    pub(super) fn of(shared: &Arc<Shared<S>>) -> Self {
        Pool { shared: Arc::clone(shared) }
    }
}

impl<S: BlockSource> Clone for Pool<S> {
    fn clone(&self) -> Self {
        Pool::of(&self.shared)
    }
}

impl<S: BlockSource> PartialEq for Pool<S> {
    /// Whether both are references to the same pool.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl<S: BlockSource> fmt::Debug for Pool<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}: {}", self.shared.name, self.shared.device, self.stats())
    }
}

impl<S: BlockSource> Shared<S> {
    pub(super) fn source(&self) -> &S {
        &self.source
    }

    /// The process that the pool belongs to.
    pub(super) fn owner(&self) -> u32 {
        self.state.owner()
    }

    #[inline]
    fn class(&self, bytes: usize) -> (Class, usize) {
        // Where nothing is kept for reuse, a bucket's slack is only waste, and hides overruns from memory checkers.
        if self.limits.max_cached_bytes == 0 {
            return (self.table.class(bytes), bytes);
        }
        // The bucket that the device's limit falls into holds blocks of that limit, whoever asks: still one size per bucket.
        (self.table.class(bytes), self.table.block_size(bytes).min(self.largest.max(bytes)))
    }

    #[inline]
    fn lease(&self, bytes: usize, label: &'static str) -> Result<Leased<S::Block>> {
        if bytes == 0 || bytes > self.largest {
            return Err(self.refuse(bytes));
        }
        let (class, size) = self.class(bytes);
        let mut state = self.state.lock().map_err(|forked| forked.error("allocate"))?;
        if let Some(cached) = state.cache.take(class, size) {
            state.stats.hit(size);
            let slot = state.leases.insert(label, size);
            return Ok(Leased { block: cached.block, class, size, slot, users: cached.users });
        }
        drop(state);
        self.lease_new(bytes, class, size, label)
    }

    #[cold]
    fn refuse(&self, bytes: usize) -> Error {
        if bytes == 0 {
            return Error::argument(
                "allocate",
                "a pool has no empty blocks: a tensor without elements needs no buffer",
            );
        }
        let holders = format!(
            "the device allows at most {} bytes ({}) in one block: use a smaller batch or split the tensor",
            self.largest,
            Bytes(self.largest)
        );
        Error::OutOfMemory { device: self.device.clone(), bytes, holders }
    }

    /// Gets a block from the source, at the second and later tries after emptying caches.
    fn lease_new(&self, bytes: usize, class: Class, size: usize, label: &'static str) -> Result<Leased<S::Block>> {
        let (block, class, size) = self.allocate_block(bytes, class, size)?;
        let mut state = self.state.lock().map_err(|forked| forked.error("allocate"))?;
        state.stats.miss(size);
        let slot = state.leases.insert(label, size);
        Ok(Leased { block, class, size, slot, users: QueueSet::new() })
    }

    fn allocate_block(&self, bytes: usize, class: Class, size: usize) -> Result<(S::Block, Class, usize)> {
        let mut reason = String::new();
        for attempt in [Attempt::AsIs, Attempt::OwnCacheEmptied, Attempt::AllCachesEmptied, Attempt::CutToMeasure] {
            let (class, size) = match attempt {
                Attempt::AsIs => (class, size),
                // Own cache first: other pools keep theirs where that is enough.
                Attempt::OwnCacheEmptied if self.trim(0) == 0 => continue,
                Attempt::OwnCacheEmptied => {
                    self.source.settle();
                    (class, size)
                }
                // Tried even if nothing was cached: another thread may have freed memory meanwhile.
                Attempt::AllCachesEmptied => {
                    registry::trim_device(&self.device);
                    self.source.settle();
                    (class, size)
                }
                // A block without the bucket's slack may still fit; it belongs to no bucket, so it is not kept later.
                Attempt::CutToMeasure if size == bytes => continue,
                Attempt::CutToMeasure => (Class::Unpooled, bytes),
            };
            match self.source.allocate(size) {
                Ok(block) => return Ok((block, class, size)),
                Err(Error::OutOfMemory { holders, .. }) => reason = holders,
                Err(other) => return Err(other),
            }
        }
        let pools = registry::holders(&self.device);
        let holders = if reason.is_empty() { pools } else { format!("{reason}; {pools}") };
        Err(Error::OutOfMemory { device: self.device.clone(), bytes, holders })
    }

    /// Takes a block back from a handle: into the cache, or, unless `pooled`, to the source.
    pub(super) fn give_back(&self, leased: Leased<S::Block>, pooled: bool) {
        let Leased { block, class, size, slot, users } = leased;
        let Ok(mut state) = self.state.lock() else {
            // A forked child, the parent's lock: the block is the parent's, and waiting would be for ever.
            std::mem::forget(block);
            return;
        };
        state.leases.remove(slot);
        let pooled = pooled && class != Class::Unpooled && self.source.is_reusable(&block);
        state.stats.release(size, pooled);
        // Whatever is freed is freed after the lock: drivers take their time.
        if pooled {
            let evicted = state.cache.put(class, block, size, users, &self.limits);
            if !evicted.is_empty() {
                state.count_evicted(&evicted);
            }
            drop(state);
            drop(evicted);
        } else {
            drop(state);
            drop(block);
        }
    }
}

impl<B> State<B> {
    /// Counts evicted blocks and answers their bytes.
    fn count_evicted(&mut self, evicted: &Evicted<B>) -> usize {
        let bytes = evicted.iter().map(|cached| cached.size).sum();
        self.stats.evict(evicted.len() as u64, bytes);
        bytes
    }
}

impl<S: BlockSource> Registered for Shared<S> {
    fn device(&self) -> &str {
        &self.device
    }

    fn trim(&self, keep: usize) -> usize {
        if let Some(recycler) = self.source.recycler() {
            return recycler.trim(keep);
        }
        let Ok(mut state) = self.state.lock() else { return 0 };
        let mut evicted = Evicted::new();
        state.cache.shrink(keep, &mut evicted);
        let freed = state.count_evicted(&evicted);
        drop(state);
        drop(evicted);
        freed
    }

    fn holdings(&self) -> Option<String> {
        let state = self.state.lock().ok()?;
        let (stats, leases) = (state.stats, state.leases.largest());
        drop(state);
        if stats.bytes_allocated == 0 {
            return None;
        }
        let (in_use, cached) = (Bytes(stats.bytes_in_use), Bytes(stats.bytes_cached));
        Some(format!("{} holds {in_use} in {leases}, and {cached} cached", self.name))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Blocks that can be counted from outside.
    struct Counted(Arc<()>);

    impl BlockSource for Counted {
        type Block = Arc<()>;

        fn allocate(&self, _: usize) -> Result<Arc<()>> {
            Ok(self.0.clone())
        }

        fn device(&self) -> String {
            "counted".into()
        }

        fn hand_over(&self, _: &Arc<()>, _: QueueId, _: QueueId) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_forked_child_leaks_or_errs_but_never_waits_for_the_parents_lock() {
        let blocks = Arc::new(());
        let pool = Pool::with_policy("pool", Counted(blocks.clone()), BucketTable::POWERS_OF_TWO, Limits::NONE);
        let (handle, other) = (pool.allocate(1).unwrap(), pool.allocate(1).unwrap());
        pool.shared.state.disown();
        let held = pool.shared.state.lock().unwrap();
        drop(handle);
        assert_eq!(Arc::strong_count(&blocks), 4, "the source's, the leaked, the live one and our own");
        assert!(matches!(pool.allocate(1), Err(Error::State { op: "allocate", .. })));
        assert_eq!((pool.stats(), pool.trim(0)), (PoolStats::default(), 0));
        assert_eq!(pool.shared.holdings(), None);
        drop(held);
        drop(other);
        assert_eq!(pool.stats().releases, 1, "a lock that is free works in any process");
    }
}
