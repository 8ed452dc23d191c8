//! Batches of images, rows and texts as a network takes them: gathered, uploaded and changed on the device ahead of the loop.

use std::sync::Arc;

use netcl_augment::{Augment, OnDevice, Uploader, arrived};
use netcl_data::transforms::{Compose, Transform};
use netcl_data::{Array, DataLoader, Dataset, ImageSet, LoaderState, Random, Sample, TableSet};
use netcl_nn::autograd::{Queue, Tensor};

use crate::error::Result;
use crate::trainer::{Loader, Sharing};

/// Inputs, and what is to be predicted of them: labels and tokens are int64, everything else is float32.
pub(crate) type Batch = (Tensor, Tensor);

/// Makes the batch of an epoch's samples with some numbers.
type Make = Arc<dyn Fn(u64, &[usize]) -> netcl_augment::Result<Batch> + Send + Sync>;

/// The batches of a part of the data.
#[derive(Clone)]
pub(crate) struct Batches {
    count: usize,
    batch_size: usize,
    /// What decides the order, another one in each epoch; none for the order of the data.
    seed: Option<u64>,
    make: Make,
    /// This rank, and how many share each batch.
    part: (usize, usize),
}

impl Batches {
    /// Images, changed and then normalised as `transforms` say.
    pub(crate) fn of_images(
        set: &ImageSet,
        queue: &Queue,
        transforms: Vec<Transform>,
        seed: Option<u64>,
    ) -> Result<Batches> {
        let augment = Augment::new(Compose::new(transforms)?, seed.unwrap_or(0));
        let (images, uploader) = (set.clone(), Uploader::new(queue));
        let make = move |epoch: u64, indices: &[usize]| {
            let [channels, height, width] = images.shape();
            let mut pixels = Vec::with_capacity(indices.len() * images.image_size());
            indices.iter().for_each(|&index| pixels.extend_from_slice(images.image(index)));
            let labels: Vec<i64> = indices.iter().map(|&index| i64::from(images.labels()[index])).collect();
            let pixels = Array::new(pixels, &[indices.len(), channels, height, width])?;
            let batch = uploader.upload(Sample::list([pixels.into(), Array::line(labels).into()]))?;
            let bytes = batch.tensor_at(0)?;
            arrived(bytes)?;
            Ok((augment.apply(bytes, epoch, indices)?.into(), batch.tensor_at(1)?.clone().into()))
        };
        Ok(Batches::new(set.len(), seed, make))
    }

    /// Rows of a table.
    pub(crate) fn of_rows(set: &TableSet, queue: &Queue, seed: Option<u64>) -> Batches {
        let (rows, uploader) = (set.clone(), Uploader::new(queue));
        let make = move |_: u64, indices: &[usize]| {
            let TableSet { inputs, targets } = rows.rows(indices)?;
            let batch = uploader.upload(Sample::list([inputs.into(), targets.into()]))?;
            Ok((batch.tensor_at(0)?.clone().into(), batch.tensor_at(1)?.clone().into()))
        };
        Batches::new(set.len(), seed, make)
    }

    /// Windows of a text's tokens, each with the window one token later. In random order they begin elsewhere in each epoch, so that
    /// a token is not always at the same place of its window.
    pub(crate) fn of_tokens(tokens: &Arc<Vec<u32>>, context: usize, queue: &Queue, seed: Option<u64>) -> Batches {
        let (text, uploader) = (tokens.clone(), Uploader::new(queue));
        let make = move |epoch: u64, indices: &[usize]| {
            let start = seed.map_or(0, |seed| Random::keyed(seed, &[epoch]).below(context as u64) as usize);
            let windows = |by: usize| {
                let of = |&index: &usize| &text[start + index * context + by..][..context];
                let tokens = indices.iter().flat_map(of).map(|&token| i64::from(token)).collect();
                Array::new(tokens, &[indices.len(), context])
            };
            let batch = uploader.upload(Sample::list([windows(0)?.into(), windows(1)?.into()]))?;
            Ok((batch.tensor_at(0)?.clone().into(), batch.tensor_at(1)?.clone().into()))
        };
        // A whole window is left for the start.
        let whole = tokens.len().saturating_sub(1) / context;
        Batches::new(whole.saturating_sub(usize::from(seed.is_some())), seed, make)
    }

    fn new(
        count: usize,
        seed: Option<u64>,
        make: impl Fn(u64, &[usize]) -> netcl_augment::Result<Batch> + Send + Sync + 'static,
    ) -> Batches {
        Batches { count, batch_size: 1, seed, make: Arc::new(make), part: (0, 1) }
    }

    /// In batches of so many samples: at most one that has all.
    pub(crate) fn batch_size(self, size: usize) -> Batches {
        Batches { batch_size: size.clamp(1, self.count.max(1)), ..self }
    }

    /// Only the part of every batch that one of several ranks has: all together have what one would have.
    pub(crate) fn part(self, rank: usize, ranks: usize) -> Batches {
        Batches { part: (rank, ranks), ..self }
    }

    /// The first samples only.
    pub(crate) fn limited(self, limit: Option<usize>) -> Batches {
        Batches { count: self.count.min(limit.unwrap_or(usize::MAX)), ..self }
    }

    /// The number of samples.
    pub(crate) fn samples(&self) -> usize {
        self.count
    }

    /// The number of batches.
    pub(crate) fn len(&self) -> usize {
        self.count.div_ceil(self.batch_size)
    }

