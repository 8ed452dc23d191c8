//! Samplers: which samples an epoch has, in which order, and how they are batched.
//!
//! Every order is a function of a seed and an epoch and of nothing else. So it does not depend on the number of workers, and an
//! epoch that stopped in the middle goes on by asking for the same order again.

use crate::error::{Error, Result, argument};
use crate::random::Random;
use crate::random::purpose::ORDER;

/// The order of an epoch's samples.
pub trait Sampler: Send + Sync {
    /// How many samples an epoch has.
    fn len(&self) -> usize;

    /// The numbers of the samples of an epoch.
    fn order(&self, epoch: u64) -> Vec<usize>;

    /// Whether an epoch has no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<S: Sampler + ?Sized> Sampler for Box<S> {
    fn len(&self) -> usize {
        (**self).len()
    }

    fn order(&self, epoch: u64) -> Vec<usize> {
        (**self).order(epoch)
    }
}

/// All samples in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequentialSampler {
    /// How many samples there are.
    pub len: usize,
}

impl Sampler for SequentialSampler {
    fn len(&self) -> usize {
        self.len
    }

    fn order(&self, _epoch: u64) -> Vec<usize> {
        (0..self.len).collect()
    }
}

/// All samples in another order each epoch.
///
/// ```
/// use netcl_data::{RandomSampler, Sampler};
///
/// let sampler = RandomSampler { len: 100, seed: 42 };
/// assert_eq!(sampler.order(3), sampler.order(3));
/// assert_ne!(sampler.order(3), sampler.order(4));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomSampler {
    /// How many samples there are.
    pub len: usize,
    /// Decides the orders.
    pub seed: u64,
}

impl Sampler for RandomSampler {
    fn len(&self) -> usize {
        self.len
    }

    fn order(&self, epoch: u64) -> Vec<usize> {
        Random::keyed(self.seed, &[ORDER, epoch]).permutation(self.len)
    }
}

/// Samples drawn with replacement, each as often as its weight says.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightedSampler {
    /// The sum of the weights up to and including each.
    sums: Vec<f64>,
    count: usize,
    seed: u64,
}

impl WeightedSampler {
    /// Draws `count` samples per epoch, by weights that need not add up to 1.
    ///
    /// # Errors
    /// If a weight is negative or not finite, or all are 0.
    pub fn new(weights: &[f64], count: usize, seed: u64) -> Result<WeightedSampler> {
        if let Some(at) = weights.iter().position(|weight| !weight.is_finite() || *weight < 0.0) {
            return argument(format!(
                "WeightedSampler: the weight {} of sample {at} is no number of 0 or more",
                weights[at]
            ));
        }
        let mut sum = 0.0;
        let mut add = |weight: &f64| {
            sum += weight;
            sum
        };
        let sums: Vec<f64> = weights.iter().map(&mut add).collect();
        if !(sum > 0.0 && sum.is_finite()) {
            return argument(format!("WeightedSampler: the {} weights add up to {sum}", weights.len()));
        }
        Ok(WeightedSampler { sums, count, seed })
    }
}

impl Sampler for WeightedSampler {
    fn len(&self) -> usize {
        self.count
    }

    fn order(&self, epoch: u64) -> Vec<usize> {
        let mut random = Random::keyed(self.seed, &[ORDER, epoch]);
        let all = self.sums.last().copied().unwrap_or(0.0);
        let mut draw = || {
            let at = random.uniform() * all;
            // The product may round up to the whole sum: then it is the last sample that has a weight.
            let last = self.sums.partition_point(|sum| *sum < all);
            self.sums.partition_point(|sum| *sum <= at).min(last)
        };
        (0..self.count).map(|_| draw()).collect()
    }
}

/// How [`DistributedSampler`] gives every rank the same number of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uneven {
    /// The first samples of the order occur twice.
    Pad,
    /// The last samples of the order are left out.
    Truncate,
}

/// One rank's share of another sampler's order: every `world`th sample. All ranks together have the whole order.
#[derive(Clone, Debug, PartialEq)]
pub struct DistributedSampler<S> {
    inner: S,
    rank: usize,
    world: usize,
    uneven: Uneven,
}

impl<S: Sampler> DistributedSampler<S> {
    /// The share of a rank below `world`. Every rank must have the same inner sampler, with the same seed.
    ///
    /// # Errors
    /// If the rank is not below `world`.
    pub fn new(inner: S, rank: usize, world: usize, uneven: Uneven) -> Result<DistributedSampler<S>> {
        if rank >= world {
            return argument(format!("DistributedSampler: the rank {rank} is not below the number of ranks, {world}"));
        }
        Ok(DistributedSampler { inner, rank, world, uneven })
    }
}

impl<S: Sampler> Sampler for DistributedSampler<S> {
    fn len(&self) -> usize {
        match self.uneven {
            Uneven::Pad => self.inner.len().div_ceil(self.world),
            Uneven::Truncate => self.inner.len() / self.world,
        }
    }

