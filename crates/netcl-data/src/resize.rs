//! Resizing of pictures, bit for bit as Pillow does it.
//!
//! The rule: each new pixel is a weighted mean along the row and then along the column, rounded to 8 bits after each; the weights
//! are a triangle around the new pixel's centre that reaches one new pixel to either side when shrinking (antialiasing) and one
//! old one when enlarging. This is Pillow's `resize` with `BILINEAR`, and torchvision's with `antialias=True`. The crate
//! `fast_image_resize` is faster for large pictures, but off by 1 in places, and it doubled the time to build this crate.

use crate::decode::Pixels;
use crate::error::{Result, argument};

/// Which size pictures get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resize {
    /// `[height, width]`, whatever becomes of the proportions.
    Exact([usize; 2]),
    /// The shorter side gets this length, the longer one keeps the proportion (rounded down).
    Shorter(usize),
    /// `[height, width]` with the proportions kept: the middle of the picture that fills it.
    Cover([usize; 2]),
}

impl Resize {
    /// Height and width of the result for a picture.
    fn size(self, height: usize, width: usize) -> [usize; 2] {
        match self {
            Resize::Exact(size) | Resize::Cover(size) => size,
            Resize::Shorter(side) => {
                let long = |long: usize, short: usize| {
                    usize::try_from(side as u128 * long as u128 / short.max(1) as u128).unwrap_or(usize::MAX)
                };
                if height <= width { [side, long(width, height)] } else { [long(height, width), side] }
            }
        }
    }

    /// The resized picture.
    ///
    /// # Errors
    /// If a side would be 0, or the result would have more than `max_pixels` pixels.
    pub fn apply(self, pixels: Pixels, max_pixels: u64) -> Result<Pixels> {
        let [height, width] = self.size(pixels.height, pixels.width);
        // The rows are resized first: their number times the new width is what a very high picture needs in between.
        let most = height.max(pixels.height) as u128 * width as u128;
        if height == 0 || width == 0 || most > u128::from(max_pixels) {
            return argument(format!(
                "resize: {} x {} pixels cannot become {width} x {height}: sides must be above 0, and at most {max_pixels} \
                 pixels are allowed",
                pixels.width, pixels.height
            ));
        }
        if (height, width) == (pixels.height, pixels.width) {
            return Ok(pixels);
        }
        // The part of the picture that is used: all of it, or the middle that has the proportions of the result.
        let (mut rows, mut columns) = (pixels.height as f64, pixels.width as f64);
        if matches!(self, Resize::Cover(_)) {
            let scale = (rows / height as f64).min(columns / width as f64);
            (rows, columns) = (height as f64 * scale, width as f64 * scale);
        }
        let across = taps(pixels.width, columns, width);
        let down = taps(pixels.height, rows, height);
        let bytes = passes(&pixels, &across, &down);
        Ok(Pixels { width, height, channels: pixels.channels, bytes })
    }
}

/// The old pixels under a new one: the first of them, and the weight of each as a fixed-point number of [`BITS`] bits.
struct Taps {
    first: usize,
    weights: Vec<i32>,
}

/// What is left of 32 bits for a weight's fraction: 8 are the pixel's, 2 the sum's.
const BITS: u32 = 32 - 8 - 2;

/// For each of `new` pixels that share the middle `used` of `old` ones.
fn taps(old: usize, used: f64, new: usize) -> Vec<Taps> {
    let (scale, before) = (used / new as f64, (old as f64 - used) / 2.0);
    let reach = scale.max(1.0);
    let under = |i: usize| {
        let centre = before + (i as f64 + 0.5) * scale;
        let first = ((centre - reach + 0.5).max(0.0)) as usize;
        let end = ((centre + reach + 0.5) as usize).min(old);
        let weights: Vec<f64> =
            (first..end).map(|at| (1.0 - ((at as f64 - centre + 0.5) / reach).abs()).max(0.0)).collect();
        let sum: f64 = weights.iter().sum();
        let fixed = |weight: &f64| (weight / sum * f64::from(1 << BITS) + 0.5) as i32;
        Taps { first, weights: weights.iter().map(fixed).collect() }
    };
    (0..new).map(under).collect()
}

