//! Depthwise convolutions of channels-last images: four neighbouring channels for each work-item, a tile of pixels in registers.
//!
//! The window is compiled in: one program for each window, stride and direction of a network.

use netcl_core::Result;
use netcl_core::backend::opencl::Grid;
use netcl_core::conv::ConvGeometry;
use netcl_core::dtype::DType;
use netcl_core::kernels::expr::opencl::IndexWidth;
use netcl_core::kernels::group_limit::largest_group;
use netcl_core::kernels::launch::Arg;
use netcl_core::tensor::{Tensor, reshape};

use super::super::epilogue::ConvEpilogue;
use super::{Args, ConvLaunch, depthwise, loads, places, result};
use crate::prelude::Prelude;

/// Channels of a work-item.
const WIDTH: usize = 4;
/// Results of a work-item at least, along each axis; whole steps of the stride where it looks back through one.
const SIDE: usize = 4;
/// The tile of a weight gradient, whose taps are in registers as well.
const WEIGHT_TILE: [usize; 2] = [2, 4];
/// Taps up to which the kernels are right for a window: of filters in local memory, and of sums in registers.
const MOST_TAPS: usize = 49;
const MOST_HELD_TAPS: usize = 25;
const MOST_STRIDE: usize = 4;
/// Pixels that a window may reach over.
const MOST_REACH: usize = 16;
/// Work-items of a group, and vectors of channels of a group.
const GROUP: usize = 128;
const MOST_LANES: usize = 32;
/// Groups of a weight gradient for each compute unit, and tiles of one of its work-items at least.
const GROUPS_PER_UNIT: usize = 4;
const TILES_EACH: usize = 4;
/// Parts of a weight gradient that single work-items add up; more take a reduction.
const FEW_PARTS: usize = 64;
const FILES: &[&str] = &[include_str!("conv_depthwise_channels.cl")];

/// The work-group.
#[derive(Clone, Copy)]
struct Group {
    lanes: usize,
    tiles: usize,
}

/// Whether the kernels can compute the convolution of these images, or a gradient from them.
pub(super) fn fits(g: &ConvGeometry, images: &Tensor) -> bool {
    let within = |most: usize, lengths: [usize; 2]| lengths.iter().all(|&length| length <= most);
    images.layout().is_channels_last()
        && images.layout().offset().is_multiple_of(WIDTH)
        && images.dtype() != DType::F64
        && g.channels == 1
        && g.filters == 1
        && g.groups.is_multiple_of(WIDTH)
        && g.taps() <= MOST_TAPS
        && within(MOST_STRIDE, g.stride)
        && within(MOST_REACH, [0, 1].map(|axis| (g.kernel[axis] - 1) * g.dilation[axis]))
        && within(MOST_REACH, g.before())
}

/// Whether the weight's gradient can be computed as well.
pub(super) fn fits_weight(g: &ConvGeometry, grad: &Tensor, images: &Tensor) -> bool {
    fits(g, images) && fits(g, grad) && g.taps() <= MOST_HELD_TAPS
}

fn group(this: &ConvLaunch<'_>, bytes_of_tile: usize) -> Group {
    let device = this.stream.device();
    let vectors = (this.g.groups / WIDTH).next_power_of_two();
    let most = largest_group(device).min(GROUP);
    let lanes = vectors.min(MOST_LANES).min(1 << most.ilog2());
    let mut tiles = 1 << (most / lanes).ilog2();
    let local = usize::try_from(device.info().local_mem_size).unwrap_or(usize::MAX);
    while tiles > 1 && lanes * tiles * bytes_of_tile > local {
        tiles /= 2;
    }
    Group { lanes, tiles }
}

/// Defines one direction of the window.
fn define(
    prelude: &mut Prelude<'_>,
    this: &ConvLaunch<'_>,
    x: &Tensor,
    (epilogue, data): (&ConvEpilogue, bool),
    tile: [usize; 2],
    group: Group,
) {
    let g = this.g;
    let sum = this.epilogue.sum;
    prelude.sums(sum, this.index);
    loads(prelude, x.dtype());
    prelude.loads4("LOAD4", x.dtype(), sum);
    result(prelude, epilogue);
    prelude.stores4("STORE4", epilogue.dtype);
    prelude.derive("SUM4", format_args!("{}4", sum.cl_type()));
    let ([kh, kw], [sh, sw], [dh, dw], [top, left]) = (g.kernel, g.stride, g.dilation, g.before());
    prelude.defines([
        ("HIGH", tile[0]),
        ("WIDE", tile[1]),
        ("KH", kh),
        ("KW", kw),
        ("SH", sh),
        ("SW", sw),
        ("DH", dh),
        ("DW", dw),
        ("TOP", top),
        ("LEFT", left),
        ("DATA", usize::from(data)),
        ("LANES", group.lanes),
        ("TILES", group.tiles),
    ]);
}

