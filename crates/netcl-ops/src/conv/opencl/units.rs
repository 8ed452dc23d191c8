//! Convolutions on Hopper's matrix units: the engine of `matmul_wgmma.cl` with the loader of `conv_units.cl`.
//!
//! Images, gradients and results are channels-last; what lies otherwise is copied first. Weights are copied tap by tap, as the copy
//! engine wants them. Measured on an H200 beside PyTorch 2.11 (cuDNN, channels-last), 128 images of 64 x 32 x 32, 3x3 filters, in
//! microseconds: forward 33 and 29 in bfloat16, 56 and 57 in tf32.

use netcl_core::backend::opencl::Grid;
use netcl_core::backend::opencl::tensor_map::{LONGEST_BOX, MAP_BYTES, MapAxis, Swizzle, TensorMap};
use netcl_core::dtype::DType;
use netcl_core::kernel_selector::WGMMA_GROUP;
use netcl_core::kernels::launch::{Access, Arg, Cost, Scalar};
use netcl_core::precision::MatmulPrecision;
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};
use smallvec::SmallVec;

use super::super::epilogue::ConvEpilogue;
use super::{Args, ConvLaunch, places, result};
use crate::matmul::Variant as Product;
use crate::matmul::opencl::{Arithmetic, Plan, ROWS, StreamK, define_tiles, define_units, map_args, wgmma_kernel};
use crate::prelude::Prelude;

/// Bytes of a row of a tile: the reach of the swizzle.
const ROW_BYTES: usize = 128;
/// Strides and addresses are multiples of so many bytes.
const UNIT: usize = 16;

/// How the kernel walks over the pixels of images: `boxes` of neighbouring ones, in x, y and image.
struct Walk {
    /// Width, height and number of the images.
    pixels: [usize; 3],
    corner: [usize; 3],
}

impl Walk {
    /// The boxes of at most `most` pixels that need the fewest steps; with `exact` of just as many, pixels outside included.
    /// Neighbours along x first: their windows share most of what they read.
    fn new(pixels: [usize; 3], most: usize, exact: bool, stride: [usize; 2]) -> Walk {
        let [width, height, images] = pixels;
        let longest = |stride: usize| LONGEST_BOX as usize / stride;
        let mut best: Option<((usize, usize, usize), [usize; 3])> = None;
        for x in 1..=most.min(width.next_power_of_two()).min(longest(stride[1])) {
            for y in 1..=(most / x).min(height.next_power_of_two()).min(longest(stride[0])) {
                let n = if exact { most / (x * y) } else { (most / (x * y)).min(images) };
                if n > LONGEST_BOX as usize || (exact && n * x * y != most) {
                    continue;
                }
                let count = width.div_ceil(x) * height.div_ceil(y) * images.div_ceil(n);
                let key = (count, most - x * y, most - x);
                if best.is_none_or(|(other, _)| key < other) {
                    best = Some((key, [x, y, n]));
                }
            }
        }
        Walk { pixels, corner: best.map_or([1, 1, 1], |(_, corner)| corner) }
    }

    fn boxes(&self) -> [usize; 3] {
        [0, 1, 2].map(|axis| self.pixels[axis].div_ceil(self.corner[axis]))
    }

    fn define(&self, prelude: &mut Prelude<'_>) {
        for (name, length) in ["BOX_X", "BOX_Y", "BOX_N"].into_iter().zip(self.corner) {
            prelude.define(name, length);
        }
    }
}

/// What a box of pixels becomes under the taps of a filter, along y and x.
#[derive(Clone, Copy, Default)]
struct Taps {
    /// How many there are.
    count: [usize; 2],
    /// The image's pixel under the first tap of pixel (0, 0), and from there to that under the next tap.
    origin: [isize; 2],
    by_tap: [isize; 2],
    /// From pixel to pixel in the image.
    by_pixel: [usize; 2],
    /// The first filter tap, and from one to the next.
    filter: [usize; 2],
    by_filter: [usize; 2],
    /// Where pixel (0, 0) is in the result, and from one to the next.
    first: [usize; 2],
    step: [usize; 2],
}

/// What computes with numbers of a dtype; tf32 wherever float32 need not be exact.
fn arithmetic(dtype: DType) -> Option<Arithmetic> {
    Arithmetic::of(Product::Wgmma, dtype, MatmulPrecision::High)
}

fn wrong(error: impl std::fmt::Display) -> Error {
    Error::argument("conv2d", error.to_string())
}

