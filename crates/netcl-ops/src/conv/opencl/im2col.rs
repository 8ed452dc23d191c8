//! Windows written out as a matrix, so many images at a time, for the matrix product.

use std::sync::LazyLock;

use netcl_core::Result;
use netcl_core::backend::opencl::Stream;
use netcl_core::conv::ConvGeometry;
use netcl_core::dtype::DType;
use netcl_core::kernels::elementwise::Elementwise;
use netcl_core::kernels::expr::opencl::bits_type;
use netcl_core::kernels::expr::{Expr, Graph};
use netcl_core::kernels::launch::{Access, Arg, Cost, Scalar};
use netcl_core::shape::Slice;
use netcl_core::tensor::{Tensor, reshape};

use super::super::epilogue::ConvEpilogue;
use super::{Args, ConvLaunch, GEOMETRY, loads, result};
use crate::matmul::{Epilogue, MatmulOptions, matmul_with};
use crate::reduce::{Axes, sum};

/// Bytes of windows that are written out at once: large products fill a device.
const BYTES: usize = 128 << 20;
/// Up to so many times as many elements of a window as pixels, the weight gradients of single images take less memory than their
/// windows do.
const DEEPEST: usize = 8;

/// Windows of an image below which a product of its own is too narrow.
const NARROW: usize = 128;
const FILES: &[&str] = &[GEOMETRY, include_str!("conv_im2col.cl")];
/// Images whose windows are written out at once.
pub(super) fn images_at_once(stream: &Stream, g: &ConvGeometry, sum: DType) -> usize {
    let info = stream.device().info();
    let largest = usize::try_from(info.max_mem_alloc_size).unwrap_or(usize::MAX);
    let image = g.groups * g.channels * g.taps() * g.pixels() * sum.size();
    (BYTES.min(largest) / image.max(1)).clamp(1, g.n.max(1))
}

/// Whether the windows of so many images stand side by side in one matrix, rather than in one for each.
fn by_round(g: &ConvGeometry) -> bool {
    g.n > 1 && g.pixels() < NARROW
}

/// Whether the result can be channels-last: a product for each image has the pixels for rows as well as for columns.
pub(super) fn writes_channels_last(g: &ConvGeometry) -> bool {
    g.groups == 1 && !by_round(g)
}

/// Weights times windows.
pub(super) fn forward(this: &ConvLaunch<'_>, operands: [&Tensor; 3]) -> Result<()> {
    if by_round(this.g) { forward_by_round(this, operands) } else { forward_by_image(this, operands) }
}

/// A product for each image, which writes its results where they belong.
fn forward_by_image(this: &ConvLaunch<'_>, [x, weight, out]: [&Tensor; 3]) -> Result<()> {
    let g = this.g;
    let (k, pixels) = (g.channels * g.taps(), g.pixels());
    let weight = reshape(weight, [g.groups, g.filters, k])?;
    let result = [g.n, g.groups, g.filters, pixels];
    // Of channels-last results rows are pixels.
    let turns = out.layout().is_channels_last();
    let turned = |t: Tensor| if turns { t.permute(&[0, 1, 3, 2]) } else { Ok(t) };
    let out = turned(reshape(out, result)?)?;
    let inputs = this.epilogue.inputs.iter().map(|input| turned(reshape(input, result)?));
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    for (first, images) in chunks(this) {
        let cols = Tensor::uninit(x.queue(), [images, g.groups, k, pixels], x.dtype())?;
        windows(this, [x, &cols], (first, images), [pixels, g.groups * k * pixels])?;
        let part = |tensor: &Tensor| slice(tensor, first, images);
        let epilogue = this.epilogue.epilogue(inputs.iter().map(part).collect::<Result<_>>()?);
        let out = part(&out)?;
        let options =
            MatmulOptions { epilogue, out: Some(&out), transpose_a: turns, transpose_b: turns, ..Default::default() };
        let [first, second] = if turns { [&cols, &weight] } else { [&weight, &cols] };
        matmul_with(first, second, &options)?;
    }
    Ok(())
}

