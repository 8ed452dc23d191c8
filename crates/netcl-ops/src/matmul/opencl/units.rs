//! Products on matrix units: whether they pay, which kernel, and what the kernels have in common.

use netcl_core::backend::opencl::Stream;
use netcl_core::capabilities::kernel_strategy;
use netcl_core::dtype::DType;
use netcl_core::kernel_selector::KernelSelector;
use netcl_core::kernels::launch::{Access, Arg, Scalar};
use netcl_core::precision::MatmulPrecision;
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};
use smallvec::{SmallVec, smallvec};

use super::super::problem::Problem;
use super::super::{OP, Variant};
use super::arithmetic::Arithmetic;
use super::source::{Outcome, result};
use super::stage::{Lines, Staged, lies_evenly};
use super::{Args, Multiplication, Operand, mma, wgmma};
use crate::prelude::Prelude;

/// What stands before the text of a kernel of matrix units.
pub(super) const COMMON: &str = include_str!("../matmul_units.cl");

/// Rows or columns, and multiply-adds, from which matrix units are faster than strips: measured on an H200.
const FEWEST_ROWS: usize = 3;
const SMALLEST_STRIP: usize = 1 << 25;

/// Whether the device has what a kernel of matrix units needs. Nothing is built on devices that are not of its family.
pub(in crate::matmul) fn available(variant: Variant, stream: &Stream) -> bool {
    match variant {
        Variant::Wgmma | Variant::WgmmaSplit => wgmma::available(stream),
        Variant::Mma | Variant::MmaSplit => mma::available(stream),
        _ => false,
    }
}

/// Whether operands go to the units in three parts; `None` where units cannot multiply their like.
fn splits(dtype: DType, precision: MatmulPrecision) -> Option<bool> {
    match (dtype, precision) {
        (DType::F16 | DType::BF16, _) | (DType::F32, MatmulPrecision::High | MatmulPrecision::Medium) => Some(false),
        (DType::F32, MatmulPrecision::Highest) => Some(true),
        _ => None,
    }
}

/// The kernel that multiplies operands of a dtype on the device's matrix units, where products large enough for it gain by that.
pub(in crate::matmul) fn kernel(
    stream: &Stream,
    selector: &KernelSelector,
    dtype: DType,
    precision: MatmulPrecision,
) -> Option<Variant> {
    let split = splits(dtype, precision)?;
    if kernel_strategy(&selector.profile().base) != "optimized" {
        return None;
    }
    if wgmma::available(stream) {
        return Some(if split { Variant::WgmmaSplit } else { Variant::Wgmma });
    }
    match split {
        true => (mma::split_pays(stream) && mma::available(stream)).then_some(Variant::MmaSplit),
        false => mma::available(stream).then_some(Variant::Mma),
    }
}

/// The kernel for a product, if matrix units pay.
pub(super) fn choose(
    stream: &Stream,
    selector: &KernelSelector,
    p: &Problem<'_>,
    precision: MatmulPrecision,
) -> Option<Variant> {
    let dtype = p.a.tensor.dtype();
    let split = splits(dtype, precision)?;
    // Measured on an H200, in multiply-adds: below, a launch or the packing of operands costs more than is gained.
    let smallest: usize = match dtype {
        _ if split => 896 * 896 * 896,
        DType::F32 => 384 * 384 * 384,
        _ => 256 * 256 * 256,
    };
    let units = stream.device().info().compute_units.max(1) as usize;
    let tiles = p.m.div_ceil(128) * p.n.div_ceil(64) * p.matrices();
    // Few tiles with long sums leave most of the device idle, unless they are dealt out; the portable kernels split the sums.
    let deals = dtype != DType::F32 && wgmma::available(stream);
    let fills = if split { 3 * tiles >= units } else { deals || 16 * tiles >= units || p.k <= 2048 };
    // 16-bit operands are read where they lie, also by tiles that most rows are missing of.
    let narrowest = match dtype {
        // Cutting the larger operand into parts costs as much as 64 rows: with 64 rows of 4096 x 4096 124 us instead of 84.
        DType::F32 if split => 65,
        DType::F32 => 16,
        _ if suits_strip(stream, p) => FEWEST_ROWS,
        _ => 9,
    };
    let suits = multiply_adds(p) >= smallest && p.m.min(p.n) >= narrowest && p.k >= 16 && fills;
    suits.then(|| kernel(stream, selector, dtype, precision)).flatten()
}

/// Whether a product of a few rows or columns is faster on matrix units than as a strip: where the device has narrow tiles and reads
/// the larger operand as it is and where it lies.
pub(super) fn suits_strip(stream: &Stream, p: &Problem<'_>) -> bool {
    let larger = if p.n < p.m { &p.a } else { &p.b };
    let enough = p.m.min(p.n) >= FEWEST_ROWS && multiply_adds(p) >= SMALLEST_STRIP;
    let as_it_is = larger.tensor.dtype().size() == 2 && p.lead.is_none() && lies_evenly(larger);
    enough && as_it_is && wgmma::available(stream)
}

fn multiply_adds(p: &Problem<'_>) -> usize {
    p.m.saturating_mul(p.n).saturating_mul(p.k).saturating_mul(p.matrices())
}

