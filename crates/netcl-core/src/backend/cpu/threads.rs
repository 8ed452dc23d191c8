//! The thread pool of the CPU backend.
//!
//! One call is one *job*: a closure over ranges of `0..n`, cut into chunks. Each thread has a part of them that it takes first,
//! the same part in every job, so that what one launch leaves in a core's cache is what the next one looks for there; when
//! its own part is done it helps with the others. The calling thread always works on its own job, so a job finishes even if
//! no worker ever comes (all busy, none could be started), and any number of threads may call at the same time.
//!
//! The pool belongs to a process id: threads do not survive `fork`, so a child that inherits a pool leaves it alone and
//! starts its own at its first call. (Forking from *inside* a job's closure is the one thing that cannot work.)
//!
//! Workers spin for a few microseconds after a job, because the next one usually follows at once, and then sleep.

use std::any::Any;
use std::cell::Cell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::interrupt::{self, Stopped, Watched};
use crate::env;
use crate::error::{Error, Result};

/// How long an idle worker looks for the next job before it sleeps, and a caller for its last worker.
const SPIN: Duration = Duration::from_micros(40);
/// Chunks per thread: enough to even out threads of different speed, few enough to cost nothing.
const CHUNKS_PER_THREAD: usize = 4;
/// Parts that have an owner; more threads than that share them.
const MAX_PARTS: usize = 16;
/// More threads than this are a typing error.
const MAX_THREADS: usize = 1024;

/// The number of threads to use, including the caller; 0 until the first question.
static THREADS: AtomicUsize = AtomicUsize::new(0);
/// The pool of this process, or of the process it was forked from. Pools are never freed.
static POOL: AtomicPtr<Pool> = AtomicPtr::new(std::ptr::null_mut());

thread_local! {
    /// Whether this thread is working on a job, which makes nested calls run inline.
    static BUSY: Cell<bool> = const { Cell::new(false) };
}

/// How many threads a [`parallel_for`] uses: [`set_num_threads`], or `NETCL_NUM_THREADS`, or as many as this process may
/// use (CPU affinity and container limits counted).
pub fn num_threads() -> usize {
    match THREADS.load(Ordering::Relaxed) {
        0 => {
            let n = env::NUM_THREADS.whole().unwrap_or_else(cores).min(MAX_THREADS);
            // Another thread may have set a number meanwhile: that one counts.
            THREADS.compare_exchange(0, n, Ordering::Relaxed, Ordering::Relaxed).err().unwrap_or(n)
        }
        n => n,
    }
}

