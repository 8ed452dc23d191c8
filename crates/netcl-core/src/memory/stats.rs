//! What a pool counts.

use std::fmt;

/// The counters of a pool at one moment.
///
/// A snapshot is consistent, also while other threads use the pool: `bytes_allocated == bytes_in_use + bytes_cached`, and
/// `hits + misses - releases` leases are live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Leases served from the cache.
    pub hits: u64,
    /// Leases that needed a new block. Requests that failed count nowhere.
    pub misses: u64,
    /// Leases that ended.
    pub releases: u64,
    /// Cached blocks that were freed: over a limit, or trimmed.
    pub evictions: u64,
    /// Bytes of all blocks that the pool holds now, leased or cached.
    pub bytes_allocated: usize,
    /// Bytes of the blocks that wait for reuse.
    pub bytes_cached: usize,
    /// Bytes of the blocks that are leased (whole blocks, not only the bytes asked for).
    pub bytes_in_use: usize,
    /// The largest `bytes_allocated` so far.
    pub peak_bytes_allocated: usize,
    /// The largest `bytes_in_use` so far.
    pub peak_bytes_in_use: usize,
}

impl PoolStats {
    /// The share of leases served from the cache, from 0 to 1; 0 before the first lease.
    ///
    /// ```
    /// use netcl_core::memory::PoolStats;
    /// assert_eq!(PoolStats { hits: 3, misses: 1, ..PoolStats::default() }.hit_rate(), 0.75);
    /// assert_eq!(PoolStats::default().hit_rate(), 0.0);
    /// ```
    pub fn hit_rate(&self) -> f64 {
        match self.hits + self.misses {
            0 => 0.0,
            leases => self.hits as f64 / leases as f64,
        }
    }

    /// The peaks start anew from now.
    pub(super) fn reset_peak(&mut self) {
        self.peak_bytes_allocated = self.bytes_allocated;
        self.peak_bytes_in_use = self.bytes_in_use;
    }

    /// A lease was served from the cache.
    #[inline]
    pub(super) fn hit(&mut self, size: usize) {
        self.hits += 1;
        self.bytes_cached -= size;
        self.lease(size);
    }

    /// A lease was served with a new block.
    pub(super) fn miss(&mut self, size: usize) {
        self.misses += 1;
        self.bytes_allocated += size;
        self.peak_bytes_allocated = self.peak_bytes_allocated.max(self.bytes_allocated);
        self.lease(size);
    }

    #[inline]
    fn lease(&mut self, size: usize) {
        self.bytes_in_use += size;
        self.peak_bytes_in_use = self.peak_bytes_in_use.max(self.bytes_in_use);
    }

    /// A lease ended and its block joined the cache, or left the pool.
    #[inline]
    pub(super) fn release(&mut self, size: usize, cached: bool) {
        self.releases += 1;
        self.bytes_in_use -= size;
        if cached {
            self.bytes_cached += size;
        } else {
            self.bytes_allocated -= size;
        }
    }

    /// Cached blocks left the pool.
    pub(super) fn evict(&mut self, blocks: u64, bytes: usize) {
        self.evictions += blocks;
        self.bytes_cached -= bytes;
        self.bytes_allocated -= bytes;
    }
}

impl fmt::Display for PoolStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} in use, {} cached, {} hits and {} misses ({:.1} %), peak {}",
            Bytes(self.bytes_in_use),
            Bytes(self.bytes_cached),
            self.hits,
            self.misses,
            100.0 * self.hit_rate(),
            Bytes(self.peak_bytes_allocated)
        )
    }
}

/// The cached blocks of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketStats {
    /// The size of each block in bytes.
    pub size: usize,
    /// How many there are; never 0.
    pub blocks: usize,
}

/// What [`PersistentBufferPool::get_stats`](super::PersistentBufferPool::get_stats) answers.
#[derive(Clone, Debug, PartialEq)]
pub struct PersistentPoolStats {
    /// Leases served from the cache.
    pub hits: u64,
    /// Leases that needed a new block.
    pub misses: u64,
    /// `hits / (hits + misses)`, or 0.
    pub hit_rate: f64,
    /// Bytes of all blocks that the pool holds now, leased or cached.
    pub bytes_allocated: usize,
    /// Bytes of the blocks that wait for reuse.
    pub bytes_cached: usize,
    /// The sizes that have cached blocks, smallest first.
    pub buckets: Vec<BucketStats>,
}

/// A number of bytes for human eyes: `1536` is `1.50 KB`.
pub(super) struct Bytes(pub(super) usize);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, shift) = match self.0 {
            0..=1023 => return write!(f, "{} B", self.0),
            1024..=0xf_ffff => ("KB", 10),
            0x10_0000..=0x3fff_ffff => ("MB", 20),
            _ => ("GB", 30),
        };
        write!(f, "{:.2} {unit}", self.0 as f64 / (1u64 << shift) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_well() {
        let texts = [(0, "0 B"), (1023, "1023 B"), (1536, "1.50 KB"), (1 << 20, "1.00 MB"), (5 << 30, "5.00 GB")];
        for (bytes, text) in texts {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }

    #[test]
    fn stats_read_well() {
        let mut stats = PoolStats::default();
        stats.miss(1024);
        stats.release(1024, true);
        stats.hit(1024);
        assert_eq!(stats.to_string(), "1.00 KB in use, 0 B cached, 1 hits and 1 misses (50.0 %), peak 1.00 KB");
    }
}
