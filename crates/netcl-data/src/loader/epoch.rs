//! One epoch of a loader.

use std::time::{Duration, Instant};

use super::pool::{Cancel, Jobs, LoaderStats, Made, Next, Pool, next_job};
use crate::error::{Error, Result};

/// Where a loader is: what is needed to go on in the middle of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoaderState {
    /// The loader's seed.
    pub seed: u64,
    /// The epoch.
    pub epoch: u64,
    /// How many samples of it have been handed over; those of batches that failed count.
    pub samples: usize,
}

/// The batches of an epoch, in order.
///
/// A batch that failed is an error, and the next one may be asked for after it. Dropping an epoch ends its workers and waits
/// until they have finished the sample at hand; a binding must not hold a lock meanwhile that a sample needs.
pub struct Epoch<B> {
    batches: Batches<B>,
    state: LoaderState,
    timeout: Option<Duration>,
    /// How many batches have been handed over.
    number: usize,
}

enum Batches<B> {
    /// Made when asked for.
    Here { jobs: Jobs<B>, stats: LoaderStats },
    /// Made ahead.
    Workers(Pool<B>),
}

impl<B: Send + 'static> Epoch<B> {
    pub(super) fn start(
        jobs: Jobs<B>,
        state: LoaderState,
        workers: usize,
        capacity: usize,
        timeout: Option<Duration>,
    ) -> Result<Epoch<B>> {
        let batches = match workers {
            0 => Batches::Here { jobs, stats: LoaderStats::default() },
            workers => Batches::Workers(Pool::start(jobs, workers, capacity)?),
        };
        Ok(Epoch { batches, state, timeout, number: 0 })
    }

    /// What to hand to [`DataLoader::resume`](super::DataLoader::resume) later, here or in another process.
    pub fn state(&self) -> LoaderState {
        self.state
    }

    /// How the time was spent so far.
    pub fn stats(&self) -> LoaderStats {
        match &self.batches {
            Batches::Here { stats, .. } => *stats,
            Batches::Workers(pool) => pool.stats(),
        }
    }

    /// The next batch, if it comes within a time: `Ok(None)` if not, so that a caller can look after something else (a key that was
    /// pressed) and wait again. `Ok(Some(None))` is the end.
    ///
    /// # Errors
    /// In a child process that was forked off the one that started the epoch.
    pub fn wait(&mut self, limit: Duration) -> Result<Option<Option<Result<B>>>> {
        let next = match &mut self.batches {
            Batches::Here { .. } => self.here(),
            Batches::Workers(pool) => pool.next(Some(limit))?,
        };
        Ok(self.counted(next))
    }

    /// Ends the workers without waiting for the samples at hand. Batches that were not handed over are lost; [`Epoch::state`] knows
    /// where they start.
    pub fn detach(mut self) {
        if let Batches::Workers(pool) = &mut self.batches {
            pool.detach();
        }
    }

    fn here(&mut self) -> Next<B> {
        let Batches::Here { jobs, stats } = &mut self.batches else { return Next::End };
        let started = Instant::now();
        let Some(job) = next_job(jobs) else { return Next::End };
        let made = job.make(&Cancel::default());
        stats.batches += 1;
        stats.samples += made.samples;
        // The consumer works itself: all of its waiting is somebody's work.
        stats.worker_busy += started.elapsed();
        stats.consumer_wait += started.elapsed();
        Next::Batch(made)
    }

    fn counted(&mut self, next: Next<B>) -> Option<Option<Result<B>>> {
        match next {
            Next::Batch(Made { samples, batch }) => {
                self.state.samples += samples;
                self.number += 1;
                Some(Some(batch))
            }
            Next::End => Some(None),
            Next::TimedOut => None,
        }
    }
}

impl<B: Send + 'static> Iterator for Epoch<B> {
    type Item = Result<B>;

    fn next(&mut self) -> Option<Result<B>> {
        let next = match &mut self.batches {
            Batches::Here { .. } => self.here(),
            Batches::Workers(pool) => match pool.next(self.timeout) {
                Ok(next) => next,
                Err(error) => return Some(Err(error)),
            },
        };
        match self.counted(next) {
            Some(batch) => batch,
            None => {
                let seconds = self.timeout.unwrap_or_default().as_secs_f64();
                Some(Err(Error::Timeout { batch: self.number, seconds }))
            }
        }
    }
}
