//! The loader: batches of a data set, made by worker threads ahead of the training loop.

mod epoch;
mod pool;

use std::sync::Arc;
use std::time::Duration;

pub use epoch::{Epoch, LoaderState};
pub use pool::LoaderStats;

use crate::dataset::Dataset;
use crate::error::{Error, Result, argument};
use crate::random::Random;
use crate::sample::Sample;
use crate::sampler::{BatchSampler, FixedBatches, RandomSampler, Sampler, SequentialSampler, check};
use pool::{Cancel, Job, Jobs};

/// Samples that come one after the other and have no numbers: a stream, a generator, a file too large to index.
pub trait IterableDataset: Send + Sync {
    /// What a sample is.
    type Item: Send;

    /// The samples of an epoch. They are asked for by one worker at a time, in order; transforms and collation run in parallel.
    ///
    /// # Errors
    /// If they cannot be opened.
    fn samples(&self, epoch: u64) -> Result<Samples<Self::Item>>;
}

/// The samples of an [`IterableDataset`].
pub type Samples<T> = Box<dyn Iterator<Item = Result<T>> + Send>;

type Transform<T> = Arc<dyn Fn(T, &mut Random) -> Result<T> + Send + Sync>;
type Collate<T, B> = Arc<dyn Fn(Vec<T>, &mut Random) -> Result<B> + Send + Sync>;
type MakeJobs<B> = Arc<dyn Fn(u64, usize) -> Result<Jobs<B>> + Send + Sync>;

/// More threads than any machine has use for: a mistake in a setting shall not take the machine down.
const MOST_WORKERS: usize = 1024;

/// Where samples come from.
enum Origin<T> {
    Map(Arc<dyn Dataset<Item = T>>),
    Stream(Arc<dyn IterableDataset<Item = T>>),
}

/// The settings of a [`DataLoader`], which [`LoaderBuilder::build`] makes.
pub struct LoaderBuilder<T> {
    origin: Origin<T>,
    batch_size: usize,
    drop_last: bool,
    shuffle: bool,
    sampler: Option<Box<dyn Sampler>>,
    batches: Option<Arc<dyn BatchSampler>>,
    transform: Option<Transform<T>>,
    seed: u64,
    workers: usize,
    prefetch: usize,
    timeout: Option<Duration>,
}