/// Images that the copy engine can read: channels-last, from a multiple of 16 bytes on.
fn readable(t: &Tensor) -> Result<Tensor> {
    let t = t.channels_last()?;
    if (t.layout().offset() * t.dtype().size()).is_multiple_of(UNIT) {
        return Ok(t);
    }
    let own = Tensor::uninit_channels_last(t.queue(), t.shape().clone(), t.dtype())?;
    own.assign(&t)?;
    Ok(own)
}

/// Boxes of `channels` channels of images, of every `by_pixel`th pixel.
fn image_map(
    arithmetic: Arithmetic,
    t: &Tensor,
    walk: &Walk,
    channels: usize,
    by_pixel: [usize; 2],
) -> Result<TensorMap> {
    let size = t.dtype().size();
    let [n, c, h, w] = [0, 1, 2, 3].map(|axis| t.shape()[axis]);
    let [x, y, images] = walk.corner;
    let axes = [(c, 0, channels), (w, c, x), (h, w * c, y), (n, h * w * c, images)];
    let axes = axes.map(|(length, stride, box_length)| MapAxis {
        length: length as u64,
        stride: (stride * size) as u64,
        box_length: box_length as u32,
    });
    let map = TensorMap::new(arithmetic.element(), &axes, Swizzle::Bytes128).map_err(wrong)?;
    map.stepped(1, by_pixel[1]).and_then(|map| map.stepped(2, by_pixel[0])).map_err(wrong)
}

/// A matrix of `rows` dense rows, or several: boxes of `depth` elements of `lines` rows.
fn matrix_map(arithmetic: Arithmetic, [length, rows, matrices]: [usize; 3], lines: usize) -> Result<TensorMap> {
    let size = arithmetic.size();
    let axis = |length: usize, stride: usize, box_length: usize| MapAxis {
        length: length as u64,
        stride: (stride * size).max(UNIT) as u64,
        box_length: box_length as u32,
    };
    let axes =
        [axis(length, 0, ROW_BYTES / size), axis(rows, length, lines), axis(matrices, rows * length, 1), axis(1, 0, 1)];
    TensorMap::new(arithmetic.element(), &axes, Swizzle::Bytes128).map_err(wrong)
}

/// One launch of the engine.
struct Engine<'c> {
    launch: &'c ConvLaunch<'c>,
    arithmetic: Arithmetic,
    plan: Plan,
    walk: Walk,
    taps: Taps,
    /// 1 where rows are pixels, 2 where terms are.
    windows: usize,
    /// Chunks of channels, or their lines.
    channels: usize,
    orders: [bool; 2],
}

