//! The product that reads windows where they are: tiles, and parts of long sums.

use netcl_core::Result;
use netcl_core::backend::opencl::Grid;
use netcl_core::kernel_selector::{ConvPass, KernelVariant};
use netcl_core::kernels::launch::{Access, Arg};
use netcl_core::tensor::{Tensor, reshape};

use super::{ConvEpilogue, ConvLaunch, GEOMETRY, places};
use crate::norm::ChannelStatistics;
use crate::norm::statistics::Cut;
use crate::reduce::{Axes, sum};

/// The most parts that the sums of a weight gradient are split into, and the fewest terms of one.
pub(super) const MAX_PARTS: usize = 32;
const SHORTEST_PART: usize = 256;

/// Rows of the tiles that most convolutions get.
pub(super) const ROWS: usize = 64;
/// (side, depth, results per work-item and direction), from the largest.
const TILES: [(usize, usize, usize); 5] = [(128, 8, 8), (64, 16, 4), (32, 16, 4), (16, 8, 4), (8, 4, 4)];

/// The convolution, and the statistics of its channels if they are wanted: a work-group has a tile of the result at hand.
pub(super) fn forward(
    this: &ConvLaunch<'_>,
    operands: [&Tensor; 3],
    statistics: bool,
) -> Result<Option<ChannelStatistics>> {
    // Where the result has a wider type than the sums, its statistics have as well.
    launch(this, ConvPass::Forward, operands, statistics && this.epilogue.dtype.accumulator() == this.epilogue.sum)
}

/// A gradient.
pub(super) fn run(this: &ConvLaunch<'_>, pass: ConvPass, operands: [&Tensor; 3]) -> Result<()> {
    launch(this, pass, operands, false).map(|_| ())
}

/// Runs the kernel on two operands and a result.
fn launch(
    this: &ConvLaunch<'_>,
    pass: ConvPass,
    [first, second, out]: [&Tensor; 3],
    statistics: bool,
) -> Result<Option<ChannelStatistics>> {
    let g = this.g;
    let (rows, cols, terms) = match pass {
        ConvPass::Forward => (g.filters, g.n * g.pixels(), g.channels * g.taps()),
        ConvPass::Data => (g.channels, g.n * g.input[0] * g.input[1], g.filters * g.taps()),
        ConvPass::Weight => (g.filters, g.channels * g.taps(), g.n * g.pixels()),
    };
    let info = this.stream.device().info();
    let units = info.compute_units.max(1) as usize;
    let local = usize::try_from(info.local_mem_size).unwrap_or(usize::MAX);
    let bytes = this.epilogue.sum.size();
    let tiles = |side: usize| rows.div_ceil(side) * cols.div_ceil(side) * g.groups;
    let fits = |&&(side, depth, r): &&(usize, usize, usize)| {
        // Large tiles reuse more, but must be full and fill the device.
        let full = side <= 32 || (rows.min(cols) * 2 > side && (side <= 64 || tiles(side) >= 2 * units));
        // Two tiles, or a sum for each row and work-item beside it.
        let elements = (2 * depth * (side + 1)).max(side * (side / r + 1));
        full && (side / r).pow(2) <= info.max_work_group_size && elements * bytes <= local
    };
    let (side, depth, r) = TILES.iter().find(fits).copied().unwrap_or((2, 2, 2));
    let measured = this.config.filter(|config| config.variant == KernelVariant::Conv2dImplicitGemm);
    let [tile_m, tile_n, depth, r, c] = match measured {
        Some(config) => {
            let (x, y) = config.local_size_2d;
            [config.tile_m, config.tile_n, config.tile_k, config.tile_m / y.max(1), config.tile_n / x.max(1)]
        }
        None => [side, side, depth, r, r],
    };
    let parts = match pass {
        ConvPass::Weight => {
            let partial = out.size() * bytes;
            let room = usize::try_from(info.max_mem_alloc_size).unwrap_or(usize::MAX) / partial.max(1);
            (4 * units / tiles(side)).min(terms / SHORTEST_PART).min(MAX_PARTS).min(room).max(1)
        }
        _ => 1,
    };
    let length = terms.div_ceil(parts);
    let parts = terms.div_ceil(length);
    let shape: Vec<usize> = std::iter::once(parts).chain(out.shape().iter().copied()).collect();
    let partial = (parts > 1).then(|| Tensor::uninit(out.queue(), shape.as_slice(), this.epilogue.sum)).transpose()?;
    let target = partial.as_ref().unwrap_or(out);
    const NAME: &str = "conv_implicit_gemm";
    let plain = partial.as_ref().map(|_| ConvEpilogue::plain(this.epilogue.sum));
    let kernel = this.kernel(NAME, &[GEOMETRY, include_str!("conv_implicit_gemm.cl")], |prelude| {
        this.define(prelude, first.dtype(), plain.as_ref().unwrap_or(this.epilogue));
        this.define_prologue(prelude);
        prelude.defines([
            ("MODE", pass as usize),
            ("ROWS", tile_m),
            ("COLS", tile_n),
            ("DEPTH", depth),
            ("R", r),
            ("C", c),
            // Only the data gradient looks back.
            ("STRIDE", if pass == ConvPass::Data { this.stride() } else { 0 }),
        ]);
        if statistics {
            prelude.loads("KEPT_T", "KEPT", this.epilogue.dtype, this.epilogue.sum);
        }
        prelude.define("STATISTICS", u8::from(statistics));
    })?;
    let statistics = if statistics {
        let cut = Cut { count: cols, per: tile_n };
        let shape = [g.groups * g.filters, cut.parts(), 2];
        Some(ChannelStatistics { parts: Tensor::uninit(out.queue(), shape, this.epilogue.sum)?, cut })
    } else {
        None
    };
    let mut args = places([first, second, target]);
    args.extend([parts, length].map(|value| this.number(value)));
    args.extend(statistics.iter().map(|found| Arg::Buffer(found.parts.storage().clone(), Access::Write)));
    args.extend(this.strides(first));
    if pass == ConvPass::Weight {
        args.extend(this.strides(second));
    }
    args.extend(this.geometry());
    args.extend(this.epilogue());
    args.extend(this.prologue_args());
    let (x, y) = (tile_n / c, tile_m / r);
    let grid = Grid::new([cols.div_ceil(tile_n) * x, rows.div_ceil(tile_m) * y, g.groups * parts]);
    this.send(NAME, kernel, grid.local([x, y, 1]), args, target, this.cost)?;
    let Some(partial) = partial else { return Ok(statistics) };
    // The parts are added in the type of the sums and in their order.
    let total = sum(&partial, Axes::One(0), false)?;
    out.assign(&reshape(&total, out.shape())?)?;
    Ok(None)
}