/// Changes the number of threads for all later calls, in the whole process. Zero returns to the default.
pub fn set_num_threads(n: usize) {
    THREADS.store(n.min(MAX_THREADS), Ordering::Relaxed);
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Runs `body` over all of `0..n` in disjoint ranges, on several threads if there are more than `grain` elements.
///
/// Every range starts at a multiple of `grain` and ends at another or at `n`: a block of `grain` elements is never cut, so
/// that partial results kept per block do not depend on the number of threads. Returns when all of them are done. A call
/// from within `body` runs inline. If `body` panics, the rest is skipped and the message comes back as
/// [`Error::Worker`]; `op` names the operation in it. An operation that an interrupt ends is [`Error::Interrupted`]: threads
/// look for one before every range, and where `body` calls [`checkpoint`](super::interrupt::checkpoint).
///
/// ```
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// use netcl_core::backend::cpu::parallel_for;
///
/// let sum = AtomicUsize::new(0);
/// parallel_for("sum", 1000, 64, |range| {
///     sum.fetch_add(range.sum::<usize>(), Ordering::Relaxed);
/// })?;
/// assert_eq!(sum.into_inner(), 499_500);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn parallel_for<F>(op: &'static str, n: usize, grain: usize, body: F) -> Result<()>
where
    F: Fn(Range<usize>) + Sync,
{
    if n == 0 {
        return Ok(());
    }
    let grain = grain.max(1);
    let blocks = n.div_ceil(grain);
    let threads = if blocks == 1 || BUSY.get() { 1 } else { num_threads().min(blocks) };
    if threads == 1 {
        let stop = AtomicBool::new(false);
        // A single block is too short to be stopped.
        let _watched = (blocks > 1 && interrupt::watched()).then(|| Watched::new(&stop, true));
        return catch_unwind(AssertUnwindSafe(|| body(0..n))).map_err(|panic| worker_error(op, &*panic));
    }
    let chunk = grain.saturating_mul(blocks.div_ceil(threads * CHUNKS_PER_THREAD));
    Pool::current().run(op, n, chunk, threads, &body)
}

/// Cuts a slice into parts of whole `grain`s and runs `body` on each with the position of its first element, on several
/// threads. The same rules as for [`parallel_for`].
///
/// ```
/// let mut squares = vec![0usize; 500];
/// netcl_core::backend::cpu::threads::parallel_chunks_mut("squares", &mut squares, 100, |start, part| {
///     part.iter_mut().enumerate().for_each(|(i, x)| *x = (start + i).pow(2));
/// })?;
/// assert_eq!(squares[499], 499 * 499);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn parallel_chunks_mut<T, F>(op: &'static str, data: &mut [T], grain: usize, body: F) -> Result<()>
where
    T: Send,
    F: Fn(usize, &mut [T]) + Sync,
{
    let base = SharedPtr::new(data.as_mut_ptr());
    parallel_for(op, data.len(), grain, |range| {
        // SAFETY: ranges are disjoint and inside `data`, which stays mutably borrowed until all of them are done.
        let part = unsafe { std::slice::from_raw_parts_mut(base.get().add(range.start), range.len()) };
        body(range.start, part);
    })
}

/// A pointer that a job's closure may capture. Every use of it is `unsafe` and must not race with another.
#[derive(Debug)]
pub struct SharedPtr<T>(*mut T);

impl<T> Clone for SharedPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SharedPtr<T> {}

// SAFETY: carrying an address to another thread does nothing; whoever dereferences it answers for the access, and the
// bound makes sure that the elements themselves may be used there.
unsafe impl<T: Send> Send for SharedPtr<T> {}
// SAFETY: see `Send`.
unsafe impl<T: Send> Sync for SharedPtr<T> {}

impl<T> SharedPtr<T> {
    /// Wraps a pointer.
    pub fn new(ptr: *mut T) -> Self {
        SharedPtr(ptr)
    }

    /// The pointer. (A method, so that closures capture the wrapper and not its field.)
    pub fn get(self) -> *mut T {
        self.0
    }
}

fn worker_error(op: &'static str, panic: &(dyn Any + Send)) -> Error {
    if panic.is::<Stopped>() {
        return Error::Interrupted { op };
    }
    let message = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    let message = message.or_else(|| panic.downcast_ref::<String>().cloned());
    Error::Worker { op, message: message.unwrap_or_else(|| "panic without a message".to_owned()) }
}

/// What one thread takes first. On a cache line of its own: every chunk taken is a write.
#[repr(align(64))]
struct Part {
    /// The first element nobody has taken yet.
    next: AtomicUsize,
    end: usize,
}

/// A call in progress. It lives on the caller's stack; the caller leaves only when nobody else can reach it any more.
struct Job {
    body: *const (dyn Fn(Range<usize>) + Sync),
    chunk: usize,
    parts: SmallVec<[Part; 2]>,
    /// How many workers may still join; only changed under the pool's lock.
    seats: Cell<usize>,
    /// Workers inside, shifted by one; the lowest bit says that the caller sleeps until they are out.
    inside: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    caller: Thread,
    /// Whether an interrupt may end it, and whether one did.
    watched: bool,
    stop: AtomicBool,
}

const CALLER_SLEEPS: usize = 1;
const ONE_WORKER: usize = 2;

/// `0..n` for a number of threads, cut between chunks.
fn parts(n: usize, chunk: usize, threads: usize) -> SmallVec<[Part; 2]> {
    let (count, chunks) = (threads.min(MAX_PARTS), n.div_ceil(chunk));
    let cut = |part: usize| n.min((part * chunks / count).saturating_mul(chunk));
    (0..count).map(|part| Part { next: AtomicUsize::new(cut(part)), end: cut(part + 1) }).collect()
}

impl Job {
    /// Takes and runs chunks until none is left, first those of the thread's own part.
    fn work(&self, thread: usize) {
        BUSY.set(true);
        let _watched = self.watched.then(|| Watched::new(&self.stop, thread == 0));
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            for turn in 0..self.parts.len() {
                let part = &self.parts[(thread + turn) % self.parts.len()];
                loop {
                    let start = part.next.fetch_add(self.chunk, Ordering::Relaxed);
                    if start >= part.end {
                        break;
                    }
                    interrupt::checkpoint();
                    // SAFETY: the closure outlives the job, and the job outlives everyone inside it.
                    unsafe { (*self.body)(start..part.end.min(start.saturating_add(self.chunk))) };
                }
            }
        }));
        BUSY.set(false);
        if let Err(panic) = outcome {
            self.parts.iter().for_each(|part| part.next.store(part.end, Ordering::Relaxed));
            lock(&self.panic).get_or_insert(panic);
        }
    }

    fn has_work(&self) -> bool {
        self.parts.iter().any(|part| part.next.load(Ordering::Relaxed) < part.end)
    }
}

