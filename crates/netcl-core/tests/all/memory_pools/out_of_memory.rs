//! What happens when the device is full: caches are emptied, then the error says who holds what.

use netcl_core::Error;
use netcl_core::memory::{
    BlockSource, BufferPool, Limits, PersistentBufferPool, PinnedBufferPool, QueueId, holders, trim_device,
};

use super::fake::Fake;

const MB: usize = 1 << 20;

#[test]
fn the_own_cache_is_emptied_before_the_others() {
    let device = Fake::with(7 * MB, usize::MAX);
    let pool = BufferPool::new(device.clone());
    let other = BufferPool::new(device.clone());
    drop(pool.allocate(4 * MB).unwrap());
    drop(other.allocate(2 * MB).unwrap());
    device.take_attempts();
    let handle = pool.allocate(2 * MB).unwrap();
    assert_eq!(device.take_attempts(), [2 * MB, 2 * MB], "one try, one after emptying the own cache");
    assert_eq!(other.stats().bytes_cached, 2 * MB, "the other pool keeps its cache where that was enough");
    assert_eq!((pool.stats().evictions, pool.stats().bytes_allocated), (1, 2 * MB));
    drop(handle);
}

#[test]
fn other_pools_of_the_device_give_up_their_caches_and_other_devices_do_not() {
    let device = Fake::with(8 * MB, usize::MAX);
    let elsewhere = BufferPool::new(Fake::new());
    let pinned = PinnedBufferPool::new(device.clone());
    let pool = PersistentBufferPool::with_limits(device.clone(), Limits::bytes(64 * MB));
    drop(elsewhere.allocate(4 * MB).unwrap());
    drop(pinned.allocate(4 * MB).unwrap());
    device.take_attempts();
    let handle = pool.allocate(7 * MB).unwrap();
    assert_eq!(device.take_attempts(), [7 * MB, 7 * MB]);
    assert_eq!((pinned.stats().bytes_allocated, pinned.stats().evictions), (0, 1));
    assert_eq!(elsewhere.stats().bytes_cached, 4 * MB);
    assert_eq!((pool.stats().hits, pool.stats().misses), (0, 1));
    drop(handle);
}

#[test]
fn blocks_that_commands_still_use_are_waited_for() {
    let device = Fake::lingering(8 * MB);
    let (pool, other) = (BufferPool::new(device.clone()), BufferPool::new(device.clone()));
    drop(pool.allocate(8 * MB).unwrap());
    drop(pool.allocate(4 * MB).unwrap()); // the own cache had it
    drop(other.allocate(2 * MB).unwrap()); // there was room
    assert_eq!((pool.stats().evictions, pool.stats().bytes_cached, other.stats().bytes_cached), (1, 4 * MB, 2 * MB));
    drop(other.allocate(8 * MB).unwrap()); // both caches had it
    assert_eq!((pool.stats().bytes_cached, other.stats().bytes_cached), (0, 8 * MB));
    assert_eq!((trim_device(&device.device()), other.stats().bytes_allocated), (8 * MB, 0));
}

#[test]
fn a_block_is_cut_to_measure_when_its_bucket_does_not_fit_and_is_not_pooled() {
    let device = Fake::with(6 * MB, usize::MAX);
    let pool = BufferPool::new(device.clone());
    let handle = pool.allocate(5 * MB).unwrap();
    assert_eq!(device.take_attempts(), [8 * MB, 8 * MB, 5 * MB]);
    assert_eq!((handle.size(), pool.stats().bytes_in_use), (5 * MB, 5 * MB));
    drop(handle);
    assert_eq!(pool.stats().bytes_allocated, 0);
    assert!(device.live().is_empty());
}

#[test]
fn the_message_names_who_holds_what() {
    let device = Fake::with(16 * MB, usize::MAX);
    let name = device.device();
    let pool = PersistentBufferPool::with_limits(device.clone(), Limits::bytes(64 * MB));
    let pinned = PinnedBufferPool::new(device.clone());
    let idle = BufferPool::new(device.clone());
    let weights = [0; 2].map(|_| pool.allocate_labelled(4 * MB, "conv2d.weight").unwrap());
    let plain = pool.allocate(3 * MB).unwrap();
    let staging = pinned.allocate_labelled(2 * MB, "staging").unwrap();
    let error = pool.allocate_labelled(4 * MB, "activations").unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "{name}: out of memory allocating 4194304 bytes; driver code -4; \
             persistent pool holds 11.00 MB in 3 leases: 2 x 4.00 MB \"conv2d.weight\", 3.00 MB \"buffer\", and 0 B cached; \
             pinned pool holds 2.00 MB in 1 lease: 2.00 MB \"staging\", and 0 B cached"
        )
    );
    assert_eq!(pool.stats().misses, 3, "a failed request counts nowhere");
    drop(weights);
    drop((plain, staging, idle));
    assert!(pool.allocate(4 * MB).is_ok());
    drop((pool, pinned));
    assert!(holders(&name).starts_with("no pool of this process holds memory there"), "{}", holders(&name));
}

#[test]
fn a_block_larger_than_the_device_allows_is_refused_without_asking() {
    let device = Fake::with(usize::MAX, 3 * MB);
    let pool = BufferPool::new(device.clone());
    let text = pool.allocate(3 * MB + 1).unwrap_err().to_string();
    assert!(text.contains("at most 3145728 bytes (3.00 MB) in one block"), "{text}");
    assert!(device.take_attempts().is_empty());
    // The bucket of 4 MB shrinks to what the device allows and works as a bucket.
    drop(pool.allocate(3 * MB).unwrap());
    let again = pool.allocate(2 * MB + 1).unwrap();
    assert_eq!((again.size(), pool.block_size(3 * MB), pool.stats().hits), (3 * MB, 3 * MB, 1));
}

/// Fails in a way that memory does not cure.
struct Broken;

impl BlockSource for Broken {
    type Block = ();

    fn allocate(&self, _: usize) -> netcl_core::Result<()> {
        Err(Error::argument("clCreateBuffer", "invalid context"))
    }

    fn device(&self) -> String {
        "broken".into()
    }

    fn hand_over(&self, (): &(), _: QueueId, _: QueueId) -> netcl_core::Result<()> {
        Ok(())
    }
}

#[test]
fn other_errors_are_passed_on() {
    let error = BufferPool::new(Broken).allocate(1).unwrap_err();
    assert_eq!(error.to_string(), "clCreateBuffer: invalid context");
}
