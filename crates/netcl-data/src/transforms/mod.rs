//! Random changes of images, with one meaning on the host and on a device.
//!
//! A [`Transform`] says what may happen; drawing makes [`Step`]s of it, plain numbers without any chance left; applying the steps
//! is the same calculation everywhere:
//! - a geometric step is an affine map with bilinear sampling ([`Warp`]); its coordinates are fixed-point numbers, so devices
//!   do not differ in where they sample. Geometric steps that follow each other and have the same border are one map: the image is
//!   sampled once, and nothing is cut off in between;
//! - every other step is a formula for each pixel, some with a mean, a range or the pixels around.
//!
//! ```
//! use netcl_data::transforms::{Border, Compose, Image, Step, Transform};
//! use netcl_data::Random;
//!
//! let augment = Compose::new(vec![
//!     Transform::Crop { size: [32, 32], padding: 4, border: Border::Reflect },
//!     Transform::HorizontalFlip { probability: 0.5 },
//!     Transform::Normalize { mean: vec![0.5; 3], deviation: vec![0.25; 3] },
//! ])?;
//! let steps = augment.draw([3, 32, 32], &mut Random::new(7))?;
//! assert!(matches!(&steps[..], [Step::Warp(_), Step::Normalize { .. }])); // crop and flip are one sampling
//! let image = augment.apply(Image::new(vec![0.5; 3 * 32 * 32], [3, 32, 32])?, &mut Random::new(7))?;
//! assert_eq!((image.shape(), image.pixels()[0]), ([3, 32, 32], 0.0));
//! # Ok::<(), netcl_data::Error>(())
//! ```

pub mod blur;
mod color;
mod geometry;
mod image;
mod mix;
mod randaugment;
mod step;
mod warp;

pub use image::Image;
pub use mix::{Mix, MixStep};
pub use step::Step;
pub use warp::{Affine, Border, FRACTION, Warp};

use crate::error::{Result, argument};
use crate::random::Random;
use crate::sample::Sample;
use geometry::add;
use warp::LARGEST_SIDE;

/// More than anybody needs: a mistake in a setting shall not take hours for an image.
const MOST_TAPS: usize = 1023;
const MOST_OPERATIONS: usize = 100;