/// The nearest byte to a sum of weights and pixels.
fn rounded(sum: i32) -> u8 {
    (sum >> BITS).clamp(0, 255) as u8
}

/// Half of the lowest bit that stays, so that cutting off the fraction rounds.
const HALF: i32 = 1 << (BITS - 1);

/// Both passes, along rows and along columns.
fn passes(pixels: &Pixels, across: &[Taps], down: &[Taps]) -> Vec<u8> {
    // The instructions that every x86-64 has cannot multiply vectors of 32-bit numbers.
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        #[target_feature(enable = "avx2")]
        fn with_avx2(pixels: &Pixels, across: &[Taps], down: &[Taps]) -> Vec<u8> {
            portable(pixels, across, down)
        }
        // SAFETY: the processor was just asked whether it has these instructions.
        return unsafe { with_avx2(pixels, across, down) };
    }
    portable(pixels, across, down)
}

#[inline(always)]
fn portable(pixels: &Pixels, across: &[Taps], down: &[Taps]) -> Vec<u8> {
    let narrow =
        if pixels.channels == 1 { horizontal::<1, 1>(pixels, across) } else { horizontal::<3, 4>(pixels, across) };
    vertical(&narrow, across.len() * pixels.channels, down)
}

/// Pixels of `CHANNELS` bytes in vectors of `LANES`, the last of which may hold a byte that is no part of the pixel.
#[inline(always)]
fn horizontal<const CHANNELS: usize, const LANES: usize>(pixels: &Pixels, across: &[Taps]) -> Vec<u8> {
    let length = pixels.width * CHANNELS;
    let mut out = vec![0; pixels.height * across.len() * CHANNELS];
    // With room for the lane past the end of the last pixel.
    let mut padded = vec![0; length + LANES - CHANNELS];
    let new_rows = out.chunks_exact_mut(across.len() * CHANNELS);
    for (row, new) in pixels.bytes.chunks_exact(length).zip(new_rows) {
        padded[..length].copy_from_slice(row);
        for (taps, new) in across.iter().zip(new.chunks_exact_mut(CHANNELS)) {
            let mut sums = [HALF; LANES];
            let mut under = &padded[taps.first * CHANNELS..];
            for weight in &taps.weights {
                let Some(pixel) = under.first_chunk::<LANES>() else { break };
                for (sum, &value) in sums.iter_mut().zip(pixel) {
                    *sum += weight * i32::from(value);
                }
                under = &under[CHANNELS..];
            }
            new.copy_from_slice(&sums.map(rounded)[..CHANNELS]);
        }
    }
    out
}

