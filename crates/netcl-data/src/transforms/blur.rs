//! Blurring and sharpening.

use super::image::Image;
use super::warp::Border;

/// The weights of a Gaussian of an odd number of taps: `exp(-(i / sigma)^2 / 2)`, made to add up to 1.
pub fn gaussian(taps: usize, sigma: f64) -> Vec<f32> {
    let centre = (taps as f64 - 1.0) / 2.0;
    let weights: Vec<f64> = (0..taps).map(|i| (-0.5 * ((i as f64 - centre) / sigma).powi(2)).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| (weight / sum) as f32).collect()
}

/// Weighted means along rows, then along columns; the image is mirrored at its border ([`Border::Reflect`]).
pub(super) fn blur(image: &mut Image, weights: &[f32]) {
    let [_, height, width] = image.shape;
    let reach = (weights.len() / 2) as i64;
    let mut along = vec![0.0; height * width];
    for plane in image.planes() {
        for row in 0..height {
            for column in 0..width {
                let taps = weights.iter().zip(column as i64 - reach..);
                let sum = |(weight, at): (&f32, i64)| weight * plane[row * width + reflected(at, width)];
                along[row * width + column] = taps.map(sum).sum();
            }
        }
        for row in 0..height {
            for column in 0..width {
                let taps = weights.iter().zip(row as i64 - reach..);
                let sum = |(weight, at): (&f32, i64)| weight * along[reflected(at, height) * width + column];
                plane[row * width + column] = taps.map(sum).sum();
            }
        }
    }
}

fn reflected(at: i64, length: usize) -> usize {
    Border::Reflect.place(at, length).unwrap_or(0)
}

/// `factor x + (1 - factor) smooth` between 0 and 1, where `smooth` is the mean of the 3x3 pixels around with weight 5 for the
/// middle one and 1 for the others; the outermost pixels stay.
pub(super) fn sharpness(image: &mut Image, factor: f32) {
    let [_, height, width] = image.shape;
    for plane in image.planes() {
        let old = plane.to_vec();
        for row in 1..height.saturating_sub(1) {
            for column in 1..width.saturating_sub(1) {
                let around = |y: usize| old[y * width + column - 1..=y * width + column + 1].iter().sum::<f32>();
                let middle = old[row * width + column];
                let smooth = (around(row - 1) + around(row) + around(row + 1) + 4.0 * middle) / 13.0;
                plane[row * width + column] = factor * middle + (1.0 - factor) * smooth;
            }
        }
        plane.iter_mut().for_each(|x| *x = x.clamp(0.0, 1.0));
    }
}
