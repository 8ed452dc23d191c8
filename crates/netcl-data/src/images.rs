//! Images with labels, in memory.

use std::sync::Arc;

use crate::array::Array;
use crate::dataset::{Dataset, element};
use crate::error::{Error, Result};
use crate::sample::Sample;

/// Images of one size with a class each.
///
/// Pixels are bytes from 0 (background) to 255 (ink), image by image, channel by channel, row by row. Clones share them, so that a loader
/// can have its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageSet {
    pixels: Arc<Vec<u8>>,
    labels: Arc<Vec<u8>>,
    shape: [usize; 3],
}

impl ImageSet {
    /// Images of shape `[channels, height, width]` with their labels; `place` is where they come from, for errors.
    ///
    /// # Errors
    /// If there is no image, an image has no pixel, or the numbers of pixels and labels do not fit.
    pub fn new(place: &str, pixels: Vec<u8>, labels: Vec<u8>, shape: [usize; 3]) -> Result<ImageSet> {
        let mismatch = |what: String| Err(Error::Mismatch { place: place.to_owned(), what });
        let size = shape.iter().try_fold(1usize, |size, &length| size.checked_mul(length)).unwrap_or(usize::MAX);
        if labels.is_empty() || size == 0 {
            return mismatch(format!("there are {} images of {shape:?} pixels; both must be above 0", labels.len()));
        }
        if Some(pixels.len()) != labels.len().checked_mul(size) {
            return mismatch(format!("there are {} images but {} labels", pixels.len() / size, labels.len()));
        }
        Ok(ImageSet { pixels: pixels.into(), labels: labels.into(), shape })
    }

    /// The number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are none; never true.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Channels, height and width of an image.
    pub fn shape(&self) -> [usize; 3] {
        self.shape
    }

    /// The number of pixels of an image, over all channels.
    pub fn image_size(&self) -> usize {
        self.shape.iter().product()
    }

    /// The pixels of an image; none for a number out of range.
    pub fn image(&self, index: usize) -> &[u8] {
        let size = self.image_size();
        self.pixels.get(index.saturating_mul(size)..index.saturating_add(1).saturating_mul(size)).unwrap_or_default()
    }

    /// All pixels.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// The classes of all images.
    pub fn labels(&self) -> &[u8] {
        &self.labels
    }

    /// The images of some numbers, in that order.
    pub(crate) fn select(&self, indices: &[usize]) -> ImageSet {
        let pixels: Vec<u8> = indices.iter().flat_map(|&i| self.image(i)).copied().collect();
        let labels: Vec<u8> = indices.iter().filter_map(|&i| self.labels.get(i)).copied().collect();
        ImageSet { pixels: pixels.into(), labels: labels.into(), shape: self.shape }
    }
}

/// Samples are lists of the image (bytes of shape `[channels, height, width]`) and its label (int64).
impl Dataset for ImageSet {
    type Item = Sample;

    fn len(&self) -> usize {
        self.labels.len()
    }

    fn get(&self, index: usize) -> Result<Sample> {
        let label = element(&self.labels, index)?;
        let image = Array::new(self.image(index).to_vec(), &self.shape)?;
        Ok(Sample::list([image.into(), i64::from(label).into()]))
    }
}

/// Images to train with, images to test with, and what their classes are called.
///
/// [`ImageSplits::digits`] comes with this crate; [`catalog::load`](crate::catalog::load) finds others on the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageSplits {
    /// The name by which it was asked for.
    pub name: String,
    /// What to train with.
    pub train: ImageSet,
    /// What to test with.
    pub test: ImageSet,
    /// The names of the classes, in the order of their labels.
    pub classes: Vec<String>,
}

impl ImageSplits {
    /// Joins two sets of images.
    ///
    /// # Errors
    /// If their images differ in shape, or a label has no class; the message names the image.
    pub fn new(name: &str, train: ImageSet, test: ImageSet, classes: Vec<String>) -> Result<ImageSplits> {
        let mismatch = |what: String| Err(Error::Mismatch { place: name.to_owned(), what });
        if train.shape != test.shape {
            return mismatch(format!(
                "images to train with have shape {:?}, images to test with {:?}",
                train.shape, test.shape
            ));
        }
        for (part, set) in [("train", &train), ("test", &test)] {
            let wrong = set.labels.iter().enumerate().find(|(_, label)| usize::from(**label) >= classes.len());
            if let Some((index, label)) = wrong {
                return mismatch(format!(
                    "label {label} of {part} image {index} is out of range: there are {} classes",
                    classes.len()
                ));
            }
        }
        Ok(ImageSplits { name: name.to_owned(), train, test, classes })
    }

    /// Only the first images of both parts, for short runs; at least one of each.
    pub fn truncated(mut self, train: usize, test: usize) -> ImageSplits {
        for (set, count) in [(&mut self.train, train), (&mut self.test, test)] {
            let count = count.clamp(1, set.len());
            if count < set.len() {
                let size = set.image_size();
                Arc::make_mut(&mut set.pixels).truncate(count * size);
                Arc::make_mut(&mut set.labels).truncate(count);
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(labels: &[u8], shape: [usize; 3]) -> ImageSet {
        ImageSet::new("here", vec![1; labels.len() * shape.iter().product::<usize>()], labels.to_vec(), shape).unwrap()
    }

    #[test]
    fn parts_that_do_not_fit_are_refused_with_a_reason() {
        let error = |result: Result<ImageSet>| result.unwrap_err().to_string();
        assert_eq!(error(ImageSet::new("a", vec![0; 8], vec![1], [1, 2, 2])), "a: there are 2 images but 1 labels");
        assert!(error(ImageSet::new("a", vec![], vec![], [1, 2, 2])).contains("above 0"));
        assert!(error(ImageSet::new("a", vec![], vec![1], [1, 0, 2])).contains("above 0"));

        let classes = vec!["x".to_owned(), "y".to_owned()];
        let joined = |train, test| ImageSplits::new("pair", train, test, classes.clone());
        let text = joined(set(&[0, 1], [1, 2, 2]), set(&[1, 2], [1, 2, 2])).unwrap_err().to_string();
        assert_eq!(text, "pair: label 2 of test image 1 is out of range: there are 2 classes");
        let text = joined(set(&[0], [1, 2, 2]), set(&[1], [1, 2, 3])).unwrap_err().to_string();
        assert!(text.contains("[1, 2, 2]") && text.contains("[1, 2, 3]"), "{text}");
        let cut = joined(set(&[0, 1, 0], [1, 2, 2]), set(&[1], [1, 2, 2])).unwrap().truncated(2, 9);
        assert_eq!((cut.train.len(), cut.train.pixels().len(), cut.test.len()), (2, 8, 1));
        let sample = cut.train.get(1).unwrap();
        assert_eq!(sample.get(1).and_then(Sample::array).unwrap().slice(), Some(&[1i64][..]));
        assert!(cut.train.get(2).is_err());
        assert_eq!((cut.train.image(1).len(), cut.train.image(2).len()), (4, 0));
    }
}