impl<T: Send + 'static> LoaderBuilder<T> {
    fn new(origin: Origin<T>) -> LoaderBuilder<T> {
        LoaderBuilder {
            origin,
            batch_size: 1,
            drop_last: false,
            shuffle: false,
            sampler: None,
            batches: None,
            transform: None,
            seed: 0,
            workers: 0,
            prefetch: 2,
            timeout: None,
        }
    }

    /// Samples per batch; 1 unless said otherwise.
    pub fn batch_size(mut self, size: usize) -> Self {
        self.batch_size = size;
        self
    }

    /// Leaves out a last batch that has fewer samples.
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.drop_last = drop_last;
        self
    }

    /// Another order each epoch, by the seed.
    pub fn shuffle(mut self, shuffle: bool) -> Self {
        self.shuffle = shuffle;
        self
    }

    /// The order of a sampler, instead of all samples in their order or shuffled.
    pub fn sampler(mut self, sampler: impl Sampler + 'static) -> Self {
        self.sampler = Some(Box::new(sampler));
        self
    }

    /// Batches of a batch sampler, instead of ones of one size.
    pub fn batch_sampler(mut self, batches: impl BatchSampler + 'static) -> Self {
        self.batches = Some(Arc::new(batches));
        self
    }

    /// A change of each sample, with random numbers that depend on the seed, the epoch and the sample's number only.
    pub fn transform(mut self, transform: impl Fn(T, &mut Random) -> Result<T> + Send + Sync + 'static) -> Self {
        self.transform = Some(Arc::new(transform));
        self
    }

    /// Decides orders and transforms.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Worker threads; with 0, which is the default, batches are made when they are asked for.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }

    /// How many batches per worker are made ahead or wait; 2 unless said otherwise.
    pub fn prefetch(mut self, batches: usize) -> Self {
        self.prefetch = batches;
        self
    }

    /// How long to wait for a batch of the workers before that is an error; for ever unless said otherwise.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The loader, with a function of one's own that makes a batch of samples. Its random numbers depend on the seed, the epoch and
    /// the number of the batch's first sample.
    ///
    /// # Errors
    /// If settings contradict each other or are 0 where they must not be.
    pub fn build_with<B: Send + 'static>(
        self,
        collate: impl Fn(Vec<T>, &mut Random) -> Result<B> + Send + Sync + 'static,
    ) -> Result<DataLoader<B>> {
        if self.prefetch == 0 {
            return argument("DataLoader: prefetch is 0; every worker makes at least one batch ahead");
        }
        if self.workers > MOST_WORKERS {
            return argument(format!("DataLoader: {} workers are too many; {MOST_WORKERS} are the most", self.workers));
        }
        let make = Making { transform: self.transform, collate: Arc::new(collate), seed: self.seed };
        let (jobs, len): (MakeJobs<B>, Option<usize>) = match self.origin {
            Origin::Map(dataset) => {
                let len = dataset.len();
                let batches: Arc<dyn BatchSampler> = match (self.batches, self.sampler) {
                    (Some(_), Some(_)) => {
                        return argument("DataLoader: a sampler and a batch sampler cannot both decide the order");
                    }
                    (Some(batches), None) => batches,
                    (None, sampler) => {
                        let sampler = match sampler {
                            Some(_) if self.shuffle => {
                                return argument("DataLoader: a sampler decides the order; leave out shuffle");
                            }
                            Some(sampler) => sampler,
                            None if self.shuffle => Box::new(RandomSampler { len, seed: self.seed }),
                            None => Box::new(SequentialSampler { len }),
                        };
                        Arc::new(FixedBatches::new(sampler, self.batch_size, self.drop_last)?)
                    }
                };
                let count = batches.len();
                let jobs = move |epoch, skipped| Ok(make.map(&dataset, batches.batches(epoch, skipped), epoch));
                (Arc::new(jobs), Some(count))
            }
            Origin::Stream(stream) => {
                if self.shuffle || self.sampler.is_some() || self.batches.is_some() {
                    return argument(
                        "DataLoader: an iterable data set decides its order itself; leave out shuffle and samplers",
                    );
                }
                if self.batch_size == 0 {
                    return argument("a batch needs at least one sample: the batch size is 0");
                }
                let (size, drop_last) = (self.batch_size, self.drop_last);
                let jobs =
                    move |epoch, skipped| Ok(make.stream(stream.samples(epoch)?, size, drop_last, epoch, skipped));
                (Arc::new(jobs), None)
            }
        };
        let (seed, workers, timeout) = (self.seed, self.workers, self.timeout);
        Ok(DataLoader { jobs, len, seed, workers, capacity: workers.saturating_mul(self.prefetch), timeout })
    }
}

impl LoaderBuilder<Sample> {
    /// The loader, whose batches are made by [`Sample::collate`].
    ///
    /// # Errors
    /// As [`LoaderBuilder::build_with`].
    pub fn build(self) -> Result<DataLoader<Sample>> {
        self.build_with(|samples, _| Sample::collate(samples))
    }
}

/// What workers do with samples.
struct Making<T, B> {
    transform: Option<Transform<T>>,
    collate: Collate<T, B>,
    seed: u64,
}

impl<T, B> Clone for Making<T, B> {
    fn clone(&self) -> Self {
        Making { transform: self.transform.clone(), collate: self.collate.clone(), seed: self.seed }
    }
}

impl<T: Send + 'static, B: Send + 'static> Making<T, B> {
    /// A sample with its changes.
    fn changed(&self, sample: T, epoch: u64, index: usize) -> Result<T> {
        match &self.transform {
            Some(transform) => {
                let mut random = Random::of_sample(self.seed, epoch, index);
                transform(sample, &mut random).map_err(|error| error.at(index))
            }
            None => Ok(sample),
        }
    }

    /// A batch of samples, of which `first` is the number of the first.
    fn joined(&self, samples: Vec<T>, epoch: u64, first: usize) -> Result<B> {
        (self.collate)(samples, &mut Random::of_batch(self.seed, epoch, first))
    }

    fn map(&self, dataset: &Arc<dyn Dataset<Item = T>>, batches: crate::sampler::Batched, epoch: u64) -> Jobs<B> {
        let (make, dataset) = (self.clone(), dataset.clone());
        Box::new(batches.map(move |indices| {
            let (make, dataset) = (make.clone(), dataset.clone());
            let count = indices.len();
            let run = move |cancel: &Cancel| {
                check(&indices, dataset.len())?;
                let mut samples = Vec::with_capacity(indices.len());
                for &index in &indices {
                    stopped(cancel)?;
                    let sample = dataset.get(index).map_err(|error| error.at(index))?;
                    samples.push(make.changed(sample, epoch, index)?);
                }
                let first = indices.first().copied().unwrap_or(0);
                make.joined(samples, epoch, first).map_err(|reason| Error::Batch { indices, reason: Box::new(reason) })
            };
            Job { samples: count, run: Box::new(run) }
        }))
    }

