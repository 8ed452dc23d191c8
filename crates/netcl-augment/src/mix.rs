//! Mixup and CutMix on the device.

use netcl_core::backend::Queue;
use netcl_core::backend::cpu::threads::SharedPtr;
use netcl_core::backend::cpu::{CpuArgs, CpuKernel, parallel_for};
use netcl_core::dtype::DType;
use netcl_core::kernels::launch::{self, Access, Arg, Cost, Launch, Scalar, Work};
use netcl_core::tensor::Tensor;
use netcl_data::transforms::MixStep;
use smallvec::smallvec;

use crate::batch::{Axes, kernel};
use crate::error::{Error, Result};

const OP: &str = "mix";

/// Mixes each image of a batch with the one before it (the first with the last), and their labels with them: what
/// [`MixStep::apply`] does on the host. Images are float32 of shape `[count, channels, height, width]`, labels float32 of shape
/// `[count, classes]`.
///
/// ```
/// use netcl_core::{device::manager, tensor::Tensor};
/// use netcl_data::transforms::MixStep;
///
/// let queue = manager().cpu().queue;
/// let images = Tensor::from_host(&queue, &[0f32, 1.0], [2, 1, 1, 1])?;
/// let labels = Tensor::from_host(&queue, &[1f32, 0.0, 0.0, 1.0], [2, 2])?;
/// let (images, labels) = netcl_augment::mix(MixStep { lambda: 0.75, rectangle: None }, &images, &labels)?;
/// assert_eq!(images.to_host::<f32>()?, [0.25, 0.75]);
/// assert_eq!(labels.to_host::<f32>()?, [0.75, 0.25, 0.25, 0.75]);
/// # Ok::<(), netcl_augment::Error>(())
/// ```
///
/// # Errors
/// For other shapes and types.
pub fn mix(step: MixStep, images: &Tensor, labels: &Tensor) -> Result<(Tensor, Tensor)> {
    let (&[count, _, height, width], &[labelled, classes]) = (&images.shape()[..], &labels.shape()[..]) else {
        return Err(wrong(images, labels));
    };
    if count != labelled || images.dtype() != DType::F32 || labels.dtype() != DType::F32 {
        return Err(wrong(images, labels));
    }
    let everything = |height, width| Part { height, width, rows: (0, height), columns: (0, width) };
    let images = match step.rectangle {
        None => mixed(images, step.lambda, everything(height, width))?,
        Some([top, left, h, w]) => {
            let part = Part { height, width, rows: (top, top + h), columns: (left, left + w) };
            mixed(images, 0.0, part)?
        }
    };
    Ok((images, mixed(labels, step.lambda, everything(1, classes))?))
}

fn wrong(images: &Tensor, labels: &Tensor) -> Error {
    let what = format!(
        "images of {} {} and labels of {} {} must be float32 of (count, channels, height, width) and (count, classes)",
        images.dtype(),
        images.shape(),
        labels.dtype(),
        labels.shape()
    );
    Error::argument(OP, what)
}

/// A rectangle of items of some height and width.
#[derive(Clone, Copy)]
struct Part {
    height: usize,
    width: usize,
    rows: (usize, usize),
    columns: (usize, usize),
}

impl Part {
    fn contains(&self, at: usize) -> bool {
        let (row, column) = (at / self.width % self.height, at % self.width);
        (self.rows.0..self.rows.1).contains(&row) && (self.columns.0..self.columns.1).contains(&column)
    }
}

/// Every item becomes `lambda` of itself and the rest of the item before it, inside of the rectangle.
fn mixed(items: &Tensor, lambda: f32, part: Part) -> Result<Tensor> {
    let items = items.contiguous()?;
    let result = Tensor::uninit(items.queue(), items.shape().clone(), DType::F32)?;
    if items.size() == 0 {
        return Ok(result);
    }
    let (count, offset) = (items.shape()[0], items.layout().offset());
    let size = items.size() / count;
    let mut args = smallvec![Arg::Buffer(items.storage().clone(), Access::Read)];
    let written = Arg::Buffer(result.storage().clone(), Access::Write);
    let work = match items.queue() {
        Queue::Cpu(_) => {
            args.push(written);
            Work::Cpu(CpuKernel::new(move |args: &CpuArgs<'_>| {
                let old = SharedPtr::new(args.checked_memory(0, (offset + count * size) * 4)?.cast::<f32>());
                let new = SharedPtr::new(args.checked_memory(1, count * size * 4)?.cast::<f32>());
                parallel_for(OP, count, 1, |range| {
                    for item in range {
                        // SAFETY: items lie inside of the memory, as just checked; the launch reads one storage and writes the
                        // other, of which every item belongs to one task.
                        let (own, other, to) = unsafe {
                            let from =
                                |item: usize| std::slice::from_raw_parts(old.get().add(offset + item * size), size);
                            let to = std::slice::from_raw_parts_mut(new.get().add(item * size), size);
                            (from(item), from((item + count - 1) % count), to)
                        };
                        for (at, to) in to.iter_mut().enumerate() {
                            *to =
                                if part.contains(at) { lambda * own[at] + (1.0 - lambda) * other[at] } else { own[at] };
                        }
                    }
                })
            }))
        }
        Queue::OpenCl(stream) => {
            let int = |x: usize| Arg::Scalar(Scalar::U32(u32::try_from(x).unwrap_or(u32::MAX)));
            let long = |x: usize| Arg::Scalar(Scalar::U64(x as u64));
            args.extend([long(offset), written, int(count), long(size), int(part.height), int(part.width)]);
            args.push(Arg::Scalar(Scalar::F32(lambda)));
            args.extend([part.rows.0, part.columns.0, part.rows.1, part.columns.1].map(int));
            Work::OpenCl(kernel(stream, "augment_mix")?, Axes { places: size, images: count }.grid(stream))
        }
    };
    let cost = Cost { flops: 3.0 * items.size() as f64, bytes: (3 * items.size() * size_of::<f32>()) as f64 };
    launch::submit(Launch { name: OP.into(), queue: items.queue().clone(), work, args, cost })?;
    Ok(result)
}
