//! Pixels as numbers that a network takes.

use crate::images::ImageSet;
use crate::transforms::Transform;

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

    /// The transform that does the same to an image of some channels, whose bytes are divided by 255 as in every
    /// [`Image`](crate::transforms::Image).
    pub fn transform(&self, channels: usize) -> Transform {
        Transform::Normalize { mean: vec![self.mean; channels], deviation: vec![self.deviation; channels] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::transforms::{Compose, Image};

    #[test]
    fn normalised_pixels_have_mean_zero_and_deviation_one() {
        let pixels: Vec<u8> = (0..10).flat_map(|i| [i * 10, 255]).collect();
        let set = ImageSet::new("test", pixels.clone(), (0..10).collect(), [1, 1, 2]).unwrap();
        let normalization = Normalization::of(&set);
        let inputs: Vec<f32> = pixels.iter().map(|&pixel| normalization.apply(pixel)).collect();
        let mean = inputs.iter().sum::<f32>() / 20.0;
        let variance = inputs.iter().map(|x| x * x).sum::<f32>() / 20.0;
        assert!(mean.abs() < 1e-5 && (variance - 1.0).abs() < 1e-4, "{mean} {variance}");
        let flat = ImageSet::new("flat", vec![9; 4], vec![0, 0], [1, 1, 2]).unwrap();
        assert_eq!(Normalization::of(&flat).apply(9), 0.0);
        let image = Image::new(pixels.iter().map(|&pixel| f32::from(pixel) / 255.0).collect(), [2, 2, 5]).unwrap();
        let compose = Compose::new(vec![normalization.transform(2)]).unwrap();
        assert_eq!(compose.apply(image, &mut Random::new(0)).unwrap().pixels(), inputs);
    }
}
