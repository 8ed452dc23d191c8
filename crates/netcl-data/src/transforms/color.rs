//! Transforms of colours: formulas for each pixel, some with a number that is taken of the whole image first.
//!
//! The formulas are torchvision's for float images; results are kept between 0 and 1. Images of one channel have no saturation and
//! no hue.

use super::image::Image;

/// `x` between 0 and 1.
fn clamped(x: f32) -> f32 {
    x.clamp(0.0, 1.0)
}

/// What the eye sees of a colour, with torchvision's weights.
fn grey(red: f32, green: f32, blue: f32) -> f32 {
    0.2989 * red + 0.587 * green + 0.114 * blue
}

fn pointwise(image: &mut Image, change: impl Fn(f32) -> f32) {
    for pixel in &mut image.pixels {
        *pixel = change(*pixel);
    }
}

/// Changes the three colours of each pixel; images of one channel stay as they are.
fn per_color(image: &mut Image, change: impl Fn([f32; 3]) -> [f32; 3]) {
    if image.shape[0] != 3 {
        return;
    }
    let size = image.shape[1] * image.shape[2];
    for i in 0..size {
        let changed = change([image.pixels[i], image.pixels[i + size], image.pixels[i + 2 * size]]);
        for (channel, value) in changed.into_iter().enumerate() {
            image.pixels[i + channel * size] = value;
        }
    }
}

/// `factor x`.
pub(super) fn brightness(image: &mut Image, factor: f32) {
    pointwise(image, |x| clamped(factor * x));
}

/// `factor x + (1 - factor) mean`, where the mean is that of the grey image.
pub(super) fn contrast(image: &mut Image, factor: f32) {
    let size = image.shape[1] * image.shape[2];
    let pixels = &image.pixels;
    // A sum of whole numbers (24 bits after the point) is the same in any order, on every device.
    let fixed = |x: f32| (x.clamp(-64.0, 64.0) * (1 << 24) as f32).round_ties_even() as i64;
    let sum: i64 = match image.shape[0] {
        3 => (0..size).map(|i| fixed(grey(pixels[i], pixels[i + size], pixels[i + 2 * size]))).sum(),
        _ => pixels[..size].iter().copied().map(fixed).sum(),
    };
    let mean = sum as f32 / size as f32 / (1 << 24) as f32;
    pointwise(image, |x| clamped(factor * x + (1.0 - factor) * mean));
}

/// `factor x + (1 - factor) grey`, with the pixel's own grey.
pub(super) fn saturation(image: &mut Image, factor: f32) {
    per_color(image, |colors| {
        let grey = grey(colors[0], colors[1], colors[2]);
        colors.map(|x| clamped(factor * x + (1.0 - factor) * grey))
    });
}

/// Turns the colour wheel by a share of the circle.
pub(super) fn hue(image: &mut Image, turn: f32) {
    per_color(image, |[red, green, blue]| {
        let (most, least) = (red.max(green).max(blue), red.min(green).min(blue));
        let range = most - least;
        if range == 0.0 {
            return [red, green, blue];
        }
        // HSV's hue in sixths of the circle, from 0 to 6.
        let sixths = if most == red {
            (green - blue) / range
        } else if most == green {
            2.0 + (blue - red) / range
        } else {
            4.0 + (red - green) / range
        };
        let sixths = (sixths + 6.0 * turn).rem_euclid(6.0);
        // Each colour is a trapezoid over the circle: up for two sixths around its own place, down opposite.
        let color = |place: f32| {
            let distance = (sixths - place).abs();
            let distance = distance.min(6.0 - distance);
            least + range * clamped(2.0 - distance)
        };
        [color(0.0), color(2.0), color(4.0)]
    });
}

/// `1 - x` where `x` is at least the threshold.
pub(super) fn solarize(image: &mut Image, threshold: f32) {
    pointwise(image, |x| if x >= threshold { 1.0 - x } else { x });
}

/// `floor(x levels) / levels` with `2^bits` levels, the highest of which is below 1.
pub(super) fn posterize(image: &mut Image, bits: u32) {
    let levels = 2f32.powi(bits as i32);
    pointwise(image, |x| (x * levels).floor().clamp(0.0, levels - 1.0) / levels);
}

/// Stretches each channel from its least and largest value to 0 and 1; a channel of one value stays.
pub(super) fn autocontrast(image: &mut Image) {
    for plane in image.planes() {
        let least = plane.iter().copied().fold(f32::INFINITY, f32::min);
        let most = plane.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if most > least {
            let scale = 1.0 / (most - least);
            plane.iter_mut().for_each(|x| *x = clamped((*x - least) * scale));
        }
    }
}

/// Makes the values of each channel equally frequent, in 256 steps (`floor(255.999 x)`).
pub(super) fn equalize(image: &mut Image) {
    for plane in image.planes() {
        // torchvision's conversion of floats to bytes: 255 + 1 - 1e-3.
        let step_of = |x: f32| (clamped(x) * (256.0 - 1e-3)) as usize;
        let mut counts = [0usize; 256];
        for &x in plane.iter() {
            counts[step_of(x).min(255)] += 1;
        }
        let last = counts.iter().rposition(|&count| count > 0).map_or(0, |at| counts[at]);
        let step = (plane.len() - last) / 255;
        let mut below = 0;
        let table = counts.map(|count| {
            let value = (below + step / 2).checked_div(step).unwrap_or(0).min(255);
            below += count;
            value as f32 / 255.0
        });
        for x in plane {
            let at = step_of(*x).min(255);
            // Too few values to spread: only the rounding to bytes stays.
            *x = if step == 0 { at as f32 / 255.0 } else { table[at] };
        }
    }
}