/// A job on its caller's stack.
#[derive(Clone, Copy, PartialEq, Eq)]
struct JobPtr(*const Job);

// SAFETY: a job is only reached while its caller waits for it: see `Pool::run`.
unsafe impl Send for JobPtr {}

#[derive(Default)]
struct Queue {
    jobs: Vec<JobPtr>,
    workers: usize,
    sleeping: usize,
}

struct Pool {
    /// The process whose threads these are.
    process: u32,
    queue: Mutex<Queue>,
    wake: Condvar,
    /// Raised with every new job, for workers that spin.
    posted: AtomicU64,
    /// Whether to spin, which only helps where every thread of the last job has a core.
    spin: AtomicBool,
    cores: usize,
}

/// Jobs catch panics, so a poisoned lock still guards a whole value.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// The pool of this process.
    fn current() -> &'static Pool {
        let process = std::process::id();
        loop {
            let found = POOL.load(Ordering::Acquire);
            // SAFETY: pools are leaked when they are published, so the pointer is null or valid for ever.
            if let Some(pool) = unsafe { found.as_ref() }.filter(|pool| pool.process == process) {
                return pool;
            }
            let pool = Box::into_raw(Box::new(Pool {
                process,
                queue: Mutex::default(),
                wake: Condvar::new(),
                posted: AtomicU64::new(0),
                spin: AtomicBool::new(true),
                cores: cores(),
            }));
            if POOL.compare_exchange(found, pool, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                // SAFETY: this pool was never published.
                drop(unsafe { Box::from_raw(pool) });
            }
        }
    }

    fn run(
        &'static self,
        op: &'static str,
        n: usize,
        chunk: usize,
        threads: usize,
        body: &(dyn Fn(Range<usize>) + Sync),
    ) -> Result<()> {
        let body: *const (dyn Fn(Range<usize>) + Sync + '_) = body;
        // SAFETY: only the lifetime in the type changes; this function returns after the last use.
        let body: *const (dyn Fn(Range<usize>) + Sync + 'static) = unsafe { std::mem::transmute(body) };
        let job = Job {
            body,
            chunk,
            parts: parts(n, chunk, threads),
            seats: Cell::new(threads - 1),
            inside: AtomicUsize::new(0),
            panic: Mutex::new(None),
            caller: std::thread::current(),
            watched: interrupt::watched(),
            stop: AtomicBool::new(false),
        };
        self.post(&job, threads - 1);
        job.work(0);
        // Once the job is off the queue nobody can join it; those inside are waited for.
        lock(&self.queue).jobs.retain(|&other| other != JobPtr(&job));
        self.wait_for_workers(&job);
        let panic = lock(&job.panic).take();
        panic.map_or(Ok(()), |panic| Err(worker_error(op, &*panic)))
    }

    /// Puts a job on the queue and calls up to `wanted` workers.
    fn post(&'static self, job: &Job, wanted: usize) {
        let mut queue = lock(&self.queue);
        while queue.workers < wanted {
            let number = queue.workers + 1;
            let name = format!("netcl-cpu-{number}");
            // Without another thread the job is done by fewer.
            if std::thread::Builder::new().name(name).spawn(move || self.worker(number)).is_err() {
                break;
            }
            queue.workers = number;
        }
        self.spin.store(wanted < self.cores, Ordering::Relaxed);
        queue.jobs.push(JobPtr(job));
        let asleep = queue.sleeping.min(wanted);
        drop(queue);
        self.posted.fetch_add(1, Ordering::Release);
        for _ in 0..asleep {
            self.wake.notify_one();
        }
    }

    fn wait_for_workers(&self, job: &Job) {
        let start = Instant::now();
        let mut tries = 0u32;
        while job.inside.load(Ordering::Acquire) != 0 {
            tries += 1;
            if tries.is_multiple_of(16) && (start.elapsed() > SPIN || !self.spin.load(Ordering::Relaxed)) {
                if job.inside.fetch_or(CALLER_SLEEPS, Ordering::AcqRel) & !CALLER_SLEEPS == 0 {
                    return;
                }
                while job.inside.load(Ordering::Acquire) != CALLER_SLEEPS {
                    std::thread::park();
                }
                return;
            }
            std::hint::spin_loop();
        }
    }

    /// Takes a seat in a job that still has work.
    fn join(queue: &Queue) -> Option<JobPtr> {
        queue.jobs.iter().copied().find(|&JobPtr(job)| {
            // SAFETY: a job on the queue is alive: its caller takes it off, under this lock, before it leaves.
            let job = unsafe { &*job };
            let joins = job.seats.get() > 0 && job.has_work();
            if joins {
                job.seats.set(job.seats.get() - 1);
                job.inside.fetch_add(ONE_WORKER, Ordering::Relaxed);
            }
            joins
        })
    }

    /// The life of a worker thread.
    fn worker(&self, number: usize) {
        loop {
            let seen = self.posted.load(Ordering::Acquire);
            let joined = Self::join(&lock(&self.queue));
            if let Some(job) = joined.or_else(|| self.next_job(seen)) {
                Self::serve(job, number);
            }
        }
    }

    /// Waits for a job, first spinning, then asleep; `None` asks to look at the queue again.
    fn next_job(&self, seen: u64) -> Option<JobPtr> {
        let start = Instant::now();
        let mut tries = 0u32;
        while self.spin.load(Ordering::Relaxed) {
            if self.posted.load(Ordering::Acquire) != seen {
                return None;
            }
            tries += 1;
            if tries.is_multiple_of(32) && start.elapsed() > SPIN {
                break;
            }
            std::hint::spin_loop();
        }
        let mut queue = lock(&self.queue);
        loop {
            if let Some(job) = Self::join(&queue) {
                return Some(job);
            }
            queue.sleeping += 1;
            queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.sleeping -= 1;
        }
    }

    fn serve(JobPtr(job): JobPtr, number: usize) {
        // SAFETY: this worker has been counted in `inside`, for which the caller waits.
        let (job, caller) = unsafe { (&*job, (*job).caller.clone()) };
        job.work(number);
        // After this the job may be gone; what is needed of it was cloned.
        if job.inside.fetch_sub(ONE_WORKER, Ordering::AcqRel) == ONE_WORKER | CALLER_SLEEPS {
            caller.unpark();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_once_in_whole_grains() {
        set_num_threads(4);
        for (n, grain) in [(1, 1), (7, 3), (64, 64), (65, 64), (1000, 1), (100_001, 1000)] {
            let hits: Vec<AtomicUsize> = (0..n).map(|_| AtomicUsize::new(0)).collect();
            parallel_for("test", n, grain, |range| {
                assert!(range.start % grain == 0 && (range.end % grain == 0 || range.end == n) && !range.is_empty());
                range.for_each(|i| _ = hits[i].fetch_add(1, Ordering::Relaxed));
            })
            .unwrap();
            assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1), "{n} {grain}");
        }
        parallel_for("test", 0, 1, |_| panic!("nothing to do")).unwrap();
    }

    #[test]
    fn several_threads_really_take_part() {
        set_num_threads(3);
        let seen = Mutex::new(std::collections::HashSet::new());
        parallel_for("test", 64, 1, |_| {
            lock(&seen).insert(std::thread::current().id());
            std::thread::sleep(Duration::from_millis(5));
        })
        .unwrap();
        assert_eq!(lock(&seen).len(), 3);
    }

    #[test]
    fn panics_come_back_as_errors_and_the_pool_lives_on() {
        set_num_threads(4);
        for round in 0..200 {
            let error = parallel_for("boom", 100, 1, |range| {
                assert!(!range.contains(&(round % 100)), "element {}", round % 100);
            })
            .unwrap_err();
            let text = error.to_string();
            assert!(text.starts_with("boom: ") && text.contains(&format!("element {}", round % 100)), "{text}");
            parallel_for("fine", 100, 1, |_| ()).unwrap();
        }
        let inline = parallel_for("boom", 1, 1, |_| panic!("{}", 42)).unwrap_err();
        assert!(inline.to_string().contains("42"));
        assert!(!BUSY.get());
    }

    #[test]
    fn a_stopped_job_ends_early_and_the_pool_lives_on() {
        set_num_threads(4);
        let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
        let error = parallel_for("long", 1000, 1, |range| {
            // As a launch that may be stopped does on its own threads.
            let _watched = Watched::new(&stop, false);
            for i in range {
                interrupt::checkpoint();
                done.fetch_add(1, Ordering::Relaxed);
                stop.fetch_or(i % 200 == 17, Ordering::Relaxed);
            }
        })
        .unwrap_err();
        assert!(matches!(error, Error::Interrupted { op: "long" }), "{error}");
        assert!(done.into_inner() < 1000);
        assert!(!BUSY.get());
        // Outside of such a job nothing is ever stopped.
        interrupt::checkpoint();
        let done = AtomicUsize::new(0);
        parallel_for("next", 1000, 1, |range| _ = done.fetch_add(range.len(), Ordering::Relaxed)).unwrap();
        assert_eq!(done.into_inner(), 1000);
    }

    #[test]
    fn nested_calls_run_inline() {
        set_num_threads(4);
        let total = AtomicUsize::new(0);
        parallel_for("outer", 16, 1, |outer| {
            for _ in outer {
                let me = std::thread::current().id();
                parallel_for("inner", 1000, 1, |inner| {
                    assert_eq!(me, std::thread::current().id());
                    total.fetch_add(inner.len(), Ordering::Relaxed);
                })
                .unwrap();
            }
        })
        .unwrap();
        assert_eq!(total.into_inner(), 16_000);
    }

    #[test]
    fn many_callers_at_once_all_finish() {
        set_num_threads(4);
        std::thread::scope(|scope| {
            for caller in 0..16usize {
                scope.spawn(move || {
                    for round in 0..300 {
                        let sum = AtomicUsize::new(0);
                        let n = 100 + caller * 37 + round;
                        parallel_for("sum", n, 8, |range| {
                            sum.fetch_add(range.sum::<usize>(), Ordering::Relaxed);
                        })
                        .unwrap();
                        assert_eq!(sum.into_inner(), n * (n - 1) / 2);
                    }
                });
            }
        });
    }

    #[test]
    fn the_number_of_threads_can_be_changed() {
        let mut data = vec![0u32; 10_000];
        for threads in [1, 5, 2, 0] {
            set_num_threads(threads);
            assert!(num_threads() == threads || threads == 0 && num_threads() > 0);
            parallel_chunks_mut("add", &mut data, 100, |_, part| part.iter_mut().for_each(|x| *x += 1)).unwrap();
        }
        assert!(data.iter().all(|&x| x == 4));
    }
}
