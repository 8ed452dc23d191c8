//! The convolution with a part of the image in local memory.

use netcl_core::backend::opencl::Grid;
use netcl_core::kernels::launch::Arg;
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};

use super::{ConvLaunch, GEOMETRY, places};

const NAME: &str = "conv_tiled_local";
/// Filters of a work-item.
pub(super) const FILTERS: usize = 4;

pub(super) fn run(this: &ConvLaunch<'_>, [x, weight, out]: [&Tensor; 3]) -> Result<()> {
    let g = this.g;
    let info = this.stream.device().info();
    let local = usize::try_from(info.local_mem_size).unwrap_or(usize::MAX);
    // The part of the image under a tile of results.
    let part =
        |side: usize| [0, 1].map(|i| (side.min(g.output[i]) - 1) * g.stride[i] + (g.kernel[i] - 1) * g.dilation[i] + 1);
    let bytes = |side: usize| part(side).iter().product::<usize>() * this.epilogue.sum.size();
    let fits = |&side: &usize| side * side <= info.max_work_group_size && bytes(side) <= local;
    let Some(side) = [16, 8, 4, 2, 1].into_iter().find(fits) else {
        let why = format!(
            "one window of the variant TiledLocal takes {} bytes of local memory, of which there are {local}; leave the variant open",
            bytes(1)
        );
        return Err(Error::Unsupported { op: "conv2d", device: this.stream.device().name().to_owned(), why });
    };
    let kernel = this.kernel(NAME, &[GEOMETRY, include_str!("conv_tiled_local.cl")], |prelude| {
        this.define(prelude, x.dtype(), this.epilogue);
        this.define_prologue(prelude);
        prelude.defines([("TX", side), ("TY", side), ("FILTERS", FILTERS)]);
    })?;
    let [rows, cols] = part(side);
    let mut args = places([x, weight, out]);
    args.push(Arg::Local(bytes(side)));
    args.extend([rows, cols].map(|value| this.number(value)));
    args.extend(this.strides(x));
    args.extend(this.geometry());
    args.extend(this.epilogue());
    args.extend(this.prologue_args());
    let [oh, ow] = g.output.map(|length| length.next_multiple_of(side));
    let grid = Grid::new([ow, oh, g.n * g.groups * g.filters.div_ceil(FILTERS)]).local([side, side, 1]);
    this.send(NAME, kernel, grid, args, out, this.cost)
}
