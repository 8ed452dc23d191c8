//! Small random changes of training images, so that a network sees none of them twice.

use crate::random::Random;

/// Which changes are made. The default is none.
///
/// What happens to an image depends only on the seed, the epoch and the image's number, not on the order of the images.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Augment {
    /// Shifts by up to this many pixels along each axis; what comes in is background.
    pub shift: usize,
    /// Turns by up to this many degrees about the centre, either way.
    pub rotate: f32,
    /// Shrinks or enlarges by up to this share: 0.1 is between 0.9 and 1.1.
    pub scale: f32,
    /// Mirrors every other image, left to right.
    pub flip: bool,
}

impl Augment {
    /// Whether nothing is changed.
    pub fn is_none(&self) -> bool {
        *self == Augment::default()
    }

    /// Writes a changed copy of an image of `[channels, height, width]` pixels.
    pub fn apply(&self, image: &[u8], shape: [usize; 3], random: &mut Random, out: &mut [u8]) {
        let [_, height, width] = shape;
        let mut even = |most: f32| (random.below(1 << 24) as f32 / (1 << 23) as f32 - 1.0) * most;
        let angle = even(self.rotate).to_radians();
        let scale = 1.0 + even(self.scale);
        let smooth = self.rotate != 0.0 || self.scale != 0.0;
        let reach = 2 * self.shift as u64 + 1;
        // Whole pixels keep strokes sharp; where the image is interpolated anyway there is nothing to keep.
        let mut shift = || {
            if smooth {
                (random.below(1 << 24) as f32 / (1 << 23) as f32 - 1.0) * self.shift as f32
            } else {
                random.below(reach) as f32 - self.shift as f32
            }
        };
        let (dy, dx) = (shift(), shift());
        let flip = self.flip && random.below(2) == 1;
        let (sin, cos) = (angle.sin() / scale, angle.cos() / scale);
        let (cy, cx) = ((height as f32 - 1.0) / 2.0, (width as f32 - 1.0) / 2.0);
        for (plane, target) in image.chunks_exact(height * width).zip(out.chunks_exact_mut(height * width)) {
            for (i, pixel) in target.iter_mut().enumerate() {
                let x = i % width;
                let (y, x) = ((i / width) as f32, if flip { width - 1 - x } else { x } as f32);
                // Backwards: where does this pixel come from?
                let (y, x) = (y - cy - dy, x - cx - dx);
                let (from_y, from_x) = (cos * y - sin * x + cy, sin * y + cos * x + cx);
                *pixel = sample(plane, height, width, from_y, from_x);
            }
        }
    }
}

/// The value between pixels, bilinear; background outside.
fn sample(plane: &[u8], height: usize, width: usize, y: f32, x: f32) -> u8 {
    let at = |y: f32, x: f32| {
        let inside = y >= 0.0 && x >= 0.0 && y < height as f32 && x < width as f32;
        if inside { f32::from(plane[y as usize * width + x as usize]) } else { 0.0 }
    };
    let (y0, x0) = (y.floor(), x.floor());
    let (fy, fx) = (y - y0, x - x0);
    let upper = at(y0, x0) * (1.0 - fx) + at(y0, x0 + 1.0) * fx;
    let lower = at(y0 + 1.0, x0) * (1.0 - fx) + at(y0 + 1.0, x0 + 1.0) * fx;
    (upper * (1.0 - fy) + lower * fy).round() as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: [u8; 9] = [0, 0, 0, 0, 200, 100, 0, 0, 0];

    fn changed(augment: Augment, seed: u64) -> [u8; 9] {
        let mut out = [7; 9];
        augment.apply(&IMAGE, [1, 3, 3], &mut Random::new(seed), &mut out);
        out
    }

    #[test]
    fn nothing_is_changed_unless_asked_for() {
        assert!(Augment::default().is_none());
        assert_eq!(changed(Augment::default(), 1), IMAGE);
    }

    #[test]
    fn shifts_move_whole_pixels_in_every_direction() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let image = changed(Augment { shift: 1, ..Default::default() }, seed);
            let bright = image.iter().position(|&pixel| pixel == 200).unwrap();
            assert_eq!(image.iter().filter(|&&pixel| pixel == 0).count(), if bright % 3 == 2 { 8 } else { 7 });
            seen.insert(bright);
        }
        assert_eq!(seen.len(), 9);
    }

    #[test]
    fn mirrored_images_are_every_other_one() {
        let mirrored = (0..400).filter(|&seed| changed(Augment { flip: true, ..Default::default() }, seed)[3] == 100);
        assert!((140..260).contains(&mirrored.count()));
    }

    #[test]
    fn turning_keeps_the_centre_and_moves_the_rest() {
        for seed in 0..20 {
            let image = changed(Augment { rotate: 30.0, ..Default::default() }, seed);
            assert_eq!(image[4], 200);
            assert!(image[5] <= 140, "{image:?}");
        }
        let bright = |image: [u8; 9]| image.iter().map(|&pixel| u32::from(pixel)).sum::<u32>();
        let sums: Vec<u32> =
            (0..40).map(|s| bright(changed(Augment { scale: 0.4, ..Default::default() }, s))).collect();
        assert!(sums.iter().any(|&sum| sum > 320) && sums.iter().any(|&sum| sum < 290), "{sums:?}");
    }
}
