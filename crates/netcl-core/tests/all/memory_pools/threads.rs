//! The same pool from several threads: no block is leased twice, no queue runs ahead, no counter is ever out of step.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use netcl_core::memory::{BufferPool, Limits, PersistentBufferPool, Pool, QueueId};

use super::fake::Fake;

/// A generator of its own per thread (xorshift), so that a failure can be repeated.
fn random(state: &mut u64, below: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state % below
}

const SIZES: [usize; 6] = [100, 1024, 1500, 1 << 16, 1 << 20, 300 << 20];

fn worker(pool: &Pool<Fake>, seed: u64, queues: [QueueId; 2], rounds: u32) -> u64 {
    let mut state = seed;
    let mut held = Vec::new();
    let mut leases = 0;
    for _ in 0..rounds {
        if held.len() < 8 && random(&mut state, 2) == 0 {
            let handle = pool.allocate(SIZES[random(&mut state, SIZES.len() as u64) as usize]).unwrap();
            handle.block().unwrap().begin();
            handle.set_persistent(random(&mut state, 20) == 0);
            leases += 1;
            held.push(handle);
        } else if !held.is_empty() {
            let at = random(&mut state, held.len() as u64) as usize;
            if random(&mut state, 2) == 0 {
                let queue = queues[random(&mut state, 2) as usize];
                held[at].note_use(queue).unwrap();
                held[at].block().unwrap().touch(queue);
            } else {
                let handle = held.swap_remove(at);
                handle.block().unwrap().end();
            }
        }
        if random(&mut state, 500) == 0 {
            pool.trim(1 << 20);
        }
    }
    for handle in held {
        handle.block().unwrap().end();
    }
    leases
}

fn hammer(device: &Fake, pool: &Pool<Fake>) {
    let queues = [QueueId::next(), QueueId::next()];
    let running = AtomicBool::new(true);
    let (leases, seen) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut seen = 0u64;
            while running.load(Ordering::Relaxed) || seen == 0 {
                let (stats, buckets) = pool.snapshot();
                assert_eq!(stats.bytes_allocated, stats.bytes_in_use + stats.bytes_cached);
                assert_eq!(stats.bytes_cached, buckets.iter().map(|bucket| bucket.size * bucket.blocks).sum::<usize>());
                assert!(stats.bytes_cached <= pool.limits().max_cached_bytes);
                assert!(stats.hits + stats.misses >= stats.releases);
                assert!(stats.peak_bytes_allocated >= stats.bytes_allocated);
                assert!(stats.peak_bytes_in_use >= stats.bytes_in_use);
                seen += 1;
                std::thread::yield_now();
            }
            seen
        });
        let workers: Vec<_> =
            (1..=4u64).map(|seed| scope.spawn(move || worker(pool, seed * 0x9e37_79b9, queues, 20_000))).collect();
        let leases: u64 = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
        running.store(false, Ordering::Relaxed);
        (leases, reader.join().unwrap())
    });
    assert!(seen > 0);
    let stats = pool.stats();
    assert_eq!((stats.hits + stats.misses, stats.releases), (leases, leases));
    assert!(stats.hits > stats.misses, "{stats}");
    assert_eq!((stats.bytes_in_use, stats.bytes_allocated), (0, stats.bytes_cached));
    assert_eq!(device.live().values().sum::<usize>(), stats.bytes_cached);
    assert!(!device.take_hand_overs().is_empty());
    pool.clear();
    assert!(device.live().is_empty());
}

#[test]
fn a_bounded_pool_keeps_its_books_under_threads() {
    let device = Fake::new();
    let limits = Limits { max_cached_bytes: 700 << 20, max_blocks_per_bucket: 6 };
    let pool = PersistentBufferPool::with_limits(device.clone(), limits);
    hammer(&device, &pool);
    assert!(pool.stats().evictions > 0);
}

#[test]
fn an_unbounded_pool_keeps_its_books_under_threads() {
    let device = Fake::new();
    hammer(&device, &BufferPool::new(device.clone()));
}

#[test]
fn one_lease_used_by_many_threads_hands_over_once_per_queue() {
    let device = Fake::new();
    let pool = BufferPool::new(device.clone());
    let before = [QueueId::next(), QueueId::next()];
    let after = [QueueId::next(), QueueId::next()];
    for _ in 0..200 {
        let handle = pool.allocate(1024).unwrap();
        handle.block().unwrap().begin();
        for queue in before {
            handle.note_use(queue).unwrap();
            handle.block().unwrap().touch(queue);
        }
        handle.block().unwrap().end();
        drop(handle);
        device.take_hand_overs();

        let handle = Arc::new(pool.allocate(1024).unwrap());
        handle.block().unwrap().begin();
        std::thread::scope(|scope| {
            for at in 0..4 {
                let handle = Arc::clone(&handle);
                scope.spawn(move || {
                    handle.note_use(after[at % 2]).unwrap();
                    // Whoever comes second must not run before the first one's wait is in place.
                    handle.block().unwrap().touch(after[at % 2]);
                });
            }
        });
        let mut waits: Vec<_> = device.take_hand_overs().iter().map(|wait| (wait.from.0, wait.to.0)).collect();
        waits.sort_unstable();
        let [a, b, c, d] = [before[0].0, before[1].0, after[0].0, after[1].0];
        assert_eq!(waits, [(a, c), (a, d), (b, c), (b, d)]);
        handle.block().unwrap().end();
    }
}
