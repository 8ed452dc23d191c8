//! Geometric transforms: an affine map from the new image to the old one, and bilinear sampling.

use super::image::Image;

/// What is outside of an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Border {
    /// A colour.
    Constant(f32),
    /// The nearest pixel.
    Edge,
    /// The image mirrored at its outermost pixels, which do not repeat: `c b | a b c | b a`.
    Reflect,
}

/// An affine map of coordinates: `x' = m[0] x + m[1] y + m[2]`, `y' = m[3] x + m[4] y + m[5]`.
///
/// Coordinates are continuous, x to the right and y down: the pixel in column `i` reaches from `i` to `i + 1`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Affine(pub [f64; 6]);

impl Affine {
    /// The map that changes nothing.
    pub const IDENTITY: Affine = Affine([1.0, 0.0, 0.0, 0.0, 1.0, 0.0]);

    /// This map after another one.
    pub fn after(self, first: Affine) -> Affine {
        let ([a, b, c, d, e, f], [p, q, r, s, t, u]) = (self.0, first.0);
        Affine([a * p + b * s, a * q + b * t, a * r + b * u + c, d * p + e * s, d * q + e * t, d * r + e * u + f])
    }
}

/// One sampling of an image: pixel `(x, y)` of the new image has the value of the old one at `map(x, y)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Warp {
    /// From the new image to the old one.
    pub map: Affine,
    /// Height and width of the new image.
    pub size: [usize; 2],
    /// What is outside of the old image.
    pub border: Border,
}

/// The bits after the point of fixed-point coordinates.
pub const FRACTION: u32 = 32;

/// The largest side of an image, factor of a map and shift of a map: with them no fixed-point coordinate overflows.
pub(super) const LARGEST_SIDE: usize = 1 << 16;
const LARGEST_FACTOR: f64 = (1 << 12) as f64;
const LARGEST_SHIFT: f64 = (1 << 24) as f64;

impl Warp {
    /// The map for whole numbers of pixels, in fixed point with [`FRACTION`] bits: the pixel in row `r` and column `c` is sampled
    /// at column `m[0] c + m[1] r + m[2]` and row `m[3] c + m[4] r + m[5]`, where whole numbers are centres of pixels.
    ///
    /// Whole-number arithmetic has no rounding, so every device samples at exactly the same places. Flips and crops by whole pixels
    /// hit the centres, and their pixels are copies.
    pub fn fixed(&self) -> [i64; 6] {
        let [a, b, c, d, e, f] = self.map.0;
        let fixed =
            |value: f64, largest: f64| (value.clamp(-largest, largest) * (1u64 << FRACTION) as f64).round() as i64;
        let factor = |value| fixed(value, LARGEST_FACTOR);
        // From the pixel's corner to its centre in the new image, and back in the old one.
        let shift = |x: f64, y: f64, shift: f64| fixed(0.5 * (x + y) + shift - 0.5, LARGEST_SHIFT);
        [factor(a), factor(b), shift(a, b, c), factor(d), factor(e), shift(d, e, f)]
    }

    /// The new image.
    ///
    /// A value is `(1 - fy) ((1 - fx) p00 + fx p01) + fy ((1 - fx) p10 + fx p11)` of the four pixels around the place, where `fx` and
    /// `fy` are the first 24 bits after the point; pixels outside are those of the border.
    pub fn apply(&self, image: &Image) -> Image {
        let [channels, old_height, old_width] = image.shape;
        let [height, width] = self.size;
        let map = self.fixed();
        if let Some(pixels) = self.copied(image, map) {
            return Image { shape: [channels, height, width], pixels };
        }
        let mut pixels = vec![0.0; channels * height * width];
        let (old_size, size) = (old_height * old_width, height * width);
        for row in 0..height as i64 {
            for column in 0..width as i64 {
                let x = map[0] * column + map[1] * row + map[2];
                let y = map[3] * column + map[4] * row + map[5];
                let ((x, fx), (y, fy)) = (split(x), split(y));
                let at = row as usize * width + column as usize;
                let mix = |[a, b, c, d]: [f32; 4]| {
                    let (upper, lower) = ((1.0 - fx) * a + fx * b, (1.0 - fx) * c + fx * d);
                    (1.0 - fy) * upper + fy * lower
                };
                let planes = image.pixels.chunks_exact(old_size).zip(pixels.chunks_exact_mut(size));
                if x >= 0 && y >= 0 && x + 1 < old_width as i64 && y + 1 < old_height as i64 {
                    // Nearly always: all four pixels are inside. Whole pixels need no arithmetic.
                    let first = y as usize * old_width + x as usize;
                    if fx == 0.0 && fy == 0.0 {
                        planes.for_each(|(old, new)| new[at] = old[first]);
                        continue;
                    }
                    for (old, new) in planes {
                        let [upper, lower] = [first, first + old_width].map(|at| &old[at..at + 2]);
                        new[at] = mix([upper[0], upper[1], lower[0], lower[1]]);
                    }
                } else {
                    let place = |dy: i64, dx: i64| {
                        Some(
                            self.border.place(y + dy, old_height)? * old_width
                                + self.border.place(x + dx, old_width)?,
                        )
                    };
                    let places = [place(0, 0), place(0, 1), place(1, 0), place(1, 1)];
                    let outside = if let Border::Constant(value) = self.border { value } else { 0.0 };
                    for (old, new) in planes {
                        new[at] = mix(places.map(|place| place.map_or(outside, |place| old[place])));
                    }
                }
            }
        }
        Image { shape: [channels, height, width], pixels }
    }

