//! Worker threads that make batches ahead of their consumer and hand them over in order.
//!
//! Everybody sleeps on a condition variable while there is nothing to do. A worker takes the next job under the lock of the
//! source, so batches are numbered in the order of the source whoever makes them; `ahead` counts the batches that are being made
//! or wait for the consumer and never exceeds the capacity, which bounds the memory.

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// Whether the consumer has gone. Long work looks at it between samples.
#[derive(Debug, Default)]
pub(super) struct Cancel(AtomicBool);

impl Cancel {
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What makes one batch.
pub(super) struct Job<B> {
    pub(super) samples: usize,
    #[expect(clippy::type_complexity, reason = "said once")]
    pub(super) run: Box<dyn FnOnce(&Cancel) -> Result<B> + Send>,
}

/// The batches of an epoch, not yet made.
pub(super) type Jobs<B> = Box<dyn Iterator<Item = Job<B>> + Send>;

impl<B> Job<B> {
    /// Makes the batch; a panic becomes its error.
    pub(super) fn make(self, cancel: &Cancel) -> Made<B> {
        let Job { samples, run } = self;
        let batch = catch_unwind(AssertUnwindSafe(|| run(cancel))).unwrap_or_else(|panic| Err(panicked(&*panic)));
        Made { samples, batch }
    }
}

/// The next job of a source; a panic becomes the error of a batch without samples.
pub(super) fn next_job<B: 'static>(jobs: &mut Jobs<B>) -> Option<Job<B>> {
    catch_unwind(AssertUnwindSafe(|| jobs.next())).unwrap_or_else(|panic| {
        let error = panicked(&*panic);
        // What panicked may be half way through anything: it is not asked again.
        *jobs = Box::new(std::iter::empty());
        Some(Job { samples: 0, run: Box::new(move |_| Err(error)) })
    })
}

fn panicked(panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    Error::Panic { what: text.unwrap_or_else(|| "(no message)".to_owned()) }
}

/// A batch, or why there is none.
pub(super) struct Made<B> {
    pub(super) samples: usize,
    pub(super) batch: Result<B>,
}

/// What a consumer gets.
pub(super) enum Next<B> {
    Batch(Made<B>),
    End,
    TimedOut,
}

/// How the time of an epoch was spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoaderStats {
    /// Batches handed over.
    pub batches: usize,
    /// Samples in them.
    pub samples: usize,
    /// How long the consumer waited for batches: above 0, the workers are too slow.
    pub consumer_wait: Duration,
    /// How long workers waited for the consumer, all together: above 0, they are fast enough. A wait counts when it ends.
    pub worker_wait: Duration,
    /// How long workers worked, all together.
    pub worker_busy: Duration,
}

struct State<B> {
    made: HashMap<usize, Made<B>>,
    /// The number of the batch that is handed over next.
    next: usize,
    ahead: usize,
    /// How many batches there are, once that is known.
    end: Option<usize>,
    stats: LoaderStats,
}

struct Source<B> {
    jobs: Jobs<B>,
    /// The number of the next job.
    next: usize,
}

struct Shared<B> {
    state: Mutex<State<B>>,
    source: Mutex<Source<B>>,
    cancel: Cancel,
    capacity: usize,
    /// Workers sleep here until the consumer has taken a batch.
    room: Condvar,
    /// The consumer sleeps here until its batch is made.
    ready: Condvar,
}

/// A panic inside a lock is caught by nobody but `make`, which holds none: the content is whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<B: 'static> Shared<B> {
    fn work(&self) {
        while self.wait_for_room() {
            let started = Instant::now();
            let (number, job) = {
                let mut source = lock(&self.source);
                let number = source.next;
                source.next += 1;
                (number, next_job(&mut source.jobs))
            };
            let made = job.map(|job| job.make(&self.cancel));
            let mut state = lock(&self.state);
            state.stats.worker_busy += started.elapsed();
            match made {
                Some(made) => {
                    state.made.insert(number, made);
                }
                None => {
                    state.ahead -= 1;
                    state.end = Some(state.end.map_or(number, |end| end.min(number)));
                    self.room.notify_all();
                }
            }
            self.ready.notify_all();
        }
    }

    /// False when there is nothing more to do.
    fn wait_for_room(&self) -> bool {
        let started = Instant::now();
        let mut state = lock(&self.state);
        while state.ahead >= self.capacity && state.end.is_none() && !self.cancel.is_set() {
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.stats.worker_wait += started.elapsed();
        let goes_on = state.end.is_none() && !self.cancel.is_set();
        state.ahead += usize::from(goes_on);
        goes_on
    }
}