/// Rows of `length` bytes; whole rows at a time, which compilers vectorise.
#[inline(always)]
fn vertical(bytes: &[u8], length: usize, down: &[Taps]) -> Vec<u8> {
    let mut out = Vec::with_capacity(length * down.len());
    let mut sums = vec![0; length];
    for taps in down {
        sums.fill(HALF);
        for (weight, row) in taps.weights.iter().zip(bytes[taps.first * length..].chunks_exact(length)) {
            for (sum, &value) in sums.iter_mut().zip(row) {
                *sum += weight * i32::from(value);
            }
        }
        out.extend(sums.iter().map(|&sum| rounded(sum)));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::MAX_PIXELS;

    fn picture() -> Pixels {
        let bytes = (0..35u32).map(|i| ((i * i * 7 + i * 13) % 256) as u8).collect();
        Pixels { width: 7, height: 5, channels: 1, bytes }
    }

    /// Made by Pillow 13.0:
    /// ```python
    /// a = np.array([(i * i * 7 + i * 13) % 256 for i in range(35)], np.uint8).reshape(5, 7)
    /// np.array(Image.fromarray(a).resize((width, height), Image.BILINEAR))
    /// ```
    #[test]
    fn pixels_are_those_of_pillow() {
        let cases: [([usize; 2], &[u8]); 3] = [
            ([3, 4], &[57, 84, 162, 131, 107, 180, 183, 181, 123, 133, 163, 116]),
            (
                [9, 6],
                &[
                    4, 31, 75, 137, 216, 105, 53, 48, 91, 142, 199, 98, 136, 75, 119, 150, 172, 87, 111, 145, 159, 172,
                    185, 153, 59, 226, 203, 197, 209, 238, 50, 163, 201, 176, 187, 162, 61, 111, 191, 163, 166, 101,
                    148, 100, 143, 177, 143, 95, 201, 93, 115, 185, 130, 92,
                ],
            ),
            ([1, 1], &[144]),
        ];
        for (size, expected) in cases {
            assert_eq!(Resize::Exact(size).apply(picture(), MAX_PIXELS).unwrap().bytes, expected, "{size:?}");
        }
    }

    #[test]
    fn channels_are_resized_as_if_they_were_alone_with_and_without_avx2() {
        let (width, height) = (13, 9);
        let value = |i: usize| (i * i * 31 + i * 7) as u8;
        let bytes: Vec<u8> = (0..3 * width * height).map(value).collect();
        let planes = Pixels { width, height, channels: 3, bytes: bytes.clone() };
        for size in [[4, 5], [20, 31], [9, 6]] {
            let whole = Resize::Exact(size).apply(planes.clone(), MAX_PIXELS).unwrap().bytes;
            let (across, down) = (taps(width, width as f64, size[1]), taps(height, height as f64, size[0]));
            assert_eq!(portable(&planes, &across, &down), whole);
            for channel in 0..3 {
                let alone = bytes.iter().skip(channel).step_by(3).copied().collect();
                let alone = Pixels { width, height, channels: 1, bytes: alone };
                let alone = Resize::Exact(size).apply(alone, MAX_PIXELS).unwrap().bytes;
                assert!(whole.iter().skip(channel).step_by(3).eq(&alone));
            }
        }
    }

    #[test]
    fn colours_keep_apart_and_proportions_are_kept() {
        let bytes = (0..8 * 4).flat_map(|i| [i as u8, 200, if i % 8 < 4 { 0 } else { 255 }]).collect();
        let wide = Pixels { width: 8, height: 4, channels: 3, bytes };
        let shorter = Resize::Shorter(2).apply(wide.clone(), MAX_PIXELS).unwrap();
        assert_eq!((shorter.height, shorter.width, shorter.bytes.len()), (2, 4, 24));
        assert!(shorter.bytes.chunks(3).all(|pixel| pixel[1] == 200));
        let cover = Resize::Cover([4, 4]).apply(wide.clone(), MAX_PIXELS).unwrap();
        let blue: Vec<u8> = cover.bytes.chunks(3).map(|pixel| pixel[2]).collect();
        assert_eq!(blue[..4], [0, 0, 255, 255], "the middle of the picture");
        assert_eq!(Resize::Exact([4, 8]).apply(wide.clone(), MAX_PIXELS).unwrap(), wide);
        for wrong in [Resize::Exact([0, 3]), Resize::Shorter(0), Resize::Exact([1 << 40, 1 << 40])] {
            assert!(wrong.apply(wide.clone(), MAX_PIXELS).unwrap_err().to_string().contains("resize: 8 x 4 pixels"));
        }
        let thin = Pixels { width: 1000, height: 1, channels: 1, bytes: vec![1; 1000] };
        assert!(Resize::Shorter(1_000_000).apply(thin, MAX_PIXELS).is_err());
        let high = Pixels { width: 1, height: 1000, channels: 1, bytes: vec![1; 1000] };
        assert!(Resize::Exact([1, 1000]).apply(high, 100_000).is_err());
    }
}
