//! The three pools of the documentation: bucket tables and limits over one engine.

use std::ops::Deref;

use super::bucket::{BucketTable, Limits};
use super::pool::Pool;
use super::stats::PersistentPoolStats;
use super::{BlockSource, BucketStats};
use crate::env;

/// Cached bytes of a [`PersistentBufferPool`] when nothing else is said: 4 GB.
const DEFAULT_CACHED: f64 = 4.0;

/// Cached bytes of a [`PinnedBufferPool`]: several batches of images; page-locked memory is taken from the whole machine.
const PINNED_CACHED: usize = 512 << 20;

macro_rules! pool_kind {
    ($kind:ident) => {
        impl<S: BlockSource> Deref for $kind<S> {
            type Target = Pool<S>;

            fn deref(&self) -> &Pool<S> {
                &self.0
            }
        }

        impl<S: BlockSource> From<$kind<S>> for Pool<S> {
            fn from(pool: $kind<S>) -> Self {
                pool.0
            }
        }

        impl<S: BlockSource> Clone for $kind<S> {
            fn clone(&self) -> Self {
                $kind(self.0.clone())
            }
        }

        impl<S: BlockSource> std::fmt::Debug for $kind<S> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

/// The simple pool: powers of two, no limit. Every released block is kept until [`Pool::trim`] or the pool's end.
///
/// Methods are those of [`Pool`].
pub struct BufferPool<S: BlockSource>(Pool<S>);
pool_kind!(BufferPool);

impl<S: BlockSource> BufferPool<S> {
    /// A pool of blocks from `source`.
    pub fn new(source: S) -> Self {
        BufferPool(Pool::with_policy("buffer pool", source, BucketTable::POWERS_OF_TWO, Limits::NONE))
    }
}

/// The pool of page-locked host memory: powers of two from 4 KB, at most 512 MB cached and 32 blocks per bucket.
///
/// Methods are those of [`Pool`].
pub struct PinnedBufferPool<S: BlockSource>(Pool<S>);
pool_kind!(PinnedBufferPool);

impl<S: BlockSource> PinnedBufferPool<S> {
    /// A pool of blocks from `source` with the default limits.
    pub fn new(source: S) -> Self {
        let limits = Limits { max_cached_bytes: PINNED_CACHED, max_blocks_per_bucket: 32 };
        PinnedBufferPool::with_limits(source, limits)
    }

    /// A pool of blocks from `source` with limits of its own.
    pub fn with_limits(source: S, limits: Limits) -> Self {
        PinnedBufferPool(Pool::with_policy("pinned pool", source, BucketTable::PINNED, limits))
    }
}

/// The bounded pool that tensors use: [`BucketTable::PERSISTENT`], a hard limit on cached bytes and one on blocks per bucket.
///
/// Other methods are those of [`Pool`].
///
/// ```
/// # use netcl_core::memory::{BlockSource, QueueId};
/// use netcl_core::memory::{Limits, PersistentBufferPool};
/// # struct Host;
/// # impl BlockSource for Host {
/// #     type Block = Box<[u8]>;
/// #     fn allocate(&self, bytes: usize) -> netcl_core::Result<Self::Block> { Ok(vec![0; bytes].into()) }
/// #     fn device(&self) -> String { "host".into() }
/// #     fn hand_over(&self, _: &Self::Block, _: QueueId, _: QueueId) -> netcl_core::Result<()> { Ok(()) }
/// # }
///
/// let pool = PersistentBufferPool::with_limits(Host, Limits::bytes(1 << 20));
/// drop(pool.allocate(3000)?);
/// drop(pool.allocate(3050)?); // the same bucket, 3072 bytes
/// let stats = pool.get_stats();
/// assert_eq!((stats.hits, stats.misses, stats.hit_rate), (1, 1, 0.5));
/// assert_eq!((stats.buckets[0].size, stats.buckets[0].blocks), (3072, 1));
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub struct PersistentBufferPool<S: BlockSource>(Pool<S>);
pool_kind!(PersistentBufferPool);

impl<S: BlockSource> PersistentBufferPool<S> {
    /// A pool of blocks from `source` that caches at most `NETCL_MAX_CACHED_GB` GB (4 unless set).
    pub fn new(source: S) -> Self {
        // The conversion saturates, so a huge number is no limit.
        let gigabytes = env::MAX_CACHED_GB.amount().unwrap_or(DEFAULT_CACHED);
        PersistentBufferPool::with_limits(source, Limits::bytes((gigabytes * (1u64 << 30) as f64) as usize))
    }

    /// A pool of blocks from `source` with limits of its own.
    pub fn with_limits(source: S, limits: Limits) -> Self {
        PersistentBufferPool(Pool::with_policy("persistent pool", source, BucketTable::PERSISTENT, limits))
    }

    /// The counters and the occupied buckets of one moment.
    pub fn get_stats(&self) -> PersistentPoolStats {
        let (stats, buckets): (_, Vec<BucketStats>) = self.snapshot();
        PersistentPoolStats {
            hits: stats.hits,
            misses: stats.misses,
            hit_rate: stats.hit_rate(),
            bytes_allocated: stats.bytes_allocated,
            bytes_cached: stats.bytes_cached,
            buckets,
        }
    }
}