/// One product over the pixels of so many images, whose results are then sorted by image.
fn forward_by_round(this: &ConvLaunch<'_>, [x, weight, out]: [&Tensor; 3]) -> Result<()> {
    let g = this.g;
    let (k, pixels, filters) = (g.channels * g.taps(), g.pixels(), g.groups * g.filters);
    let weight = reshape(weight, [g.groups, g.filters, k])?;
    let result = [g.n, filters, pixels];
    let out = reshape(out, result)?;
    let inputs = this.epilogue.inputs.iter().map(|input| reshape(input, result)).collect::<Result<Vec<_>>>()?;
    let last = Elementwise::new("conv2d", this.epilogue.expr.as_ref().unwrap_or(&KEEP).clone());
    for (first, images) in chunks(this) {
        let cols = Tensor::uninit(x.queue(), [g.groups, k, images * pixels], x.dtype())?;
        windows(this, [x, &cols], (first, images), [images * pixels, pixels])?;
        let options = MatmulOptions { epilogue: wide(this, x.dtype()), ..Default::default() };
        let sums = reshape(&matmul_with(&weight, &cols, &options)?, [filters, images, pixels])?.permute(&[1, 0, 2])?;
        let inputs = inputs.iter().map(|input| slice(input, first, images)).collect::<Result<Vec<_>>>()?;
        let inputs: Vec<&Tensor> = std::iter::once(&sums).chain(&inputs).collect();
        last.run(&inputs, &this.epilogue.scalars, &[&slice(&out, first, images)?])?;
    }
    Ok(())
}

/// What keeps a product as it is, in another type.
static KEEP: LazyLock<Expr> = LazyLock::new(|| {
    let g = Graph::new();
    g.finish(&[g.input(0)])
});