    /// The batches of an epoch but for the first ones, made by a thread ahead of the loop that takes them; `None` for one that has no part
    /// for this rank.
    pub(crate) fn epoch(&self, epoch: u64, skipped: usize) -> Result<OnDevice<Option<Batch>>> {
        let seed = self.seed.unwrap_or(0);
        let numbers =
            DataLoader::of(Numbers(self.count)).batch_size(self.batch_size).shuffle(self.seed.is_some()).seed(seed);
        let loader = numbers.build_with(|indices, _| Ok(indices))?;
        let state = LoaderState { seed, epoch, samples: skipped.saturating_mul(self.batch_size) };
        let (make, (rank, ranks)) = (self.make.clone(), self.part);
        Ok(OnDevice::with(loader.resume(state)?, move |indices: Vec<usize>| {
            let part = &indices[rank * indices.len() / ranks..(rank + 1) * indices.len() / ranks];
            if part.is_empty() { Ok(None) } else { make(epoch, part).map(Some) }
        })?)
    }

    /// As a trainer takes them.
    pub(crate) fn loader(self) -> Parts {
        Parts { batches: self, current: None }
    }
}

/// This rank's parts of batches.
pub(crate) struct Parts {
    batches: Batches,
    current: Option<OnDevice<Option<Batch>>>,
}

impl Loader for Parts {
    type Batch = Batch;

    fn batches(&self) -> Option<usize> {
        Some(self.batches.len())
    }

    fn begin(&mut self, epoch: usize, skipped: usize) -> Result<()> {
        self.current = None; // Its threads end before others begin.
        self.current = Some(self.batches.epoch(epoch as u64, skipped)?);
        Ok(())
    }

    fn next_batch(&mut self) -> Result<Option<Batch>> {
        Ok(self.current.as_mut().and_then(Iterator::next).transpose()?.flatten())
    }

    fn sharing(&self) -> Sharing {
        Sharing::Parts
    }
}

/// Numbers of samples instead of samples: a batch is gathered at once, without a copy of each before.
struct Numbers(usize);

impl Dataset for Numbers {
    type Item = usize;

    fn len(&self) -> usize {
        self.0
    }

    fn get(&self, index: usize) -> netcl_data::Result<usize> {
        Ok(index)
    }
}

#[cfg(test)]
mod tests {
    use netcl_data::transforms::Border;
    use netcl_data::{ImageSplits, Normalization};
    use netcl_nn::autograd::manager;

    use super::*;

    fn digits() -> ImageSet {
        ImageSplits::digits().unwrap().truncated(10, 1).train
    }

    /// Class and pixels of every image of an epoch.
    fn all(transforms: Vec<Transform>, seed: Option<u64>, epoch: u64, skipped: usize) -> Vec<(i64, Vec<f32>)> {
        let queue = manager().cpu().queue;
        let batches = Batches::of_images(&digits(), &queue, transforms, seed).unwrap().batch_size(4);
        let mut images = Vec::new();
        for batch in batches.epoch(epoch, skipped).unwrap() {
            let (pixels, labels) = batch.unwrap().unwrap();
            let (pixels, labels) = (pixels.to_host::<f32>().unwrap(), labels.to_host::<i64>().unwrap());
            images.extend(labels.into_iter().zip(pixels.chunks_exact(64).map(<[f32]>::to_vec)));
        }
        images
    }

    #[test]
    fn every_image_comes_once_and_an_epoch_goes_on_where_it_was_left() {
        let set = digits();
        let normalization = Normalization::of(&set);
        let normalize = || vec![normalization.transform(1)];
        let expected: Vec<(i64, Vec<f32>)> = (0..set.len())
            .map(|at| (i64::from(set.labels()[at]), set.image(at).iter().map(|&p| normalization.apply(p)).collect()))
            .collect();
        assert_eq!(all(normalize(), None, 1, 0), expected, "in order");
        let first = all(normalize(), Some(3), 5, 0);
        assert_ne!(first, expected, "in another order");
        assert!(expected.iter().all(|image| first.contains(image)), "but every image");
        assert_ne!(first, all(normalize(), Some(3), 6, 0), "an epoch has its own order");
        assert_eq!(all(normalize(), Some(3), 5, 1), first[4..], "without the first batch");
        let changed = vec![Transform::Crop { size: [8, 8], padding: 2, border: Border::Constant(0.0) }];
        let rest = all(changed.clone(), Some(3), 5, 2);
        assert_eq!(all(changed, Some(3), 5, 0)[8..], rest, "changes do not depend on where an epoch begins");
    }

    #[test]
    fn a_window_of_tokens_is_followed_by_the_next_token() {
        let queue = manager().cpu().queue;
        let tokens = Arc::new((0..100u32).collect::<Vec<_>>());
        let starts = |seed, epoch| {
            let batches = Batches::of_tokens(&tokens, 8, &queue, seed).batch_size(3);
            let mut starts = Vec::new();
            for batch in batches.epoch(epoch, 0).unwrap() {
                let (x, y) = batch.unwrap().unwrap();
                let (x, y) = (x.to_host::<i64>().unwrap(), y.to_host::<i64>().unwrap());
                assert!(x.iter().zip(&y).all(|(x, y)| x + 1 == *y));
                starts.extend(x.chunks(8).map(|window| window[0]));
            }
            assert_eq!(starts.len(), batches.samples());
            starts.sort_unstable();
            starts
        };
        assert_eq!(starts(None, 1), (0..12).map(|i| i * 8).collect::<Vec<i64>>());
        let (first, second) = (starts(Some(1), 1), starts(Some(1), 2));
        assert_eq!(first.len(), 11);
        assert!(first[0] != second[0] && first[0] < 8 && second[0] < 8, "{first:?} {second:?}");
        assert_eq!(starts(Some(1), 2), second);
    }
}
