//! Mixing the images of a batch: mixup and CutMix.

use crate::array::{Array, count};
use crate::error::{Result, argument};
use crate::random::Random;

/// Mixes each image of a batch with the one before it (the first with the last), and their labels with them.
///
/// ```
/// use netcl_data::transforms::Mix;
/// use netcl_data::{Array, Random, filters};
///
/// let images = Array::new(vec![0f32, 0.0, 1.0, 1.0], &[2, 1, 1, 2])?;
/// let labels = filters::one_hot(&Array::line(vec![0i64, 1]), 3)?;
/// let (images, labels) = Mix::Mixup { alpha: 0.2 }.apply(images, labels, &mut Random::new(1))?;
/// let (first, label) = (images.slice::<f32>().unwrap(), labels.slice::<f32>().unwrap());
/// assert_eq!(first[0], label[1]); // as much of the image of class 1 as its label says
/// # Ok::<(), netcl_data::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mix {
    /// `l x + (1 - l) y` (Zhang et al., 2017).
    Mixup {
        /// `l` is of the beta distribution with this twice; 0.2 is usual.
        alpha: f64,
    },
    /// A rectangle of the other image, of a share `1 - l` of the area (Yun et al., 2019).
    CutMix {
        /// `l` is of the beta distribution with this twice; 1.0 is usual.
        alpha: f64,
    },
}

/// What is done to a batch, all chance decided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MixStep {
    /// The share of an image's own label.
    pub lambda: f32,
    /// Top, left, height and width of what comes from the other image; without it, all pixels are mixed.
    pub rectangle: Option<[usize; 4]>,
}

impl Mix {
    /// Decides what is done to a batch of images of some height and width.
    ///
    /// # Errors
    /// If alpha is not above 0.
    pub fn draw(&self, [height, width]: [usize; 2], random: &mut Random) -> Result<MixStep> {
        let (Mix::Mixup { alpha } | Mix::CutMix { alpha }) = self;
        if !(*alpha > 0.0 && alpha.is_finite()) {
            return argument(format!("{self:?}: alpha must be above 0"));
        }
        let lambda = random.beta(*alpha, *alpha);
        if matches!(self, Mix::Mixup { .. }) {
            return Ok(MixStep { lambda: lambda as f32, rectangle: None });
        }
        // torchvision's rectangle: around a random pixel, what would be outside is left out.
        let half = 0.5 * (1.0 - lambda).sqrt();
        let mut reach = |length: usize| {
            let (centre, half) = (random.below(length as u64) as i64, (half * length as f64) as i64);
            let from = (centre - half).max(0);
            (from as usize, ((centre + half).min(length as i64) - from) as usize)
        };
        let (left, w) = reach(width);
        let (top, h) = reach(height);
        let lambda = 1.0 - (w * h) as f64 / (width * height).max(1) as f64;
        Ok(MixStep { lambda: lambda as f32, rectangle: Some([top, left, h, w]) })
    }

    /// Mixes images (float32 of shape `[count, channels, height, width]`) and labels (float32 of shape `[count, classes]`: see
    /// [`filters::one_hot`](crate::filters::one_hot)).
    ///
    /// # Errors
    /// If they have other types or shapes, or alpha is not above 0.
    pub fn apply(&self, images: Array, labels: Array, random: &mut Random) -> Result<(Array, Array)> {
        let &[_, _, height, width] = images.shape() else {
            return argument(format!(
                "{self:?}: images of shape {:?} are not [count, channels, height, width]",
                images.shape()
            ));
        };
        self.draw([height, width], random)?.apply(images, labels)
    }
}

