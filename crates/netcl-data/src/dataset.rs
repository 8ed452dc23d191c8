//! Data sets: a number of samples, each found by its number.

use std::sync::Arc;

use crate::array::Array;
use crate::error::{Error, Result, argument};
use crate::random::{Random, purpose};
use crate::sample::Sample;

/// Samples by number. Worker threads share a data set and ask for different numbers at the same time.
///
/// `Item` is a [`Sample`] wherever the default collate function is used; a language binding may hand its own objects through.
///
/// ```
/// use netcl_data::{Dataset, Result, Sample};
///
/// struct Squares;
///
/// impl Dataset for Squares {
///     type Item = Sample;
///     fn len(&self) -> usize {
///         1000
///     }
///     fn get(&self, index: usize) -> Result<Sample> {
///         Ok(Sample::from((index * index) as i64))
///     }
/// }
/// assert_eq!(Squares.get(12)?, Sample::from(144i64));
/// # Ok::<(), netcl_data::Error>(())
/// ```
pub trait Dataset: Send + Sync {
    /// What a sample is.
    type Item: Send;

    /// How many samples there are.
    fn len(&self) -> usize;

    /// The sample of a number below [`Dataset::len`].
    ///
    /// # Errors
    /// If there is no such sample, or it cannot be read.
    fn get(&self, index: usize) -> Result<Self::Item>;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<D: Dataset + ?Sized> Dataset for Arc<D> {
    type Item = D::Item;

    fn len(&self) -> usize {
        (**self).len()
    }

    fn get(&self, index: usize) -> Result<D::Item> {
        (**self).get(index)
    }
}

/// The element of a list, or the error that says how many there are.
pub(crate) fn element<T: Copy>(list: &[T], index: usize) -> Result<T> {
    list.get(index).copied().ok_or(Error::Index { index, len: list.len() })
}

/// A list of samples as a data set. (A wrapper: a `Vec` that is a data set itself would lose its own `get`.)
#[derive(Clone, Debug, PartialEq)]
pub struct ListDataset<T>(pub Vec<T>);

impl<T: Clone + Send + Sync> Dataset for ListDataset<T> {
    type Item = T;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize) -> Result<T> {
        self.0.get(index).cloned().ok_or(Error::Index { index, len: self.0.len() })
    }
}

/// Some samples of a data set, in an order.
#[derive(Clone, Debug)]
pub struct Subset<D> {
    dataset: D,
    indices: Vec<usize>,
}

impl<D: Dataset> Subset<D> {
    /// The samples of these numbers, which may repeat.
    ///
    /// # Errors
    /// If a number is out of range.
    pub fn new(dataset: D, indices: Vec<usize>) -> Result<Subset<D>> {
        let len = dataset.len();
        match indices.iter().find(|index| **index >= len) {
            Some(&index) => Err(Error::Index { index, len }),
            None => Ok(Subset { dataset, indices }),
        }
    }

    /// The numbers of the samples in the whole data set.
    pub fn indices(&self) -> &[usize] {
        &self.indices
    }
}

impl<D: Dataset> Dataset for Subset<D> {
    type Item = D::Item;

    fn len(&self) -> usize {
        self.indices.len()
    }

    fn get(&self, index: usize) -> Result<D::Item> {
        self.dataset.get(element(&self.indices, index)?)
    }
}

/// Several data sets, one after the other.
#[derive(Clone, Debug)]
pub struct Concat<D> {
    parts: Vec<D>,
    /// The number of the first sample past the end of each part.
    ends: Vec<usize>,
}

impl<D: Dataset> Concat<D> {
    /// Joins data sets of one type; `Arc<dyn Dataset<Item = Sample>>` joins different ones.
    pub fn new(parts: Vec<D>) -> Concat<D> {
        let mut end = 0;
        let mut after = |part: &D| {
            end += part.len();
            end
        };
        let ends = parts.iter().map(&mut after).collect();
        Concat { parts, ends }
    }
}

impl<D: Dataset> Dataset for Concat<D> {
    type Item = D::Item;

