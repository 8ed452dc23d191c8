//! Filters that see one channel each: kernels bound by memory, for any window, stride, dilation, padding and channel multiplier.
//!
//! The window is compiled in where it is small, so that its loops unroll and neighbouring results share their loads: one program for
//! each window and direction of a network.

use netcl_core::Result;
use netcl_core::backend::opencl::Grid;
use netcl_core::conv::ConvGeometry;
use netcl_core::kernels::expr::opencl::IndexWidth;
use netcl_core::kernels::launch::{Access, Arg, Cost, Scalar};
use netcl_core::tensor::Tensor;

use super::super::epilogue::ConvEpilogue;
use super::{Args, ConvLaunch, depthwise_channels, places, result};
use crate::prelude::Prelude;

/// Results below each other that a work-item computes at least, where there are as many.
const ROWS: usize = 4;
/// Taps and strides up to which they are compiled in.
const COMPILED_TAPS: usize = 64;
const COMPILED_STRIDE: usize = 8;
/// Taps of a weight gradient that a work-item holds at most.
const HELD_TAPS: usize = 49;
/// Work-items that share a filter's weight gradient, and groups for each compute unit.
const LANES: usize = 128;
const GROUPS_PER_UNIT: usize = 8;
/// Parts of a weight gradient at most.
const MAX_PARTS: usize = 64;
/// Bytes that memory hands out at once: neighbouring channels of channels-last images that a group reads together.
const SECTOR: usize = 32;
/// Images along the grid's last axis at most; work-items go on with further ones.
const MAX_IMAGES: usize = 1 << 15;
const FILES: &[&str] = &[include_str!("conv_depthwise.cl")];

/// Whether the kernels can compute a convolution.
pub(super) fn fits(g: &ConvGeometry) -> bool {
    g.channels == 1
}

pub(super) fn forward(this: &ConvLaunch<'_>, operands: [&Tensor; 3]) -> Result<()> {
    match depthwise_channels::fits(this.g, operands[0]) {
        true => depthwise_channels::walk(this, false, operands),
        false => walk(this, false, operands),
    }
}

/// The gradient of the input.
pub(super) fn backward_data(this: &ConvLaunch<'_>, operands: [&Tensor; 3]) -> Result<()> {
    match depthwise_channels::fits(this.g, operands[0]) {
        true => depthwise_channels::walk(this, true, operands),
        false => walk(this, true, operands),
    }
}

/// The kernel `depthwise` on an image, weights and a result.
fn walk(this: &ConvLaunch<'_>, data: bool, [x, weight, out]: [&Tensor; 3]) -> Result<()> {
    let g = this.g;
    let [height, width] = if data { g.input } else { g.output };
    // Whole steps of the stride, so that a gradient's work-items all meet the same rows of the window.
    let rows = if data && compiled(g) { g.stride[0] * (ROWS / g.stride[0]).max(1) } else { strip(height) };
    let channels = g.groups * if data { 1 } else { g.filters };
    let grid = planes(this, x, [height.div_ceil(rows) * width, channels, g.n.min(MAX_IMAGES)]);
    let this = &wide_enough(this, grid_size(&grid));
    let kernel = this.kernel("depthwise", FILES, |prelude| {
        this.define(prelude, x.dtype(), this.epilogue);
        this.define_prologue(prelude);
        window(prelude, g, rows, data);
    })?;
    let mut args = places([x, weight, out]);
    args.extend(this.strides(x));
    args.extend(geometry(this, channels, data));
    args.extend(this.epilogue());
    args.extend(this.prologue_args());
    let name = if data { "conv_depthwise_data" } else { "conv_depthwise" };
    this.send(name, kernel, grid, args, out, this.cost)
}

/// The gradient of the weight: parts of it, which are then added up.
pub(super) fn backward_weight(this: &ConvLaunch<'_>, [grad, x, out]: [&Tensor; 3]) -> Result<()> {
    let g = this.g;
    if depthwise_channels::fits_weight(g, grad, x) {
        return depthwise_channels::weight(this, [grad, x, out]);
    }
    let filters = g.groups * g.filters;
    let [kh, kw] = g.kernel;
    let across = kw.min(8);
    let down = kh.min(HELD_TAPS / across);
    let blocks = kh.div_ceil(down) * kw.div_ceil(across);
    let rows = strip(g.output[0]);
    let tiles = g.n * g.output[0].div_ceil(rows) * g.output[1];
    let Share { lanes, beside, parts } = share(this, grad, (filters, blocks, tiles), across * down);
    let this = &wide_enough(this, tiles + parts * lanes);
    let partial =
        (parts > 1).then(|| Tensor::uninit(out.queue(), [parts, out.size()], this.epilogue.sum)).transpose()?;
    let plain = partial.as_ref().map(|_| ConvEpilogue::plain(this.epilogue.sum));
    let kernel = this.kernel("depthwise_weight", FILES, |prelude| {
        this.define(prelude, x.dtype(), plain.as_ref().unwrap_or(this.epilogue));
        window(prelude, g, rows, false);
        prelude.defines([("LANES", lanes), ("TY", down), ("TX", across)]);
    })?;
    let mut args = places([grad, x, partial.as_ref().unwrap_or(out)]);
    args.push(Arg::Local(beside * down * across * (lanes + 1) * this.epilogue.sum.size()));
    args.extend(this.strides(grad));
    args.extend(this.strides(x));
    args.extend(geometry(this, filters, false));
    let grid = Grid::new([parts * lanes, filters.next_multiple_of(beside), blocks]).local([lanes, beside, 1]);
    let target = partial.as_ref().unwrap_or(out);
    this.send("conv_depthwise_weight", kernel, grid, args, target, this.cost)?;
    partial.map_or(Ok(()), |partial| add_parts(this, &partial, out))
}

