//! The process-wide cache of blocks: free lists per size class, exact counters, oldest out first.

use std::collections::{BTreeMap, VecDeque};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::{CpuMemoryStats, system};
use crate::backend::cpu::fork::ForkLock;
use crate::env;

/// The cache that [`CpuBuffer`](super::CpuBuffer)s use.
pub(super) static CACHE: Cache = Cache::new(usize::MAX);

/// Whether the fork handlers of [`CACHE`] are in place.
static WATCHED: AtomicBool = AtomicBool::new(false);

/// Whether a block is straight from the system (all zeros) or was used before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Fresh,
    Recycled,
}

/// A block that waits for reuse, and when it was given back.
struct Waiting {
    ptr: NonNull<u8>,
    since: u64,
}

// SAFETY: the cache is the only owner of a waiting block.
unsafe impl Send for Waiting {}

struct State {
    classes: BTreeMap<usize, VecDeque<Waiting>>,
    clock: u64,
    stats: CpuMemoryStats,
}

pub(super) struct Cache {
    state: ForkLock<State>,
    /// Bytes to keep at most; `usize::MAX` until the environment was read.
    cap: AtomicUsize,
}

/// The cap for values of `NETCL_CPU_CACHE_MB` and `NETCL_MAX_CACHED_GB`: the first wins, and 1 GB holds without either.
fn bytes_to_keep(megabytes: Option<f64>, gigabytes: Option<f64>) -> usize {
    let megabytes = megabytes.or(gigabytes.map(|gigabytes| gigabytes * 1024.0)).unwrap_or(1024.0);
    // The conversion saturates; the largest number means that nobody asked yet.
    ((megabytes * (1u64 << 20) as f64) as usize).min(usize::MAX - 1)
}

impl Cache {
    pub(super) const fn new(cap: usize) -> Self {
        let stats = CpuMemoryStats {
            live_bytes: 0,
            live_buffers: 0,
            peak_bytes: 0,
            cached_bytes: 0,
            hits: 0,
            misses: 0,
            evictions: 0,
            peak_allocated_bytes: 0,
        };
        let state = State { classes: BTreeMap::new(), clock: 0, stats };
        Cache { state: ForkLock::new(state), cap: AtomicUsize::new(cap) }
    }

    /// Bytes the cache may keep: `NETCL_CPU_CACHE_MB`, or `NETCL_MAX_CACHED_GB`; read once.
    pub(super) fn cap(&self) -> usize {
        match self.cap.load(Ordering::Relaxed) {
            usize::MAX => {
                let cap = bytes_to_keep(env::CPU_CACHE_MB.amount(), env::MAX_CACHED_GB.amount());
                self.cap.store(cap, Ordering::Relaxed);
                cap
            }
            cap => cap,
        }
    }

    /// A block of a size class, from the cache or the system; when the system has none, the cache is emptied and the
    /// system asked again. `None` if that fails, too, or if buffers would then own more than `total` bytes.
    pub(super) fn take(&self, block: usize, total: usize) -> Option<(NonNull<u8>, Found)> {
        watch_forks();
        {
            let mut state = self.state.lock();
            if let Some(waiting) = state.classes.get_mut(&block).and_then(VecDeque::pop_back) {
                state.stats.cached_bytes -= block;
                state.stats.hits += 1;
                state.count_live(block);
                return Some((waiting.ptr, Found::Recycled));
            }
            if block > total.saturating_sub(state.stats.live_bytes) {
                return None;
            }
        }
        // The system is asked outside the lock: mapping memory takes microseconds.
        let ptr = system::allocate(block).or_else(|| {
            self.trim(0);
            system::allocate(block)
        })?;
        let mut state = self.state.lock();
        state.stats.misses += 1;
        state.count_live(block);
        Some((ptr, Found::Fresh))
    }

