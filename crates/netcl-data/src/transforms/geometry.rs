//! Which map a geometric transform is.

use super::step::Step;
use super::warp::{Affine, Border, Warp};
use crate::random::Random;

/// Adds a map to the steps: to the last one if that is a map with the same border.
pub(super) fn add(steps: &mut Vec<Step>, shape: &mut [usize; 3], warp: Warp) {
    [shape[1], shape[2]] = warp.size;
    match steps.last_mut() {
        Some(Step::Warp(last)) if last.border == warp.border => {
            *last = Warp { map: last.map.after(warp.map), ..warp };
        }
        // Mirroring needs no border, so it takes that of the map before it.
        Some(Step::Warp(last)) if warp.is_flip() && warp.size == last.size => last.map = last.map.after(warp.map),
        _ => steps.push(Step::Warp(warp)),
    }
}

impl Warp {
    /// Whether every pixel of an image of the same size is moved to a pixel of it.
    fn is_flip(&self) -> bool {
        let [a, b, c, d, e, f] = self.map.0;
        let axis = |factor: f64, shift: f64, length: usize| {
            (factor, shift) == (1.0, 0.0) || (factor, shift) == (-1.0, length as f64)
        };
        (b, d) == (0.0, 0.0) && axis(a, c, self.size[1]) && axis(e, f, self.size[0])
    }
}

const BLACK: Border = Border::Constant(0.0);

/// Mirrored left and right, or top and bottom.
pub(super) fn mirrored(shape: [usize; 3], horizontally: bool) -> Warp {
    let [_, height, width] = shape;
    let map =
        if horizontally { [-1.0, 0.0, width as f64, 0.0, 1.0, 0.0] } else { [1.0, 0.0, 0.0, 0.0, -1.0, height as f64] };
    Warp { map: Affine(map), size: [height, width], border: BLACK }
}

/// A part of the size at a place.
fn part_at(left: f64, top: f64, size: [usize; 2], border: Border) -> Warp {
    Warp { map: Affine([1.0, 0.0, left, 0.0, 1.0, top]), size, border }
}

pub(super) fn center_crop(shape: [usize; 3], size: [usize; 2]) -> Warp {
    // Whole pixels: half of an odd rest is rounded as torchvision does it, to the even number.
    let middle = |old: usize, new: usize| ((old as f64 - new as f64) / 2.0).round_ties_even();
    part_at(middle(shape[2], size[1]), middle(shape[1], size[0]), size, BLACK)
}

pub(super) fn crop(shape: [usize; 3], size: [usize; 2], padding: usize, border: Border, random: &mut Random) -> Warp {
    // A part larger than the padded image is put anywhere so that it contains all of it.
    let mut place = |old: usize, new: usize| {
        let room = (old + 2 * padding) as i64 - new as i64;
        let shift = random.below(room.unsigned_abs() + 1) as i64;
        (if room < 0 { -shift } else { shift } - padding as i64) as f64
    };
    let top = place(shape[1], size[0]);
    let left = place(shape[2], size[1]);
    part_at(left, top, size, border)
}

/// The top, left, height and width of a random part with a share of the area and a width per height, as torchvision draws it: ten
/// times, then none.
pub(super) fn part(
    [height, width]: [usize; 2],
    area: (f64, f64),
    ratio: (f64, f64),
    random: &mut Random,
) -> Option<[usize; 4]> {
    for _ in 0..10 {
        let target = (height * width) as f64 * random.between(area.0, area.1);
        let ratio = random.between(ratio.0.ln(), ratio.1.ln()).exp();
        let (w, h) = ((target * ratio).sqrt().round() as usize, (target / ratio).sqrt().round() as usize);
        if (1..=width).contains(&w) && (1..=height).contains(&h) {
            let top = random.below((height - h) as u64 + 1) as usize;
            let left = random.below((width - w) as u64 + 1) as usize;
            return Some([top, left, h, w]);
        }
    }
    None
}

pub(super) fn resized_crop(
    shape: [usize; 3],
    size: [usize; 2],
    area: (f64, f64),
    ratio: (f64, f64),
    random: &mut Random,
) -> Warp {
    let [_, height, width] = shape;
    let part = part([height, width], area, ratio, random).unwrap_or_else(|| {
        // The largest part in the middle whose proportions are allowed.
        let now = width as f64 / height as f64;
        let allowed = now.clamp(ratio.0, ratio.1);
        let w = if now > allowed { (height as f64 * allowed).round() as usize } else { width };
        let h = if now < allowed { (width as f64 / allowed).round() as usize } else { height };
        let (w, h) = (w.clamp(1, width), h.clamp(1, height));
        [(height - h) / 2, (width - w) / 2, h, w]
    });
    stretched(part, size)
}

/// A part, given by top, left, height and width, stretched to a size.
pub(super) fn stretched([top, left, height, width]: [usize; 4], size: [usize; 2]) -> Warp {
    let (x, y) = (width as f64 / size[1] as f64, height as f64 / size[0] as f64);
    Warp { map: Affine([x, 0.0, left as f64, 0.0, y, top as f64]), size, border: Border::Edge }
}

/// A turn (clockwise), a shear, a scaling and a shift, about the centre or the upper left corner.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    pub(super) degrees: f64,
    /// In pixels, to the right and down.
    pub(super) translate: [f64; 2],
    pub(super) scale: f64,
    /// Degrees along x and y.
    pub(super) shear: [f64; 2],
    pub(super) corner: bool,
}

impl Default for Turn {
    /// Changes nothing.
    fn default() -> Turn {
        Turn { degrees: 0.0, translate: [0.0; 2], scale: 1.0, shear: [0.0; 2], corner: false }
    }
}

impl Turn {
    /// The map from the turned image back. An image is turned, sheared and scaled by the matrix
    /// `[cos(r - s) / cos s, -cos(r - s) tan t / cos s - sin r; sin(r - s) / cos s, -sin(r - s) tan t / cos s + cos r] scale`
    /// for the angle `r` and the shears `t` along x and `s` along y, as in torchvision; this is its inverse (its determinant is
    /// `scale^2`).
    pub(super) fn warp(&self, shape: [usize; 3], border: Border) -> Warp {
        let [_, height, width] = shape;
        let (r, t, s) = (self.degrees.to_radians(), self.shear[0].to_radians(), self.shear[1].to_radians());
        let a = (r - s).cos() / s.cos();
        let b = -(r - s).cos() * t.tan() / s.cos() - r.sin();
        let c = (r - s).sin() / s.cos();
        let d = -(r - s).sin() * t.tan() / s.cos() + r.cos();
        let inverse = Affine([d / self.scale, -b / self.scale, 0.0, -c / self.scale, a / self.scale, 0.0]);
        let [x, y] = if self.corner { [0.0; 2] } else { [width as f64 / 2.0, height as f64 / 2.0] };
        let shift = |x: f64, y: f64| Affine([1.0, 0.0, x, 0.0, 1.0, y]);
        let to_centre = shift(-x - self.translate[0], -y - self.translate[1]);
        Warp { map: shift(x, y).after(inverse).after(to_centre), size: [height, width], border }
    }
}