    fn order(&self, epoch: u64) -> Vec<usize> {
        let order = self.inner.order(epoch);
        order.iter().cycle().skip(self.rank).step_by(self.world).take(self.len()).copied().collect()
    }
}

/// The batches of an epoch.
pub trait BatchSampler: Send + Sync {
    /// How many batches an epoch has.
    fn len(&self) -> usize;

    /// The batches of an epoch without its first `skipped` samples, which an interrupted run has had.
    fn batches(&self, epoch: u64, skipped: usize) -> Batched;

    /// Whether an epoch has no batches.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Batches, each the numbers of its samples.
pub type Batched = Box<dyn Iterator<Item = Vec<usize>> + Send>;

/// A sampler's order in batches of one size.
#[derive(Clone, Debug, PartialEq)]
pub struct FixedBatches<S> {
    sampler: S,
    size: usize,
    drop_last: bool,
}

impl<S: Sampler> FixedBatches<S> {
    /// Batches of `size` samples; the last one has what is left, or is left out.
    ///
    /// # Errors
    /// If the size is 0.
    pub fn new(sampler: S, size: usize, drop_last: bool) -> Result<FixedBatches<S>> {
        if size == 0 {
            return argument("a batch needs at least one sample: the batch size is 0");
        }
        Ok(FixedBatches { sampler, size, drop_last })
    }
}

impl<S: Sampler> BatchSampler for FixedBatches<S> {
    fn len(&self) -> usize {
        let samples = self.sampler.len();
        if self.drop_last { samples / self.size } else { samples.div_ceil(self.size) }
    }

    fn batches(&self, epoch: u64, skipped: usize) -> Batched {
        let (order, size, drop_last) = (self.sampler.order(epoch), self.size, self.drop_last);
        let mut next = skipped;
        Box::new(std::iter::from_fn(move || {
            let end = next.saturating_add(size).min(order.len());
            if next >= end || (drop_last && end - next < size) {
                return None;
            }
            let batch = order[next..end].to_vec();
            next = end;
            Some(batch)
        }))
    }
}

/// Batches of samples of similar lengths, so that little padding is needed: the samples of an epoch's order are sorted by length
/// within groups of many batches, and the batches come in a random order.
///
/// ```
/// use netcl_data::{BatchSampler, LengthBatches, RandomSampler};
///
/// let lengths: Vec<usize> = (0..1000).map(|i| 1 + i % 50).collect();
/// let sampler = RandomSampler { len: 1000, seed: 1 };
/// for batch in LengthBatches::new(sampler, lengths.clone(), 20, 25, 1)?.batches(0, 0) {
///     let of_batch = || batch.iter().map(|&index| lengths[index]);
///     assert!(of_batch().max().unwrap() - of_batch().min().unwrap() <= 6);
/// }
/// # Ok::<(), netcl_data::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct LengthBatches<S> {
    sampler: S,
    lengths: Vec<usize>,
    size: usize,
    group: usize,
    seed: u64,
    drop_last: bool,
}

impl<S: Sampler> LengthBatches<S> {
    /// Batches of `size` samples, sorted within groups of `batches` batches; `lengths` has the length of each sample of the data set.
    ///
    /// # Errors
    /// If the size or the number of batches is 0.
    pub fn new(sampler: S, lengths: Vec<usize>, size: usize, batches: usize, seed: u64) -> Result<LengthBatches<S>> {
        match size.checked_mul(batches) {
            None | Some(0) => {
                argument(format!("LengthBatches: groups of {batches} batches of {size} samples are none"))
            }
            Some(group) => Ok(LengthBatches { sampler, lengths, size, group, seed, drop_last: false }),
        }
    }

    /// Without batches that have fewer samples than the others.
    pub fn drop_last(mut self, drop_last: bool) -> LengthBatches<S> {
        self.drop_last = drop_last;
        self
    }
}

impl<S: Sampler> BatchSampler for LengthBatches<S> {
    fn len(&self) -> usize {
        // A group is a whole number of batches, so only the last one can have a smaller batch.
        let samples = self.sampler.len();
        if self.drop_last { samples / self.size } else { samples.div_ceil(self.size) }
    }

    fn batches(&self, epoch: u64, skipped: usize) -> Batched {
        let mut order = self.sampler.order(epoch);
        for group in order.chunks_mut(self.group) {
            // A sample without a length is taken as 0 here; reading it will say that it does not exist.
            group.sort_by_key(|index| self.lengths.get(*index).copied().unwrap_or(0));
        }
        let full = |batch: &&[usize]| !self.drop_last || batch.len() == self.size;
        let batches: Vec<Vec<usize>> = order.chunks(self.size).filter(full).map(<[usize]>::to_vec).collect();
        let places = Random::keyed(self.seed, &[ORDER, epoch, 1]).permutation(batches.len());
        let mut skipped = skipped;
        Box::new(places.into_iter().filter_map(move |place| {
            let batch = &batches[place];
            let from = skipped.min(batch.len());
            skipped -= from;
            // A batch that was had in part: a run with another batch size was interrupted.
            (from < batch.len()).then(|| batch[from..].to_vec())
        }))
    }
}

