//! Products on Hopper's matrix units: tiles, and the launches of `matmul_wgmma.cl`.

use std::fmt::Write as _;

use netcl_core::backend::opencl::tensor_map::{MAP_BYTES, MapAxis, Swizzle, TensorMap};
use netcl_core::backend::opencl::{Grid, Kernel, Source, Stream};
use netcl_core::dtype::DType;
// One warp group copies, two multiply.
use netcl_core::kernel_selector::{WGMMA_GROUP, WGMMA_TILE_BYTES};
use netcl_core::kernels::launch::{Access, Arg, Scalar};
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};

use super::super::problem::Problem;
use super::super::{OP, Variant};
use super::Multiplication;
use super::arithmetic::Arithmetic;
use super::stage::{Lines, Staged, UNIT};
use super::units::{COMMON, int};
use crate::COPY_ENGINE;
use crate::prelude::{self, Prelude};

/// Columns of the narrowest tile that any product can have.
pub(super) const NARROW: usize = 64;
/// Rows of a tile: two warp groups of 64.
pub(crate) const ROWS: usize = 128;
/// More places in local memory than this hide no more latency.
const MAX_STAGES: usize = 8;

impl Arithmetic {
    /// Terms of a tile: rows of 128 bytes, or of 64 where three parts must fit.
    pub(crate) fn depth(self) -> usize {
        if self == Arithmetic::Split { 32 } else { 128 / self.size() }
    }

    /// Tile widths, from the widest. Three parts need registers for two sets of sums.
    pub(crate) fn widths(self) -> &'static [usize] {
        if self == Arithmetic::Split { &[128, 64] } else { &[256, 192, 128, 64] }
    }

    /// Whether operands are 16-bit numbers as they are.
    fn is_16_bit(self) -> bool {
        matches!(self, Arithmetic::F16 | Arithmetic::BF16)
    }

    /// Tile widths for a product: one of a few columns is over when its first operand has been read. Its second must lie along k:
    /// boxes of it that do not are as wide as [`NARROW`].
    fn widths_for(self, p: &Problem<'_>) -> &'static [usize] {
        match p.n {
            ..=16 if self.is_16_bit() && p.b.rs == 1 => &[16],
            17..=32 if self.is_16_bit() && p.b.rs == 1 => &[32],
            _ => self.widths(),
        }
    }

    fn stage_bytes(self, columns: usize) -> usize {
        self.parts() * (ROWS + columns) * self.depth() * self.size()
    }

    /// Whether products are the fastest, which only the card's power limits: what they read should come from the cache. In
    /// parts tiles are never so wide.
    fn is_limited_by_power(columns: usize) -> bool {
        columns == 256
    }

    /// Places in local memory. Three keep units closer together than four do: tf32 takes 1.8 % less time at the power limit.
    fn stages(self, columns: usize) -> usize {
        let most = if Arithmetic::is_limited_by_power(columns) { 3 } else { MAX_STAGES };
        (WGMMA_TILE_BYTES / self.stage_bytes(columns)).min(most)
    }

    /// Rows of tiles that are walked over together: what a round reads should be about square.
    fn band(columns: usize) -> usize {
        if Arithmetic::is_limited_by_power(columns) { 16 } else { 8 }
    }
}

/// A product in tiles of a width, and what its parts cost: the unit is one column of 16 terms, in 16 bits 0.7 ns on an H200.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) columns: usize,
    pub(crate) tiles: usize,
    pub(crate) units: usize,
    /// Steps along k.
    pub(crate) chunks: usize,
    /// The cost of one step.
    pub(crate) chunk: usize,
    /// Whether groups may share terms (stream-K). Operands in parts may not: 4096 cubed took 1.31 ms instead of 1.21.
    pub(crate) stream_k: bool,
}

/// So many tiles are computed whole, each by one group; so many groups share the terms of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamK {
    pub(crate) whole: usize,
    pub(crate) groups: usize,
}

impl Plan {
    fn new(arithmetic: Arithmetic, columns: usize, tiles: usize, k: usize, units: usize) -> Plan {
        let depth = arithmetic.depth();
        let stream_k = arithmetic.size() == 2 && arithmetic.parts() == 1;
        // Narrow tiles wait for memory.
        let chunk = if columns < NARROW { 384 } else { columns * depth / 16 };
        Plan { columns, tiles, units, chunks: k.div_ceil(depth), chunk, stream_k }
    }

