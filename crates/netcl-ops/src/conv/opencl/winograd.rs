//! Winograd's F(2x2, 3x3): transforms around sixteen matrix products, so many images at a time.

use netcl_core::Result;
use netcl_core::conv::ConvGeometry;
use netcl_core::kernels::launch::{Access, Arg, Cost, Scalar};
use netcl_core::tensor::Tensor;

use super::{Args, ConvLaunch, result};
use crate::matmul::matmul;

/// Bytes of transformed tiles at once.
const BYTES: usize = 256 << 20;

/// Convolves `x` as the geometry `g` says: that of `this`, or its flipped one, whose filters lie turned round in the weight.
pub(super) fn run(this: &ConvLaunch<'_>, g: &ConvGeometry, flip: bool, [x, weight, out]: [&Tensor; 3]) -> Result<()> {
    let (channels, filters) = (g.channels, g.filters);
    let u = Tensor::uninit(x.queue(), [16, filters, channels], x.dtype())?;
    let steps = if flip { [9, 9 * filters] } else { [9 * channels, 9] };
    let mut args = place(weight);
    args.push(written(&u));
    args.extend([filters, channels, steps[0], steps[1], usize::from(flip)].map(|value| this.number(value)));
    launch(this, "winograd_filter", [filters * channels, 1], args, &u)?;

    let [down, right] = g.output.map(|length| length.div_ceil(2));
    let images = at_once(this, g, down * right);
    for first in (0..g.n).step_by(images) {
        let tiles = images.min(g.n - first) * down * right;
        let v = Tensor::uninit(x.queue(), [16, channels, tiles], x.dtype())?;
        let mut args = place(x);
        args.push(written(&v));
        args.extend(this.strides(x));
        let ([h, w], [top, left]) = (g.input, g.before());
        args.extend([first, tiles, channels, h, w, down, right, top, left].map(|value| this.number(value)));
        args.extend(this.prologue_args());
        launch(this, "winograd_input", [tiles, channels], args, &v)?;
        let m = matmul(&u, &v)?;
        let mut args = Args::new();
        args.push(Arg::Buffer(m.storage().clone(), Access::Read));
        args.push(written(out));
        args.push(Arg::Scalar(Scalar::U64(out.layout().offset() as u64)));
        let [oh, ow] = g.output;
        args.extend([first, tiles, filters, oh, ow, down, right].map(|value| this.number(value)));
        args.extend(this.epilogue());
        launch(this, "winograd_output", [tiles, filters], args, out)?;
    }
    Ok(())
}

/// The most elements that transformed tiles may have.
pub(super) fn elements(g: &ConvGeometry) -> usize {
    let tiles = g.output[0].div_ceil(2) * g.output[1].div_ceil(2);
    (16 * tiles * g.channels.max(g.filters)).max(BYTES / 4)
}

/// Images whose tiles are transformed at once.
fn at_once(this: &ConvLaunch<'_>, g: &ConvGeometry, tiles: usize) -> usize {
    let largest = usize::try_from(this.stream.device().info().max_mem_alloc_size).unwrap_or(usize::MAX);
    (BYTES.min(largest) / (16 * 4 * tiles * g.channels.max(g.filters)).max(1)).clamp(1, g.n)
}

fn place(tensor: &Tensor) -> Args {
    let mut args = Args::new();
    args.push(Arg::Buffer(tensor.storage().clone(), Access::Read));
    args.push(Arg::Scalar(Scalar::U64(tensor.layout().offset() as u64)));
    args
}

fn written(tensor: &Tensor) -> Arg {
    Arg::Buffer(tensor.storage().clone(), Access::Write)
}

fn launch(this: &ConvLaunch<'_>, name: &'static str, [x, y]: [usize; 2], args: Args, out: &Tensor) -> Result<()> {
    let kernel = this.kernel(name, &[include_str!("conv_winograd.cl")], |prelude| {
        prelude.sums(this.epilogue.sum, this.index);
        result(prelude, this.epilogue);
        if name == "winograd_input" {
            this.define_prologue(prelude);
        }
    })?;
    // Each transform reads and writes about as much as its result has elements.
    let bytes = (2 * out.size() * 4) as f64;
    this.send(name, kernel, this.grid([x, y, 1]), args, out, Cost { flops: 0.0, bytes })
}