/// The strides that the kernel asks for.
fn strides(this: &ConvLaunch<'_>, image: &Tensor) -> impl Iterator<Item = Arg> {
    [0, 2, 3].map(|axis| this.number(image.layout().strides()[axis] as usize)).into_iter()
}

fn geometry(this: &ConvLaunch<'_>, [h, w]: [usize; 2], [oh, ow]: [usize; 2]) -> impl Iterator<Item = Arg> {
    [this.g.n, this.g.groups, h, w, oh, ow].map(|value| this.number(value)).into_iter()
}

/// The convolution, or the gradient of its input (`data`), of images that [`fits`] accepts; the result is channels-last.
pub(super) fn walk(this: &ConvLaunch<'_>, data: bool, [x, weight, out]: [&Tensor; 3]) -> Result<()> {
    const NAME: &str = "depthwise_channels";
    let g = this.g;
    let this = &ConvLaunch { index: index(this), ..*this };
    let (from, to) = if data { (g.output, g.input) } else { (g.input, g.output) };
    let tile = g.stride.map(|stride| if data { SIDE.next_multiple_of(stride) } else { SIDE });
    let tiles = g.n * to[0].div_ceil(tile[0]) * to[1].div_ceil(tile[1]);
    let group = group(this, g.taps() * WIDTH * this.epilogue.sum.size());
    let kernel = this.kernel(NAME, FILES, |prelude| {
        define(prelude, this, x, (this.epilogue, data), tile, group);
        this.define_prologue(prelude);
    })?;
    let mut args = places([x, weight, out]);
    args.extend(strides(this, x));
    args.extend(geometry(this, from, to));
    args.extend(this.epilogue());
    args.extend(this.prologue_args());
    let lanes = (g.groups / WIDTH).next_multiple_of(group.lanes);
    let grid = Grid::new([lanes, tiles.next_multiple_of(group.tiles)]).local([group.lanes, group.tiles]);
    let name = if data { "conv_depthwise_data" } else { "conv_depthwise" };
    this.send(name, kernel, grid, args, out, this.cost)
}

/// The gradient of the weight: parts of it, which are then added up.
pub(super) fn weight(this: &ConvLaunch<'_>, [grad, x, out]: [&Tensor; 3]) -> Result<()> {
    const NAME: &str = "depthwise_channels_weight";
    let g = this.g;
    let this = &ConvLaunch { index: index(this), ..*this };
    let tiles = g.n * g.output[0].div_ceil(WEIGHT_TILE[0]) * g.output[1].div_ceil(WEIGHT_TILE[1]);
    let group = group(this, g.taps() * WIDTH * this.epilogue.sum.size());
    let lanes = (g.groups / WIDTH).next_multiple_of(group.lanes);
    let units = this.stream.device().info().compute_units.max(1) as usize;
    let wanted = (units * GROUPS_PER_UNIT).div_ceil(lanes / group.lanes);
    let parts = wanted.min(tiles / (group.tiles * TILES_EACH)).max(1);
    let sum = this.epilogue.sum;
    let partial = (parts > 1 || this.epilogue.dtype != sum || !out.layout().is_contiguous())
        .then(|| Tensor::uninit(out.queue(), [parts, out.size()], sum))
        .transpose()?;
    let target = partial.as_ref().unwrap_or(out);
    let plain = ConvEpilogue::plain(sum);
    let kernel = this.kernel(NAME, FILES, |prelude| {
        define(prelude, this, x, (&plain, false), WEIGHT_TILE, group);
    })?;
    let mut args: Args = places([grad, x, target]);
    args.extend(strides(this, grad));
    args.extend(strides(this, x));
    args.extend(geometry(this, g.input, g.output));
    let grid = Grid::new([lanes, parts * group.tiles]).local([group.lanes, group.tiles]);
    this.send("conv_depthwise_weight", kernel, grid, args, target, this.cost)?;
    match partial {
        None => Ok(()),
        Some(partial) if parts <= FEW_PARTS => depthwise::add_parts(this, &partial, out),
        Some(partial) => out.assign(&reshape(&crate::reduce::sum(&partial, 0, false)?, out.shape().clone())?),
    }
}

/// The width of positions that also counts the work-items of a grid.
fn index(this: &ConvLaunch<'_>) -> IndexWidth {
    let g = this.g;
    let pixels = (g.input[0] * g.input[1]).max(g.pixels()) + 64 * (g.input[0] + g.input[1] + 64);
    let span = g.n * pixels * g.groups;
    if this.index == IndexWidth::Bits64 { this.index } else { IndexWidth::for_span(span) }
}