    /// The best width: the one that leaves the least of the device idle in the tail wave.
    fn best(arithmetic: Arithmetic, p: &Problem<'_>, matrices: usize, units: usize) -> Plan {
        let plan = |&columns: &usize| {
            let tiles = p.m.div_ceil(ROWS) * p.n.div_ceil(columns) * matrices;
            Plan::new(arithmetic, columns, tiles, p.k, units)
        };
        let plans = arithmetic.widths_for(p).iter().map(plan);
        plans.min_by(|x, y| x.cost().total_cmp(&y.cost())).unwrap_or_else(|| plan(&64))
    }

    /// Which tiles are shared, where that saves time.
    pub(crate) fn shared_tiles(self) -> Option<StreamK> {
        let shared = self.tiles % self.units;
        let terms = shared * self.chunks;
        if !self.stream_k || shared == 0 || terms > i32::MAX as usize {
            return None;
        }
        // Of a few tiles with many terms the last to arrive has much to add up: no more pieces than that pays for.
        let most = (self.chunks * 9 / 16).isqrt();
        let groups = if shared == self.tiles { self.units.min(shared * most) } else { self.units };
        let shared_tiles = StreamK { whole: self.tiles - shared, groups };
        let saved = self.chunks.saturating_sub(terms / groups.max(1)) * self.chunk;
        (groups > shared && terms / groups >= 8 && saved > self.sharing(shared_tiles) * 5 / 4).then_some(shared_tiles)
    }

    /// What it costs to leave sums in memory and to add them up.
    fn sharing(self, shared_tiles: StreamK) -> usize {
        let pieces = shared_tiles.groups.div_ceil(self.tiles - shared_tiles.whole);
        match self.columns < NARROW {
            true => 5_000 + (112 + 3 * pieces) * self.columns,
            false => 10_000 + (112 + 8 * pieces) * self.columns,
        }
    }

    pub(crate) fn cost(self) -> f64 {
        // Beginning and ending a tile costs as much as so many columns; narrow tiles read more for each product.
        let tile = (self.chunks * self.chunk + 1000 + self.columns * 8) as f64;
        let time = match self.shared_tiles() {
            Some(shared_tiles) => {
                self.tiles as f64 / shared_tiles.groups as f64 * tile + self.sharing(shared_tiles) as f64
            }
            None => self.tiles.div_ceil(self.units) as f64 * tile,
        };
        time * if self.columns == 256 { 1.0 } else { 1.03 }
    }
}