/// What may happen to an image.
#[derive(Clone, Debug, PartialEq)]
pub enum Transform {
    /// Mirrors left and right.
    HorizontalFlip {
        /// How likely.
        probability: f64,
    },
    /// Mirrors top and bottom.
    VerticalFlip {
        /// How likely.
        probability: f64,
    },
    /// Takes a part at a random place of the padded image.
    Crop {
        /// Height and width of the part.
        size: [usize; 2],
        /// How many pixels are added on each side first.
        padding: usize,
        /// What they are.
        border: Border,
    },
    /// Takes the middle; what is outside is black.
    CenterCrop {
        /// Height and width.
        size: [usize; 2],
    },
    /// Takes a part of random size and proportions and stretches it to a size, bilinear without antialiasing: shrink large pictures
    /// with [`Resize`](crate::Resize) first.
    RandomResizedCrop {
        /// Height and width of the result.
        size: [usize; 2],
        /// The least and largest share of the area; `(0.08, 1.0)` is usual.
        area: (f64, f64),
        /// The least and largest width per height; `(0.75, 4.0 / 3.0)` is usual.
        ratio: (f64, f64),
    },
    /// Turns about the centre, by up to so many degrees either way.
    Rotation {
        /// The most, at most 360.
        degrees: f64,
        /// What comes in from outside.
        border: Border,
    },
    /// Turns, shears, scales and shifts about the centre, in this order from last to first, as torchvision's `RandomAffine`.
    Affine {
        /// Turns by up to so many degrees either way.
        degrees: f64,
        /// Shifts by up to this share of the width and of the height, either way.
        translate: [f64; 2],
        /// The least and largest factor.
        scale: (f64, f64),
        /// Shears rows by up to so many degrees either way.
        shear: f64,
        /// What comes in from outside.
        border: Border,
    },
    /// Changes brightness, contrast and saturation by a factor of up to `1 - x` to `1 + x` each, and turns the hue by up to a share of
    /// the circle either way, in a random order.
    ColorJitter {
        /// The largest change of brightness.
        brightness: f64,
        /// The largest change of contrast.
        contrast: f64,
        /// The largest change of saturation.
        saturation: f64,
        /// The largest turn, at most 0.5.
        hue: f64,
    },
    /// Blurs with a Gaussian.
    GaussianBlur {
        /// The number of taps along each axis; odd.
        taps: usize,
        /// The least and largest deviation in pixels.
        sigma: (f64, f64),
    },
    /// Overwrites a rectangle (Zhong et al., 2017).
    Erase {
        /// How likely.
        probability: f64,
        /// The least and largest share of the area; `(0.02, 0.33)` is usual.
        area: (f64, f64),
        /// The least and largest height per width; `(0.3, 3.3)` is usual.
        ratio: (f64, f64),
        /// What is written.
        value: f32,
    },
    /// Overwrites a square around a random pixel; what would be outside of the image is left out (DeVries and Taylor, 2017).
    Cutout {
        /// The side of the square.
        side: usize,
        /// What is written.
        value: f32,
    },
    /// `(x - mean) / deviation` for each channel.
    Normalize {
        /// The mean of each channel.
        mean: Vec<f32>,
        /// The deviation of each channel.
        deviation: Vec<f32>,
    },
    /// Some operations of 14, all equally likely, of one strength (Cubuk et al., 2019), as torchvision's `RandAugment` with bilinear
    /// sampling.
    RandAugment {
        /// How many; 2 is usual.
        operations: usize,
        /// How strong, of 0 to 30; 9 is usual.
        magnitude: usize,
        /// What comes in from outside.
        border: Border,
    },
}

/// Transforms one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Compose {
    transforms: Vec<Transform>,
}

impl Compose {
    /// Checks the settings.
    ///
    /// # Errors
    /// If one is out of range; the message names the transform.
    pub fn new(transforms: Vec<Transform>) -> Result<Compose> {
        for (at, transform) in transforms.iter().enumerate() {
            if let Some(what) = transform.problem() {
                return argument(format!("transform {at} ({transform:?}): {what}"));
            }
        }
        Ok(Compose { transforms })
    }

    /// What happens to an image of a shape, all chance decided.
    ///
    /// # Errors
    /// If the image has other channels than [`Transform::Normalize`] has means, or colours are to be changed of an image that has
    /// neither one channel nor three.
    pub fn draw(&self, shape: [usize; 3], random: &mut Random) -> Result<Vec<Step>> {
        let mut steps = Vec::new();
        let mut shape = shape;
        for transform in &self.transforms {
            transform.draw(&mut shape, random, &mut steps)?;
        }
        Ok(steps)
    }

    /// The changed image.
    ///
    /// # Errors
    /// As [`Compose::draw`].
    pub fn apply(&self, image: Image, random: &mut Random) -> Result<Image> {
        Ok(Step::apply_all(&self.draw(image.shape(), random)?, image))
    }

    /// The transform of a loader for samples that have their image in the field at `position`: bytes or float32 of shape
    /// `[channels, height, width]` become changed float32.
    ///
    /// ```
    /// use netcl_data::transforms::{Compose, Transform};
    /// use netcl_data::{DataLoader, ImageSplits};
    ///
    /// let augment = Compose::new(vec![Transform::HorizontalFlip { probability: 0.5 }])?;
    /// let digits = ImageSplits::digits()?;
    /// let loader = DataLoader::of(digits.train).batch_size(64).transform(augment.on_field(0)).build()?;
    /// # assert!(loader.epoch(0)?.next().unwrap().is_ok());
    /// # Ok::<(), netcl_data::Error>(())
    /// ```
    pub fn on_field(self, position: usize) -> impl Fn(Sample, &mut Random) -> Result<Sample> + Send + Sync + 'static {
        move |mut sample, random| {
            let Some(Sample::Array(array)) = sample.get_mut(position) else {
                return argument(format!("transform: the sample has no array in field {position}"));
            };
            *array = self.apply(Image::from_array(array)?, random)?.into_array();
            Ok(sample)
        }
    }
}

