//! Cutting a configuration down to what a device can run.

use super::config::{KernelConfig, KernelVariant};
use crate::device_profile::ExtendedDeviceProfile;
use crate::dtype::DType;
use crate::kernels::work_group::power_of_two_up_to;

/// The configuration with its work-groups and local tiles inside the device's limits; where nothing of it fits, the variant that
/// goes without.
pub(super) fn fit(
    mut config: KernelConfig,
    dtype: DType,
    profile: &ExtendedDeviceProfile,
) -> Result<KernelConfig, KernelVariant> {
    let most = profile.base.max_work_group_size.max(1);
    let local_bytes = profile.base.local_mem_size;
    config.local_size_1d = config.local_size_1d.min(power_of_two_up_to(most));
    if is_tiled(config.variant) {
        shrink_group(&mut config, most);
        shrink_tile(&mut config, dtype, local_bytes);
        if tile_bytes(&config, dtype) > local_bytes {
            return Err(without_tiles(config.variant));
        }
    } else {
        let (x, y) = &mut config.local_size_2d;
        while *x * *y > most {
            halve_larger(x, y);
        }
    }
    // The native CPU's groups are threads, which need no local memory.
    let native = (profile.base.backend, profile.base.device_type) == ("cpu", "cpu");
    if is_group_reduction(config.variant) && !native {
        // One partial sum of the accumulator's type per work-item.
        let per_item = dtype.accumulator().size() as u64;
        while config.local_size_1d > 1 && config.local_size_1d as u64 * per_item > local_bytes {
            config.local_size_1d /= 2;
        }
        if config.local_size_1d == 1 {
            return Err(KernelVariant::ReductionSequential);
        }
    }
    Ok(config)
}

/// Whether a configuration fits as it is: its group, its tiles, and that they are tiles its kernel can have.
pub(super) fn fits(config: &KernelConfig, dtype: DType, profile: &ExtendedDeviceProfile) -> bool {
    let (x, y) = config.local_size_2d;
    let most = profile.base.max_work_group_size.max(1);
    if !is_tiled(config.variant) {
        return config.local_size_1d <= most && possible(config);
    }
    // Sums are at least 32 bits wide, and rows in local memory carry one element more against bank conflicts.
    let bytes = dtype.accumulator().size() as u64;
    let tiles = (config.tile_m + config.tile_n + 2) * config.tile_k;
    // Convolutions may add up statistics there: a sum for each row and work-item of it.
    let sums = if config.variant == KernelVariant::Conv2dImplicitGemm { config.tile_m * (x + 1) } else { 0 };
    let padded = tiles.max(sums) as u64 * bytes;
    x * y <= most && possible(config) && (!config.use_local_memory || padded <= profile.base.local_mem_size)
}

/// Whether a kernel can have these tiles, whatever the device: tables are written by hand, too.
fn possible(config: &KernelConfig) -> bool {
    let (x, y) = config.local_size_2d;
    let (m, n, width) = (config.tile_m, config.tile_n, config.vector_width);
    match config.variant {
        KernelVariant::MatmulTiled => [n, x, y] == [m; 3],
        KernelVariant::MatmulVectorized => {
            matches!(width, 2 | 4 | 8 | 16) && n.is_multiple_of(width) && m.max(n) <= LARGEST_PANEL && m > 0 && n > 0
        }
        // Work-items share the tile out evenly.
        KernelVariant::MatmulRegisterTiled | KernelVariant::Conv2dImplicitGemm => {
            x * y > 0 && m >= y && n >= x && m.is_multiple_of(y) && n.is_multiple_of(x) && config.tile_k > 0
        }
        _ => true,
    }
}

/// The widest panel of a packed operand.
const LARGEST_PANEL: usize = 64;

/// Bytes of local memory that the tiles of both factors take.
pub(super) fn tile_bytes(config: &KernelConfig, dtype: DType) -> u64 {
    if !config.use_local_memory || !is_tiled(config.variant) {
        return 0;
    }
    // One pair of tiles is filled while another is read.
    let pairs = if config.variant == KernelVariant::MatmulRegisterTiled { 2 } else { 1 };
    (pairs * (config.tile_m + config.tile_n) * config.tile_k * dtype.size()) as u64
}

fn is_tiled(variant: KernelVariant) -> bool {
    use KernelVariant::*;
    matches!(variant, MatmulTiled | MatmulRegisterTiled | Conv2dImplicitGemm | Conv2dTiledLocal | Conv2dWinograd)
}

fn is_group_reduction(variant: KernelVariant) -> bool {
    matches!(variant, KernelVariant::ReductionParallel | KernelVariant::ReductionWorkgroup)
}

fn without_tiles(variant: KernelVariant) -> KernelVariant {
    match variant {
        KernelVariant::MatmulTiled | KernelVariant::MatmulRegisterTiled => KernelVariant::MatmulVectorized,
        _ => KernelVariant::Conv2dNaive,
    }
}

/// Fewer work-items make a smaller tile, so that each keeps its share of results.
fn shrink_group(config: &mut KernelConfig, most: usize) {
    while config.local_size_2d.0 * config.local_size_2d.1 > most {
        if config.local_size_2d.0 >= config.local_size_2d.1 {
            config.local_size_2d.0 /= 2;
            config.tile_m = (config.tile_m / 2).max(1);
        } else {
            config.local_size_2d.1 /= 2;
            config.tile_n = (config.tile_n / 2).max(1);
        }
    }
}

/// Shallower tiles first, which costs only barriers; then smaller ones, together with their groups.
fn shrink_tile(config: &mut KernelConfig, dtype: DType, local_bytes: u64) {
    while tile_bytes(config, dtype) > local_bytes {
        if config.tile_k > 4 {
            config.tile_k /= 2;
            continue;
        }
        let (x, y) = config.local_size_2d;
        if x * y == 1 {
            break;
        }
        if x >= y {
            config.local_size_2d.0 = x / 2;
            config.tile_m = (config.tile_m / 2).max(1);
        } else {
            config.local_size_2d.1 = y / 2;
            config.tile_n = (config.tile_n / 2).max(1);
        }
    }
}

fn halve_larger(x: &mut usize, y: &mut usize) {
    let larger = if *x >= *y { x } else { y };
    *larger = (*larger / 2).max(1);
}