impl Multiplication<'_> {
    pub(super) fn launch_wgmma(&self, variant: Variant, arithmetic: Arithmetic) -> Result<Option<Tensor>> {
        let p = self.problem;
        let units = self.stream.device().info().compute_units.max(1) as usize;
        let plan = Plan::best(arithmetic, p, self.matrices(), units);
        let Plan { columns, tiles, .. } = plan;
        // Where the numbers of an operand lie across k, 16-bit ones are read in boxes, 32-bit ones of the first through registers.
        let ready = self.ready(arithmetic, [ROWS, columns], [true, arithmetic.size() == 2 && columns >= NARROW])?;
        let (a, b) = (&ready.a, &ready.b);
        let c = self.operand(&p.c, Access::Write);
        let shared_tiles = plan.shared_tiles();
        let kernel = self.wgmma_kernel(variant, arithmetic, columns, [a.along_k, b.along_k], shared_tiles.is_some())?;
        let groups = shared_tiles.map_or(tiles.min(units), |shared_tiles| shared_tiles.groups);
        let maps = Tensor::uninit(p.c.tensor.queue(), [groups * 2 * MAP_BYTES / 4], DType::I32)?;
        let mut args = self.places(&ready, &c);
        args.push(Arg::Buffer(maps.storage().clone(), Access::Write));
        for (staged, lines) in [(a, ready.rows), (b, ready.cols)] {
            let map = self.map(arithmetic, staged, lines)?;
            args.extend(map_args(&map));
        }
        args.extend([p.m, p.n, p.k].map(|length| self.count(length)));
        args.extend([self.batch[0] as i32, self.batch[1] as i32].map(int));
        args.extend([a, b].into_iter().flat_map(|staged| staged.steps.map(int)));
        self.ending(&mut args, &ready, &c);
        if let Some(StreamK { whole, groups }) = shared_tiles {
            // What a group leaves of its piece's one or two tiles; how many have arrived at a tile, for both warp groups.
            let left = Tensor::uninit(p.c.tensor.queue(), [groups, 2, ROWS, columns], DType::F32)?;
            let memory = [left.storage().clone(), self.stream.counters()?];
            args.extend(memory.map(|memory| Arg::Buffer(memory, Access::Write)));
            args.push(int(whole as i32));
        }
        let grid = Grid::new([groups * WGMMA_GROUP]).local([WGMMA_GROUP]);
        self.send(variant.kernel_name(), kernel, grid, args, self.slice_cost())?;
        Ok(ready.flag)
    }

    /// How the tensor copy engine finds an operand's boxes.
    fn map(&self, arithmetic: Arithmetic, staged: &Staged, lines: Lines) -> Result<TensorMap> {
        let (k, depth, size) = (self.problem.k, arithmetic.depth(), arithmetic.size());
        let axis = |length: usize, stride: isize, box_length: usize| MapAxis {
            length: length as u64,
            // Of an axis of length one the stride may be anything, but not nothing.
            stride: if length == 1 { UNIT as u64 } else { (stride * size as isize) as u64 },
            box_length: box_length as u32,
        };
        let [z, w] = staged.further.map(|(length, stride)| axis(length, stride, 1));
        let swizzled = if staged.along_k { depth * size } else { 128 };
        let swizzle = if swizzled == 64 { Swizzle::Bytes64 } else { Swizzle::Bytes128 };
        let axes = match staged.along_k {
            true => [axis(k, 0, depth), axis(lines.count, staged.pitch, lines.tile), z, w],
            false => [axis(lines.count, 0, 128 / size), axis(k, staged.pitch, depth), z, w],
        };
        TensorMap::new(arithmetic.element(), &axes, swizzle).map_err(|error| Error::argument(OP, error.to_string()))
    }

    fn wgmma_kernel(
        &self,
        variant: Variant,
        arithmetic: Arithmetic,
        columns: usize,
        orders: [bool; 2],
        shared_tail: bool,
    ) -> Result<Kernel> {
        let name = variant.kernel_name();
        wgmma_kernel(self.stream, name, columns, "", |prelude| {
            self.units(prelude, name, arithmetic, orders);
            define_tiles(prelude, arithmetic, columns, orders, shared_tail);
        })
    }
}

/// A map as the two arguments that the kernel takes.
pub(crate) fn map_args(map: &TensorMap) -> impl Iterator<Item = Arg> {
    map.words().chunks_exact(16).map(|half| {
        let bytes = half.iter().flat_map(|word| word.to_ne_bytes()).collect();
        Arg::Scalar(Scalar::Bytes(bytes))
    })
}

/// Defines what the kernel's tiles and matrix instruction are.
pub(crate) fn define_tiles(
    prelude: &mut Prelude<'_>,
    arithmetic: Arithmetic,
    columns: usize,
    orders: [bool; 2],
    shared_tail: bool,
) {
    let size = arithmetic.size();
    prelude.defines([
        ("BN", columns),
        ("BK", arithmetic.depth()),
        ("STAGES", arithmetic.stages(columns)),
        ("BAND", Arithmetic::band(columns)),
        ("SHARED_TAIL", usize::from(shared_tail)),
        ("AT_ONCE", (256 / columns).min(8)),
    ]);
    let ty = arithmetic.name();
    let k = 32 / size;
    prelude.derive("INSTRUCTION", format_args!("\"wgmma.mma_async.sync.aligned.m64n{columns}k{k}.f32.{ty}.{ty}\""));
    // 32-bit operands have no such flags: they lie along k or go through registers.
    match size {
        2 => prelude.derive("MAJORS", format_args!("\", {}, {}\"", u8::from(!orders[0]), u8::from(!orders[1]))),
        _ => prelude.derive("MAJORS", "\"\""),
    }
}

