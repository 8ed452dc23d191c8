//! Steps as numbers: the table that the kernels of augment.cl read.

use netcl_data::transforms::{Border, Step};

/// What words mean, in the order of the enum in augment.cl.
#[derive(Clone, Copy, PartialEq)]
enum Code {
    End,
    // Heads: how a pixel is taken out of the old image.
    Copy,
    Warp,
    BlurRows,
    BlurColumns,
    Sharpness,
    Contrast,
    AutoContrast,
    Equalize,
    // Formulas for one pixel.
    Brightness,
    Saturation,
    Hue,
    Posterize,
    Solarize,
    Erase,
    Normalize,
}

/// What one launch does to one image: one head, then formulas.
struct ImagePass {
    head: Code,
    words: Vec<i64>,
    size: [usize; 2],
    has_formulas: bool,
}

impl ImagePass {
    fn new(head: Code, old: [usize; 2], size: [usize; 2], numbers: impl IntoIterator<Item = i64>) -> ImagePass {
        let mut words = vec![head as i64];
        words.extend([old[0], old[1], size[0], size[1]].map(|length| length as i64));
        words.extend(numbers);
        ImagePass { head, words, size, has_formulas: false }
    }

    fn formula(&mut self, code: Code, numbers: impl IntoIterator<Item = i64>) {
        self.words.push(code as i64);
        self.words.extend(numbers);
        self.has_formulas = true;
    }
}

/// The bits of a float as a word.
fn bits(number: f32) -> i64 {
    i64::from(number.to_bits())
}

/// The passes of one image, at least one.
fn passes(steps: &[Step], shape: [usize; 3]) -> Vec<ImagePass> {
    let [channels, height, width] = shape;
    let mut passes = vec![ImagePass::new(Code::Copy, [height, width], [height, width], [])];
    for step in steps {
        let last = passes.len() - 1;
        let size = passes[last].size;
        let mut head = |code, new_size, numbers: Vec<i64>| {
            let last = passes.len() - 1;
            let pass = ImagePass::new(code, size, new_size, numbers);
            // A first pass that only copies is not needed.
            if passes[last].head == Code::Copy && !passes[last].has_formulas {
                passes[last] = pass;
            } else {
                passes.push(pass);
            }
        };
        match step {
            Step::Warp(warp) => {
                let (border, outside) = match warp.border {
                    Border::Constant(value) => (0, value),
                    Border::Edge => (1, 0.0),
                    Border::Reflect => (2, 0.0),
                };
                head(Code::Warp, warp.size, [&warp.fixed()[..], &[border, bits(outside)]].concat());
            }
            Step::Blur(weights) => {
                for code in [Code::BlurRows, Code::BlurColumns] {
                    let taps = weights.iter().map(|weight| bits(*weight));
                    head(code, size, std::iter::once(weights.len() as i64).chain(taps).collect());
                }
            }
            Step::Sharpness(factor) => head(Code::Sharpness, size, vec![bits(*factor)]),
            Step::Contrast(factor) => head(Code::Contrast, size, vec![bits(*factor)]),
            Step::AutoContrast => head(Code::AutoContrast, size, vec![]),
            Step::Equalize => head(Code::Equalize, size, vec![]),
            Step::Brightness(factor) => passes[last].formula(Code::Brightness, [bits(*factor)]),
            // Images of one channel have no saturation and no hue.
            Step::Saturation(_) | Step::Hue(_) if channels != 3 => {}
            Step::Saturation(factor) => passes[last].formula(Code::Saturation, [bits(*factor)]),
            Step::Hue(turn) => passes[last].formula(Code::Hue, [bits(*turn)]),
            Step::Posterize(count) => {
                let levels = 2f32.powi(*count as i32);
                passes[last].formula(Code::Posterize, [bits(levels), bits(1.0 / levels)]);
            }
            Step::Solarize(threshold) => passes[last].formula(Code::Solarize, [bits(*threshold)]),
            Step::Erase { rectangle, value } => {
                let rectangle = rectangle.map(|x| i64::try_from(x).unwrap_or(i64::MAX));
                passes[last].formula(Code::Erase, std::iter::once(bits(*value)).chain(rectangle));
            }
            Step::Normalize { mean, deviation } => {
                // As on the host: channels without a mean stay as they are.
                let numbers = |values: &[f32], none: f32| {
                    (0..channels).map(|c| bits(values.get(c).copied().unwrap_or(none))).collect::<Vec<_>>()
                };
                passes[last].formula(Code::Normalize, [numbers(mean, 0.0), numbers(deviation, 1.0)].concat());
            }
        }
    }
    passes
}