    /// Takes a block back: to be used again, or for the system.
    ///
    /// # Safety
    /// `ptr` must come from [`Cache::take`] of this cache with the same `block` and not be used any more.
    pub(super) unsafe fn give(&self, ptr: NonNull<u8>, block: usize, reuse: bool) {
        let cap = self.cap();
        let keep = {
            let mut state = self.state.lock();
            state.stats.live_bytes -= block;
            state.stats.live_buffers -= 1;
            reuse && block <= cap && state.wait(ptr, block)
        };
        if keep {
            self.shrink(cap);
        } else {
            // SAFETY: the caller's promise; the block did not enter the cache.
            unsafe { system::release(ptr, block) };
        }
    }

    /// Gives the blocks that waited longest back until at most `cap` bytes wait.
    fn shrink(&self, cap: usize) -> usize {
        let mut freed = 0;
        loop {
            // One block at a time, released outside the lock.
            let Some((ptr, block)) = self.state.lock().oldest_beyond(cap) else { return freed };
            freed += block;
            // SAFETY: the block just left the cache, its only owner.
            unsafe { system::release(ptr, block) };
        }
    }

    /// Gives the blocks that waited longest back until at most `keep` bytes wait; answers how many bytes went.
    pub(super) fn trim(&self, keep: usize) -> usize {
        watch_forks();
        self.shrink(keep)
    }

    pub(super) fn stats(&self) -> CpuMemoryStats {
        watch_forks();
        self.state.lock().stats
    }

    /// The counters, and how many blocks of which size wait, smallest first.
    pub(super) fn snapshot(&self) -> (CpuMemoryStats, Vec<(usize, usize)>) {
        watch_forks();
        let state = self.state.lock();
        let waiting = state.classes.iter().map(|(&size, class)| (size, class.len())).filter(|(_, blocks)| *blocks > 0);
        (state.stats, waiting.collect())
    }

    pub(super) fn reset_peak(&self) {
        watch_forks();
        let mut state = self.state.lock();
        state.stats.peak_bytes = state.stats.live_bytes;
        state.stats.peak_allocated_bytes = state.stats.live_bytes + state.stats.cached_bytes;
    }
}

impl State {
    fn count_live(&mut self, block: usize) {
        self.stats.live_bytes += block;
        self.stats.live_buffers += 1;
        self.stats.peak_bytes = self.stats.peak_bytes.max(self.stats.live_bytes);
        let allocated = self.stats.live_bytes + self.stats.cached_bytes;
        self.stats.peak_allocated_bytes = self.stats.peak_allocated_bytes.max(allocated);
    }

    /// Lets a block wait for reuse; `false` if there is no memory even to note it down.
    fn wait(&mut self, ptr: NonNull<u8>, block: usize) -> bool {
        self.clock += 1;
        let since = self.clock;
        let class = self.classes.entry(block).or_default();
        if class.try_reserve(1).is_err() {
            return false;
        }
        class.push_back(Waiting { ptr, since });
        self.stats.cached_bytes += block;
        true
    }

    /// Takes out the block that waited longest, if more than `cap` bytes wait.
    fn oldest_beyond(&mut self, cap: usize) -> Option<(NonNull<u8>, usize)> {
        if self.stats.cached_bytes <= cap {
            return None;
        }
        let oldest = self.classes.iter().filter_map(|(&block, class)| Some((class.front()?.since, block)));
        let (_, block) = oldest.min()?;
        let class = self.classes.get_mut(&block)?;
        let waiting = class.pop_front()?;
        if class.is_empty() {
            self.classes.remove(&block);
        }
        self.stats.cached_bytes -= block;
        self.stats.evictions += 1;
        Some((waiting.ptr, block))
    }
}