    fn len(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    fn get(&self, index: usize) -> Result<D::Item> {
        let part = self.ends.partition_point(|end| *end <= index);
        let dataset = self.parts.get(part).ok_or(Error::Index { index, len: self.len() })?;
        dataset.get(index - if part == 0 { 0 } else { self.ends[part - 1] })
    }
}

/// How large the parts of [`random_split`] are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SplitSizes<'s> {
    /// Numbers of samples, which must add up to all of them.
    Lengths(&'s [usize]),
    /// Shares that add up to 1. Each part gets the whole samples of its share; what is left goes to the parts one each, the
    /// first one first, as PyTorch does it.
    Fractions(&'s [f64]),
}

impl SplitSizes<'_> {
    fn lengths(self, all: usize) -> Result<Vec<usize>> {
        match self {
            SplitSizes::Lengths(lengths) => {
                let sum = lengths.iter().try_fold(0usize, |sum, &length| sum.checked_add(length));
                if sum != Some(all) {
                    return argument(format!("random_split: the lengths {lengths:?} do not add up to {all} samples"));
                }
                Ok(lengths.to_vec())
            }
            SplitSizes::Fractions(fractions) => {
                let fits = fractions.iter().all(|fraction| (0.0..=1.0).contains(fraction));
                if !fits || (fractions.iter().sum::<f64>() - 1.0).abs() > 1e-6 {
                    return argument(format!("random_split: the fractions {fractions:?} do not add up to 1"));
                }
                // The small excess: 0.7 of 10 samples is 6.999999999999999 in floating point.
                let mut lengths: Vec<usize> =
                    fractions.iter().map(|fraction| (fraction * all as f64 + 1e-9) as usize).collect();
                let parts = lengths.len();
                let left = all.saturating_sub(lengths.iter().sum());
                for i in 0..left {
                    lengths[i % parts] += 1;
                }
                Ok(lengths)
            }
        }
    }
}

/// Parts of a data set that have no sample in common: every sample is in one of them, at random by seed.
///
/// ```
/// use netcl_data::{Dataset, ListDataset, SplitSizes, random_split};
/// use std::sync::Arc;
///
/// let all = Arc::new(ListDataset((0..100).collect::<Vec<u32>>()));
/// let parts = random_split(all, SplitSizes::Fractions(&[0.8, 0.2]), 42)?;
/// assert_eq!((parts[0].len(), parts[1].len()), (80, 20));
/// # Ok::<(), netcl_data::Error>(())
/// ```
///
/// # Errors
/// If the sizes do not add up.
pub fn random_split<D: Dataset + Clone>(dataset: D, sizes: SplitSizes<'_>, seed: u64) -> Result<Vec<Subset<D>>> {
    let lengths = sizes.lengths(dataset.len())?;
    let mut order = Random::keyed(seed, &[purpose::SPLIT]).permutation(dataset.len());
    let mut parts: Vec<Subset<D>> = Vec::with_capacity(lengths.len());
    for length in lengths {
        let rest = order.split_off(length.min(order.len()));
        parts.push(Subset { dataset: dataset.clone(), indices: order });
        order = rest;
    }
    Ok(parts)
}

/// Something with rows along a first axis: an [`Array`] in memory or a mapped [`NpyArray`](crate::npy::NpyArray).
pub trait Rows: Send + Sync {
    /// The length of each axis.
    fn shape(&self) -> &[usize];

    /// The elements at one place of the first axis.
    ///
    /// # Errors
    /// If there is no first axis, or it is shorter.
    fn row(&self, index: usize) -> Result<Array>;
}

impl Rows for Array {
    fn shape(&self) -> &[usize] {
        self.shape()
    }

    fn row(&self, index: usize) -> Result<Array> {
        self.row(index)
    }
}

/// Arrays of one first axis: sample `i` has the `i`th row of each.
///
/// ```
/// use netcl_data::{Array, Dataset, Sample, TensorDataset};
///
/// let images = Array::new(vec![0f32; 12], &[3, 2, 2])?;
/// let labels = Array::line(vec![4i64, 5, 6]);
/// let set = TensorDataset::new(vec![images, labels])?;
/// assert_eq!(set.get(2)?.get(1), Some(&Sample::from(6i64)));
/// # Ok::<(), netcl_data::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TensorDataset<A = Array> {
    names: Option<Vec<String>>,
    arrays: Vec<A>,
    len: usize,
}

impl<A: Rows> TensorDataset<A> {
    /// Samples are lists of fields.
    ///
    /// # Errors
    /// If there is no array, one has no axis, or the first axes differ.
    pub fn new(arrays: Vec<A>) -> Result<TensorDataset<A>> {
        let lengths: Vec<Option<usize>> = arrays.iter().map(|array| array.shape().first().copied()).collect();
        match lengths.first() {
            Some(&Some(len)) if lengths.iter().all(|length| *length == Some(len)) => {
                Ok(TensorDataset { names: None, arrays, len })
            }
            _ => {
                let shapes: Vec<&[usize]> = arrays.iter().map(A::shape).collect();
                argument(format!(
                    "TensorDataset: the arrays need first axes of one length, their shapes are {shapes:?}"
                ))
            }
        }
    }

