//! The tables: which kernel an operation runs. Each is read from the top; the first line that holds decides.
//!
//! Operations ask these tables with everything they know of a call; users ask them by lengths alone and mean operands that lie
//! densely. Tile sizes are not decided here: they are data (`kernel_defaults.toml`), or follow from the problem in `netcl-ops`.

use super::KernelVariant;
use super::config::KernelVariant::*;
use crate::backend::opencl::Device;
use crate::capabilities::kernel_strategy;
use crate::conv::ConvGeometry;
use crate::device_profile::ExtendedDeviceProfile;
use crate::dtype::DType;
use crate::env;
use crate::precision::{MatmulPrecision, matmul_precision};

/// Products with fewer multiply-adds than a cube of this edge are tiny.
const TINY_EDGE: usize = 32;
/// Products with at least as many multiply-adds as a cube of this edge, and so many rows and columns, are large.
const LARGE_EDGE: usize = 512;
const LARGE_SIDE: usize = 64;
/// The most rows of a strip (beyond, a work-item has no registers for their sums), and its fewest terms.
pub const STRIP_ROWS: usize = 16;
const STRIP_TERMS: usize = 256;
/// Strips whose larger operand is smaller than this are over before memory is busy.
const STRIP_ELEMENTS: usize = 1 << 16;
/// Rows and multiply-adds from which matrix units are faster than strips: measured on an H200.
const UNIT_STRIP_ROWS: usize = 3;
const UNIT_STRIP_WORK: usize = 1 << 25;

/// Filters of a channel from which a product reads the channel less often than the depthwise kernel does.
const DEPTHWISE_FILTERS: usize = 8;
/// An output of at most so many pixels counts as small.
const SMALL_OUTPUT: usize = 32 * 32;
/// Filters, elements of a window, and multiply-adds from which windows are written out for matrix units. Eight convolutions of
/// ResNet-18 were timed on an H200, of 64 filters and 2^28 multiply-adds and more: all gained. Where that begins is not known.
const UNIT_CONV_SIDE: usize = 16;
const UNIT_CONV_WORK: usize = 1 << 26;

/// Up to this many elements scalar loads are as good as any.
const SCALAR_ELEMENTS: usize = 1024;
/// Reductions of fewer elements run in one work-item.
pub const SEQUENTIAL_BELOW: usize = 256;
/// From this many elements on a reduction may take several work-groups.
pub const WORKGROUP_FROM: usize = 1 << 16;

/// Work-items of a group of `matmul_wgmma.cl`, and the static local memory that it must really have: tiles and barriers.
pub const WGMMA_GROUP: usize = 384;
/// Local memory for the tiles alone.
pub const WGMMA_TILE_BYTES: usize = 200 * 1024;
/// Work-items of the largest group of `matmul_mma.cl`, and the local memory of its smallest tiles.
pub const MMA_GROUP: usize = 128;
/// See [`MMA_GROUP`].
pub const MMA_LOCAL_BYTES: usize = 48 * 1024;

/// Whether a device runs the kernels of Hopper's matrix units. Nothing is built on devices that are not of its family.
pub fn has_wgmma(device: &Device) -> bool {
    let probes = device.probes();
    device.info().max_work_group_size >= WGMMA_GROUP
        && probes.nvidia_wgmma()
        && probes.nvidia_tensor_copies()
        && probes.static_local_bytes() >= (WGMMA_TILE_BYTES + 4096) as u64
}

/// Whether a device runs the kernels of the matrix units of NVIDIA's Ampere family and later.
pub fn has_mma(device: &Device) -> bool {
    let probes = device.probes();
    device.info().max_work_group_size >= MMA_GROUP
        && probes.nvidia_mma()
        && probes.static_local_bytes() >= MMA_LOCAL_BYTES as u64
}

/// Whether six bfloat16 products are faster than one of float32. By NVIDIA's data sheets the families' largest chips multiply
/// bfloat16 at 15 times the rate of float32 and more, the smaller ones at about twice.
fn split_pays(device: &Device) -> bool {
    matches!(device.raw_info().compute_capability, Some((8, 0) | (9 | 10, _)))
}

/// What the choice of a product's kernel depends on.
#[derive(Clone, Copy, Debug)]
pub struct MatmulSpec {
    /// Rows of the result.
    pub m: usize,
    /// Its columns.
    pub n: usize,
    /// Terms of a sum.
    pub k: usize,
    /// Matrices of the batch.
    pub matrices: usize,
    /// The operands' dtype.
    pub dtype: DType,
    /// How exactly float32 operands are multiplied.
    pub precision: MatmulPrecision,
    /// The larger operand's neighbours lie side by side, so that a strip reads it in vectors.
    pub dense: bool,
    /// Matrix units read the larger operand as it is and where it lies.
    pub in_place: bool,
}