impl Engine<'_> {
    /// The width of tiles that leaves the least of the device idle.
    fn plan(this: &ConvLaunch<'_>, columns: usize, tiles: impl Fn(usize) -> usize, chunks: usize) -> Plan {
        let units = this.stream.device().info().compute_units.max(1) as usize;
        let plan = |&width: &usize| {
            let tiles = tiles(width) * columns.div_ceil(width);
            // A step is 128 bytes of every line: 64 terms of 16 bits.
            Plan { columns: width, tiles, units, chunks, chunk: width * 4, stream_k: true }
        };
        let widths =
            Arithmetic::BF16.widths().iter().filter(|&&width| width < columns.max(64).next_multiple_of(64) + 64);
        let plans = widths.map(plan);
        plans.min_by(|a, b| a.cost().total_cmp(&b.cost())).unwrap_or_else(|| plan(&64))
    }

    fn run(
        &self,
        [a, b, out]: [&Tensor; 3],
        maps: [TensorMap; 2],
        [m, n]: [usize; 2],
        (at, strides, dense): (usize, [usize; 4], bool),
        epilogue: &ConvEpilogue,
        cost: Cost,
    ) -> Result<()> {
        const NAME: &str = "conv_units";
        let this = self.launch;
        let Plan { columns, tiles, units, .. } = self.plan;
        let shared = self.plan.shared_tiles();
        let kernel = wgmma_kernel(this.stream, NAME, columns, include_str!("conv_units.cl"), |prelude| {
            prelude.sums(epilogue.sum, this.index);
            result(prelude, epilogue);
            define_units(prelude, NAME, self.arithmetic, self.orders, [epilogue.dtype, epilogue.compute]);
            define_tiles(prelude, self.arithmetic, columns, self.orders, shared.is_some());
            prelude.define("WINDOWS", self.windows);
            self.walk.define(prelude);
        })?;
        let groups = shared.map_or(tiles.min(units), |shared| shared.groups);
        let scratch = Tensor::uninit(out.queue(), [groups * 2 * MAP_BYTES / 4], DType::I32)?;
        let mut args = places([a, b, out]);
        args[5] = Arg::Scalar(Scalar::U64((out.layout().offset() + at) as u64));
        args.push(Arg::Buffer(scratch.storage().clone(), Access::Write));
        args.extend(maps.iter().flat_map(map_args));
        args.extend([m, n, 0].map(|length| this.number(length)));
        // One matrix, whose place the loader does not ask for.
        args.extend([1, 1, 0, 0, 0, 0, 0, 0].map(|value| Arg::Scalar(Scalar::I32(value))));
        args.extend(strides.map(|stride| this.number(stride)));
        args.push(Arg::Scalar(Scalar::I32(i32::from(dense))));
        if epilogue.expr.is_some() {
            args.extend(this.epilogue());
        }
        if let Some(StreamK { whole, groups }) = shared {
            let left = Tensor::uninit(out.queue(), [groups, 2, ROWS, columns], DType::F32)?;
            let memory = [left.storage().clone(), this.stream.counters()?];
            args.extend(memory.map(|memory| Arg::Buffer(memory, Access::Write)));
            args.push(Arg::Scalar(Scalar::I32(whole as i32)));
        }
        args.extend(self.geometry());
        let grid = Grid::new([groups * WGMMA_GROUP]).local([WGMMA_GROUP]);
        this.send(NAME, kernel, grid, args, out, cost)
    }

    /// The arguments `w0` and `w1`.
    fn geometry(&self) -> [Arg; 2] {
        let Taps { count, origin, by_tap, by_pixel, filter, by_filter, first, step } = self.taps;
        let kernel_width = self.launch.g.kernel[1];
        let [boxes_x, boxes_y, _] = self.walk.boxes();
        let [width, height, images] = self.walk.pixels;
        // A pass without taps multiplies nothing: its results are zero.
        let rows = if count[1] == 0 { 0 } else { count[0] };
        let words = [
            [boxes_x, boxes_y, width, height, images].map(|length| length as i32).to_vec(),
            [origin, by_pixel.map(|step| step as isize), by_tap].concat().iter().map(|&value| value as i32).collect(),
            [count[1].max(1), self.channels, filter[0] * kernel_width + filter[1]].map(|value| value as i32).to_vec(),
            [by_filter[0] * kernel_width, by_filter[1], rows].map(|value| value as i32).to_vec(),
            [first, step].concat().iter().map(|&value| value as i32).collect(),
        ];
        let mut words = words.concat();
        words.resize(32, 0);
        let half =
            |words: &[i32]| Arg::Scalar(Scalar::Bytes(words.iter().flat_map(|word| word.to_ne_bytes()).collect()));
        [half(&words[..16]), half(&words[16..])]
    }
}

/// Whether results are written four at a time.
fn dense(channels: usize, at: usize) -> bool {
    channels.is_multiple_of(4) && at.is_multiple_of(4)
}

/// Windows times filters: a row for each pixel of `walk`, written into `out` where `taps` says.
fn pixels(
    this: &ConvLaunch<'_>,
    taps: Taps,
    walk: Walk,
    [images, filters, out]: [&Tensor; 3],
    cost: Cost,
) -> Result<()> {
    let Some(arithmetic) = arithmetic(images.dtype()) else { return Err(wrong("matrix units take no such numbers")) };
    let depth = arithmetic.depth();
    let (channels, columns) = (images.shape()[1], out.shape()[1]);
    let boxes: usize = walk.boxes().iter().product();
    let per_tap = channels.div_ceil(depth);
    let chunks = taps.count[0] * taps.count[1] * per_tap;
    let plan = Engine::plan(this, columns, |_| boxes, chunks);
    let maps = [
        image_map(arithmetic, images, &walk, depth, taps.by_pixel)?,
        matrix_map(arithmetic, [channels, columns, this.g.taps()], plan.columns)?,
    ];
    let [height, width] = [out.shape()[2], out.shape()[3]];
    let [down, right] = taps.step;
    let at = (taps.first[0] * width + taps.first[1]) * columns;
    let strides = [right * columns, 1, height * width * columns, down * width * columns];
    let dense = dense(columns, out.layout().offset() + at);
    let engine =
        Engine { launch: this, arithmetic, plan, walk, taps, windows: 1, channels: per_tap, orders: [true, true] };
    engine.run([images, filters, out], maps, [ROWS, columns], (at, strides, dense), this.epilogue, cost)
}

