//! Which kernel, which tile, how many parts: rules by size and by what the device says of itself.

use netcl_core::backend::opencl::Stream;
use netcl_core::device::DeviceType;
use netcl_core::dtype::DType;
use netcl_core::kernel_selector::KernelConfig;
use smallvec::SmallVec;

use super::super::Variant;
use super::super::problem::Problem;
use super::Split;
use super::strip::StripTile;

/// The most parts that the terms of a product are split into.
const MAX_PARTS: usize = 256;
/// The most partial results of all parts together: 32-bit indices reach them.
const MOST_PARTIAL: usize = 1 << 26;
/// The widest panel of a packed operand.
pub(super) const LARGEST_PANEL: usize = 64;
/// Parts shorter than this, for each of the work-items that share them, are not worth adding up.
const SHORTEST_PART: usize = 128;
/// Rows from which reading the first operand from a packed panel saves more than packing it costs.
pub(super) const PACK_ROWS: usize = 32;

/// What the rules ask of a device, `NETCL_LIMITS` applied.
pub(super) struct Device {
    /// The largest work-group.
    pub(super) group: usize,
    pub(super) local_bytes: usize,
    pub(super) units: usize,
    pub(super) largest_allocation: usize,
    pub(super) cpu_device: bool,
}

impl Device {
    pub(super) fn new(stream: &Stream) -> Device {
        let info = stream.device().info();
        Device {
            group: info.max_work_group_size,
            local_bytes: usize::try_from(info.local_mem_size).unwrap_or(usize::MAX),
            units: info.compute_units.max(1) as usize,
            largest_allocation: usize::try_from(info.max_mem_alloc_size).unwrap_or(usize::MAX),
            cpu_device: stream.device().device_type() == DeviceType::Cpu,
        }
    }
}

/// What one work-group (or, for vectors, one work-item) computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tile {
    One,
    Square(usize),
    Registers(RegisterTile),
    Strip(StripTile),
    Vectors { rows: usize, width: usize, vectors: usize, pack_a: bool, pack_b: bool },
}

/// What a work-group of `matmul_register_tiled.cl` computes: `rows` x `cols` results, `depth` terms at a time, each work-item
/// `r` x `c` results of every one of `slices` terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RegisterTile {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) depth: usize,
    pub(super) r: usize,
    pub(super) c: usize,
    pub(super) slices: usize,
}

impl RegisterTile {
    /// For large products, from the largest. Tiles of the selector's table come before them.
    const LARGE: [RegisterTile; 4] = [
        RegisterTile::new([128, 128, 16], [8, 8], 1),
        RegisterTile::new([128, 64, 16], [8, 8], 1),
        RegisterTile::new([64, 128, 16], [8, 8], 1),
        RegisterTile::new([64, 64, 16], [4, 4], 1),
    ];
    /// For products with too few results to fill the device with large tiles: many work-items share the terms of few results.
    const SMALL: [RegisterTile; 3] = [
        RegisterTile::new([32, 32, 32], [4, 4], 4),
        RegisterTile::new([16, 16, 64], [4, 4], 16),
        RegisterTile::new([8, 8, 64], [2, 2], 16),
    ];
    /// For a few rows or a few columns.
    const FLAT: RegisterTile = RegisterTile::new([4, 64, 32], [4, 4], 16);
    const UPRIGHT: RegisterTile = RegisterTile::new([64, 4, 32], [4, 4], 16);
    /// Where local memory or work-groups are tiny.
    const TINY: [RegisterTile; 3] = [
        RegisterTile::new([16, 16, 8], [4, 4], 1),
        RegisterTile::new([8, 8, 4], [4, 4], 1),
        RegisterTile::new([2, 2, 2], [2, 2], 1),
    ];

    #[cfg(test)]
    pub(super) const ALL: [RegisterTile; 12] = {
        let ([a, b, c, d], [e, f, g], [h, i, j]) = (Self::LARGE, Self::SMALL, Self::TINY);
        [a, b, c, d, e, f, g, h, i, j, Self::FLAT, Self::UPRIGHT]
    };

    const fn new([rows, cols, depth]: [usize; 3], [r, c]: [usize; 2], slices: usize) -> RegisterTile {
        RegisterTile { rows, cols, depth, r, c, slices }
    }

    /// The tile that a table's entry describes, if the kernel can have it.
    pub(super) fn of(config: &KernelConfig) -> Option<RegisterTile> {
        let (x, y) = config.local_size_2d;
        let whole = x > 0 && y > 0 && config.tile_m.is_multiple_of(y) && config.tile_n.is_multiple_of(x);
        let tile = whole.then(|| {
            let share = [config.tile_m / y, config.tile_n / x];
            RegisterTile::new([config.tile_m, config.tile_n, config.tile_k], share, 1)
        })?;
        (tile.r > 0 && tile.c > 0 && tile.depth > 0).then_some(tile)
    }

    /// Work-items of a group.
    pub(super) fn items(self) -> usize {
        (self.rows / self.r) * (self.cols / self.c) * self.slices
    }

