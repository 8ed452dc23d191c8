//! Configurations that are forced or were measured: the tiles they ask for, and when measuring is worth it.

use netcl_core::backend::Queue;
use netcl_core::kernel_selector::{KernelConfig, KernelSelector, KernelVariant, MatmulSpec, Problem as Class};
use netcl_core::kernels::launch;
use netcl_core::{Result, tuner};

use super::super::problem::Problem;
use super::choice::{PACK_ROWS, RegisterTile, Tile};

/// Products below this many multiply-adds are not worth measuring.
const WORTH_MEASURING: usize = 128 * 128 * 128;

/// With `NETCL_AUTOTUNE=1`, measures the kernels for products like this one if nobody did.
pub(super) fn measure_at_first_use(selector: &KernelSelector, queue: &Queue, spec: &MatmulSpec) -> Result<()> {
    // While launches are written down for later, there is nothing to measure.
    if !tuner::autotune() || !spec.is_measured() || spec.work() < WORTH_MEASURING || launch::has_sink() {
        return Ok(());
    }
    let class = Class::matmul(spec.m, spec.n, spec.k, spec.dtype);
    if tuner::forced(|variant| class.concerns(variant)).is_some() || selector.measured(&class).is_some() {
        return Ok(());
    }
    crate::tuning::first_use_of_matmul(queue, [spec.m, spec.n, spec.k], spec.dtype)
}

/// The tile of a configuration. What the selector says to fit is even and within the device's limits.
pub(super) fn tile(config: &KernelConfig, p: &Problem<'_>) -> Tile {
    match config.variant {
        KernelVariant::MatmulTiled => Tile::Square(config.tile_m),
        KernelVariant::MatmulRegisterTiled => RegisterTile::of(config).map_or(Tile::One, Tile::Registers),
        KernelVariant::MatmulVectorized => {
            let (width, vectors) = (config.vector_width, (config.tile_n / config.vector_width).max(1));
            let converts = p.a.tensor.dtype() != p.sum;
            // Unpacked operands are read in whole vectors: only those that lie so may stay where they are.
            let pack_b = converts || p.b.cs != 1 || !p.n.is_multiple_of(width * vectors) || p.m >= PACK_ROWS;
            Tile::Vectors { rows: config.tile_m, width, vectors, pack_a: p.m >= PACK_ROWS, pack_b }
        }
        _ => Tile::One,
    }
}
