//! Which kernel, which tile, how many parts: rules by size and by what the device says of itself.

use netcl_core::backend::opencl::Stream;
use netcl_core::device::DeviceType;
use netcl_core::dtype::DType;
use netcl_core::kernel_selector::KernelVariant;

use super::super::Variant;
use super::super::problem::Problem;
use super::Split;

/// The most parts that the terms of a product are split into.
pub(super) const MAX_PARTS: usize = 32;
/// The widest panel of a packed operand.
pub(super) const LARGEST_PANEL: usize = 64;
/// Parts shorter than this are not worth adding up.
const SHORTEST_PART: usize = 128;
/// The largest result, and the most terms, for which each operand may be read once for every four lines of the other.
const DOTS_ELEMENTS: usize = 1 << 14;
const DOTS_TERMS: usize = 4096;
/// Multiply-adds below which tiles only cost.
const TINY: usize = 16 * 16 * 16;
/// Rows from which reading the first operand from a packed panel saves more than packing it costs.
const PACK_ROWS: usize = 32;

/// What the rules ask of a device, `NETCL_LIMITS` applied.
pub(super) struct Device {
    /// The largest work-group.
    pub(super) group: usize,
    local_bytes: usize,
    units: usize,
    largest_allocation: usize,
    processor: bool,
}

impl Device {
    pub(super) fn new(stream: &Stream) -> Device {
        let info = stream.device().info();
        Device {
            group: info.max_work_group_size,
            local_bytes: usize::try_from(info.local_mem_size).unwrap_or(usize::MAX),
            units: info.compute_units.max(1) as usize,
            largest_allocation: usize::try_from(info.max_mem_alloc_size).unwrap_or(usize::MAX),
            processor: stream.device().device_type() == DeviceType::Cpu,
        }
    }
}

/// What one work-group (or, for vectors, one work-item) computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tile {
    One,
    /// So many work-items for 4 x 4 elements.
    Dots(usize),
    Square(usize),
    Registers {
        rows: usize,
        cols: usize,
        depth: usize,
        r: usize,
        c: usize,
    },
    Vectors {
        rows: usize,
        width: usize,
        vectors: usize,
        pack_a: bool,
        pack_b: bool,
    },
}

impl Tile {
    /// Rows of results that are computed together.
    pub(super) fn rows(self) -> usize {
        match self {
            Tile::One => 8,
            Tile::Dots(_) => 4,
            Tile::Square(side) => side,
            Tile::Registers { rows, .. } | Tile::Vectors { rows, .. } => rows,
        }
    }

    /// Columns of results that are computed together.
    pub(super) fn cols(self) -> usize {
        match self {
            Tile::One => 8,
            Tile::Dots(_) => 4,
            Tile::Square(side) => side,
            Tile::Registers { cols, .. } => cols,
            Tile::Vectors { width, vectors, .. } => width * vectors,
        }
    }
}

/// The kernel for a product: the selector's word, except that processors want vectors rather than local memory and that a tile
/// over a few rows or columns would be mostly empty.
pub(super) fn choose(device: &Device, p: &Problem<'_>, selected: KernelVariant) -> Variant {
    if !device.processor && dots_pay(p) {
        return Variant::Dots;
    }
    match selected {
        KernelVariant::MatmulTiled | KernelVariant::MatmulRegisterTiled if device.processor => Variant::Vectorized,
        KernelVariant::MatmulTiled | KernelVariant::MatmulRegisterTiled if p.m.min(p.n) < 8 => Variant::Naive,
        KernelVariant::MatmulTiled => Variant::Tiled,
        KernelVariant::MatmulRegisterTiled => Variant::RegisterTiled,
        KernelVariant::MatmulVectorized => Variant::Vectorized,
        // The selector takes products below a cube of 32 for tiny; on a processor vectors pay earlier.
        _ if device.processor && p.m * p.n * p.k > TINY => Variant::Vectorized,
        _ => Variant::Naive,
    }
}

/// Whether work-groups should share out terms: a result too small to fill a GPU with tiles, of terms that lie side by side, so
/// long that they would be split, which takes a launch more.
fn dots_pay(p: &Problem<'_>) -> bool {
    p.m.min(p.n) >= 4
        && p.matrices() * p.m * p.n <= DOTS_ELEMENTS
        && p.k >= 2 * SHORTEST_PART
        && p.k <= DOTS_TERMS
        && p.a.cs == 1
        && p.b.rs == 1
}

/// The tile of a kernel for a product, within the device's limits.
pub(super) fn tile(device: &Device, variant: Variant, p: &Problem<'_>, matrices: usize) -> Tile {
    let bytes = p.sum.size();
    match variant {
        Variant::Naive => Tile::One,
        Variant::Tiled => Tile::Square(square_tile(device, bytes)),
        Variant::Dots => {
            let fits = |&items: &usize| items <= device.group && 16 * items * bytes <= device.local_bytes;
            [256, 128, 64, 32, 16].into_iter().find(fits).map_or(Tile::One, Tile::Dots)
        }
        // The matrix units' kernels have tiles of their own (`wgmma`); what they cannot do, this one does.
        Variant::RegisterTiled | Variant::Wgmma | Variant::WgmmaSplit => register_tile(device, p, matrices, bytes),
        Variant::Vectorized => vector_tile(p),
    }
}

/// The side of the tiled kernel's tiles.
pub(super) fn square_tile(device: &Device, bytes: usize) -> usize {
    let fits = |side: usize| side * side <= device.group && 2 * side * (side + 1) * bytes <= device.local_bytes;
    [16, 8, 4, 2].into_iter().find(|&side| fits(side)).unwrap_or(1)
}

fn register_tile(device: &Device, p: &Problem<'_>, matrices: usize, bytes: usize) -> Tile {
    // (side, depth, results per work-item and direction), from the largest.
    const SIDES: [(usize, usize, usize); 5] = [(128, 8, 8), (64, 16, 4), (32, 16, 4), (16, 8, 4), (8, 4, 4)];
    let fits = |&&(side, depth, r): &&(usize, usize, usize)| {
        let groups = p.m.div_ceil(side) * p.n.div_ceil(side) * matrices;
        // Large tiles reuse more, but must still fill the device.
        let fills = groups >= 2 * device.units || side <= 64;
        let items = (side / r) * (side / r);
        fills && items <= device.group && 2 * depth * (side + 1) * bytes <= device.local_bytes
    };
    let (side, depth, r) = SIDES.iter().find(fits).copied().unwrap_or((2, 2, 2));
    Tile::Registers { rows: side, cols: side, depth, r, c: r }
}

fn vector_tile(p: &Problem<'_>) -> Tile {
    // 512 bits: one register of the widest processors, two or four of the others.
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
pub(super) fn split(device: &Device, p: &Problem<'_>, matrices: usize, groups: usize) -> Split {
    let wanted = if device.processor { 2 * device.units } else { 4 * device.units };
    let partial = matrices * p.m * p.n * p.sum.size();
    let parts = (wanted / groups.max(1))
        .min(p.k / SHORTEST_PART)
        .min(MAX_PARTS)
        .min(device.largest_allocation / partial.max(1))
        .max(1);
    let depth = p.k.div_ceil(parts);
    Split { parts: p.k.div_ceil(depth), depth }
}