    /// Neighbouring rows, and columns, of a work-item.
    pub(super) fn run(self) -> usize {
        [4, 2].into_iter().find(|&run| self.r.is_multiple_of(run) && self.c.is_multiple_of(run)).unwrap_or(1)
    }

    /// Local memory for two pairs of tiles, and for the slices' sums.
    fn local_bytes(self, bytes: usize) -> usize {
        let added = if self.slices > 1 { self.slices * self.rows * self.cols } else { 0 };
        (2 * self.depth * (self.rows + self.cols + 8) + added) * bytes
    }

    pub(super) fn fits(self, device: &Device, bytes: usize) -> bool {
        self.items() <= device.group && self.local_bytes(bytes) <= device.local_bytes
    }

    fn groups(self, p: &Problem<'_>, matrices: usize) -> usize {
        p.m.div_ceil(self.rows) * p.n.div_ceil(self.cols) * matrices
    }

    /// Results that whole tiles have, those beyond the edges of the product included.
    fn padded(self, p: &Problem<'_>) -> usize {
        p.m.next_multiple_of(self.rows).saturating_mul(p.n.next_multiple_of(self.cols))
    }
}

impl Tile {
    /// Rows of results that are computed together.
    pub(super) fn rows(self) -> usize {
        match self {
            Tile::One => 8,
            Tile::Square(side) => side,
            Tile::Registers(tile) => tile.rows,
            Tile::Strip(tile) => tile.rows,
            Tile::Vectors { rows, .. } => rows,
        }
    }

    /// Columns of results that are computed together.
    pub(super) fn cols(self) -> usize {
        match self {
            Tile::One => 8,
            Tile::Square(side) => side,
            Tile::Registers(tile) => tile.cols,
            Tile::Strip(tile) => tile.columns(),
            Tile::Vectors { width, vectors, .. } => width * vectors,
        }
    }

    /// Terms below which a part is not worth adding up.
    fn shortest_part(self) -> usize {
        match self {
            Tile::Registers(tile) => SHORTEST_PART * tile.slices.max(2),
            _ => SHORTEST_PART,
        }
    }
}

/// The tile of a kernel for a product, within the device's limits.
pub(super) fn tile(
    device: &Device,
    variant: Variant,
    p: &Problem<'_>,
    matrices: usize,
    shipped: Option<RegisterTile>,
) -> Tile {
    let bytes = p.sum.size();
    match variant {
        Variant::Naive => Tile::One,
        Variant::Tiled => Tile::Square(square_tile(device, bytes)),
        Variant::Vectorized => vector_tile(p),
        Variant::Strip => Tile::Strip(StripTile::of(device, p, matrices)),
        // The matrix units' kernels have tiles of their own (`wgmma`, `mma`); what they cannot do, this one does.
        _ => register_tile(device, p, matrices, bytes, shipped),
    }
}

/// The side of the tiled kernel's tiles.
pub(super) fn square_tile(device: &Device, bytes: usize) -> usize {
    let fits = |side: usize| side * side <= device.group && 2 * side * (side + 1) * bytes <= device.local_bytes;
    [16, 8, 4, 2].into_iter().find(|&side| fits(side)).unwrap_or(1)
}

/// The largest tile that still fills the device.
fn register_tile(
    device: &Device,
    p: &Problem<'_>,
    matrices: usize,
    bytes: usize,
    shipped: Option<RegisterTile>,
) -> Tile {
    // A few idle units cost less than smaller tiles do.
    let nearly = device.units - device.units / 16;
    let fill = |tile: &RegisterTile| tile.groups(p, matrices) >= nearly;
    let filling: SmallVec<[RegisterTile; 5]> = shipped.into_iter().chain(RegisterTile::LARGE).filter(fill).collect();
    // Larger tiles do more with what they read, but not if much more of them lies beyond the edges: 64 rows would be half of 128.
    let least = filling.iter().map(|tile| tile.padded(p)).min().unwrap_or(0);
    let large = filling.into_iter().filter(|tile| tile.padded(p) <= least + least / 3);
    // With slices a group has work enough for a unit, if not for its latencies.
    let small = RegisterTile::SMALL.into_iter().filter(|tile| 2 * tile.groups(p, matrices) >= device.units);
    // Few results of many terms: large tiles nevertheless, whose terms are split.
    let filled = |tile: &RegisterTile| {
        let parts = (p.k / Tile::Registers(*tile).shortest_part()).min(MAX_PARTS);
        tile.rows <= p.m && tile.cols <= p.n && tile.groups(p, matrices) * parts >= 2 * nearly
    };
    let split = RegisterTile::LARGE.into_iter().filter(filled);
    let narrow = match (p.m <= RegisterTile::FLAT.rows, p.n <= RegisterTile::UPRIGHT.cols) {
        (true, _) => Some(RegisterTile::FLAT),
        (_, true) => Some(RegisterTile::UPRIGHT),
        _ => None,
    };
    let rest = RegisterTile::SMALL.into_iter().rev().chain(RegisterTile::TINY);
    first_fitting(device, bytes, narrow.into_iter().chain(large).chain(split).chain(small).chain(rest))
}

