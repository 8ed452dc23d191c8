//! Pools of the native CPU: their blocks come from, and end in, the cache that its tensors use.

use std::sync::{Arc, LazyLock, RwLock};

use super::bucket::Limits;
use super::{
    BlockSource, BucketStats, BufferHandle, PersistentBufferPool, PinnedBufferPool, PoolStats, QueueId, Recycler,
};
use crate::backend::cpu::{CpuBuffer, buffer};
use crate::error::Result;

/// A lease that a native tensor's storage and a Python `BufferHandle` hold together.
pub type SharedCpuLease = Arc<RwLock<BufferHandle<CpuSource>>>;

/// Host memory for pools of the native CPU.
///
/// ```
/// use netcl_core::memory::{BufferPool, CpuSource};
///
/// let pool = BufferPool::new(CpuSource::default());
/// drop(pool.allocate(1000)?);
/// drop(pool.allocate(900)?); // the same block
/// assert_eq!((pool.stats().hits, pool.stats().bytes_cached), (1, 1024));
/// # Ok::<(), netcl_core::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct CpuSource {
    /// The blocks are those of the process-wide cache, and so are the counters.
    shows_cache: bool,
}

impl BlockSource for CpuSource {
    /// Shared with the tensor over it, so that a lease ended by hand takes no memory away from an ndarray.
    type Block = Arc<CpuBuffer>;

    fn allocate(&self, bytes: usize) -> Result<Self::Block> {
        CpuBuffer::uninit(bytes).map(Arc::new)
    }

    fn device(&self) -> String {
        "cpu".to_owned()
    }

    fn hand_over(&self, _: &Self::Block, _: QueueId, _: QueueId) -> Result<()> {
        Ok(()) // work on the native CPU is over when the call that asked for it returns
    }

    fn is_reusable(&self, block: &Self::Block) -> bool {
        Arc::strong_count(block) == 1
    }

    fn recycler(&self) -> Option<&dyn Recycler> {
        self.shows_cache.then_some(&NativeCache)
    }
}

/// The process-wide cache of native memory, seen as a pool's.
struct NativeCache;

impl Recycler for NativeCache {
    fn snapshot(&self) -> (PoolStats, Vec<BucketStats>) {
        let (stats, buckets) = buffer::snapshot();
        let pool = PoolStats {
            hits: stats.hits,
            misses: stats.misses,
            releases: stats.hits + stats.misses - stats.live_buffers as u64,
            evictions: stats.evictions,
            bytes_allocated: stats.live_bytes + stats.cached_bytes,
            bytes_cached: stats.cached_bytes,
            bytes_in_use: stats.live_bytes,
            peak_bytes_allocated: stats.peak_allocated_bytes,
            peak_bytes_in_use: stats.peak_bytes,
        };
        (pool, buckets.into_iter().map(|(size, blocks)| BucketStats { size, blocks }).collect())
    }

    fn trim(&self, keep: usize) -> usize {
        buffer::trim_to(keep)
    }

    fn max_cached_bytes(&self) -> usize {
        buffer::max_cached_bytes()
    }

    fn reset_peak(&self) {
        buffer::reset_peak();
    }
}

/// The pool that tensors of the native CPU come from: its counters are those of the process-wide cache.
///
/// ```
/// use netcl_core::{device::manager, dtype::DType, memory::native_pool, tensor::Tensor};
///
/// let before = native_pool().stats();
/// let x = Tensor::from_shape(&manager().cpu().queue, [1000], DType::F32)?;
/// let now = native_pool().stats();
/// assert_eq!(now.hits + now.misses, before.hits + before.misses + 1);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn native_pool() -> &'static PersistentBufferPool<CpuSource> {
    static POOL: LazyLock<PersistentBufferPool<CpuSource>> = LazyLock::new(|| {
        // The pool keeps nothing of its own: a released block goes where the tensors' blocks go.
        PersistentBufferPool::with_limits(CpuSource { shows_cache: true }, Limits::bytes(0))
    });
    &POOL
}

/// What stands for the pool of page-locked memory on the native CPU: all of its memory is the host's.
pub fn native_pinned_pool() -> &'static PinnedBufferPool<CpuSource> {
    static POOL: LazyLock<PinnedBufferPool<CpuSource>> = LazyLock::new(|| PinnedBufferPool::new(CpuSource::default()));
    &POOL
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::BufferPool;

    #[test]
    fn a_block_that_somebody_still_sees_is_not_used_again() {
        let pool = BufferPool::new(CpuSource::default());
        let mut lease = pool.allocate(1000).unwrap();
        let seen = Arc::clone(lease.block().unwrap());
        lease.release();
        assert_eq!((pool.stats().bytes_allocated, pool.stats().bytes_cached), (0, 0));
        let other = pool.allocate(1000).unwrap();
        assert_ne!(other.block().unwrap().as_ptr(), seen.as_ptr());
    }

    #[test]
    fn the_native_pool_shows_the_cache_and_keeps_nothing_itself() {
        let pool = native_pool();
        let lease = pool.allocate(5 << 20).unwrap();
        let (stats, _) = pool.snapshot();
        assert!(stats.bytes_in_use >= 5 << 20 && pool.limits().max_cached_bytes > 0);
        assert_eq!(stats.bytes_allocated, stats.bytes_in_use + stats.bytes_cached);
        let native = buffer::stats();
        assert!(native.live_bytes >= 5 << 20);
        drop(lease);
    }
}