    fn stream(&self, samples: Samples<T>, size: usize, drop_last: bool, epoch: u64, skipped: usize) -> Jobs<B> {
        let make = self.clone();
        let mut samples = samples.skip(skipped);
        let mut next = skipped;
        Box::new(std::iter::from_fn(move || {
            let batch: Vec<Result<T>> = samples.by_ref().take(size).collect();
            if batch.is_empty() || (drop_last && batch.len() < size) {
                return None;
            }
            let first = next;
            next += batch.len();
            let (make, count) = (make.clone(), batch.len());
            let run = move |cancel: &Cancel| {
                let mut samples = Vec::with_capacity(batch.len());
                for (index, sample) in (first..).zip(batch) {
                    stopped(cancel)?;
                    let sample = sample.map_err(|error| error.at(index))?;
                    samples.push(make.changed(sample, epoch, index)?);
                }
                make.joined(samples, epoch, first)
            };
            Some(Job { samples: count, run: Box::new(run) })
        }))
    }
}

/// Nobody sees this error: the consumer has gone.
fn stopped(cancel: &Cancel) -> Result<()> {
    if cancel.is_set() { argument("DataLoader: closed") } else { Ok(()) }
}

/// Batches of a data set, in an order that depends on nothing but the seed and the epoch.
///
/// Worker threads make batches ahead of the loop that takes them. Every epoch has its own threads, which end with it: there is
/// nothing to shut down.
///
/// ```
/// use netcl_data::{DataLoader, ImageSplits, Sample};
///
/// let digits = ImageSplits::digits()?;
/// let loader = DataLoader::of(digits.train).batch_size(64).shuffle(true).seed(42).workers(2).build()?;
/// let mut images = 0;
/// for batch in loader.epoch(0)? {
///     let batch = batch?;
///     let pixels = batch.get(0).and_then(Sample::array).unwrap();
///     assert_eq!(pixels.shape()[1..], [1, 8, 8]);
///     images += pixels.shape()[0];
/// }
/// assert_eq!(images, 1437);
/// # Ok::<(), netcl_data::Error>(())
/// ```
pub struct DataLoader<B = Sample> {
    jobs: MakeJobs<B>,
    len: Option<usize>,
    seed: u64,
    workers: usize,
    capacity: usize,
    timeout: Option<Duration>,
}

impl DataLoader {
    /// Settings for a data set with numbered samples.
    pub fn of<D: Dataset + 'static>(dataset: D) -> LoaderBuilder<D::Item>
    where
        D::Item: 'static,
    {
        LoaderBuilder::new(Origin::Map(Arc::new(dataset)))
    }

    /// Settings for a stream of samples.
    pub fn of_stream<D: IterableDataset + 'static>(stream: D) -> LoaderBuilder<D::Item>
    where
        D::Item: 'static,
    {
        LoaderBuilder::new(Origin::Stream(Arc::new(stream)))
    }
}

impl<B: Send + 'static> DataLoader<B> {
    /// Batches per epoch; none for a stream.
    pub fn len(&self) -> Option<usize> {
        self.len
    }

    /// Whether it is known that there are no batches.
    pub fn is_empty(&self) -> bool {
        self.len == Some(0)
    }

    /// The batches of an epoch, from its start.
    ///
    /// # Errors
    /// If a stream cannot be opened, or no thread can be started.
    pub fn epoch(&self, epoch: u64) -> Result<Epoch<B>> {
        self.start(LoaderState { seed: self.seed, epoch, samples: 0 })
    }

    /// The rest of an epoch that [`Epoch::state`] was asked in, from the first sample that had not been handed over. The batch
    /// size and the number of workers may be other ones.
    ///
    /// # Errors
    /// If the state is of a loader with another seed; or as [`DataLoader::epoch`].
    pub fn resume(&self, state: LoaderState) -> Result<Epoch<B>> {
        if state.seed != self.seed {
            return argument(format!(
                "DataLoader: the state was saved by a loader with the seed {}, this one has {}: the order of the samples \
                 would be another one",
                state.seed, self.seed
            ));
        }
        self.start(state)
    }

    fn start(&self, state: LoaderState) -> Result<Epoch<B>> {
        let jobs = (self.jobs)(state.epoch, state.samples)?;
        Epoch::start(jobs, state, self.workers, self.capacity, self.timeout)
    }
}

#[cfg(test)]
mod tests;