/// The tile of products that are computed a second time, if ever: one for all shapes, so that few programs are compiled for nothing.
pub(super) fn guarded_tile(device: &Device, bytes: usize) -> Tile {
    let [.., medium] = RegisterTile::LARGE;
    first_fitting(device, bytes, std::iter::once(medium).chain(RegisterTile::TINY))
}

fn first_fitting(device: &Device, bytes: usize, mut candidates: impl Iterator<Item = RegisterTile>) -> Tile {
    Tile::Registers(candidates.find(|tile| tile.fits(device, bytes)).unwrap_or(RegisterTile::TINY[2]))
}

pub(super) fn vector_tile(p: &Problem<'_>) -> Tile {
    // 512 bits: one register of the widest CPU devices, two or four of the others.
    let width = if p.sum == DType::F64 { 8 } else { 16 };
    let vectors = 2;
    let rows = if p.m >= 8 { 8 } else { p.m.next_power_of_two() };
    let converts = p.a.tensor.dtype() != p.sum;
    let pack_a = p.m >= PACK_ROWS;
    let pack_b = converts || p.b.cs != 1 || !p.n.is_multiple_of(width * vectors) || p.m >= PACK_ROWS;
    Tile::Vectors { rows, width, vectors, pack_a, pack_b }
}

/// The work-group of kernels that compute one element per work-item.
pub(super) fn flat_group(device: &Device) -> [usize; 2] {
    let x = device.group.min(16);
    [x, (device.group / x).min(4)]
}

/// How many parts the terms are split into: as many as it takes to fill the device, if each is long enough.
pub(super) fn split(device: &Device, p: &Problem<'_>, matrices: usize, tile: Tile) -> Split {
    let groups = p.m.div_ceil(tile.rows()) * p.n.div_ceil(tile.cols()) * matrices;
    let per_unit = match tile {
        // Such groups have work-items and registers enough for half a unit.
        Tile::Registers(tile) if tile.r * tile.c >= 64 => 2,
        _ => 4,
    };
    let wanted = per_unit * device.units;
    let partial = matrices * p.m * p.n;
    let parts = (wanted / groups.max(1))
        .min(p.k / tile.shortest_part())
        .min(MAX_PARTS)
        .min(MOST_PARTIAL.min(device.largest_allocation / p.sum.size()) / partial)
        .max(1);
    Split::of(p.k, parts)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use netcl_core::device::manager;
    use netcl_core::tensor::Tensor;

    use super::*;
    use crate::matmul::ShapeRule;

    /// What the rules see of an H200.
    const H200: Device =
        Device { group: 1024, local_bytes: 48 * 1024, units: 132, largest_allocation: 1 << 34, cpu_device: false };

    /// Asks something about a product of an m x k and a k x n matrix, each of which may be a transposed view.
    fn ask<R>(
        (m, n, k): (usize, usize, usize),
        transposed: [bool; 2],
        dtype: DType,
        question: impl FnOnce(&Problem<'_>) -> R,
    ) -> R {
        let queue = manager().cpu().queue;
        let matrix = |rows: usize, cols: usize, transposed: bool| match transposed {
            true => Tensor::uninit(&queue, [cols, rows], dtype).unwrap().permute(&[1, 0]).unwrap(),
            false => Tensor::uninit(&queue, [rows, cols], dtype).unwrap(),
        };
        let (a, b) = (matrix(m, k, transposed[0]), matrix(k, n, transposed[1]));
        let out = Tensor::uninit(&queue, [m, n], dtype).unwrap();
        let rule = ShapeRule::new(&a, &b).unwrap();
        question(&Problem::new(&rule, &a, &b, &out, &[], None, None).unwrap())
    }

    #[test]
    fn few_results_of_many_terms_have_large_tiles_in_parts() {
        let chosen = |shape| {
            ask(shape, [false; 2], DType::F32, |p| {
                let tile = tile(&H200, Variant::RegisterTiled, p, 1, None);
                (tile, split(&H200, p, 1, tile).parts)
            })
        };
        let [large, medium, wide, small] = RegisterTile::LARGE.map(Tile::Registers);
        assert_eq!(chosen((64, 64, 65536)), (small, 256));
        assert_eq!(chosen((512, 512, 2048)), (medium, 8));
        assert_eq!(chosen((256, 256, 16384)), (large, 64));
        assert_eq!(chosen((512, 512, 512)), (Tile::Registers(RegisterTile::SMALL[0]), 1), "too few terms for parts");
        assert_eq!(chosen((4096, 4096, 512)), (large, 1), "the device is full");
        assert_eq!(chosen((64, 32768, 64)), (wide, 1), "half of a larger tile would lie beyond the edge");
        assert_eq!(chosen((32768, 64, 64)), (medium, 1));
        assert_eq!(chosen((100, 32768, 64)), (large, 1), "a fifth may");
    }
}