/// Makes forks of this process wait for the cache's lock, so that a child inherits a whole cache and a free lock.
/// Must run before the lock is taken for the first time; running twice does no harm.
fn watch_forks() {
    if WATCHED.load(Ordering::Acquire) {
        return;
    }
    #[cfg(unix)]
    {
        unsafe extern "C" fn before() {
            CACHE.state.hold();
        }
        unsafe extern "C" fn after() {
            CACHE.state.release();
        }
        // SAFETY: the handlers only touch an atomic of a static. Registration fails only for lack of memory; then forking
        // while another thread allocates stays as risky as with any other library.
        unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after)) };
    }
    WATCHED.store(true, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_exact() {
        let cache = Cache::new(1 << 20);
        let (a, found) = cache.take(4096, usize::MAX).unwrap();
        assert_eq!(found, Found::Fresh);
        let (b, _) = cache.take(128 << 10, usize::MAX).unwrap();
        let both = 4096 + (128 << 10);
        let expected = CpuMemoryStats {
            live_bytes: both,
            live_buffers: 2,
            peak_bytes: both,
            peak_allocated_bytes: both,
            misses: 2,
            ..Default::default()
        };
        assert_eq!(cache.stats(), expected);
        // SAFETY: `b` came from this cache with this size.
        unsafe { cache.give(b, 128 << 10, true) };
        let one = CpuMemoryStats { live_bytes: 4096, live_buffers: 1, cached_bytes: 128 << 10, ..expected };
        assert_eq!(cache.stats(), one);
        assert_eq!(cache.take(128 << 10, usize::MAX).unwrap(), (b, Found::Recycled));
        assert_eq!(cache.stats(), CpuMemoryStats { hits: 1, ..expected });
        // SAFETY: as above.
        unsafe {
            cache.give(a, 4096, true);
            cache.give(b, 128 << 10, true);
        }
        assert_eq!(cache.snapshot().1, [(4096, 1), (128 << 10, 1)]);
        assert_eq!(cache.trim(0), both);
        assert_eq!(cache.trim(0), 0);
        let empty = CpuMemoryStats { live_bytes: 0, live_buffers: 0, hits: 1, evictions: 2, ..expected };
        assert_eq!(cache.snapshot(), (empty, Vec::new()));
        cache.reset_peak();
        assert_eq!((cache.stats().peak_bytes, cache.stats().peak_allocated_bytes), (0, 0));
    }

    #[test]
    fn the_more_specific_variable_wins() {
        assert_eq!(bytes_to_keep(None, None), 1 << 30);
        assert_eq!(bytes_to_keep(None, Some(0.25)), 256 << 20);
        assert_eq!(bytes_to_keep(Some(8.0), Some(0.25)), 8 << 20);
        assert_eq!(bytes_to_keep(Some(0.0), Some(4.0)), 0);
        assert_eq!(bytes_to_keep(None, Some(f64::INFINITY)), usize::MAX - 1);
    }

    #[test]
    fn the_cap_holds_and_the_oldest_go_first() {
        let cache = Cache::new(256 << 10);
        let sizes: Vec<usize> = (0..5).map(|i| (64 + 4 * i) << 10).collect();
        let blocks: Vec<_> = sizes.iter().map(|&size| cache.take(size, usize::MAX).unwrap().0).collect();
        for (&ptr, &size) in blocks.iter().zip(&sizes) {
            // SAFETY: taken above with this size.
            unsafe { cache.give(ptr, size, true) };
            assert!(cache.stats().cached_bytes <= 256 << 10);
        }
        // 64 + 68 + 72 + 76 + 80 KiB do not fit into 256: the two that came first went.
        assert_eq!(cache.stats().cached_bytes, (72 + 76 + 80) << 10);
        let (first, found) = cache.take(sizes[0], usize::MAX).unwrap();
        assert_eq!(found, Found::Fresh);
        let (last, found) = cache.take(sizes[4], usize::MAX).unwrap();
        assert_eq!(found, Found::Recycled);
        let (huge, _) = cache.take(1 << 20, usize::MAX).unwrap();
        // SAFETY: taken above with this size.
        unsafe { cache.give(huge, 1 << 20, true) };
        assert_eq!(cache.stats().cached_bytes, (72 + 76) << 10, "a block above the cap is never kept");
        // SAFETY: taken above with these sizes.
        unsafe {
            cache.give(first, sizes[0], true);
            cache.give(last, sizes[4], true);
        }
        cache.trim(0);
        assert_eq!(cache.stats().live_bytes + cache.stats().cached_bytes, 0);
    }
}