impl MatmulSpec {
    /// One product of dense operands, at the precision in force.
    pub fn new(m: usize, n: usize, k: usize, dtype: DType) -> MatmulSpec {
        let precision = matmul_precision();
        MatmulSpec { m, n, k, matrices: 1, dtype, precision, dense: true, in_place: dtype.size() == 2 }
    }

    /// Multiply-adds.
    pub fn work(&self) -> usize {
        [self.n, self.k, self.matrices].into_iter().fold(self.m, usize::saturating_mul)
    }

    /// Rows or columns, whichever are fewer.
    pub fn narrow(&self) -> usize {
        self.m.min(self.n)
    }

    /// Whether products like it are measured: one matrix that is no strip, as exact as float32.
    pub fn is_measured(&self) -> bool {
        let exact = self.dtype != DType::F32 || self.precision == MatmulPrecision::Highest;
        self.matrices <= 1 && self.narrow() >= STRIP_ROWS && exact
    }

    /// A few rows or columns: the larger operand is read from memory once.
    fn is_strip(&self) -> bool {
        // Matrix units read 16-bit operands where they lie and are faster from a few rows on.
        let most = if self.dtype.size() == 2 { STRIP_ROWS / 2 } else { STRIP_ROWS };
        let larger = self.m.max(self.n).saturating_mul(self.k).saturating_mul(self.matrices);
        self.narrow() <= most && self.dense && self.k >= STRIP_TERMS && larger >= STRIP_ELEMENTS
    }
}

/// Which of a convolution's three products is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvPass {
    /// The convolution.
    Forward = 0,
    /// The gradient of its input.
    Data = 1,
    /// The gradient of its weight.
    Weight = 2,
}

/// What the environment says, read when a selector is made and when its cache is cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    optimized: bool,
    winograd: bool,
    tiled_local: bool,
}

impl Policy {
    pub(super) fn from_env(profile: &ExtendedDeviceProfile) -> Policy {
        Policy {
            optimized: kernel_strategy(&profile.base) == "optimized",
            winograd: env::CONV_WINOGRAD.switch(),
            tiled_local: env::CONV_TILED_LOCAL.switch(),
        }
    }
}

/// A device, as the tables see it.
#[derive(Clone, Copy)]
pub(super) struct Rules<'d> {
    pub(super) profile: &'d ExtendedDeviceProfile,
    pub(super) policy: Policy,
}

