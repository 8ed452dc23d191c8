//! Convolutions on the native CPU. Images are copied, a few at a time, to padded planes ([`images`]), which taps read at a fixed
//! distance, whatever the stride or dilation ([`plan`]); those of a 1x1 convolution are planes where they lie. Blocks of sums stay
//! in registers ([`lanes`]). Windows are never written out as a whole, so that scratch memory is about the size of the images.
//!
//! | | few filters, or wide planes | small planes, which waste vectors of pixels |
//! |---|---|---|
//! | convolution and data gradient ([`launch`]) | [`shifted`]: vectors of pixels, where they lie | [`product`]: vectors of filters |
//! | weight gradient | [`weights`]: vectors of pixels, where they lie | [`outer`]: vectors of filters |
//!
//! Each sum is added up in one order, whatever the blocks: the bits do not depend on the number of threads.

mod images;
mod lanes;
mod launch;
mod outer;
mod plan;
mod product;
mod prologue;
mod shifted;
mod weights;

use netcl_core::Result;
use netcl_core::conv::ConvGeometry;
use netcl_core::dtype::DType;
use netcl_core::tensor::Tensor;

use super::epilogue::ConvEpilogue;
use crate::prologue::CheckedPrologue;

pub(super) use launch::suits_product;

const OP: &str = "conv2d";
/// Multiply-adds below which another thread costs more than it brings.
const GRAIN: usize = 1 << 18;
/// Tasks to aim for; the shape alone decides.
const ENOUGH_TASKS: usize = 16;

/// Images that are copied to planes at a time, so that they take so many bytes.
fn chunk(images: usize, bytes_per_image: usize, bytes: usize) -> usize {
    let most = (bytes / bytes_per_image.max(1)).clamp(1, images.max(1));
    // As evenly as can be: a few images left over occupy fewer threads.
    images.div_ceil(images.div_ceil(most).max(1)).max(1)
}

/// A length in as few parts as can be, none longer than `most`, as even as can be: where they start, and their lengths.
fn cut(length: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    let parts = length.div_ceil(most);
    let (short, longer) = (length / parts.max(1), length % parts.max(1));
    (0..parts).map(move |i| (i * short + i.min(longer), short + usize::from(i < longer)))
}

/// The convolution, and the statistics of its channels where there is a tensor for them: `[channels, 1, 2]`.
pub(super) fn forward(
    g: &ConvGeometry,
    operands: [&Tensor; 3],
    ends: (Option<&CheckedPrologue<'_>>, &ConvEpilogue),
    statistics: Option<&Tensor>,
) -> Result<()> {
    let (planes, part) = plan::forward(g);
    let roles = launch::Roles { rows: g.filters, depth: g.channels, transposed: false };
    launch::run(OP, g, roles, (planes, vec![part]), operands, ends, statistics)
}

/// The gradient of the input.
pub(super) fn backward_data(
    g: &ConvGeometry,
    grad: &Tensor,
    weight: &Tensor,
    out: &Tensor,
    epilogue: &ConvEpilogue,
) -> Result<()> {
    let roles = launch::Roles { rows: g.channels, depth: g.filters, transposed: true };
    launch::run("conv2d_backward_data", g, roles, plan::backward(g), [grad, weight, out], (None, epilogue), None)
}

/// The gradient of the weight.
pub(super) fn backward_weight(g: &ConvGeometry, grad: &Tensor, x: &Tensor, out: &Tensor) -> Result<()> {
    let run = if outer::suits(g) { outer::run } else { weights::run };
    let sum = x.dtype().accumulator();
    if out.dtype() == sum {
        return run(g, grad, x, out);
    }
    let sums = Tensor::uninit(out.queue(), out.shape().clone(), sum)?;
    run(g, grad, x, &sums)?;
    out.assign(&sums)
}

/// Runs a block with the type of pixels of a dtype.
macro_rules! with_pixel {
    ($dtype:expr, $E:ident => $body:expr) => {
        match $dtype {
            ::netcl_core::dtype::DType::F64 => {
                type $E = f64;
                $body
            }
            ::netcl_core::dtype::DType::F16 => {
                type $E = half::f16;
                $body
            }
            ::netcl_core::dtype::DType::BF16 => {
                type $E = half::bf16;
                $body
            }
            _ => {
                type $E = f32;
                $body
            }
        }
    };
}
use with_pixel;

/// Memory for `n` elements that lives as long as the launch.
fn scratch(like: &Tensor, n: usize, dtype: DType) -> Result<Tensor> {
    Tensor::uninit(like.queue(), [n], dtype)
}
