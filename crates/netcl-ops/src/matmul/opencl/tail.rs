//! The tail wave of a device that computes one tile per unit, as stream-K has it: all units share the terms of its tiles.
//!
//! 4096 x 4096 results in tiles of 128 x 256 are 512 tiles: 132 units compute 396 of them in three waves, and 116 remain. With a
//! group for each, 16 units would have nothing to do for a quarter of the time.
//!
//! ```text
//!            round 1  round 2  round 3  round 4                          round 4, shared
//! unit 0    |########|########|########|########|                      |#######|
//! ...                                                                   ...
//! unit 115  |########|########|########|########|                      |#######|
//! unit 116  |########|########|########|                               |ooooooo|   o: the last terms of seven tiles
//! ...
//! unit 131  |########|########|########|                               |ooooooo|
//! ```
//!
//! A device that can do this has this form of the kernel for all products with such tiles, also where there is no tail: it is what NVIDIA's compiler schedules best.

use netcl_core::Result;
use netcl_core::backend::opencl::{Grid, Stream};
use netcl_core::kernels::launch::{Access, Arg};
use netcl_core::tensor::Tensor;

use super::super::Variant;
use super::choice::RegisterTile;
use super::source::Outcome;
use super::{Multiplication, Split};

/// Parts shorter than this cost more than they save.
const SHORTEST_PART: usize = 256;
/// Beginning a part and leaving its sums takes as long as so many terms.
const BEGINNING: usize = 20;
/// Results of a work-item from which its group fills a unit alone.
const LARGE_SHARE: usize = 128;

/// How a device's groups see what other groups have written, where that is known.
pub(super) fn fence(stream: &Stream) -> Option<&'static str> {
    stream.device().quirks().ptx.then_some("asm volatile(\"fence.acq_rel.gpu;\" ::: \"memory\")")
}

/// Which tiles are computed whole, and how the terms of each of the others are split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TailWave {
    pub(super) whole: usize,
    pub(super) shared: usize,
    pub(super) split: Split,
}

impl TailWave {
    /// Every tile with a group of its own.
    fn none(tiles: usize, terms: usize) -> TailWave {
        TailWave { whole: tiles, shared: 0, split: Split { parts: 1, depth: terms } }
    }

    /// The tail wave of so many tiles with so many terms, if sharing it saves at least a fiftieth of the time.
    fn of(units: usize, tile: RegisterTile, tiles: usize, terms: usize) -> Option<TailWave> {
        let shared = tiles % units;
        let (idle, rounds) = ((units - shared) % units, tiles.div_ceil(units));
        if shared == 0 || idle * 50 < units * rounds {
            return None;
        }
        let depth = match units / shared {
            // More than half of the units have a tile each. They are done when each of the others is with the ends of `ends` tiles.
            1 => {
                let ends = shared.div_ceil(idle);
                ends * (terms + BEGINNING) / (ends + 1)
            }
            parts => terms.div_ceil(parts).max(SHORTEST_PART),
        };
        let depth = depth.next_multiple_of(tile.depth);
        let parts = terms.div_ceil(depth);
        let shortest = terms.saturating_sub(depth * (parts - 1));
        let pays = parts > 1 && depth >= SHORTEST_PART && (shortest >= SHORTEST_PART || parts > 2);
        pays.then_some(TailWave { whole: tiles - shared, shared, split: Split { parts, depth } })
    }

    /// Work-groups of all tiles.
    pub(super) fn groups(self) -> usize {
        self.whole + self.shared * self.split.parts
    }
}

impl Multiplication<'_> {
    /// The tail wave of a product whose tiles fill a unit each, and how groups see what others have written, where that is
    /// known.
    pub(super) fn tail(&self, tile: RegisterTile) -> Option<(TailWave, &'static str)> {
        if tile.r * tile.c < LARGE_SHARE || tile.slices > 1 || !tile.c.is_multiple_of(4) {
            return None;
        }
        let (tiles, terms) = (self.tiles(tile.rows, tile.cols), self.problem.k);
        let room = |tail: &TailWave| tail.shared * tail.split.parts * tile.rows * tile.cols * self.problem.sum.size();
        let shared = TailWave::of(self.device.units, tile, tiles, terms);
        let shared = shared.filter(|tail| room(tail) <= self.device.largest_allocation);
        Some((shared.unwrap_or(TailWave::none(tiles, terms)), fence(self.stream)?))
    }

    /// Launches the register-tiled kernel with a shared tail wave.
    pub(super) fn launch_tail_wave(
        &self,
        variant: Variant,
        tile: RegisterTile,
        tail: TailWave,
        fence: &str,
    ) -> Result<()> {
        let p = self.problem;
        let operands =
            [self.operand(&p.a, Access::Read), self.operand(&p.b, Access::Read), self.operand(&p.c, Access::Write)];
        let further = [("SHARED_TAIL", "1"), ("FENCE", fence)];
        let kernel = self.register_tiled_kernel(tile, operands.each_ref(), Outcome::Final, &further)?;
        let mut args = self.arguments(variant, &operands, tail.split, Outcome::Final);
        // The sums of every part of a tile, and how many of its groups have left theirs.
        let shape = [tail.shared.max(1), tail.split.parts, tile.rows * tile.cols];
        let parts =
            if tail.shared > 0 { Tensor::uninit(p.c.tensor.queue(), shape, p.sum)? } else { p.c.tensor.clone() };
        let memory = [parts.storage().clone(), self.stream.counters()?];
        args.extend(memory.map(|memory| Arg::Buffer(memory, Access::Write)));
        args.push(self.count(tail.whole));
        let items = tile.items();
        let grid = Grid::new([tail.groups() * items]).local([items]);
        self.send(variant.kernel_name(), kernel, grid, args, self.slice_cost())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use super::*;

    fn tail(tiles: usize, terms: usize) -> Option<TailWave> {
        let tile = RegisterTile { rows: 128, cols: 256, depth: 8, r: 16, c: 8, slices: 1 };
        TailWave::of(132, tile, tiles, terms)
    }

    #[test]
    fn the_tail_wave_is_shared() {
        // 116 tiles on 132 units: each does 116/132 of a tile's terms.
        assert_eq!(tail(512, 4096), Some(TailWave { whole: 396, shared: 116, split: Split { parts: 2, depth: 3664 } }));
        // 24 tiles: five units for each.
        let shared = tail(288, 3072).unwrap();
        assert_eq!((shared.whole, shared.shared, shared.split.parts), (264, 24, 5));
        assert_eq!(shared.groups(), 264 + 120);
        // A third of a round: three units for each; with few terms, as many as are worth it.
        assert_eq!(tail(40, 4096), Some(TailWave { whole: 0, shared: 40, split: Split { parts: 3, depth: 1368 } }));
        assert_eq!(tail(10, 1024), Some(TailWave { whole: 0, shared: 10, split: Split { parts: 4, depth: 256 } }));
    }

    #[test]
    fn tails_that_cost_more_than_they_save_are_left_alone() {
        assert_eq!(tail(132 * 4, 4096), None, "no tail");
        assert_eq!(tail(128, 4096), None, "one round, nearly full");
        assert_eq!(tail(512, 512), None, "too few terms");
        assert_eq!(tail(132 * 40 + 100, 4096), None, "one round of many");
    }
}
