//! Products of a few rows or columns: work-groups, and the launches of `matmul_strip.cl`.

use netcl_core::Result;
use netcl_core::backend::opencl::{COUNTERS, Grid, Kernel};
use netcl_core::dtype::DType;
use netcl_core::kernel_selector::STRIP_ROWS;
use netcl_core::kernels::described::RowNorm;
use netcl_core::kernels::launch::{Access, Arg, Scalar};
use netcl_core::tensor::Tensor;

use super::super::Variant;
use super::super::problem::Problem;
use super::choice::{Device, Tile};
use super::source::Outcome;
use super::split::Split;
use super::{Multiplication, Operand};
use crate::dense;
use crate::row_tile::RowTile;

/// Columns, and terms, of a work-item's block.
const BLOCK: usize = 4;
/// Work-items of a group.
const ITEMS: usize = 256;
/// Blocks that a work-item should add up at least.
const FEWEST_BLOCKS: usize = 8;

/// What a work-group computes: `rows` x `cols` blocks of results, `terms` blocks of terms at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StripTile {
    pub(super) rows: usize,
    cols: usize,
    terms: usize,
    /// Whether neighbours of the second operand lie along its columns.
    lines: bool,
}

impl StripTile {
    /// The tile for a product whose rows are its shorter side, within the device's limits.
    pub(super) fn of(device: &Device, p: &Problem<'_>, matrices: usize) -> StripTile {
        let (lines, blocks) = (along_columns(p), p.n.div_ceil(BLOCK));
        // CPU devices run this only when it is forced: one form of it for all products is compiled sooner.
        let (rows, items, across) = match device.cpu_device {
            true => (4, 64, 16),
            false => (p.m.next_power_of_two().min(STRIP_ROWS), ITEMS, blocks.next_power_of_two().min(32)),
        };
        let largest = |n: usize| 1 << n.max(1).ilog2();
        // Half of a group's sums lie in local memory, beside a word.
        let room = 2 * device.local_bytes.saturating_sub(16) / (rows * BLOCK * p.sum.size());
        let items = largest(items.min(device.group).min(room));
        let terms = if lines {
            items / across.min(items)
        } else {
            // Neighbours share columns; more of them, in more groups, rather than parts that must be added up.
            let groups = |terms: usize| blocks.div_ceil(items / terms) * p.m.div_ceil(rows) * matrices;
            let grows = |terms: usize| groups(terms) < 3 * device.units && 2 * terms * BLOCK * FEWEST_BLOCKS <= p.k;
            let mut terms = items.min(32);
            while terms < items && grows(terms) && !device.cpu_device {
                terms *= 2;
            }
            terms
        };
        StripTile { rows, cols: items / terms, terms, lines }
    }

    /// Columns of results.
    pub(super) fn columns(self) -> usize {
        self.cols * BLOCK
    }

    /// Terms below which a group has too little to do.
    fn shortest_part(self) -> usize {
        self.terms * BLOCK * FEWEST_BLOCKS
    }
}

/// Whether neighbours of the second operand lie along its columns.
fn along_columns(p: &Problem<'_>) -> bool {
    p.b.cs.abs() <= p.b.rs.abs() && p.n > 1
}

/// Whether rows are to be the shorter side first.
pub(super) fn flips(p: &Problem<'_>) -> bool {
    p.n < p.m
}

