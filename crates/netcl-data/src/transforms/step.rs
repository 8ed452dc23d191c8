//! Steps: what happens to one image, as plain numbers.

use super::image::Image;
use super::warp::Warp;
use super::{blur, color};

/// One change of an image. A list of them is all that a device needs to know to do the same.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// A geometric change.
    Warp(Warp),
    /// `factor x`, kept between 0 and 1.
    Brightness(f32),
    /// `factor x + (1 - factor) m`, kept between 0 and 1, with the mean `m` of `0.2989 r + 0.587 g + 0.114 b` over the image.
    Contrast(f32),
    /// `factor x + (1 - factor) g`, kept between 0 and 1, with the pixel's own grey.
    Saturation(f32),
    /// Turns the hue by a share of the circle.
    Hue(f32),
    /// Weighted means along rows and columns; the image is mirrored at its border.
    Blur(Vec<f32>),
    /// `factor x + (1 - factor) s`, kept between 0 and 1, with the mean `s` of 3x3 pixels of which the middle one counts five times; the
    /// outermost pixels stay.
    Sharpness(f32),
    /// `floor(x n) / n` for `n` of 2 to the power of the bits.
    Posterize(u32),
    /// `1 - x` where `x` is at least the threshold.
    Solarize(f32),
    /// Stretches each channel to 0 and 1.
    AutoContrast,
    /// Makes all values of a channel equally frequent, in 256 steps.
    Equalize,
    /// Writes a value into a rectangle of all channels.
    Erase {
        /// Top, left, height and width.
        rectangle: [usize; 4],
        /// What is written.
        value: f32,
    },
    /// `(x - mean) / deviation`.
    Normalize {
        /// The mean of each channel.
        mean: Vec<f32>,
        /// The deviation of each channel.
        deviation: Vec<f32>,
    },
}

impl Step {
    /// The image after one step.
    pub fn apply(&self, mut image: Image) -> Image {
        match self {
            Step::Warp(warp) => return warp.apply(&image),
            Step::Brightness(factor) => color::brightness(&mut image, *factor),
            Step::Contrast(factor) => color::contrast(&mut image, *factor),
            Step::Saturation(factor) => color::saturation(&mut image, *factor),
            Step::Hue(turn) => color::hue(&mut image, *turn),
            Step::Blur(weights) => blur::blur(&mut image, weights),
            Step::Sharpness(factor) => blur::sharpness(&mut image, *factor),
            Step::Posterize(bits) => color::posterize(&mut image, *bits),
            Step::Solarize(threshold) => color::solarize(&mut image, *threshold),
            Step::AutoContrast => color::autocontrast(&mut image),
            Step::Equalize => color::equalize(&mut image),
            Step::Erase { rectangle, value } => erase(&mut image, *rectangle, *value),
            Step::Normalize { mean, deviation } => {
                for ((plane, mean), deviation) in image.planes().zip(mean).zip(deviation) {
                    plane.iter_mut().for_each(|x| *x = (*x - mean) / deviation);
                }
            }
        }
        image
    }

    /// The image after all steps.
    pub fn apply_all(steps: &[Step], image: Image) -> Image {
        steps.iter().fold(image, |image, step| step.apply(image))
    }
}

fn erase(image: &mut Image, [top, left, height, width]: [usize; 4], value: f32) {
    let row_length = image.shape[2];
    for plane in image.planes() {
        for row in plane.chunks_exact_mut(row_length).skip(top).take(height) {
            row.iter_mut().skip(left).take(width).for_each(|x| *x = value);
        }
    }
}
