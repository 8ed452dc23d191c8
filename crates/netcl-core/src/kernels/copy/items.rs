//! Launches of `copy_items.cl`: copies and casts on processors.

use super::groups::{Axis, Part};
use super::opencl::{Args, MAX_RANK, bits_type, element_defines, scalar};
use crate::backend::opencl::{Grid, Source, Stream};
use crate::error::Result;
use crate::kernels::launch::{Arg, Scalar, Work};

/// Elements of a block: few enough that both sides stay in the first-level cache, many enough to pay for finding it.
const BLOCK: u64 = 4096;
/// The same along the destination's dense axis where the source's is another one, so that the lines read stay in the cache.
const LINES: u64 = 64;
/// Axes of the source at least this long pay for blocks across them.
const WORTH_BLOCKS: u64 = 4;
/// Work-items for each compute unit: enough that one which starts late leaves little to wait for.
const PER_UNIT: u64 = 8;

/// Axes beside those of a block.
const OUTER: usize = MAX_RANK - 2;
/// No axis: one index.
const NONE: Axis = Axis { n: 1, steps: [0, 0] };

impl Part<'_> {
    /// The launch for processors, of any layout and any dtypes.
    pub(super) fn blocks(&self, stream: &Stream) -> Result<(Work, Args)> {
        let along_at = self.nearest(None);
        let dense = self.axes.iter().position(|axis| axis.steps[0] == 1 && axis.n >= WORTH_BLOCKS);
        let transposed = dense.filter(|&at| along_at != Some(at));
        let across_at = transposed.or_else(|| self.nearest(along_at));
        let axis = |at: Option<usize>| at.map_or(NONE, |at| self.axes[at]);
        let (along, across) = (axis(along_at), axis(across_at));
        let is_outer = |at: usize| Some(at) != along_at && Some(at) != across_at;
        let mut outer = [NONE; OUTER];
        let axes = (0..self.axes.len()).filter(|&at| is_outer(at)).map(|at| self.axes[at]);
        outer.iter_mut().rev().zip(axes.rev()).for_each(|(slot, axis)| *slot = axis);
        let block_along = if transposed.is_some() { LINES } else { BLOCK }.min(along.n);
        let block_across = (BLOCK / block_along).clamp(1, across.n);

        let (from, to) = (self.src.dtype(), self.dst.dtype());
        // Equal dtypes are copied bit by bit, so one program serves all types of a size, and every shape.
        let what = if from == to { bits_type(from.size()).to_owned() } else { format!("{from}:{to}") };
        let kernel = stream.kernel(&format!("copy_items.cl:{what}"), || {
            let texts = [include_str!("copy.cl"), include_str!("copy_items.cl")].concat();
            (Source::new(element_defines(from, to) + &texts, ""), "copy_blocks")
        })?;
        let blocks = outer.iter().map(|axis| axis.n).product::<u64>()
            * along.n.div_ceil(block_along)
            * across.n.div_ceil(block_across);
        let per = blocks.div_ceil(u64::from(stream.device().info().compute_units) * PER_UNIT);
        let signed = |step: i64| Arg::Scalar(Scalar::I64(step));
        let mut args = self.buffers();
        args.extend(outer[1..].iter().map(|axis| scalar(axis.n)));
        args.extend([0, 1].iter().flat_map(|&side: &usize| outer.iter().map(move |axis| signed(axis.steps[side]))));
        for (axis, block) in [(along, block_along), (across, block_across)] {
            args.extend([scalar(axis.n), signed(axis.steps[0]), signed(axis.steps[1]), scalar(block)]);
        }
        args.extend([scalar(blocks), scalar(per)]);
        Ok((Work::OpenCl(kernel, Grid::new([blocks.div_ceil(per) as usize]).local([1])), args))
    }

    /// The axis with the smallest steps in the destination, but for one.
    fn nearest(&self, but: Option<usize>) -> Option<usize> {
        let others = (0..self.axes.len()).filter(|&at| Some(at) != but);
        others.min_by_key(|&at| self.axes[at].steps[1].unsigned_abs())
    }
}