impl Multiplication<'_> {
    /// How the terms are split: groups for the whole device, if each has enough to do. They add up among themselves.
    pub(super) fn strip_split(&self, tile: StripTile) -> Split {
        let p = self.problem;
        let groups = p.n.div_ceil(tile.columns()) * p.m.div_ceil(tile.rows) * self.matrices();
        // The fewer rows, the sooner a block is done with, and the more of them must be under way.
        let wanted = (8 / tile.rows).max(2) * self.device.units / groups;
        let parts = if groups <= COUNTERS { wanted.min(p.k / tile.shortest_part()).max(1) } else { 1 };
        Split::of(p.k, parts)
    }

    pub(super) fn launch_strip(&self, tile: StripTile, split: Split, norm: Option<(&RowNorm, RowTile)>) -> Result<()> {
        let p = self.problem;
        let operands =
            [self.operand(&p.a, Access::Read), self.operand(&p.b, Access::Read), self.operand(&p.c, Access::Write)];
        let kernel = self.strip_kernel(tile, &operands, split, norm.map(|(_, wide)| wide))?;
        let mut args = self.arguments(Variant::Strip, &operands, split, Outcome::Final);
        if let Some((norm, _)) = norm {
            let parameters = dense::Args::default().maybe(norm.weight.as_ref(), Access::Read);
            args.extend(parameters.maybe(norm.bias.as_ref(), Access::Read).into_list());
            let eps = if p.sum == DType::F64 { Scalar::F64(norm.eps) } else { Scalar::F32(norm.eps as f32) };
            args.extend([eps, Scalar::U32(u32::from(norm.centred))].map(Arg::Scalar));
        }
        let (columns, rows) = (p.n.div_ceil(tile.columns()), p.m.div_ceil(tile.rows));
        if split.parts > 1 {
            let shape = [columns * rows * self.matrices(), split.parts, tile.rows * tile.columns()];
            let parts = Tensor::uninit(p.c.tensor.queue(), shape, p.sum)?;
            let memory = [parts.storage().clone(), self.stream.counters()?];
            args.extend(memory.map(|memory| Arg::Buffer(memory, Access::Write)));
        }
        let items = tile.cols * tile.terms;
        let grid = Grid::new([columns * items, rows, self.z(split)]).local([items, 1, 1]);
        self.send(Variant::Strip.kernel_name(), kernel, grid, args, self.slice_cost())
    }

    /// The product of normalised rows in one launch, with the bits that it has after a launch of the normalisation; `false` where there
    /// is none.
    pub(super) fn launch_normed(&self, norm: &RowNorm) -> Result<bool> {
        let p = self.problem;
        let Tile::Strip(tile) = self.chosen_tile(Variant::Strip)? else { return Ok(false) };
        let (dtype, parameters) = (p.a.tensor.dtype(), [&norm.weight, &norm.bias].into_iter().flatten());
        // How the normalisation itself holds rows.
        let aligned = |width: usize| {
            [p.a.tensor].into_iter().chain(parameters.clone()).all(|t| t.layout().offset().is_multiple_of(width))
        };
        let Some(wide) = RowTile::new(self.stream, dtype, p.k, aligned) else { return Ok(false) };
        let items = tile.cols * tile.terms;
        let bytes = tile.rows * p.k * dtype.size() + (2 * items + tile.rows * BLOCK * items.div_ceil(2)) * p.sum.size();
        let dense = p.a.cs == 1 && (p.m == 1 || p.a.rs == p.k as isize);
        if !dense || self.matrices() > 1 || wide.lanes > items || bytes + 64 > self.device.local_bytes {
            return Ok(false);
        }
        self.launch_strip(tile, self.strip_split(tile), Some((norm, RowTile { group: items, ..wide })))?;
        Ok(true)
    }

    fn strip_kernel(
        &self,
        tile: StripTile,
        [a, b, _]: &[Operand; 3],
        split: Split,
        norm: Option<RowTile>,
    ) -> Result<Kernel> {
        let p = self.problem;
        // Neighbours are loaded together where they always lie together, on a boundary of four.
        let width =
            |step: isize, others: [isize; 4]| if step == 1 && others.iter().all(|n| n % 4 == 0) { 4 } else { 1 };
        let b_width = match tile.lines {
            // The last four columns stand for those beyond them.
            true if !p.n.is_multiple_of(BLOCK) => 1,
            true => width(b.cs, [b.rs, b.b0, b.b1, b.at as isize]),
            false => width(b.rs, [b.cs, b.b0, b.b1, b.at as isize]),
        };
        let values = [
            ("ROWS", tile.rows),
            ("COLS", tile.cols),
            ("TERMS", tile.terms),
            ("B_LINES", usize::from(tile.lines)),
            ("A_WIDTH", width(a.cs, [a.rs, a.b0, a.b1, a.at as isize])),
            ("B_WIDTH", b_width),
            ("PARTS", usize::from(split.parts > 1)),
            ("UNROLLED", usize::from(!self.device.cpu_device)),
        ];
        let strip = include_str!("../matmul_strip.cl");
        let files: &[&str] =
            if norm.is_some() { &[include_str!("../../norm/row_moments.cl"), strip] } else { &[strip] };
        let name = Variant::Strip.kernel_name();
        crate::prelude::kernel(self.stream, name, files, |prelude| {
            self.plain(prelude, Outcome::Final);
            prelude.loads4("LOAD4", p.a.tensor.dtype(), p.sum);
            prelude.derive("SUM4", format_args!("{}4", p.sum.cl_type()));
            prelude.defines(values);
            prelude.define("FENCE", self.stream.device_fence());
            if let Some(wide) = norm {
                prelude.normed_rows(p.a.tensor.dtype(), p.k, wide);
            }
        })
    }
}
