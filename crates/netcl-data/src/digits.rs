//! The digits that come with netcl: 1,797 handwritten digits of 8x8 pixels.
//!
//! E. Alpaydin, C. Kaynak: *Optical Recognition of Handwritten Digits* (1998), UCI Machine Learning Repository,
//! <https://doi.org/10.24432/C50P49>, licensed under CC BY 4.0. This is the data set's test part, as scikit-learn
//! distributes it; the crate's README says more.

use std::path::Path;

use crate::error::{Error, Result};
use crate::idx;
use crate::images::{ImageSet, ImageSplits};
use crate::random::Random;

/// Who made the digits, and under which licence they are.
pub const ATTRIBUTION: &str = "Optical Recognition of Handwritten Digits, E. Alpaydin and C. Kaynak (1998), \
                               UCI Machine Learning Repository, https://doi.org/10.24432/C50P49, CC BY 4.0";

const IMAGES: &[u8] = include_bytes!("../data/digits-images-idx3-ubyte.gz");
const LABELS: &[u8] = include_bytes!("../data/digits-labels-idx1-ubyte.gz");

/// Images kept for testing: a fifth.
const TEST: usize = 360;
/// Decides which images these are, the same for everyone, whatever the seed of a run.
const SPLIT_SEED: u64 = 0;
/// The largest value of a pixel in the file.
const BRIGHTEST: u32 = 16;

impl ImageSplits {
    /// The handwritten digits of [`digits`](crate::digits), 1,437 to train with and 360 to test with. The pixels are stretched
    /// from 0..=16 to 0..=255.
    pub fn digits() -> Result<ImageSplits> {
        let images = idx::parse(Path::new("the embedded images"), IMAGES)?;
        let labels = idx::parse(Path::new("the embedded labels"), LABELS)?;
        let &[_, height, width] = images.shape() else {
            let what = format!("the images have {} axes", images.shape().len());
            return Err(Error::Mismatch { place: "the embedded digits".to_owned(), what });
        };
        let pixels =
            images.bytes().iter().map(|&v| ((u32::from(v) * 255 + BRIGHTEST / 2) / BRIGHTEST).min(255) as u8).collect();
        let all = ImageSet::new("the embedded digits", pixels, idx::bytes(labels), [1, height, width])?;
        // The file is sorted by writer, and each wrote the same form: neither its end nor every fifth image is a fair sample.
        let order = Random::new(SPLIT_SEED).permutation(all.len());
        let (test, train) = order.split_at(TEST.min(all.len()));
        ImageSplits::new(
            "digits",
            all.select(train),
            all.select(test),
            (0..10).map(|digit| digit.to_string()).collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digits_are_all_there_and_every_class_is_tested() {
        let digits = ImageSplits::digits().unwrap();
        assert_eq!((digits.train.len(), digits.test.len(), digits.train.shape()), (1437, 360, [1, 8, 8]));
        let count = |set: &ImageSet, digit: u8| set.labels().iter().filter(|&&label| label == digit).count();
        // As the data set's description says.
        let expected = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180];
        for (digit, expected) in expected.into_iter().enumerate() {
            let digit = digit as u8;
            assert_eq!(count(&digits.train, digit) + count(&digits.test, digit), expected);
            assert!(count(&digits.test, digit) >= 25, "{digit}: {}", count(&digits.test, digit));
        }
        assert_eq!(digits.train.pixels().iter().max(), Some(&255));
        // The sum of all pixels in scikit-learn's copy.
        let sum: u64 = [&digits.train, &digits.test]
            .iter()
            .flat_map(|set| set.pixels())
            .map(|&v| (u64::from(v) * 16 + 127) / 255)
            .sum();
        assert_eq!(sum, 561_718);
    }
}