impl Rules<'_> {
    fn is_cpu(&self) -> bool {
        self.profile.base.device_type == "cpu"
    }

    pub(super) fn device(&self, has: fn(&Device) -> bool) -> bool {
        self.profile.base.device().is_some_and(has)
    }

    /// The kernel that multiplies operands of a dtype on matrix units, where products large enough for it gain by that.
    pub(super) fn matrix_units(&self, dtype: DType, precision: MatmulPrecision) -> Option<KernelVariant> {
        let split = splits(dtype, precision)?;
        match split {
            _ if !self.policy.optimized => None,
            true if self.device(has_wgmma) => Some(MatmulWgmmaSplit),
            false if self.device(has_wgmma) => Some(MatmulWgmma),
            true if self.device(split_pays) && self.device(has_mma) => Some(MatmulMmaSplit),
            false if self.device(has_mma) => Some(MatmulMma),
            _ => None,
        }
    }

    /// The kernel for a product on matrix units, if they pay.
    pub(super) fn matmul_on_units(&self, p: &MatmulSpec) -> Option<KernelVariant> {
        let (dtype, split) = (p.dtype, splits(p.dtype, p.precision)?);
        // A strip is over when its larger operand has been read: copying that for matrix units would take longer. They are faster
        // where the device has narrow tiles and reads it where it lies.
        let narrow_tiles =
            p.narrow() >= UNIT_STRIP_ROWS && p.work() >= UNIT_STRIP_WORK && p.in_place && self.device(has_wgmma);
        if p.is_strip() && !narrow_tiles {
            return None;
        }
        // Measured on an H200, in multiply-adds: below, a launch or the packing of operands costs more than is gained.
        let smallest: usize = match dtype {
            _ if split => 896 * 896 * 896,
            DType::F32 => 384 * 384 * 384,
            _ => 256 * 256 * 256,
        };
        let units = self.profile.base.compute_units.max(1) as usize;
        let tiles = p.m.div_ceil(128).saturating_mul(p.n.div_ceil(64)).saturating_mul(p.matrices);
        // Few tiles with long sums leave most of the device idle, unless stream-K shares them; the portable kernels split the sums.
        let stream_k = || dtype != DType::F32 && self.device(has_wgmma);
        let fills = || {
            if split {
                tiles.saturating_mul(3) >= units
            } else {
                tiles.saturating_mul(16) >= units || p.k <= 2048 || stream_k()
            }
        };
        // 16-bit operands are read where they lie, also by tiles most of whose rows are missing.
        let narrowest = match dtype {
            // Cutting the larger operand into parts costs as much as 64 rows: with 64 rows of 4096 x 4096 124 us instead of 84.
            DType::F32 if split => 65,
            DType::F32 => 16,
            _ if narrow_tiles => UNIT_STRIP_ROWS,
            _ => 9,
        };
        let suits = p.work() >= smallest && p.narrow() >= narrowest && p.k >= 16 && fills();
        suits.then(|| self.matrix_units(dtype, p.precision)).flatten()
    }

    /// The kernel for a product without matrix units.
    pub(super) fn portable_matmul(&self, p: &MatmulSpec) -> KernelVariant {
        let one = p.m.saturating_mul(p.n).saturating_mul(p.k);
        let large = p.narrow() >= LARGE_SIDE && one >= LARGE_EDGE.pow(3);
        match () {
            () if p.is_strip() && !self.is_cpu() => MatmulStrip,
            () if one < TINY_EDGE.pow(3) => MatmulNaive,
            // Local memory is ordinary memory there, and barriers cost: 22 ms instead of 1.3 for 512 cubed on PoCL.
            () if self.is_cpu() => MatmulVectorized,
            () if large && !self.policy.optimized && !self.profile.local_mem_dedicated => MatmulVectorized,
            // Small products, too, are faster with several results per work-item than in MATMUL_TILED's square tiles, which run
            // when they are forced or were measured.
            () => MatmulRegisterTiled,
        }
    }

    /// The kernel for a convolution. One of single pixels that lie as the product needs them is a product without any windows.
    pub(super) fn conv2d(&self, g: &ConvGeometry, dtype: DType, pass: ConvPass) -> KernelVariant {
        let plain = g.dilation == [1, 1] && g.groups == 1;
        match () {
            // Bound by memory: every pixel is read once.
            () if g.channels == 1 && g.filters < DEPTHWISE_FILTERS => Conv2dDepthwise,
            () if self.is_cpu() => Conv2dIm2col,
            () if self.policy.tiled_local && plain && g.kernel != [1, 1] && g.pixels() <= SMALL_OUTPUT => {
                Conv2dTiledLocal
            }
            () if self.units_read_windows(g, dtype) => Conv2dUnits,
            () if self.policy.winograd && g.fits_winograd(dtype) && pass != ConvPass::Weight => Conv2dWinograd,
            // Matrix units multiply windows many times faster than the kernel that reads them where they are, which does without.
            () if self.units_pay_for_windows(g, dtype) => Conv2dIm2col,
            () => Conv2dImplicitGemm,
        }
    }

    /// Windows are read where they are by Hopper's copy engine, wherever float32 may be tf32.
    fn units_read_windows(&self, g: &ConvGeometry, dtype: DType) -> bool {
        g.multiply_adds() >= UNIT_CONV_WORK
            && g.fits_units(dtype)
            && self.matrix_units(dtype, matmul_precision()) == Some(MatmulWgmma)
    }

    fn units_pay_for_windows(&self, g: &ConvGeometry, dtype: DType) -> bool {
        (g.channels * g.taps()).min(g.filters) >= UNIT_CONV_SIDE
            && g.multiply_adds() >= UNIT_CONV_WORK
            && self.matrix_units(dtype, matmul_precision()).is_some()
    }

    /// The kernel for `n` independent elements, and the elements of its vectors.
    pub(super) fn elementwise(&self, n: usize, dtype: DType) -> (KernelVariant, usize) {
        // 16 bytes are one load of a work-item; CPUs compute with whole registers.
        let wide = dtype.size() <= 2 || (dtype.size() == 4 && self.profile.vector_width_float >= 8);
        match n > SCALAR_ELEMENTS {
            true => (ElementwiseVectorized, if wide { 8 } else { 4 }),
            false => (ElementwiseScalar, 1),
        }
    }
}

/// The kernel for a reduction of `n` elements to one result.
pub(super) fn reduction(n: usize) -> KernelVariant {
    match n {
        ..SEQUENTIAL_BELOW => ReductionSequential,
        SEQUENTIAL_BELOW..WORKGROUP_FROM => ReductionParallel,
        _ => ReductionWorkgroup,
    }
}

/// The kernel for batch normalisation. In inference it is one expression, into which a ReLU after it is fused; in training the
/// statistics have to be known first.
pub(super) fn batchnorm(fuse_relu: bool, training: bool) -> KernelVariant {
    if fuse_relu && !training { BatchnormFused } else { BatchnormNaive }
}

/// Whether operands go to matrix units in three parts; `None` where units cannot multiply their like.
fn splits(dtype: DType, precision: MatmulPrecision) -> Option<bool> {
    match (dtype, precision) {
        (DType::F16 | DType::BF16, _) | (DType::F32, MatmulPrecision::High | MatmulPrecision::Medium) => Some(false),
        (DType::F32, MatmulPrecision::Highest) => Some(true),
        _ => None,
    }
}
