//! Products on the matrix units of NVIDIA's Ampere family and later: tiles, and the launches of `matmul_mma.cl`.

use netcl_core::Result;
use netcl_core::backend::opencl::{Grid, Kernel, Source};
use netcl_core::kernel_selector::MMA_LOCAL_BYTES;
use netcl_core::kernels::launch::{Access, Arg, Scalar};
use netcl_core::tensor::Tensor;

use super::super::Variant;
use super::Multiplication;
use super::arithmetic::Arithmetic;
use super::units::{COMMON, int};
use crate::prelude::{self, Prelude};

/// What a group computes, and what it keeps in local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tile {
    rows: usize,
    cols: usize,
    /// What one warp of the group computes.
    warp: [usize; 2],
    /// Bytes along k of every row and column.
    depth: usize,
    /// Tiles that are being copied or multiplied.
    stages: usize,
}

const fn tile(rows: usize, cols: usize, warp: [usize; 2], depth: usize, stages: usize) -> Tile {
    Tile { rows, cols, warp, depth, stages }
}

/// Tiles for whole operands, from the largest; of each size the one that runs best with much local memory first.
const WHOLE: [Tile; 6] = [
    tile(128, 128, [64, 64], 128, 3),
    tile(128, 128, [64, 64], 64, 4),
    tile(128, 128, [64, 64], 64, 3),
    tile(128, 64, [64, 32], 64, 4),
    tile(64, 64, [32, 32], 128, 4),
    tile(64, 64, [32, 32], 64, 4),
];

/// Tiles for operands in three parts.
const SPLIT: [Tile; 4] = [
    tile(128, 64, [64, 32], 64, 3),
    tile(128, 64, [64, 32], 64, 2),
    tile(64, 64, [32, 32], 64, 3),
    tile(64, 64, [32, 32], 64, 2),
];

impl Tile {
    fn bytes(self, arithmetic: Arithmetic) -> usize {
        self.stages * arithmetic.parts() * (self.rows + self.cols) * self.depth
    }

    /// Work-items of a group.
    fn items(self) -> usize {
        (self.rows / self.warp[0]) * (self.cols / self.warp[1]) * 32
    }

    /// The largest tile of which there are enough to give every compute unit work, in the form that its local memory holds twice:
    /// one group then multiplies while another waits.
    fn choose(arithmetic: Arithmetic, local: usize, units: usize, tiles: impl Fn(usize, usize) -> usize) -> Tile {
        let all: &[Tile] = if arithmetic == Arithmetic::Split { &SPLIT } else { &WHOLE };
        let last = all[all.len() - 1];
        let fits = |tile: &Tile| 2 * tile.bytes(arithmetic) <= local || tile.bytes(arithmetic) <= MMA_LOCAL_BYTES;
        let fitting = || all.iter().copied().filter(fits);
        fitting().find(|tile| tiles(tile.rows, tile.cols) >= units).unwrap_or_else(|| {
            // Too few of any size: as many as there can be.
            fitting().find(|tile| (tile.rows, tile.cols) == (last.rows, last.cols)).unwrap_or(last)
        })
    }
}