impl MixStep {
    /// Mixes a batch; see [`Mix::apply`].
    ///
    /// # Errors
    /// If the images or labels have other types or shapes.
    pub fn apply(&self, mut images: Array, mut labels: Array) -> Result<(Array, Array)> {
        let (shape, classes) = (images.shape().to_vec(), labels.shape().to_vec());
        let fits = shape.len() == 4 && classes.len() == 2 && shape[0] == classes[0];
        let (Some(pixels), Some(shares), true) = (images.slice_mut::<f32>(), labels.slice_mut::<f32>(), fits) else {
            return argument(format!(
                "mix: images of shape {shape:?} and labels of shape {classes:?} must be F32 of [count, channels, height, width] and \
                 [count, classes]"
            ));
        };
        mixed(shares, classes[1], self.lambda, |_| true);
        match self.rectangle {
            None => mixed(pixels, count(&shape[1..]).unwrap_or(0), self.lambda, |_| true),
            Some([top, left, height, width]) => {
                let inside = |at: usize| {
                    let (row, column) = (at / shape[3] % shape[2], at % shape[3]);
                    (top..top + height).contains(&row) && (left..left + width).contains(&column)
                };
                mixed(pixels, count(&shape[1..]).unwrap_or(0), 0.0, inside);
            }
        }
        Ok((images, labels))
    }
}

/// Every item of `size` becomes `lambda` of itself and the rest of the item before it, where `inside` says so.
fn mixed(items: &mut [f32], size: usize, lambda: f32, inside: impl Fn(usize) -> bool) {
    if items.is_empty() || size == 0 {
        return;
    }
    // From the last one backwards, so that the item before is still what it was; the last one is kept for the first.
    let last = items[items.len() - size..].to_vec();
    for start in (0..items.len()).step_by(size).rev() {
        for at in (0..size).filter(|at| inside(*at)) {
            let other = if start == 0 { last[at] } else { items[start - size + at] };
            let own = &mut items[start + at];
            *own = lambda * *own + (1.0 - lambda) * other;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filters;

    fn batch() -> (Array, Array) {
        let images = (0..3).flat_map(|i| vec![i as f32; 2 * 4 * 5]).collect();
        let labels = filters::one_hot(&Array::line(vec![0i64, 1, 2]), 3).unwrap();
        (Array::new(images, &[3, 2, 4, 5]).unwrap(), labels)
    }

    #[test]
    fn mixup_mixes_with_the_image_before() {
        let (images, labels) = batch();
        let step = MixStep { lambda: 0.75, rectangle: None };
        let (images, labels) = step.apply(images, labels).unwrap();
        let pixels = images.slice::<f32>().unwrap();
        assert_eq!([pixels[0], pixels[40], pixels[80]], [0.5, 0.75, 1.75]);
        assert_eq!(labels.slice::<f32>().unwrap(), [0.75, 0.0, 0.25, 0.25, 0.75, 0.0, 0.0, 0.25, 0.75]);
    }

    #[test]
    fn cutmix_labels_are_the_shares_of_the_area() {
        for seed in 0..50 {
            let (images, labels) = batch();
            let mix = Mix::CutMix { alpha: 1.0 };
            let (images, labels) = mix.apply(images, labels, &mut Random::new(seed)).unwrap();
            let pixels = images.slice::<f32>().unwrap();
            let own = pixels[40..60].iter().filter(|x| **x == 1.0).count() as f32 / 20.0;
            let label = labels.slice::<f32>().unwrap();
            assert!((label[4] - own).abs() < 1e-6 && (label[3] - (1.0 - own)).abs() < 1e-6, "{label:?} {own}");
        }
        let (images, labels) = batch();
        let step = MixStep { lambda: 0.8, rectangle: Some([1, 2, 2, 2]) };
        let (images, _) = step.apply(images, labels).unwrap();
        let row = |r: usize| images.slice::<f32>().unwrap()[40 + 5 * r..45 + 5 * r].to_vec();
        assert_eq!((row(0), row(1)), (vec![1.0; 5], vec![1.0, 1.0, 0.0, 0.0, 1.0]));
    }

    #[test]
    fn other_shapes_are_refused() {
        let (images, labels) = batch();
        let random = &mut Random::new(0);
        let whole = Array::line(vec![0i64, 1, 2]);
        assert!(Mix::Mixup { alpha: 1.0 }.apply(images.clone(), whole, random).is_err());
        assert!(Mix::Mixup { alpha: 1.0 }.apply(labels.clone(), labels.clone(), random).is_err());
        assert!(Mix::Mixup { alpha: 0.0 }.apply(images, labels, random).unwrap_err().to_string().contains("above 0"));
    }
}
