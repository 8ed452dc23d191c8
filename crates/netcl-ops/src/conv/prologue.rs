//! Prologues of convolutions: images that are computed while they are read.

use netcl_core::Result;
use netcl_core::backend::Queue;
use netcl_core::conv::ConvGeometry;
use netcl_core::kernel_selector::ConvPass;
use netcl_core::kernels::described::CanFuse;
use netcl_core::precision::matmul_precision;
use netcl_core::shape::Shape;
use netcl_core::tensor::Tensor;

use super::{Variant, as_product, opencl};
use crate::matmul;
use crate::prologue::CheckedPrologue;

/// Whether a convolution computes its images while it reads them; else why not.
pub(super) fn can_fuse(
    op: &'static str,
    g: &ConvGeometry,
    [x, weight, out]: [&Tensor; 3],
    forced: Option<Variant>,
    prologue: &CheckedPrologue<'_>,
) -> Result<CanFuse> {
    if g.n == 0 {
        return Ok(CanFuse::No("there is no image"));
    }
    match x.queue() {
        Queue::Cpu(_) if g.is_product() => product(op, g, [x, weight, out], prologue),
        // Images are copied to padded planes once, whatever becomes of them.
        Queue::Cpu(_) => Ok(CanFuse::Yes),
        Queue::OpenCl(_) => {
            let (variant, config) = opencl::choose(op, g, x, ConvPass::Forward, forced)?;
            match variant != Variant::Units && as_product(g, forced, config.as_ref()) {
                true => product(op, g, [x, weight, out], prologue),
                false => Ok(opencl::can_fuse(g, x, variant, prologue.expr)),
            }
        }
    }
}

/// A 1x1 convolution does what the product does.
fn product(
    op: &'static str,
    g: &ConvGeometry,
    [x, weight, out]: [&Tensor; 3],
    prologue: &CheckedPrologue<'_>,
) -> Result<CanFuse> {
    let shape = image_shape(g);
    let filters = viewed(weight, &[g.groups, g.filters, g.channels].into())?;
    let out = viewed(out, &[g.n, g.groups, g.filters, g.pixels()].into())?;
    let (Some(image), Some(inputs)) = (viewed(x, &shape)?, viewed_all(&prologue.inputs, &shape)?) else {
        return Ok(CanFuse::No("its pixels do not lie in one line"));
    };
    let (Some(weight), Some(out)) = (filters, out) else {
        return Ok(CanFuse::No("its filters have to be copied first"));
    };
    let prologue = CheckedPrologue::new(op, &image, prologue.expr, &inputs, prologue.scalars)?;
    matmul::prologue::can_fuse([&weight, &image, &out], matmul_precision(), None, false, &prologue)
}

/// The images of a 1x1 convolution as matrices.
pub(super) fn image_shape(g: &ConvGeometry) -> Shape {
    [g.n, g.groups, g.channels, g.pixels()].into()
}

/// Tensors seen through other axes, where strides can say it of all.
fn viewed_all(tensors: &[Tensor], shape: &Shape) -> Result<Option<Vec<Tensor>>> {
    tensors.iter().map(|tensor| viewed(tensor, shape)).collect()
}

fn viewed(tensor: &Tensor, shape: &Shape) -> Result<Option<Tensor>> {
    tensor.layout().reshape(shape)?.map(|layout| tensor.with_layout(layout)).transpose()
}