    /// Crops and flips: every new pixel is an old one or the border's, so rows are copied. Ten times as fast as sampling.
    fn copied(&self, image: &Image, map: [i64; 6]) -> Option<Vec<f32>> {
        const ONE: i64 = 1 << FRACTION;
        let [a, b, c, d, e, f] = map;
        if (b, d) != (0, 0) || a.abs() != ONE || e.abs() != ONE || c % ONE != 0 || f % ONE != 0 {
            return None;
        }
        let [channels, old_height, old_width] = image.shape;
        let [height, width] = self.size;
        let places = |factor: i64, shift: i64, new: usize, old: usize| -> Vec<Option<usize>> {
            (0..new as i64).map(|at| self.border.place((factor * at + shift) >> FRACTION, old)).collect()
        };
        let (rows, columns) = (places(e, f, height, old_height), places(a, c, width, old_width));
        let left = usize::try_from(c / ONE).ok().filter(|left| a == ONE && left + width <= old_width);
        let outside = if let Border::Constant(value) = self.border { value } else { 0.0 };
        let mut pixels = Vec::with_capacity(channels * height * width);
        for plane in image.pixels.chunks_exact(old_height * old_width) {
            for row in &rows {
                let Some(row) = row else {
                    pixels.resize(pixels.len() + width, outside);
                    continue;
                };
                let old = &plane[row * old_width..][..old_width];
                match left {
                    Some(left) => pixels.extend_from_slice(&old[left..left + width]),
                    None => pixels.extend(columns.iter().map(|column| column.map_or(outside, |column| old[column]))),
                }
            }
        }
        Some(pixels)
    }
}

/// The whole number below a fixed-point coordinate and what it is above it.
fn split(coordinate: i64) -> (i64, f32) {
    let fraction = (coordinate & ((1 << FRACTION) - 1)) >> (FRACTION - 24);
    (coordinate >> FRACTION, fraction as f32 / (1 << 24) as f32)
}

impl Border {
    /// Which pixel of an axis has the value at a place; none outside of a constant border.
    pub(super) fn place(self, at: i64, length: usize) -> Option<usize> {
        let length = length as i64;
        let place = match self {
            Border::Constant(_) => return (0..length).contains(&at).then_some(at as usize),
            Border::Edge => at.clamp(0, length - 1),
            Border::Reflect => {
                let period = (2 * (length - 1)).max(1);
                let place = at.rem_euclid(period);
                place.min(period - place)
            }
        };
        Some(place.clamp(0, length - 1) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> Image {
        Image::new((0..12).map(|i| i as f32 * 0.1).collect(), [2, 2, 3]).unwrap()
    }

    fn warped(map: [f64; 6], size: [usize; 2], border: Border) -> Vec<f32> {
        Warp { map: Affine(map), size, border }.apply(&image()).pixels
    }

    #[test]
    fn whole_pixels_are_copied() {
        let zero = Border::Constant(0.0);
        assert_eq!(warped(Affine::IDENTITY.0, [2, 3], zero), image().pixels);
        let p = image().pixels;
        assert_eq!(warped([-1.0, 0.0, 3.0, 0.0, 1.0, 0.0], [2, 3], zero)[..3], [p[2], p[1], p[0]]);
        assert_eq!(warped([1.0, 0.0, 1.0, 0.0, 1.0, 1.0], [1, 2], zero), [p[4], p[5], p[10], p[11]]);
        // A quarter turn.
        assert_eq!(warped([0.0, 1.0, 0.0, -1.0, 0.0, 2.0], [3, 2], zero)[..6], [p[3], p[0], p[4], p[1], p[5], p[2]]);
    }

    #[test]
    fn borders_are_what_they_say() {
        let line = Image::new(vec![1.0, 2.0, 3.0], [1, 1, 3]).unwrap();
        let padded =
            |border| Warp { map: Affine([1.0, 0.0, -4.0, 0.0, 1.0, 0.0]), size: [1, 11], border }.apply(&line).pixels;
        assert_eq!(padded(Border::Constant(9.0)), [9.0, 9.0, 9.0, 9.0, 1.0, 2.0, 3.0, 9.0, 9.0, 9.0, 9.0]);
        assert_eq!(padded(Border::Edge), [1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 3.0, 3.0, 3.0, 3.0, 3.0]);
        assert_eq!(padded(Border::Reflect), [1.0, 2.0, 3.0, 2.0, 1.0, 2.0, 3.0, 2.0, 1.0, 2.0, 3.0]);
        let dot = Image::new(vec![5.0], [1, 1, 1]).unwrap();
        let warp = Warp { map: Affine([1.0, 0.0, -1.0, 0.0, 1.0, 7.0]), size: [1, 3], border: Border::Reflect };
        assert_eq!(warp.apply(&dot).pixels, [5.0; 3]);
    }

    #[test]
    fn maps_compose() {
        let (shift, flip) = (Affine([1.0, 0.0, 2.0, 0.0, 1.0, 0.0]), Affine([-1.0, 0.0, 5.0, 0.0, 1.0, 0.0]));
        assert_eq!(flip.after(shift), Affine([-1.0, 0.0, 3.0, 0.0, 1.0, 0.0]));
        assert_eq!(shift.after(flip), Affine([-1.0, 0.0, 7.0, 0.0, 1.0, 0.0]));
        let wild =
            Warp { map: Affine([f64::MAX, f64::NAN, 1e300, -1e300, 0.0, 0.0]), size: [1, 1], border: Border::Edge };
        assert_eq!(wild.apply(&image()).pixels.len(), 2);
    }
}