/// The kernel, with what tells it how operands are copied where they are no plain matrices.
pub(crate) fn wgmma_kernel(
    stream: &Stream,
    name: &'static str,
    columns: usize,
    loader: &str,
    define: impl Fn(&mut Prelude<'_>),
) -> Result<Kernel> {
    prelude::kernel_of(stream, name, define, |prelude| {
        // The lists follow from BN, so the key need not hold them.
        let lists = operand_lists(columns);
        let parts = [&prelude, loader, COMMON, &lists, COPY_ENGINE, include_str!("../matmul_wgmma.cl")];
        Source::new(parts.concat(), "").retargeted()
    })
}

/// The operands of a matrix instruction whose sums are `d[0]`, `d[1]`, ...: as its text, as the compiler's constraints, and as
/// macros that do something for each.
fn operand_lists(columns: usize) -> String {
    let sums = columns / 2;
    let list = |n: usize, step: usize, separator: &str, item: &dyn Fn(usize) -> String| {
        (0..n).step_by(step).map(item).collect::<Vec<_>>().join(separator)
    };
    let mut text = String::new();
    let _ = writeln!(text, "#define REGISTERS \"{}\"", list(sums, 1, ", ", &|i| format!("%{i}")));
    let _ = writeln!(text, "#define DESCRIPTORS \"%{sums}, %{}\"", sums + 1);
    let four = (sums..sums + 4).map(|i| format!("%{i}")).collect::<Vec<_>>().join(", ");
    let _ = writeln!(text, "#define OPERANDS \"{{{four}}}, %{}\"", sums + 4);
    let _ = writeln!(text, "#define SUMS {}", list(sums, 1, ", ", &|i| format!("\"+f\"(d[{i}])")));
    let _ = writeln!(text, "#define EACH_SUM(X) {}", list(sums, 1, " ", &|i| format!("X({i})")));
    let _ = writeln!(text, "#define EACH_PAIR(X) {}", list(columns / 8, 2, " ", &|i| format!("X({i})")));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_name_every_sum_once() {
        let text = operand_lists(64);
        assert!(text.contains("#define REGISTERS \"%0, %1, ") && text.contains(", %31\"\n"));
        assert!(text.contains("#define DESCRIPTORS \"%32, %33\"\n"));
        assert!(text.contains("#define OPERANDS \"{%32, %33, %34, %35}, %36\"\n"));
        assert!(text.contains("\"+f\"(d[31])\n") && text.contains(" X(31)\n") && text.contains(" X(6)\n"));
    }

    #[test]
    fn the_tail_wave_is_shared_where_that_saves_more_than_it_costs() {
        let shared_tiles = |arithmetic, columns, tiles, k| {
            Plan::new(arithmetic, columns, tiles, k, 132)
                .shared_tiles()
                .map(|StreamK { whole, groups }| (whole, groups))
        };
        // 8192 cubed in 16 bits: 68 of 2048 tiles remain for 132 units.
        assert_eq!(shared_tiles(Arithmetic::F16, 256, 2048, 8192), Some((1980, 132)));
        assert_eq!(shared_tiles(Arithmetic::Rounded, 256, 2048, 8192), Some((1980, 132)), "float32 rounded to 16 bits");
        assert_eq!(shared_tiles(Arithmetic::Split, 128, 1024, 4096), None, "slower when measured");
        // What `matmul_units` multiplies: 12 tiles of a second round.
        assert_eq!(shared_tiles(Arithmetic::F16, 64, 144, 8200), Some((132, 132)));
        // Fewer tiles than units, with many terms.
        assert_eq!(shared_tiles(Arithmetic::F16, 256, 8, 65536), Some((0, 132)));
        assert_eq!(shared_tiles(Arithmetic::F16, 64, 1, 65536), Some((0, 24)), "more would have to be added up by one");
        // A few columns: 32 tiles would leave 100 units idle that could read the first operand.
        assert_eq!(shared_tiles(Arithmetic::F16, 16, 32, 4096), Some((0, 132)));
        assert_eq!(shared_tiles(Arithmetic::F16, 16, 8, 4096), Some((0, 48)));
        assert_eq!(shared_tiles(Arithmetic::F16, 16, 32, 512), None, "pieces of two chunks");
        assert_eq!(shared_tiles(Arithmetic::F16, 256, 512, 4096), None, "16 units idle for 64 chunks");
        assert_eq!(shared_tiles(Arithmetic::F16, 256, 132, 65536), None, "nobody is idle");
        assert_eq!(shared_tiles(Arithmetic::F16, 256, 1, 2048), None, "pieces of a few chunks");
    }

    #[test]
    fn local_memory_holds_enough_tiles() {
        for arithmetic in [Arithmetic::F16, Arithmetic::Tf32, Arithmetic::Split] {
            for &columns in arithmetic.widths() {
                assert!(WGMMA_TILE_BYTES / arithmetic.stage_bytes(columns) >= 4, "{arithmetic:?} {columns}");
            }
        }
    }
}