/// The convolution.
pub(super) fn forward(this: &ConvLaunch<'_>, [x, weight, out]: [&Tensor; 3]) -> Result<()> {
    let g = this.g;
    let images = readable(x)?;
    let filters = weight.permute(&[2, 3, 0, 1])?.contiguous()?;
    let taps = Taps {
        count: g.kernel,
        origin: g.before().map(|zeros| -(zeros as isize)),
        by_tap: g.dilation.map(|step| step as isize),
        by_pixel: g.stride,
        by_filter: [1, 1],
        step: [1, 1],
        ..Taps::default()
    };
    let walk = Walk::new([g.output[1], g.output[0], g.n], ROWS, false, g.stride);
    pixels(this, taps, walk, [&images, &filters, out], this.cost)
}

/// The gradient of the images: once for each place that a pixel can have between two steps of the filters.
pub(super) fn backward_data(this: &ConvLaunch<'_>, [grad, weight, out]: [&Tensor; 3]) -> Result<()> {
    let g = this.g;
    let grad = readable(grad)?;
    let filters = weight.permute(&[2, 3, 1, 0])?.contiguous()?;
    let [down, right] = g.stride;
    let cost = Cost { flops: this.cost.flops / (down * right) as f64, bytes: this.cost.bytes / (down * right) as f64 };
    for place in (0..down).flat_map(|y| (0..right).map(move |x| [y, x])) {
        // Tap t of pixel p was under output pixel (p + padding - t * dilation) / stride, where that is whole.
        let along = [0, 1]
            .map(|axis| Line::new(g.kernel[axis], g.stride[axis], g.dilation[axis], g.before()[axis], place[axis]));
        let taps = Taps {
            count: along.map(|line| line.count),
            origin: along.map(|line| line.origin),
            by_tap: along.map(|line| line.by_tap),
            by_pixel: [1, 1],
            filter: along.map(|line| line.first),
            by_filter: along.map(|line| line.step),
            first: place,
            step: g.stride,
        };
        let [height, width] = [0, 1].map(|axis| g.input[axis].saturating_sub(place[axis]).div_ceil(g.stride[axis]));
        if height * width > 0 {
            let walk = Walk::new([width, height, g.n], ROWS, false, [1, 1]);
            pixels(this, taps, walk, [&grad, &filters, out], cost)?;
        }
    }
    Ok(())
}

/// The taps along one axis that meet the pixels `place`, `place + stride`, ... of a data gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line {
    count: usize,
    /// The first such tap, and from one to the next.
    first: usize,
    step: usize,
    /// The output's pixel under the first tap, and from there to that under the next.
    origin: isize,
    by_tap: isize,
}

impl Line {
    fn new(kernel: usize, stride: usize, dilation: usize, before: usize, place: usize) -> Line {
        let meets = |tap: usize| (place + before) as isize - (tap * dilation) as isize;
        let taps: SmallVec<[usize; 8]> =
            (0..kernel).filter(|&tap| meets(tap).rem_euclid(stride as isize) == 0).collect();
        // They are as far apart everywhere.
        let step = if let [first, second, ..] = taps[..] { second - first } else { 1 };
        let first = taps.first().copied().unwrap_or_default();
        let origin = meets(first).div_euclid(stride as isize);
        Line { count: taps.len(), first, step, origin, by_tap: -((step * dilation / stride) as isize) }
    }
}

