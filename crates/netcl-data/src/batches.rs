//! Images in batches, as numbers that a network takes.

use crate::augment::Augment;
use crate::images::ImageSet;
use crate::random::Random;
use crate::random::purpose::{CHANGES, ORDER};

/// How pixels become inputs: `(pixel / 255 - mean) / deviation`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normalization {
    /// The mean of all pixels, of 0 to 1.
    pub mean: f32,
    /// Their standard deviation.
    pub deviation: f32,
}

impl Default for Normalization {
    /// Pixels between 0 and 1.
    fn default() -> Self {
        Normalization { mean: 0.0, deviation: 1.0 }
    }
}

impl Normalization {
    /// What gives the pixels of a set the mean 0 and the deviation 1. Take the training images, so that nothing of the test
    /// is known beforehand.
    pub fn of(set: &ImageSet) -> Normalization {
        // Whole numbers: exact, in whatever order.
        let (mut sum, mut squares) = (0u64, 0u64);
        for &pixel in set.pixels() {
            sum += u64::from(pixel);
            squares += u64::from(pixel) * u64::from(pixel);
        }
        let count = set.pixels().len().max(1) as f64;
        let mean = sum as f64 / count;
        let deviation = (squares as f64 / count - mean * mean).max(0.0).sqrt();
        // All pixels alike: nothing to stretch.
        let deviation = if deviation == 0.0 { 255.0 } else { deviation };
        Normalization { mean: (mean / 255.0) as f32, deviation: (deviation / 255.0) as f32 }
    }

    /// The input for a pixel.
    pub fn apply(&self, pixel: u8) -> f32 {
        (f32::from(pixel) / 255.0 - self.mean) / self.deviation
    }
}

/// Some images, ready for a network.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Normalised pixels of shape `[len, channels, height, width]`.
    pub pixels: Vec<f32>,
    /// The class of each image.
    pub labels: Vec<i64>,
    /// The numbers of the images in their set.
    pub indices: Vec<usize>,
}

impl Batch {
    /// The number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }
}

/// The batches of a set; the last one has what is left.
///
/// The order is a function of a seed and an epoch, so a run that stopped in the middle goes on with [`Batches::skipping`].
#[derive(Clone, Debug)]
pub struct Batches<'s> {
    set: &'s ImageSet,
    size: usize,
    next: usize,
    order: Option<Vec<usize>>,
    normalization: Normalization,
    augment: Augment,
    seed: u64,
    epoch: u64,
    /// The inputs of all 256 pixel values.
    inputs: Box<[f32; 256]>,
}

impl<'s> Batches<'s> {
    /// Batches of `size` images (at least one) in the order of the set.
    pub fn new(set: &'s ImageSet, size: usize) -> Batches<'s> {
        let batches = Batches {
            set,
            size: size.max(1),
            next: 0,
            order: None,
            normalization: Normalization::default(),
            augment: Augment::default(),
            seed: 0,
            epoch: 0,
            inputs: Box::new([0.0; 256]),
        };
        batches.normalized(Normalization::default())
    }

    /// With normalised pixels.
    pub fn normalized(mut self, normalization: Normalization) -> Batches<'s> {
        self.normalization = normalization;
        self.inputs = Box::new(std::array::from_fn(|pixel| normalization.apply(pixel as u8)));
        self
    }

    /// In the order of an epoch of a seed.
    pub fn shuffled(mut self, seed: u64, epoch: u64) -> Batches<'s> {
        self.order = Some(Random::keyed(seed, &[ORDER, epoch]).permutation(self.set.len()));
        (self.seed, self.epoch) = (seed, epoch);
        self
    }

    /// With changes to the images, which depend on the seed and epoch of [`Batches::shuffled`].
    pub fn augmented(mut self, augment: Augment) -> Batches<'s> {
        self.augment = augment;
        self
    }

    /// Without the first `batches` batches.
    pub fn skipping(mut self, batches: usize) -> Batches<'s> {
        self.next = batches.saturating_mul(self.size);
        self
    }

    /// How many batches an epoch has, those that are skipped included.
    pub fn per_epoch(&self) -> usize {
        self.set.len().div_ceil(self.size)
    }
}

