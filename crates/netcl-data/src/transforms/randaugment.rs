//! RandAugment's operations and how strong they are.

use super::geometry::{Turn, add};
use super::step::Step;
use super::warp::Border;
use crate::random::Random;

/// The number of strengths: magnitudes go from 0 to 30.
const STRENGTHS: f64 = 30.0;

/// Adds one operation of 14, with torchvision's strengths.
pub(super) fn draw(
    shape: &mut [usize; 3],
    magnitude: usize,
    border: Border,
    random: &mut Random,
    steps: &mut Vec<Step>,
) {
    let strength = magnitude as f64 / STRENGTHS;
    let operation = random.below(14);
    // Either way; drawn for every operation, so that none changes the numbers of the next.
    let sign = if random.chance(0.5) { -1.0 } else { 1.0 };
    let signed = |most: f64| sign * strength * most;
    let factor = (1.0 + signed(0.9)) as f32;
    // A shear of 0.3 is an angle whose tangent is 0.3.
    let shear = signed(0.3).atan().to_degrees();
    let shift = |length: usize| (signed(150.0 / 331.0) * length as f64).trunc();
    let none = Turn::default();
    let turn = match operation {
        0 => return,
        1 => Turn { shear: [shear, 0.0], corner: true, ..none },
        2 => Turn { shear: [0.0, shear], corner: true, ..none },
        3 => Turn { translate: [shift(shape[2]), 0.0], ..none },
        4 => Turn { translate: [0.0, shift(shape[1])], ..none },
        5 => Turn { degrees: signed(30.0), ..none },
        6 => return steps.push(Step::Brightness(factor)),
        7 => return steps.push(Step::Saturation(factor)),
        8 => return steps.push(Step::Contrast(factor)),
        9 => return steps.push(Step::Sharpness(factor)),
        10 => return steps.push(Step::Posterize(8 - (4.0 * strength).round() as u32)),
        11 => return steps.push(Step::Solarize((1.0 - strength) as f32)),
        12 => return steps.push(Step::AutoContrast),
        _ => return steps.push(Step::Equalize),
    };
    let warp = turn.warp(*shape, border);
    add(steps, shape, warp);
}
