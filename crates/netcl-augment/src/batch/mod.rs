//! Random changes of a batch of images on the device.
//!
//! A launch takes each pixel once out of the old image, by a warp or a blur or as it is, and applies all formulas for single pixels that
//! follow: crop, flip, colours, erasing and normalisation of a whole batch are one launch. What needs the changed image as a
//! whole (another warp, a blur, a mean) begins the next one. Images differ in their steps; one that has fewer is carried along.

mod cpu;
mod opencl;
mod table;

use netcl_core::backend::Queue;
use netcl_core::dtype::DType;
use netcl_core::kernels::launch;
use netcl_core::tensor::Tensor;
use netcl_data::Random;
use netcl_data::transforms::{Compose, Step};

use crate::error::{Error, Result};
pub(crate) use opencl::{Axes, kernel};

const OP: &str = "augment";

/// Transforms with a seed, for batches of images on a device.
///
/// What happens to an image depends on the seed, the epoch and its number only. A [`DataLoader`](netcl_data::DataLoader) with the same
/// seed and transforms makes the same images on the host.
#[derive(Clone, Debug)]
pub struct Augment {
    compose: Compose,
    seed: u64,
}

impl Augment {
    /// Transforms with the seed of their random numbers.
    pub fn new(compose: Compose, seed: u64) -> Augment {
        Augment { compose, seed }
    }

    /// The changed images of a batch, in float32.
    ///
    /// `images` has shape `[count, channels, height, width]`: floats from 0 to 1, or bytes, which are divided by 255. `indices` are the
    /// numbers of the images in their data set, one for each.
    ///
    /// # Errors
    /// For other shapes and types, while launches are recorded (every replay would repeat the same changes), and as
    /// [`Compose::draw`].
    pub fn apply(&self, images: &Tensor, epoch: u64, indices: &[usize]) -> Result<Tensor> {
        let [count, shape @ ..] = dimensions(images)?;
        if indices.len() != count {
            return Err(Error::argument(OP, format!("{count} images need as many indices, got {}", indices.len())));
        }
        let drawn = |&index: &usize| {
            let steps = self.compose.draw(shape, &mut Random::of_sample(self.seed, epoch, index));
            steps.map_err(|error| error.at(index))
        };
        let steps = indices.iter().map(drawn).collect::<netcl_data::Result<Vec<_>>>()?;
        apply_steps(images, &steps)
    }
}

/// Applies steps to the images of a batch, a list of them for each image: what
/// [`Step::apply_all`](netcl_data::transforms::Step::apply_all) does to one image on the host.
///
/// ```
/// use netcl_core::{device::manager, tensor::Tensor};
/// use netcl_data::transforms::Step;
///
/// let images = Tensor::from_host(&manager().cpu().queue, &[0.25f32, 0.5], [2, 1, 1, 1])?;
/// let changed = netcl_augment::apply_steps(&images, &[vec![Step::Brightness(2.0)], vec![]])?;
/// assert_eq!(changed.to_host::<f32>()?, [0.5, 0.5]);
/// # Ok::<(), netcl_augment::Error>(())
/// ```
///
/// # Errors
/// As [`Augment::apply`]; if the changed images have different sizes.
pub fn apply_steps(images: &Tensor, steps: &[Vec<Step>]) -> Result<Tensor> {
    let [count, channels, height, width] = dimensions(images)?;
    if steps.len() != count {
        return Err(Error::argument(OP, format!("{count} images need as many lists of steps, got {}", steps.len())));
    }
    if launch::is_repeating() {
        let what =
            "the changes of a recorded launch would be the same at every replay; augment before the captured step";
        return Err(Error::Core(netcl_core::Error::State { op: OP, what: what.to_owned() }));
    }
    let images = match images.dtype() {
        DType::F32 | DType::U8 => images.contiguous()?,
        _ => images.cast(DType::F32)?.contiguous()?,
    };
    let is_plain = images.dtype() == DType::F32 && steps.iter().all(Vec::is_empty);
    if is_plain || images.size() == 0 {
        return Ok(images.cast(DType::F32)?);
    }
    let Some(table) = table::Table::new(steps, [channels, height, width]) else {
        return Err(Error::argument(OP, "the images would have different sizes; crop or resize all of them to one"));
    };
    if height * width > i32::MAX as usize || table.passes.iter().any(|pass| pass.pixels > i32::MAX as usize) {
        return Err(Error::argument(OP, "images of more than 2^31 pixels are too large"));
    }
    let result = Tensor::uninit(images.queue(), [count, channels, table.size[0], table.size[1]], DType::F32)?;
    match images.queue() {
        Queue::Cpu(_) => cpu::run(&images, steps, &result)?,
        Queue::OpenCl(stream) => opencl::run(stream, &images, &table, &result)?,
    }
    Ok(result)
}

/// Count, channels, height and width.
fn dimensions(images: &Tensor) -> Result<[usize; 4]> {
    match images.shape()[..] {
        [count, channels, height, width] => Ok([count, channels, height, width]),
        _ => Err(Error::Core(netcl_core::Error::Shape {
            op: OP,
            shape: images.shape().clone(),
            why: "images have the axes (count, channels, height, width)".to_owned(),
        })),
    }
}