/// One launch for the whole batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Pass {
    /// The largest number of pixels of the new images, in one channel.
    pub(super) pixels: usize,
    /// Whether some image needs numbers of a whole channel first.
    pub(super) statistics: bool,
}

/// The passes of a batch, and the words that say what they do.
pub(super) struct Table {
    pub(super) passes: Vec<Pass>,
    /// The places of the words of each pass and image, then the words.
    pub(super) words: Vec<i64>,
    /// Height and width of the changed images.
    pub(super) size: [usize; 2],
}

impl Table {
    /// The table of the steps of a batch of images of one shape; `None` if the changed images have different sizes.
    pub(super) fn new(steps: &[Vec<Step>], shape: [usize; 3]) -> Option<Table> {
        let images: Vec<Vec<ImagePass>> = steps.iter().map(|steps| passes(steps, shape)).collect();
        let size = images.first()?.last()?.size;
        if images.iter().any(|passes| passes.last().map(|pass| pass.size) != Some(size)) {
            return None;
        }
        let count = images.iter().map(Vec::len).max().unwrap_or(0);
        let idle = ImagePass::new(Code::Copy, size, size, []);
        let mut table = Table { passes: vec![Pass::default(); count], words: vec![0; count * images.len()], size };
        for (number, pass) in table.passes.iter_mut().enumerate() {
            for (at, image) in images.iter().enumerate() {
                // An image that is done is carried along.
                let own = image.get(number).unwrap_or(&idle);
                table.words[number * images.len() + at] = table.words.len() as i64;
                table.words.extend(&own.words);
                table.words.push(Code::End as i64);
                pass.pixels = pass.pixels.max(own.size[0] * own.size[1]);
                pass.statistics |= matches!(own.head, Code::Contrast | Code::AutoContrast | Code::Equalize);
            }
        }
        Some(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netcl_data::transforms::{Affine, Warp};

    fn warp(size: [usize; 2]) -> Step {
        Step::Warp(Warp { map: Affine::IDENTITY, size, border: Border::Edge })
    }

    fn table(steps: &[Vec<Step>]) -> Option<Table> {
        Table::new(steps, [3, 8, 8])
    }

    #[test]
    fn maps_and_formulas_are_one_pass() {
        let normalize = Step::Normalize { mean: vec![0.0; 3], deviation: vec![1.0; 3] };
        let erase = Step::Erase { rectangle: [1, 1, 2, 2], value: 0.0 };
        let steps = vec![warp([4, 6]), Step::Brightness(0.5), Step::Hue(0.1), erase.clone(), normalize];
        let table = table(&[steps, vec![warp([4, 6])]]).unwrap();
        assert_eq!((table.passes, table.size), (vec![Pass { pixels: 24, statistics: false }], [4, 6]));
    }

    #[test]
    fn what_needs_the_whole_image_begins_a_pass() {
        let steps =
            vec![Step::Contrast(0.5), Step::Solarize(0.5), Step::Blur(vec![1.0]), Step::Brightness(2.0), warp([2, 2])];
        let passes = table(&[steps, vec![warp([2, 2])]]).unwrap().passes;
        let statistics: Vec<bool> = passes.iter().map(|pass| pass.statistics).collect();
        assert_eq!(statistics, [true, false, false, false]);
        assert_eq!(passes[3].pixels, 4);
    }

    #[test]
    fn different_sizes_make_no_batch() {
        assert!(table(&[vec![], vec![warp([2, 2])]]).is_none());
    }
}
