//! Configurations that were measured: what they say of a product, and when they are asked.

use netcl_core::Result;
use netcl_core::dtype::DType;
use netcl_core::kernel_selector::{Extra, KernelConfig, KernelSelector, KernelVariant, Problem as Class};
use netcl_core::kernels::launch;
use netcl_core::precision::MatmulPrecision;
use netcl_core::{Error, tuner};

use super::super::problem::Problem;
use super::super::{OP, Variant};
use super::choice::{PACK_ROWS, RegisterTile, Tile};

/// In a configuration: the matrix units are faster than it.
pub(crate) const UNITS: &str = "matrix_units";
/// Narrower results leave most of a tile empty; the rules know what to do with them.
const NARROWEST: usize = 16;
/// Products below this many multiply-adds are not worth measuring.
const WORTH_MEASURING: usize = 128 * 128 * 128;

/// The configuration that is forced on this thread or was measured for products like this one; with `NETCL_AUTOTUNE=1` it is
/// measured now, if nobody did.
pub(super) fn configuration(
    selector: &KernelSelector,
    p: &Problem<'_>,
    precision: MatmulPrecision,
) -> Result<Option<KernelConfig>> {
    let dtype = p.a.tensor.dtype();
    let class = Class::matmul(p.m, p.n, p.k, dtype);
    if let Some(forced) = tuner::forced(|variant| class.concerns(variant)) {
        return match selector.fits(&forced, dtype) {
            true => Ok(Some(forced)),
            false => Err(Error::argument(OP, format!("{forced} does not fit into a work-group of this device"))),
        };
    }
    // Measurements are of one matrix that is no strip, as accurate as float32.
    if p.matrices() > 1 || p.m.min(p.n) < NARROWEST || (dtype == DType::F32 && precision != MatmulPrecision::Highest) {
        return Ok(None);
    }
    let known = selector.measured(&class);
    let work = p.m.saturating_mul(p.n).saturating_mul(p.k);
    // While launches are written down for later, there is nothing to measure.
    if known.is_some() || !tuner::autotune() || work < WORTH_MEASURING || launch::has_sink() {
        return Ok(known);
    }
    crate::tuning::first_use_of_matmul(p.c.tensor.queue(), [p.m, p.n, p.k], dtype)?;
    Ok(selector.measured(&class))
}

/// Whether the matrix units were faster when this was measured.
pub(super) fn prefers_units(config: &KernelConfig) -> bool {
    config.extra.get(UNITS) == Some(&Extra::Bool(true))
}

/// The kernel of a configuration.
pub(super) fn variant(config: &KernelConfig) -> Variant {
    match config.variant {
        KernelVariant::MatmulTiled => Variant::Tiled,
        KernelVariant::MatmulRegisterTiled => Variant::RegisterTiled,
        KernelVariant::MatmulVectorized => Variant::Vectorized,
        _ => Variant::Naive,
    }
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
