//! All pools of the process, so that one that runs out of memory can empty the caches of the others and name them.

use std::sync::{Arc, Weak};

use super::lock::ProcessMutex;

/// What the registry asks of a pool.
pub(super) trait Registered: Send + Sync {
    /// The memory that the pool's blocks come from.
    fn device(&self) -> &str;

    /// Frees cached blocks until at most `keep` bytes are cached; answers how many bytes went.
    fn trim(&self, keep: usize) -> usize;

    /// One sentence on what the pool holds; `None` when it holds nothing.
    fn holdings(&self) -> Option<String>;
}

static POOLS: ProcessMutex<Vec<Weak<dyn Registered>>> = ProcessMutex::unclaimed(Vec::new());

/// Enters a pool for as long as it lives.
pub(super) fn register(pool: Weak<dyn Registered>) {
    POOLS.claim();
    // Only a forked child can fail to get the lock; a pool that nobody else trims works all the same.
    if let Ok(mut pools) = POOLS.lock() {
        pools.retain(|pool| pool.strong_count() > 0);
        pools.push(pool);
    }
}

/// The living pools of a device, oldest first; none while the lock is out of reach in a forked child.
fn pools_of(device: &str) -> Vec<Arc<dyn Registered>> {
    POOLS.claim();
    let Ok(pools) = POOLS.lock() else { return Vec::new() };
    let living: Vec<_> = pools.iter().filter_map(Weak::upgrade).collect();
    // A pool whose last owner let go meanwhile is dropped below and frees its blocks: not under this lock.
    drop(pools);
    living.into_iter().filter(|pool| pool.device() == device).collect()
}

/// Frees everything that the pools of a device have cached; answers how many bytes were freed.
///
/// Pools do this by themselves when an allocation fails. It is also the cure where a driver allocates lazily and reports the
/// lack of memory only at the first command that uses a block. `device` is as for [`holders`].
pub fn trim_device(device: &str) -> usize {
    pools_of(device).iter().map(|pool| pool.trim(0)).sum()
}

/// Who holds how much of a device's memory: one sentence per pool with its bytes in use and cached and its largest leases.
///
/// This is the text of [`Error::OutOfMemory`](crate::Error::OutOfMemory); `device` is what the pools' sources answer to
/// [`BlockSource::device`](super::BlockSource::device).
pub fn holders(device: &str) -> String {
    let held: Vec<String> = pools_of(device).iter().filter_map(|pool| pool.holdings()).collect();
    if held.is_empty() {
        "no pool of this process holds memory there: another program does, or the device is too small".into()
    } else {
        held.join("; ")
    }
}