impl Iterator for Batches<'_> {
    type Item = Batch;

    fn next(&mut self) -> Option<Batch> {
        let end = self.next.saturating_add(self.size).min(self.set.len());
        if self.next >= end {
            return None;
        }
        let indices: Vec<usize> = match &self.order {
            Some(order) => order[self.next..end].to_vec(),
            None => (self.next..end).collect(),
        };
        self.next = end;
        let mut pixels = Vec::with_capacity(indices.len() * self.set.image_size());
        let mut changed = vec![0; self.set.image_size()];
        for &index in &indices {
            let image = self.set.image(index);
            let image = if self.augment.is_none() {
                image
            } else {
                let mut random = Random::keyed(self.seed, &[CHANGES, self.epoch, index as u64]);
                self.augment.apply(image, self.set.shape(), &mut random, &mut changed);
                &changed
            };
            pixels.extend(image.iter().map(|&pixel| self.inputs[usize::from(pixel)]));
        }
        let labels = indices.iter().map(|&index| i64::from(self.set.labels()[index])).collect();
        Some(Batch { pixels, labels, indices })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set() -> ImageSet {
        let pixels = (0..10).flat_map(|i| [i * 10, 255]).collect();
        ImageSet::new("test", pixels, (0..10).collect(), [1, 1, 2]).unwrap()
    }

    #[test]
    fn every_image_comes_once_and_the_last_batch_is_smaller() {
        let set = set();
        let batches = Batches::new(&set, 4).shuffled(3, 5);
        assert_eq!(batches.per_epoch(), 3);
        let all: Vec<Batch> = batches.clone().collect();
        assert_eq!(all.iter().map(Batch::len).collect::<Vec<_>>(), [4, 4, 2]);
        let mut indices: Vec<usize> = all.iter().flat_map(|batch| batch.indices.clone()).collect();
        assert_ne!(indices, (0..10).collect::<Vec<_>>());
        indices.sort_unstable();
        assert_eq!(indices, (0..10).collect::<Vec<_>>());
        for batch in &all {
            for (i, &index) in batch.indices.iter().enumerate() {
                assert_eq!(batch.labels[i], index as i64);
                assert_eq!(batch.pixels[2 * i..2 * i + 2], [index as f32 * 10.0 / 255.0, 1.0]);
            }
        }
        assert_eq!(batches.clone().skipping(2).collect::<Vec<_>>(), all[2..]);
        assert_eq!(batches.clone().skipping(3).count(), 0);
        assert_eq!(Batches::new(&set, 4).shuffled(3, 5).collect::<Vec<_>>(), all);
        assert_ne!(Batches::new(&set, 4).shuffled(3, 6).collect::<Vec<_>>(), all);
        assert_ne!(Batches::new(&set, 4).shuffled(4, 5).collect::<Vec<_>>(), all);
        assert_eq!(Batches::new(&set, 0).count(), 10);
    }

    #[test]
    fn changes_depend_on_the_image_and_not_on_its_place() {
        let set = set();
        let augment = Augment { shift: 1, ..Default::default() };
        let by_index = |size: usize| {
            let mut images = vec![Vec::new(); 10];
            for batch in Batches::new(&set, size).shuffled(1, 1).augmented(augment) {
                for (i, &index) in batch.indices.iter().enumerate() {
                    images[index] = batch.pixels[2 * i..2 * i + 2].to_vec();
                }
            }
            images
        };
        assert_eq!(by_index(3), by_index(10));
        let plain = Batches::new(&set, 10).shuffled(1, 1).next().unwrap();
        let changed = Batches::new(&set, 10).shuffled(1, 1).augmented(augment).next().unwrap();
        assert_eq!(plain.indices, changed.indices);
        assert_ne!(plain.pixels, changed.pixels);
    }

    #[test]
    fn normalised_pixels_have_mean_zero_and_deviation_one() {
        let set = set();
        let normalization = Normalization::of(&set);
        let batch = Batches::new(&set, 10).normalized(normalization).next().unwrap();
        let mean = batch.pixels.iter().sum::<f32>() / 20.0;
        let variance = batch.pixels.iter().map(|x| x * x).sum::<f32>() / 20.0;
        assert!(mean.abs() < 1e-5 && (variance - 1.0).abs() < 1e-4, "{mean} {variance}");
        let flat = ImageSet::new("flat", vec![9; 4], vec![0, 0], [1, 1, 2]).unwrap();
        assert_eq!(Normalization::of(&flat).apply(9), 0.0);
    }
}