    /// Samples have fields of these names.
    ///
    /// # Errors
    /// As [`TensorDataset::new`].
    pub fn named<N: Into<String>>(arrays: impl IntoIterator<Item = (N, A)>) -> Result<TensorDataset<A>> {
        let (names, arrays) = arrays.into_iter().map(|(name, array)| (name.into(), array)).unzip();
        Ok(TensorDataset { names: Some(names), ..TensorDataset::new(arrays)? })
    }
}

impl<A: Rows> Dataset for TensorDataset<A> {
    type Item = Sample;

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize) -> Result<Sample> {
        let rows = self.arrays.iter().map(|array| array.row(index).map(Sample::Array)).collect::<Result<Vec<_>>>()?;
        Ok(match &self.names {
            Some(names) => Sample::Dict(names.iter().cloned().zip(rows).collect()),
            None => Sample::List(rows),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_joins_give_the_samples_of_the_whole() {
        let all = ListDataset((10..20).collect::<Vec<u32>>());
        let some = Subset::new(all.clone(), vec![9, 0, 0]).unwrap();
        assert_eq!((0..3).map(|i| some.get(i).unwrap()).collect::<Vec<_>>(), [19, 10, 10]);
        assert_eq!(some.get(3).unwrap_err().to_string(), "there is no sample 3: the data set has 3");
        assert!(Subset::new(all.clone(), vec![10]).is_err());

        let joined = Concat::new(vec![all.clone(), ListDataset(vec![]), ListDataset(vec![7, 8])]);
        assert_eq!(joined.len(), 12);
        let samples: Vec<u32> = (0..12).map(|i| joined.get(i).unwrap()).collect();
        assert_eq!(samples, all.0.into_iter().chain([7, 8]).collect::<Vec<_>>());
        assert!(joined.get(12).is_err());
        assert!(Concat::<ListDataset<u8>>::new(vec![]).is_empty());
    }

    #[test]
    fn a_split_has_every_sample_once() {
        let all = Arc::new(ListDataset((0..10).collect::<Vec<usize>>()));
        let split = |sizes, seed| -> Vec<Vec<usize>> {
            random_split(all.clone(), sizes, seed).unwrap().iter().map(|part| part.indices().to_vec()).collect()
        };
        let parts = split(SplitSizes::Lengths(&[7, 0, 3]), 1);
        assert_eq!(parts.iter().map(Vec::len).collect::<Vec<_>>(), [7, 0, 3]);
        let mut joined = parts.concat();
        assert_ne!(joined, all.0);
        joined.sort_unstable();
        assert_eq!(joined, all.0);
        assert_eq!(parts, split(SplitSizes::Lengths(&[7, 0, 3]), 1));
        assert_ne!(parts, split(SplitSizes::Lengths(&[7, 0, 3]), 2));
        // Whole shares first, what is left one by one: torch.utils.data.random_split(range(10), [0.25, 0.25, 0.5]).
        let lengths = |fractions: &[f64]| SplitSizes::Fractions(fractions).lengths(10).unwrap();
        assert_eq!(lengths(&[0.25, 0.25, 0.5]), [3, 2, 5]);
        assert_eq!(lengths(&[0.7, 0.3]), [7, 3]);
        for sizes in [SplitSizes::Lengths(&[7, 2]), SplitSizes::Fractions(&[0.5, 0.6]), SplitSizes::Fractions(&[])] {
            assert!(random_split(all.clone(), sizes, 0).unwrap_err().to_string().contains("do not add up"));
        }
    }

    #[test]
    fn arrays_of_different_lengths_are_refused() {
        let (two, three) = (Array::line(vec![0u8; 2]), Array::line(vec![0u8; 3]));
        for arrays in [vec![two.clone(), three], vec![Array::scalar(1u8)], Vec::<Array>::new()] {
            assert!(TensorDataset::new(arrays).unwrap_err().to_string().contains("first axes of one length"));
        }
        let named = TensorDataset::named([("x", two)]).unwrap();
        assert_eq!(named.get(1).unwrap(), Sample::dict([("x", Sample::from(0u8))]));
        assert!(named.get(2).is_err());
    }
}
