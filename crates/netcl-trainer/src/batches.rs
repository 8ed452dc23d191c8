//! Batches of images as a network takes them: bytes are gathered, uploaded and changed on the device ahead of the loop.

use netcl_augment::{Augment, OnDevice, Uploader, arrived};
use netcl_data::transforms::{Compose, Transform};
use netcl_data::{Array, DataLoader, Dataset, ImageSet, LoaderState, Sample};
use netcl_nn::autograd::{IndexTensor, Queue, Tensor};

use crate::error::Result;

/// Which batches of a set, and what happens to the images.
pub(crate) struct BatchOptions {
    pub(crate) batch_size: usize,
    /// In another order each epoch, by the seed.
    pub(crate) shuffle: bool,
    pub(crate) transforms: Vec<Transform>,
    pub(crate) seed: u64,
    pub(crate) epoch: u64,
    /// Batches that are left out at the start.
    pub(crate) skipped: usize,
}

/// Some images on the device.
pub(crate) struct Batch {
    /// Float32 of shape `[count, channels, height, width]`.
    pub(crate) images: Tensor,
    pub(crate) classes: IndexTensor,
    /// The classes on the host.
    pub(crate) labels: Vec<i64>,
    /// The numbers of the images in their set.
    pub(crate) indices: Vec<usize>,
}

/// The batches of an epoch, made by a thread ahead of the loop that takes them.
pub(crate) fn batches(set: &ImageSet, queue: &Queue, options: BatchOptions) -> Result<OnDevice<Batch>> {
    let BatchOptions { batch_size, shuffle, transforms, seed, epoch, skipped } = options;
    // At most one batch that has all images.
    let batch_size = batch_size.clamp(1, set.len().max(1));
    let numbers = DataLoader::of(Numbers(set.len())).batch_size(batch_size).shuffle(shuffle).seed(seed);
    let loader = numbers.build_with(|indices, _| Ok(indices))?;
    let state = LoaderState { seed, epoch, samples: skipped.saturating_mul(batch_size) };
    let augment = Augment::new(Compose::new(transforms)?, seed);
    let (set, uploader) = (set.clone(), Uploader::new(queue));
    let ready = move |indices: Vec<usize>| {
        let [channels, height, width] = set.shape();
        let mut pixels = Vec::with_capacity(indices.len() * set.image_size());
        indices.iter().for_each(|&index| pixels.extend_from_slice(set.image(index)));
        let labels: Vec<i64> = indices.iter().map(|&index| i64::from(set.labels()[index])).collect();
        let pixels = Array::new(pixels, &[indices.len(), channels, height, width])?;
        let batch = uploader.upload(Sample::list([pixels.into(), Array::line(labels.clone()).into()]))?;
        let bytes = batch.tensor_at(0)?;
        arrived(bytes)?;
        let images = augment.apply(bytes, epoch, &indices)?.into();
        let classes = IndexTensor::from_tensor(batch.tensor_at(1)?.clone())?;
        Ok(Batch { images, classes, labels, indices })
    };
    Ok(OnDevice::with(loader.resume(state)?, ready)?)
}

/// Numbers of images instead of images: a batch is gathered at once, without a copy of each image before.
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
    use super::*;
    use netcl_data::transforms::Border;
    use netcl_data::{ImageSplits, Normalization};
    use netcl_nn::autograd::manager;

    fn options() -> BatchOptions {
        BatchOptions { batch_size: 4, shuffle: true, transforms: vec![], seed: 3, epoch: 5, skipped: 0 }
    }

    type Numbered = Vec<(usize, i64, Vec<f32>)>;

    /// Number, class and pixels of every image.
    fn all(options: BatchOptions) -> Numbered {
        let set = ImageSplits::digits().unwrap().truncated(10, 1).train;
        let mut images = Vec::new();
        for batch in batches(&set, &manager().cpu().queue, options).unwrap() {
            let Batch { images: tensor, classes, labels, indices } = batch.unwrap();
            assert_eq!(classes.to_host().unwrap(), labels);
            let pixels = tensor.to_host::<f32>().unwrap();
            images.extend(
                indices.into_iter().zip(labels).zip(pixels.chunks_exact(64)).map(|((i, l), p)| (i, l, p.to_vec())),
            );
        }
        images
    }

    #[test]
    fn every_image_comes_once_and_an_epoch_goes_on_where_it_was_left() {
        let set = ImageSplits::digits().unwrap().truncated(10, 1).train;
        let normalization = Normalization::of(&set);
        let first = all(BatchOptions { transforms: vec![normalization.transform(1)], ..options() });
        for (index, label, pixels) in &first {
            assert_eq!(*label, i64::from(set.labels()[*index]));
            let expected: Vec<f32> = set.image(*index).iter().map(|&pixel| normalization.apply(pixel)).collect();
            assert_eq!(*pixels, expected);
        }
        let order = |images: &Numbered| images.iter().map(|(index, ..)| *index).collect::<Vec<_>>();
        let mut sorted = order(&first);
        assert_ne!(sorted, (0..10).collect::<Vec<_>>());
        sorted.sort_unstable();
        assert_eq!(sorted, (0..10).collect::<Vec<_>>());
        let rest = all(BatchOptions { skipped: 2, ..options() });
        assert_eq!(order(&rest), order(&first)[8..]);
        assert!(all(BatchOptions { skipped: 3, ..options() }).is_empty());
        assert_ne!(order(&all(BatchOptions { epoch: 6, ..options() })), order(&first));
        assert_eq!(order(&all(BatchOptions { shuffle: false, ..options() })), (0..10).collect::<Vec<_>>());
        assert_eq!(all(BatchOptions { batch_size: usize::MAX, ..options() }).len(), 10);
    }

    #[test]
    fn changes_depend_on_the_image_and_not_on_its_place() {
        let transforms = || vec![Transform::Crop { size: [8, 8], padding: 2, border: Border::Constant(0.0) }];
        let sorted = |batch_size| {
            let mut images = all(BatchOptions { transforms: transforms(), batch_size, ..options() });
            images.sort_by_key(|(index, ..)| *index);
            images
        };
        assert_eq!(sorted(3), sorted(10));
        assert_ne!(all(BatchOptions { transforms: transforms(), ..options() }), all(options()));
    }
}