/// The gradient of the weight.
pub(super) fn backward_weight(this: &ConvLaunch<'_>, [grad, x, out]: [&Tensor; 3]) -> Result<()> {
    let g = this.g;
    let Some(arithmetic) = arithmetic(x.dtype()) else { return Err(wrong("matrix units take no such numbers")) };
    let (images, grad) = (readable(x)?, readable(grad)?);
    let depth = arithmetic.depth();
    let lines = g.channels.next_multiple_of(depth);
    let walk = Walk::new([g.output[1], g.output[0], g.n], depth, true, g.stride);
    let boxes: usize = walk.boxes().iter().product();
    let plan = Engine::plan(this, g.filters, |_| (g.taps() * lines).div_ceil(ROWS), boxes);
    let along_k = arithmetic == Arithmetic::Tf32;
    let turned = along_k.then(|| turn(this, &grad, &walk)).transpose()?;
    let second = turned.as_ref().unwrap_or(&grad);
    let maps = [
        image_map(arithmetic, &images, &walk, depth, g.stride)?,
        match along_k {
            true => matrix_map(arithmetic, [boxes * depth, g.filters, 1], plan.columns)?,
            false => image_map(arithmetic, &grad, &walk, depth, [1, 1])?,
        },
    ];
    let taps = Taps {
        count: g.kernel,
        origin: g.before().map(|zeros| -(zeros as isize)),
        by_tap: g.dilation.map(|step| step as isize),
        by_pixel: g.stride,
        ..Taps::default()
    };
    let [row, column, down, right] = [1, 0, 2, 3].map(|axis| out.layout().strides()[axis] as usize);
    let engine =
        Engine { launch: this, arithmetic, plan, walk, taps, windows: 2, channels: lines, orders: [false, along_k] };
    let epilogue = ConvEpilogue::plain(out.dtype());
    let strides = [row, column, down, right];
    engine.run([&images, second, out], maps, [g.channels, g.filters], (0, strides, false), &epilogue, this.cost)
}

/// Float32 gradients with the pixels side by side, in the order of the boxes.
fn turn(this: &ConvLaunch<'_>, grad: &Tensor, walk: &Walk) -> Result<Tensor> {
    const NAME: &str = "conv_turn";
    const SIDE: usize = 32;
    let [boxes_x, boxes_y, boxes_n] = walk.boxes();
    let boxes = boxes_x * boxes_y * boxes_n;
    let filters = grad.shape()[1];
    let out = Tensor::uninit(grad.queue(), [filters, boxes * SIDE], DType::F32)?;
    let kernel = this.kernel(NAME, &[include_str!("conv_turn.cl")], |prelude| {
        prelude.index(this.index);
        walk.define(prelude);
    })?;
    let mut args = Args::new();
    args.push(Arg::Buffer(grad.storage().clone(), Access::Read));
    args.push(Arg::Scalar(Scalar::U64(grad.layout().offset() as u64)));
    args.push(Arg::Buffer(out.storage().clone(), Access::Write));
    args.extend([filters, boxes * SIDE].map(|value| this.number(value)));
    let lengths = [boxes_x, boxes_y, walk.pixels[0], walk.pixels[1], walk.pixels[2]];
    args.extend(lengths.map(|length| Arg::Scalar(Scalar::I32(length as i32))));
    args.extend([0, 2, 3].map(|axis| this.number(grad.layout().strides()[axis] as usize)));
    let grid = Grid::new([boxes * SIDE, filters.div_ceil(SIDE) * 8]).local([SIDE, 8]);
    let cost = Cost { flops: 0.0, bytes: (8 * grad.size()) as f64 };
    this.send(NAME, kernel, grid, args, &out, cost)?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_fit_images() {
        let corner = |pixels, most, exact| Walk::new(pixels, most, exact, [1, 1]).corner;
        assert_eq!(corner([32, 32, 128], 128, false), [32, 4, 1]);
        assert_eq!(corner([56, 56, 64], 128, false), [8, 8, 2], "none outside, unlike 8 x 16");
        assert_eq!(corner([14, 14, 64], 64, true), [2, 2, 16], "just as many, none outside");
        assert_eq!(corner([7, 7, 64], 64, true), [1, 1, 64]);
        assert_eq!(corner([5, 3, 1], 128, false), [8, 4, 1], "what hangs over the edge is zero");
        // What is stepped over counts: no box reaches further than the copy engine does.
        assert!(Walk::new([1024, 1024, 1], 128, false, [8, 8]).corner.iter().take(2).all(|&length| length * 8 <= 256));
    }

    #[test]
    fn taps_of_a_gradient_are_those_that_met_a_pixel() {
        // 3 taps, stride 2, one zero before: even pixels met the middle tap, odd ones the two outer ones.
        let even = Line::new(3, 2, 1, 1, 0);
        assert_eq!(even, Line { count: 1, first: 1, step: 1, origin: 0, by_tap: 0 });
        let odd = Line::new(3, 2, 1, 1, 1);
        assert_eq!(odd, Line { count: 2, first: 0, step: 2, origin: 1, by_tap: -1 });
        assert_eq!(Line::new(1, 2, 1, 0, 1).count, 0);
        assert_eq!(Line::new(3, 1, 2, 2, 0), Line { count: 3, first: 0, step: 1, origin: 2, by_tap: -2 });
    }
}
