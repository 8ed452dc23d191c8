//! What a lease costs: `cargo bench -p netcl-core --bench pool`. Prints nanoseconds per lease and release.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test should panic")]

use std::hint::black_box;
use std::time::Instant;

use netcl_core::Result;
use netcl_core::memory::{BlockSource, BufferPool, Limits, PersistentBufferPool, Pool, QueueId};

/// Blocks that cost nothing, so that only the pool is measured.
struct Free;

impl BlockSource for Free {
    type Block = usize;

    fn allocate(&self, bytes: usize) -> Result<usize> {
        Ok(bytes)
    }

    fn device(&self) -> String {
        "bench".into()
    }

    fn hand_over(&self, _: &usize, _: QueueId, _: QueueId) -> Result<()> {
        Ok(())
    }
}

/// The median and the best of repeated timings of `step`, in nanoseconds per call.
fn time(name: &str, calls: u32, mut step: impl FnMut() -> Result<()>) -> Result<()> {
    let mut samples = Vec::new();
    for _ in 0..15 {
        let start = Instant::now();
        for _ in 0..calls {
            step()?;
        }
        samples.push(start.elapsed().as_nanos() as f64 / f64::from(calls));
    }
    samples.sort_by(f64::total_cmp);
    println!("{name:<44} {:>8.1} ns (best {:.1})", samples[samples.len() / 2], samples[0]);
    Ok(())
}

fn lease(pool: &Pool<Free>, bytes: usize) -> Result<()> {
    black_box(pool.allocate(black_box(bytes))?);
    Ok(())
}

fn main() -> Result<()> {
    let simple = BufferPool::new(Free);
    let pool = PersistentBufferPool::with_limits(Free, Limits::bytes(4 << 30));
    let queue = QueueId::next();
    time("hit, BufferPool", 200_000, || lease(&simple, 100_000))?;
    time("hit, PersistentBufferPool", 200_000, || lease(&pool, 100_000))?;
    time("hit, used on one queue, three launches", 200_000, || {
        let handle = pool.allocate_on(black_box(100_000), "bench", queue)?;
        handle.note_use(queue)?;
        handle.note_use(queue)?;
        black_box(handle);
        Ok(())
    })?;
    let queues = [QueueId::next(), QueueId::next()];
    let mut turn = 0;
    time("hit, another queue each time", 200_000, || {
        turn ^= 1;
        black_box(pool.allocate_on(black_box(100_000), "bench", queues[turn])?);
        Ok(())
    })?;
    let held: Vec<_> = (0..10_000).map(|n| pool.allocate(1000 + n)).collect::<Result<_>>()?;
    time("hit, 10,000 other leases live", 200_000, || lease(&pool, 100_000))?;
    drop(held);
    let none = PersistentBufferPool::with_limits(Free, Limits::bytes(0));
    time("miss, nothing cached", 100_000, || lease(&none, 100_000))?;
    time_two_threads(&pool)
}

/// Two threads that lease different sizes of one pool.
fn time_two_threads(pool: &Pool<Free>) -> Result<()> {
    const LEASES: u32 = 20_000;
    time("hit, 20,000 in each of two threads, total", 1, || {
        std::thread::scope(|scope| {
            let other = scope.spawn(|| (0..LEASES).try_for_each(|_| lease(pool, 5000)));
            let own = (0..LEASES).try_for_each(|_| lease(pool, 100_000));
            own.and(other.join().unwrap_or(Ok(())))
        })
    })
}