/// Whether the product is better computed as the transposed product of the transposed operands.
pub(super) fn flips(variant: Variant, arithmetic: Arithmetic, p: &Problem<'_>) -> bool {
    match (variant, arithmetic) {
        // Warp groups take 32-bit numbers of the second operand along k only.
        (Variant::Wgmma, Arithmetic::Tf32) => p.b.rs != 1 && p.a.cs == 1,
        // Tiles have many rows, but may have few columns.
        (Variant::Wgmma, Arithmetic::F16 | Arithmetic::BF16) if p.m <= wgmma::NARROW && p.m < p.n => true,
        // Results are written along rows: let these be dense.
        _ => p.c.rs == 1 && p.c.cs != 1,
    }
}

/// A product whose operands can be copied to local memory.
pub(super) struct Ready {
    pub(super) a: Staged,
    pub(super) b: Staged,
    pub(super) rows: Lines,
    pub(super) cols: Lines,
    /// Raised when a product of parts must be computed again without them.
    pub(super) flag: Option<Tensor>,
}

impl Multiplication<'_> {
    /// Multiplies with the matrix units. The flag, if there is one, is raised when the result must be computed without parts.
    pub(super) fn launch_units(&self, variant: Variant, arithmetic: Arithmetic) -> Result<Option<Tensor>> {
        match variant {
            Variant::Mma | Variant::MmaSplit => self.launch_mma(variant, arithmetic),
            _ => self.launch_wgmma(variant, arithmetic),
        }
    }

    /// How many tiles of a size there are.
    pub(super) fn tiles(&self, rows: usize, cols: usize) -> usize {
        self.problem.m.div_ceil(rows) * self.problem.n.div_ceil(cols) * self.matrices()
    }

    /// Checks the lengths of a product in tiles, and copies those operands that cannot be read where they lie. `orders` says
    /// whether elements of each operand may lie across k.
    pub(super) fn ready(
        &self,
        arithmetic: Arithmetic,
        [tile_rows, tile_cols]: [usize; 2],
        orders: [bool; 2],
    ) -> Result<Ready> {
        let p = self.problem;
        if [p.m, p.n, p.k, self.tiles(tile_rows, tile_cols)].into_iter().max() > Some(i32::MAX as usize) {
            let what = "the matrix units' kernels take lengths below 2^31; leave the kernel to netcl";
            return Err(Error::argument(OP, what));
        }
        let flag = match arithmetic {
            Arithmetic::Split => Some(Tensor::uninit(p.c.tensor.queue(), [1], DType::I32)?),
            _ => None,
        };
        let (a, b) = (self.operand(&p.a, Access::Read), self.operand(&p.b, Access::Read));
        let [any_a, any_b] = orders;
        let rows = Lines { count: p.m, tile: tile_rows, step: a.rs, term_step: a.cs, any_order: any_a };
        let cols = Lines { count: p.n, tile: tile_cols, step: b.cs, term_step: b.rs, any_order: any_b };
        let a = self.stage(arithmetic, &a, rows, (self.lead(true), flag.as_ref()))?;
        let b = self.stage(arithmetic, &b, cols, (self.lead(false), flag.as_ref()))?;
        Ok(Ready { a, b, rows, cols, flag })
    }

    /// The arguments that every kernel begins with: operands, result.
    pub(super) fn places(&self, ready: &Ready, c: &Operand) -> Args {
        let mut args: Args = SmallVec::new();
        for (arg, at) in [(&ready.a.arg, ready.a.at), (&ready.b.arg, ready.b.at), (&c.arg, c.at)] {
            args.extend([arg.clone(), Arg::Scalar(Scalar::U64(at as u64))]);
        }
        args
    }

    /// The arguments that every kernel ends with: how results are written, flag, epilogue.
    pub(super) fn ending(&self, args: &mut Args, ready: &Ready, c: &Operand) {
        args.extend(self.place(c));
        args.push(int(i32::from(dense(c, self.problem.n))));
        if let Some(flag) = &ready.flag {
            args.push(Arg::Buffer(flag.storage().clone(), Access::Write));
        }
        self.epilogue_args(args);
    }

    /// The settings that every kernel has.
    pub(super) fn units_prelude(&self, variant: Variant, arithmetic: Arithmetic, orders: [bool; 2]) -> Prelude {
        let p = self.problem;
        let mut prelude = Prelude::with_sums(p.sum, self.index);
        result(&mut prelude, p, Outcome::Final);
        let values: SmallVec<[(&str, usize); 8]> = smallvec![
            ("SIZE", arithmetic.size()),
            ("PARTS", arithmetic.parts()),
            ("A_ALONG_K", usize::from(orders[0])),
            ("B_ALONG_K", usize::from(orders[1])),
            ("DENSE", dense_kind(p)),
        ];
        for (name, value) in values {
            prelude.define(name, value);
        }
        prelude.define("KERNEL", variant.kernel_name());
        prelude.define("VALUE", p.compute.cl_type());
        prelude
    }
}

/// How the kernels write four results at once.
fn dense_kind(p: &Problem<'_>) -> usize {
    match (p.c.tensor.dtype(), p.compute) {
        (DType::F32, DType::F32) => 1,
        (DType::F16, DType::F32) => 2,
        (DType::BF16, DType::F32) => 3,
        _ => 0,
    }
}

/// Whether four neighbouring results always lie together, on a boundary of four.
fn dense(c: &Operand, n: usize) -> bool {
    c.cs == 1 && [n as isize, c.rs, c.b0, c.b1, c.at as isize].iter().all(|value| value % 4 == 0)
}

pub(super) fn int(value: i32) -> Arg {
    Arg::Scalar(Scalar::I32(value))
}