/// Adds parts up, in their order.
pub(super) fn add_parts(this: &ConvLaunch<'_>, partial: &Tensor, out: &Tensor) -> Result<()> {
    let kernel = this.kernel("depthwise_sum", FILES, |prelude| {
        prelude.sums(this.epilogue.sum, this.index);
        result(prelude, this.epilogue);
    })?;
    let mut args = Args::new();
    args.push(Arg::Buffer(partial.storage().clone(), Access::Read));
    args.push(Arg::Buffer(out.storage().clone(), Access::Write));
    args.push(Arg::Scalar(Scalar::U64(out.layout().offset() as u64)));
    args.extend([out.size(), partial.shape()[0]].map(|value| this.number(value)));
    let bytes = (partial.size() * partial.dtype().size()) as f64;
    let cost = Cost { flops: partial.size() as f64, bytes };
    this.send("conv_depthwise_sum", kernel, this.grid([out.size(), 1, 1]), args, out, cost)
}

/// How the work-items of a weight gradient share it.
struct Share {
    lanes: usize,
    /// Filters of a group.
    beside: usize,
    parts: usize,
}

fn share(this: &ConvLaunch<'_>, grad: &Tensor, work: (usize, usize, usize), taps: usize) -> Share {
    let (filters, blocks, tiles) = work;
    let info = this.stream.device().info();
    let local = usize::try_from(info.local_mem_size).unwrap_or(usize::MAX);
    let most = info.max_work_group_size.clamp(2, LANES);
    let beside = neighbours(grad).min(most / 2);
    let mut lanes = 1 << (most / beside).min(tiles.next_power_of_two()).max(2).ilog2();
    while lanes > 2 && beside * taps * (lanes + 1) * this.epilogue.sum.size() > local {
        lanes /= 2;
    }
    let units = info.compute_units.max(1) as usize;
    let wanted = GROUPS_PER_UNIT * units / (filters.div_ceil(beside) * blocks).max(1);
    let parts = wanted.min(tiles / (lanes * ROWS)).clamp(1, MAX_PARTS);
    Share { lanes, beside, parts }
}

/// Channels that lie side by side and are read together: a power of two.
fn neighbours(image: &Tensor) -> usize {
    let strides = image.layout().strides();
    match strides[1] == 1 && strides[3] != 1 {
        true => (SECTOR / image.dtype().size()).min(image.shape()[1].next_power_of_two()),
        false => 1,
    }
}

/// Work-items for strips of planes, as [`ConvLaunch::planes`] makes them, with as many planes to a group as are read together.
fn planes(this: &ConvLaunch<'_>, image: &Tensor, [strips, channels, images]: [usize; 3]) -> Grid {
    let most = this.stream.device().info().max_work_group_size.clamp(1, 64);
    let group = 1 << most.ilog2();
    let along = strips.next_power_of_two().min((group / neighbours(image)).max(1));
    let beside = group / along;
    Grid::new([strips.next_multiple_of(along), channels.next_multiple_of(beside), images]).local([along, beside, 1])
}

fn grid_size(grid: &Grid) -> usize {
    grid.global_size().iter().product()
}

/// The same with positions that also count so many work-items.
fn wide_enough<'c>(this: &ConvLaunch<'c>, items: usize) -> ConvLaunch<'c> {
    let wide = this.index == IndexWidth::Bits64 || IndexWidth::for_span(items) == IndexWidth::Bits64;
    ConvLaunch { index: if wide { IndexWidth::Bits64 } else { this.index }, ..*this }
}

fn strip(height: usize) -> usize {
    height.next_power_of_two().min(ROWS)
}

fn compiled(g: &ConvGeometry) -> bool {
    g.taps() <= COMPILED_TAPS && g.stride.iter().all(|&stride| stride <= COMPILED_STRIDE)
}

/// Defines the window: as numbers, or as the arguments of these names.
fn window(prelude: &mut Prelude<'_>, g: &ConvGeometry, rows: usize, data: bool) {
    const NAMES: [(&str, &str); 8] = [
        ("KH", "kh"),
        ("KW", "kw"),
        ("SH", "sh"),
        ("SW", "sw"),
        ("DH", "dh"),
        ("DW", "dw"),
        ("TOP", "top"),
        ("LEFT", "left"),
    ];
    let aligned = compiled(g) && rows.is_multiple_of(g.stride[0]);
    prelude.defines([("ROWS", rows), ("DATA", data.into()), ("ALIGNED", aligned.into())]);
    for ((name, argument), value) in NAMES.into_iter().zip(lengths(g)) {
        match compiled(g) {
            true => prelude.define(name, value),
            false => prelude.define(name, argument),
        }
    }
}

fn lengths(g: &ConvGeometry) -> [usize; 8] {
    let ([kh, kw], [sh, sw], [dh, dw], [top, left]) = (g.kernel, g.stride, g.dilation, g.before());
    [kh, kw, sh, sw, dh, dw, top, left]
}

/// The arguments that the kernels call GEOMETRY.
fn geometry(this: &ConvLaunch<'_>, channels: usize, data: bool) -> impl Iterator<Item = Arg> {
    let g = this.g;
    let (from, to) = if data { (g.output, g.input) } else { (g.input, g.output) };
    let lengths = lengths(g);
    [g.n, channels, g.filters, from[0], from[1], to[0], to[1]]
        .into_iter()
        .chain(lengths)
        .map(|value| this.number(value))
}