/// Checks the numbers that a sampler gave.
pub(crate) fn check(indices: &[usize], len: usize) -> Result<()> {
    match indices.iter().find(|index| **index >= len) {
        Some(&index) => Err(Error::Index { index, len }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(sampler: &dyn BatchSampler, epoch: u64, skipped: usize) -> Vec<usize> {
        sampler.batches(epoch, skipped).flatten().collect()
    }

    #[test]
    fn weights_decide_how_often_samples_occur() {
        let sampler = WeightedSampler::new(&[0.0, 1.0, 3.0, 0.0], 40_000, 7).unwrap();
        let mut seen = [0; 4];
        for index in sampler.order(0) {
            seen[index] += 1;
        }
        assert_eq!((seen[0], seen[3]), (0, 0));
        assert!((9_500..10_500).contains(&seen[1]), "{seen:?}");
        assert_ne!(sampler.order(0), sampler.order(1));
        for weights in [&[0.0, 0.0][..], &[1.0, -1.0], &[f64::NAN], &[], &[f64::MAX, f64::MAX]] {
            assert!(WeightedSampler::new(weights, 1, 0).is_err(), "{weights:?}");
        }
    }

    #[test]
    fn ranks_share_an_order() {
        let inner = RandomSampler { len: 10, seed: 3 };
        let ranks = |uneven| -> Vec<Vec<usize>> {
            (0..4).map(|rank| DistributedSampler::new(inner, rank, 4, uneven).unwrap().order(2)).collect()
        };
        let order = inner.order(2);
        let padded = ranks(Uneven::Pad);
        assert!(padded.iter().all(|rank| rank.len() == 3));
        assert_eq!(padded[1], [order[1], order[5], order[9]]);
        assert_eq!(padded[3], [order[3], order[7], order[1]], "padded from the front");
        let mut joined = ranks(Uneven::Truncate).concat();
        joined.sort_unstable();
        let mut expected = order[..8].to_vec();
        expected.sort_unstable();
        assert_eq!(joined, expected);
        // Fewer samples than ranks.
        let few = DistributedSampler::new(SequentialSampler { len: 2 }, 4, 5, Uneven::Pad).unwrap();
        assert_eq!(few.order(0), [0]);
        let none = DistributedSampler::new(SequentialSampler { len: 0 }, 4, 5, Uneven::Pad).unwrap();
        assert!(none.is_empty() && none.order(0).is_empty());
        assert!(DistributedSampler::new(inner, 4, 4, Uneven::Pad).is_err());
    }

    #[test]
    fn lengths_in_a_batch_are_alike_and_batches_are_shuffled() {
        let lengths: Vec<usize> = (0..95).map(|i| (i * 37) % 50).collect();
        let sampler = |seed| LengthBatches::new(RandomSampler { len: 95, seed }, lengths.clone(), 10, 5, seed).unwrap();
        let mut seen = all(&sampler(1), 0, 0);
        let means: Vec<usize> = sampler(1)
            .batches(0, 0)
            .map(|batch| batch.iter().map(|&i| lengths[i]).sum::<usize>() / batch.len())
            .collect();
        assert!(!means.is_sorted(), "{means:?}");
        seen.sort_unstable();
        assert_eq!(seen, (0..95).collect::<Vec<_>>());
        assert_eq!((sampler(1).len(), sampler(1).batches(0, 0).count()), (10, 10));
        let full = sampler(1).drop_last(true);
        assert_eq!((full.len(), full.batches(0, 0).map(|batch| batch.len()).sum::<usize>()), (9, 90));
        assert!(LengthBatches::new(SequentialSampler { len: 1 }, vec![], 0, 1, 0).is_err());
    }

    proptest! {
        #[test]
        fn a_resumed_epoch_is_the_rest_of_it(
            len in 0usize..60, size in 1usize..9, group in 1usize..5, skipped in 0usize..70, epoch in 0u64..3
        ) {
            let random = RandomSampler { len, seed: 5 };
            let fixed = FixedBatches::new(random, size, false).unwrap();
            let whole = all(&fixed, epoch, 0);
            prop_assert_eq!(all(&fixed, epoch, skipped), &whole[skipped.min(len)..]);
            prop_assert_eq!(fixed.batches(epoch, 0).count(), fixed.len());
            let lengths = LengthBatches::new(random, (0..len).collect(), size, group, 5).unwrap();
            let whole = all(&lengths, epoch, 0);
            prop_assert_eq!(whole.len(), len);
            prop_assert_eq!(all(&lengths, epoch, skipped), &whole[skipped.min(len)..]);
            let full = FixedBatches::new(random, size, true).unwrap();
            prop_assert!(full.batches(epoch, 0).all(|batch| batch.len() == size));
            prop_assert_eq!(full.batches(epoch, 0).count(), full.len());
        }
    }
}