impl Multiplication<'_> {
    pub(super) fn launch_mma(&self, variant: Variant, arithmetic: Arithmetic) -> Result<Option<Tensor>> {
        let p = self.problem;
        let device = self.stream.device();
        let local = usize::try_from(device.probes().static_local_bytes()).unwrap_or(usize::MAX);
        let units = device.info().compute_units.max(1) as usize;
        let tile = Tile::choose(arithmetic, local, units, |rows, cols| self.tiles(rows, cols));
        let ready = self.ready(arithmetic, [tile.rows, tile.cols], [true, true])?;
        let c = self.operand(&p.c, Access::Write);
        let kernel = self.mma_kernel(variant, arithmetic, tile, [ready.a.along_k, ready.b.along_k])?;
        let mut args = self.places(&ready, &c);
        args.extend([p.m, p.n, p.k].map(|length| self.count(length)));
        args.push(int(self.batch[1] as i32));
        for staged in [&ready.a, &ready.b] {
            let [b0, b1] = staged.batch_steps();
            args.extend([staged.pitch, b0, b1].map(|stride| self.number(stride)));
            args.push(Arg::Scalar(Scalar::U64(staged.part as u64)));
        }
        self.ending(&mut args, &ready, &c);
        let grid = Grid::new([self.tiles(tile.rows, tile.cols) * tile.items()]).local([tile.items()]);
        self.send(variant.kernel_name(), kernel, grid, args, self.slice_cost())?;
        Ok(ready.flag)
    }

    fn mma_kernel(&self, variant: Variant, arithmetic: Arithmetic, tile: Tile, orders: [bool; 2]) -> Result<Kernel> {
        let name = variant.kernel_name();
        let values = [
            ("BM", tile.rows),
            ("BN", tile.cols),
            ("BK", tile.depth / arithmetic.size()),
            ("STAGES", tile.stages),
            ("WM", tile.warp[0]),
            ("WN", tile.warp[1]),
        ];
        let define = |prelude: &mut Prelude<'_>| {
            self.units(prelude, name, arithmetic, orders);
            prelude.defines(values);
            let ty = arithmetic.name();
            prelude.derive("TYPES", format_args!("\".{ty}.{ty}\""));
        };
        let source = |prelude: String| Source::new(prelude + COMMON + include_str!("../matmul_mma.cl"), "");
        prelude::kernel_of(self.stream, name, define, source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_suit_the_kernel() {
        for (arithmetic, tiles) in
            [(Arithmetic::BF16, &WHOLE[..]), (Arithmetic::Tf32, &WHOLE), (Arithmetic::Split, &SPLIT)]
        {
            for tile in tiles {
                assert!(tile.items() <= netcl_core::kernel_selector::MMA_GROUP && tile.stages >= 2, "{tile:?}");
                for lines in [tile.rows, tile.cols] {
                    // Pieces of 16 bytes are shared out evenly, and a work-item's rows are swapped alike.
                    for pieces in [tile.depth / 16, lines * arithmetic.size() / 16] {
                        let hop = tile.items() / pieces;
                        let alike = if pieces * 16 == tile.depth || arithmetic.size() == 2 { 8 } else { 4 };
                        assert!(hop > 0 && hop.is_multiple_of(alike), "{arithmetic:?} {tile:?}");
                    }
                    assert!((lines * tile.depth).is_multiple_of(16 * tile.items()), "{arithmetic:?} {tile:?}");
                }
                // Sums of products of parts start anew every 32 terms.
                assert!(arithmetic != Arithmetic::Split || tile.depth == 64);
            }
        }
    }

    #[test]
    fn local_memory_and_the_number_of_tiles_decide() {
        let choose = |arithmetic, kib: usize, m: usize| {
            Tile::choose(arithmetic, kib * 1024, 132, |rows, cols| m.div_ceil(rows) * m.div_ceil(cols))
        };
        assert_eq!(choose(Arithmetic::BF16, 224, 4096), WHOLE[0]);
        assert_eq!(choose(Arithmetic::BF16, 160, 4096), WHOLE[1]);
        assert_eq!(choose(Arithmetic::Tf32, 48, 4096), WHOLE[2]);
        assert_eq!(choose(Arithmetic::F16, 224, 1200), WHOLE[3]);
        assert_eq!(choose(Arithmetic::Rounded, 224, 512), WHOLE[4]);
        assert_eq!(choose(Arithmetic::F16, 48, 512), WHOLE[5]);
        assert_eq!(choose(Arithmetic::Split, 224, 4096), SPLIT[0]);
        assert_eq!(choose(Arithmetic::Split, 160, 4096), SPLIT[1]);
        assert_eq!(choose(Arithmetic::Split, 48, 4096), SPLIT[3]);
        assert_eq!(choose(Arithmetic::Split, 224, 512), SPLIT[2]);
        for arithmetic in [Arithmetic::F16, Arithmetic::Tf32, Arithmetic::Split] {
            for m in [1, 1000, 5000] {
                assert!(choose(arithmetic, 48, m).bytes(arithmetic) <= MMA_LOCAL_BYTES);
            }
        }
    }
}