/// The end of a product of 16-bit floats that is not rounded before it is added up.
fn wide(this: &ConvLaunch<'_>, operands: DType) -> Option<Epilogue<'static>> {
    let sum = this.epilogue.sum;
    (operands != sum).then(|| Epilogue { expr: &KEEP, inputs: vec![], scalars: vec![], dtype: Some(sum) })
}

/// Transposed weights times gradients give the gradients of windows, which are added up where they overlap.
pub(super) fn backward_data(this: &ConvLaunch<'_>, [grad, weight, out]: [&Tensor; 3]) -> Result<()> {
    let g = this.g;
    let (k, pixels) = (g.channels * g.taps(), g.pixels());
    let weight = reshape(weight, [g.groups, g.filters, k])?;
    let grad = reshape(grad, [g.n, g.groups, g.filters, pixels])?;
    for (first, images) in chunks(this) {
        let options = MatmulOptions { transpose_a: true, epilogue: wide(this, grad.dtype()), ..Default::default() };
        let grad = slice(&grad, first, images)?;
        let (grad, steps) = match by_round(this.g) {
            true => (side_by_side(this, &grad)?, [images * pixels, pixels]),
            false => (grad, [pixels, g.groups * k * pixels]),
        };
        let cols = matmul_with(&weight, &grad, &options)?;
        let grid = this.planes(g.input[0] * g.input[1], g.groups * g.channels, images);
        let kernel = this.kernel("col2im", FILES, |prelude| {
            prelude.sums(this.epilogue.sum, this.index);
            result(prelude, this.epilogue);
            prelude.defines([("DATA", 1), ("STRIDE", this.stride())]);
        })?;
        let mut args: Args = Args::new();
        args.push(Arg::Buffer(cols.storage().clone(), Access::Read));
        args.push(Arg::Buffer(out.storage().clone(), Access::Write));
        args.push(Arg::Scalar(Scalar::U64(out.layout().offset() as u64)));
        args.extend([first, steps[0], steps[1]].map(|value| this.number(value)));
        args.extend(this.geometry());
        args.extend(this.epilogue());
        let bytes = (cols.size() * cols.dtype().size()) as f64;
        this.send("col2im", kernel, grid, args, out, Cost { flops: cols.size() as f64, bytes })?;
    }
    Ok(())
}

/// Gradients times transposed windows.
pub(super) fn backward_weight(this: &ConvLaunch<'_>, operands: [&Tensor; 3]) -> Result<()> {
    let g = this.g;
    if g.n > 1 && g.channels * g.taps() <= DEEPEST * g.pixels() {
        weight_by_image(this, operands)
    } else {
        weight_by_round(this, operands)
    }
}

/// A product for each image, whose results are added up: gradients are read where they are.
fn weight_by_image(this: &ConvLaunch<'_>, [grad, x, out]: [&Tensor; 3]) -> Result<()> {
    let g = this.g;
    let (k, pixels) = (g.channels * g.taps(), g.pixels());
    let grad = reshape(grad, [g.n, g.groups, g.filters, pixels])?;
    let partial = Tensor::uninit(x.queue(), [g.n, g.groups, g.filters, k], this.epilogue.sum)?;
    for (first, images) in chunks(this) {
        let cols = Tensor::uninit(x.queue(), [images, g.groups, k, pixels], x.dtype())?;
        windows(this, [x, &cols], (first, images), [pixels, g.groups * k * pixels])?;
        let target = slice(&partial, first, images)?;
        let epilogue = wide(this, x.dtype());
        let options = MatmulOptions { transpose_b: true, epilogue, out: Some(&target), ..Default::default() };
        matmul_with(&slice(&grad, first, images)?, &cols, &options)?;
    }
    out.assign(&reshape(&sum(&partial, Axes::One(0), false)?, out.shape())?)
}

/// One product over the pixels of so many images; further images are added.
fn weight_by_round(this: &ConvLaunch<'_>, [grad, x, out]: [&Tensor; 3]) -> Result<()> {
    static ADD: LazyLock<Expr> = LazyLock::new(|| {
        let g = Graph::new();
        g.finish(&[g.input(0) + g.input(1)])
    });
    let g = this.g;
    let (k, pixels, wide) = (g.channels * g.taps(), g.pixels(), this.epilogue.sum);
    let single = g.n <= images_at_once(this.stream, g, wide);
    let shape = [g.groups, g.filters, k];
    // One product writes the result itself; several add up in the type of the sums.
    let sums = if single { reshape(out, shape)? } else { Tensor::uninit(out.queue(), shape, wide)? };
    let grad = reshape(grad, [g.n, g.groups, g.filters, pixels])?;
    for (first, images) in chunks(this) {
        let cols = Tensor::uninit(x.queue(), [g.groups, k, images * pixels], x.dtype())?;
        windows(this, [x, &cols], (first, images), [images * pixels, pixels])?;
        let grad = side_by_side(this, &slice(&grad, first, images)?)?;
        let (expr, inputs) = if first == 0 { (&*KEEP, vec![]) } else { (&*ADD, vec![sums.clone()]) };
        let epilogue = (first > 0 || sums.dtype() != x.dtype()).then(|| Epilogue {
            expr,
            inputs,
            scalars: vec![],
            dtype: Some(sums.dtype()),
        });
        let options = MatmulOptions { transpose_b: true, epilogue, out: Some(&sums), ..Default::default() };
        matmul_with(&grad, &cols, &options)?;
    }
    if single { Ok(()) } else { out.assign(&reshape(&sums, out.shape())?) }
}

/// The gradients [images, groups, filters, pixels] of so many images as one matrix for each group, filters by all their pixels.
fn side_by_side(this: &ConvLaunch<'_>, grad: &Tensor) -> Result<Tensor> {
    let g = this.g;
    reshape(&grad.permute(&[1, 2, 0, 3])?, [g.groups, g.filters, grad.size() / (g.groups * g.filters)])
}

/// The first image and the number of images of each round.
fn chunks(this: &ConvLaunch<'_>) -> impl Iterator<Item = (usize, usize)> {
    let (n, step) = (this.g.n, images_at_once(this.stream, this.g, this.epilogue.sum));
    (0..n).step_by(step).map(move |first| (first, step.min(n - first)))
}

fn slice(tensor: &Tensor, first: usize, images: usize) -> Result<Tensor> {
    tensor.slice(0, Slice::new(Some(first as isize), Some((first + images) as isize), 1))
}

/// Writes the windows of so many images out; `steps` are the distances between rows of the matrix and between images.
fn windows(
    this: &ConvLaunch<'_>,
    [x, cols]: [&Tensor; 2],
    (first, images): (usize, usize),
    steps: [usize; 2],
) -> Result<()> {
    let g = this.g;
    let grid = this.planes(g.pixels(), g.groups * g.channels, images);
    let kernel = this.kernel("im2col", FILES, |prelude| {
        prelude.index(this.index);
        let Some(prologue) = this.prologue else { return prelude.define("BITS", bits_type(x.dtype().size())) };
        // Numbers rather than bits, rounded as they would be in memory.
        prelude.define("BITS", x.dtype().cl_type());
        prelude.define("SUM", this.epilogue.sum.cl_type());
        loads(prelude, x.dtype());
        result(prelude, &ConvEpilogue { compute: prologue.compute, ..ConvEpilogue::plain(x.dtype()) });
        this.define_prologue(prelude);
    })?;
    let mut args: Args = Args::new();
    args.push(Arg::Buffer(x.storage().clone(), Access::Read));
    args.push(Arg::Scalar(Scalar::U64(x.layout().offset() as u64)));
    args.push(Arg::Buffer(cols.storage().clone(), Access::Write));
    args.extend([first, steps[0], steps[1]].map(|value| this.number(value)));
    args.extend(this.strides(x));
    args.extend(this.geometry());
    args.extend(this.prologue_args());
    let bytes = (2 * cols.size() * cols.dtype().size()) as f64;
    this.send("im2col", kernel, grid, args, cols, Cost { flops: 0.0, bytes })
}