impl Transform {
    /// What is wrong with the settings.
    fn problem(&self) -> Option<&'static str> {
        let share = |x: f64| (0.0..=1.0).contains(&x);
        let range = |(low, high): (f64, f64)| low > 0.0 && low <= high && high.is_finite();
        let sides = |size: &[usize; 2]| size.iter().all(|side| (1..=LARGEST_SIDE).contains(side));
        let (right, what) = match self {
            Transform::HorizontalFlip { probability } | Transform::VerticalFlip { probability } => {
                (share(*probability), "the probability must be from 0 to 1")
            }
            Transform::Crop { size, padding, .. } => {
                (sides(size) && *padding <= LARGEST_SIDE, "sides must be from 1 to 65536, padding at most that")
            }
            Transform::CenterCrop { size } => (sides(size), "sides must be from 1 to 65536"),
            Transform::RandomResizedCrop { size, area, ratio } => (
                sides(size) && range(*area) && area.1 <= 1.0 && range(*ratio),
                "sides must be from 1 to 65536, areas above 0 and at most 1, ratios above 0, the least first",
            ),
            Transform::Rotation { degrees, .. } => ((0.0..=360.0).contains(degrees), "degrees must be from 0 to 360"),
            Transform::Affine { degrees, translate, scale, shear, .. } => (
                (0.0..=360.0).contains(degrees)
                    && translate.iter().all(|x| share(*x))
                    && range(*scale)
                    && (0.0..90.0).contains(shear),
                "degrees must be from 0 to 360, shifts from 0 to 1, scales above 0 with the least first, the shear below 90",
            ),
            Transform::ColorJitter { brightness, contrast, saturation, hue } => (
                [brightness, contrast, saturation].into_iter().all(|x| *x >= 0.0 && x.is_finite())
                    && (0.0..=0.5).contains(hue),
                "changes must be 0 or more, the hue at most 0.5",
            ),
            Transform::GaussianBlur { taps, sigma } => (
                taps % 2 == 1 && *taps <= MOST_TAPS && range(*sigma),
                "taps must be odd and at most 1023, deviations above 0 with the least first",
            ),
            Transform::Erase { probability, area, ratio, .. } => (
                share(*probability) && range(*area) && area.1 <= 1.0 && range(*ratio),
                "the probability must be from 0 to 1, areas above 0 and at most 1, ratios above 0, the least first",
            ),
            Transform::Cutout { side, .. } => (*side <= LARGEST_SIDE, "the side must be at most 65536"),
            Transform::Normalize { mean, deviation } => (
                mean.len() == deviation.len() && deviation.iter().all(|x| *x != 0.0 && x.is_finite()),
                "there must be as many means as deviations, none of which is 0",
            ),
            Transform::RandAugment { operations, magnitude, .. } => (
                *operations <= MOST_OPERATIONS && *magnitude <= 30,
                "the operations must be at most 100, the magnitude from 0 to 30",
            ),
        };
        (!right).then_some(what)
    }

    /// Adds what happens; `shape` becomes that of the result.
    fn draw(&self, shape: &mut [usize; 3], random: &mut Random, steps: &mut Vec<Step>) -> Result<()> {
        let [channels, height, width] = *shape;
        if height > LARGEST_SIDE || width > LARGEST_SIDE {
            return argument(format!(
                "transform: an image of {width} x {height} pixels is larger than 65536 on a side"
            ));
        }
        let colors = || match channels {
            1 | 3 => Ok(()),
            _ => argument(format!("{self:?}: an image of {channels} channels has no colours; 1 or 3 are needed")),
        };
        match self {
            Transform::HorizontalFlip { probability } => {
                if random.chance(*probability) {
                    add(steps, shape, geometry::mirrored(*shape, true));
                }
            }
            Transform::VerticalFlip { probability } => {
                if random.chance(*probability) {
                    add(steps, shape, geometry::mirrored(*shape, false));
                }
            }
            Transform::Crop { size, padding, border } => {
                add(steps, shape, geometry::crop(*shape, *size, *padding, *border, random));
            }
            Transform::CenterCrop { size } => add(steps, shape, geometry::center_crop(*shape, *size)),
            Transform::RandomResizedCrop { size, area, ratio } => {
                add(steps, shape, geometry::resized_crop(*shape, *size, *area, *ratio, random));
            }
            Transform::Rotation { degrees, border } => {
                let turn = geometry::Turn { degrees: random.between(-degrees, *degrees), ..Default::default() };
                add(steps, shape, turn.warp(*shape, *border));
            }
            Transform::Affine { degrees, translate, scale, shear, border } => {
                let mut within = |most: f64| random.between(-most, most);
                let degrees = within(*degrees);
                let translate = [within(translate[0] * width as f64), within(translate[1] * height as f64)];
                let shear = [within(*shear), 0.0];
                let turn = geometry::Turn {
                    degrees,
                    translate,
                    scale: random.between(scale.0, scale.1),
                    shear,
                    corner: false,
                };
                add(steps, shape, turn.warp(*shape, *border));
            }
            Transform::ColorJitter { brightness, contrast, saturation, hue } => {
                colors()?;
                let mut factor = |most: f64| random.between((1.0 - most).max(0.0), 1.0 + most) as f32;
                let changes = [
                    Step::Brightness(factor(*brightness)),
                    Step::Contrast(factor(*contrast)),
                    Step::Saturation(factor(*saturation)),
                    Step::Hue(random.between(-hue, *hue) as f32),
                ];
                let asked = [*brightness, *contrast, *saturation, *hue];
                let order = random.permutation(changes.len());
                steps.extend(order.into_iter().filter(|at| asked[*at] != 0.0).map(|at| changes[at].clone()));
            }
            Transform::GaussianBlur { taps, sigma } => {
                steps.push(Step::Blur(blur::gaussian(*taps, random.between(sigma.0, sigma.1))));
            }
            Transform::Erase { probability, area, ratio, value } => {
                if random.chance(*probability) {
                    // torchvision's ratio is height per width here.
                    let part = geometry::part([width, height], *area, *ratio, random);
                    steps.extend(part.map(|[left, top, width, height]| Step::Erase {
                        rectangle: [top, left, height, width],
                        value: *value,
                    }));
                }
            }
            Transform::Cutout { side, value } => {
                let mut reach = |length: usize| {
                    let from = random.below(length as u64) as i64 - (*side / 2) as i64;
                    let to = from.saturating_add(*side as i64).min(length as i64);
                    (from.max(0) as usize, (to - from.max(0)) as usize)
                };
                let ((top, height), (left, width)) = (reach(height), reach(width));
                steps.push(Step::Erase { rectangle: [top, left, height, width], value: *value });
            }
            Transform::Normalize { mean, deviation } => {
                if mean.len() != channels {
                    return argument(format!(
                        "Normalize: the image has {channels} channels, there are {} means; give one for each",
                        mean.len()
                    ));
                }
                steps.push(Step::Normalize { mean: mean.clone(), deviation: deviation.clone() });
            }
            Transform::RandAugment { operations, magnitude, border } => {
                colors()?;
                for _ in 0..*operations {
                    randaugment::draw(shape, *magnitude, *border, random, steps);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