/// Threads that make the batches of an epoch. Dropping it ends them.
pub(super) struct Pool<B> {
    shared: Arc<Shared<B>>,
    threads: Vec<JoinHandle<()>>,
    /// The process whose threads these are.
    process: u32,
}

impl<B: Send + 'static> Pool<B> {
    /// Starts `workers` threads that are at most `capacity` batches ahead.
    pub(super) fn start(jobs: Jobs<B>, workers: usize, capacity: usize) -> Result<Pool<B>> {
        let state = State { made: HashMap::new(), next: 0, ahead: 0, end: None, stats: LoaderStats::default() };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            source: Mutex::new(Source { jobs, next: 0 }),
            cancel: Cancel::default(),
            capacity: capacity.max(1),
            room: Condvar::new(),
            ready: Condvar::new(),
        });
        let mut pool = Pool { shared, threads: Vec::with_capacity(workers), process: std::process::id() };
        for worker in 0..workers {
            let shared = pool.shared.clone();
            let thread = std::thread::Builder::new().name(format!("netcl-data-{worker}"));
            let thread = thread.spawn(move || shared.work()).map_err(|error| Error::Argument {
                what: format!("DataLoader: worker thread {worker} of {workers} could not be started: {error}"),
            })?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// Waits for the next batch, at most so long.
    pub(super) fn next(&mut self, limit: Option<Duration>) -> Result<Next<B>> {
        if self.process != std::process::id() {
            return crate::error::argument(
                "DataLoader: this epoch was started by another process, whose worker threads a forked child does not have; \
                 start an epoch after the fork",
            );
        }
        let started = Instant::now();
        let mut state = lock(&self.shared.state);
        loop {
            let number = state.next;
            if let Some(made) = state.made.remove(&number) {
                state.next += 1;
                state.ahead -= 1;
                state.stats.batches += 1;
                state.stats.samples += made.samples;
                state.stats.consumer_wait += started.elapsed();
                self.shared.room.notify_one();
                return Ok(Next::Batch(made));
            }
            if state.end.is_some_and(|end| end <= number) {
                return Ok(Next::End);
            }
            state = match limit.map(|limit| limit.checked_sub(started.elapsed())) {
                Some(None) => {
                    state.stats.consumer_wait += started.elapsed();
                    return Ok(Next::TimedOut);
                }
                Some(Some(left)) => {
                    self.shared.ready.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.shared.ready.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    pub(super) fn stats(&self) -> LoaderStats {
        lock(&self.shared.state).stats
    }
}

impl<B> Pool<B> {
    /// Tells the workers to end after the sample at hand.
    fn cancel(&self) {
        // Under the lock, so that no worker is between its look at the flag and its sleep.
        let _state = lock(&self.shared.state);
        self.shared.cancel.0.store(true, Ordering::Relaxed);
        self.shared.room.notify_all();
    }

    /// Does not wait for the workers, which end after the sample at hand.
    pub(super) fn detach(&mut self) {
        if self.process == std::process::id() {
            self.cancel();
        }
        self.threads.clear();
    }
}

impl<B> Drop for Pool<B> {
    fn drop(&mut self) {
        // In a forked child there are no threads to wait for, and the lock may be held for ever.
        if self.process == std::process::id() {
            self.cancel();
            for thread in self.threads.drain(..) {
                // A worker has caught every panic, and there is nobody left to tell.
                let _ = thread.join();
            }
        }
    }
}
