//! Images that are computed while they are read.

use netcl_core::Result;
use netcl_core::backend::Queue;
use netcl_core::kernel_selector::{KernelConfig, KernelVariant};
use netcl_core::kernels::described::Taken;
use netcl_core::precision::matmul_precision;
use netcl_core::shape::Shape;
use netcl_core::tensor::Tensor;

use super::geometry::Geometry;
use super::{Variant, opencl};
use crate::lead::Lead;
use crate::matmul::lead::takes_prologue;

/// Whether the convolution is a product of matrices as they lie: windows of single pixels, unless something else was asked for or
/// measured.
pub(super) fn as_product(g: &Geometry, forced: Option<Variant>, config: Option<&KernelConfig>) -> bool {
    let im2col = |config: &KernelConfig| config.variant == KernelVariant::Conv2dIm2col;
    forced.is_none() && g.is_product() && config.is_none_or(im2col)
}

/// Whether a convolution computes its images while it reads them; else why not.
pub(super) fn takes(
    op: &'static str,
    g: &Geometry,
    [x, weight, out]: [&Tensor; 3],
    forced: Option<Variant>,
    lead: &Lead<'_>,
) -> Result<Taken> {
    if g.n == 0 {
        return Ok(Taken::No("there is no image"));
    }
    match x.queue() {
        Queue::Cpu(_) if g.is_product() => product(op, g, [x, weight, out], lead),
        // Images are copied to padded planes once, whatever becomes of them.
        Queue::Cpu(_) => Ok(Taken::Yes),
        Queue::OpenCl(stream) => {
            let config = if forced.is_none() { opencl::configuration(op, g, x)? } else { None };
            if as_product(g, forced, config.as_ref()) {
                return product(op, g, [x, weight, out], lead);
            }
            opencl::takes(stream, g, x, (forced, config.as_ref()), lead.expr)
        }
    }
}

/// A 1x1 convolution does what the product does.
fn product(op: &'static str, g: &Geometry, [x, weight, out]: [&Tensor; 3], lead: &Lead<'_>) -> Result<Taken> {
    let shape = image_shape(g);
    let filters = viewed(weight, &[g.groups, g.filters, g.channels].into())?;
    let out = viewed(out, &[g.n, g.groups, g.filters, g.pixels()].into())?;
    let (Some(image), Some(inputs)) = (viewed(x, &shape)?, viewed_all(&lead.inputs, &shape)?) else {
        return Ok(Taken::No("its pixels do not lie in one line"));
    };
    let (Some(weight), Some(out)) = (filters, out) else {
        return Ok(Taken::No("its filters have to be copied first"));
    };
    let lead = Lead::new(op, &image, lead.expr, &inputs, lead.scalars)?;
    takes_prologue([&weight, &image, &out], matmul_precision(), None, false, &lead)
}

/// The images of a 1x1 convolution as matrices.
pub(super) fn image_shape(g: &Geometry) -> Shape {
    [g.n, g.groups, g.channels, g.pixels()].into()
}

/// Tensors seen through other axes, where strides can say it of all.
fn viewed_all(tensors: &[Tensor], shape: &Shape) -> Result<Option<Vec<Tensor>>> {
    tensors.iter().map(|tensor| viewed(tensor, shape)).collect()
}

fn viewed(tensor: &Tensor, shape: &Shape) -> Result<Option<Tensor>> {
    tensor.layout().reshape(shape)?.map(|layout| tensor.with_layout(layout)).transpose()
}
