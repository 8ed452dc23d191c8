//! Products on matrix units: what their kernels have in common. Whether they pay is decided by the selector.

use netcl_core::dtype::DType;
use netcl_core::kernels::launch::{Access, Arg, Scalar};
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};
use smallvec::SmallVec;

use super::super::problem::Problem;
use super::super::{OP, Variant};
use super::arithmetic::Arithmetic;
use super::source::{Outcome, result};
use super::stage::{Lines, Staged};
use super::{Args, Multiplication, Operand, wgmma};
use crate::prelude::Prelude;

/// What precedes every kernel source for matrix units.
pub(super) const COMMON: &str = include_str!("../matmul_units.cl");

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
        let a = self.stage(arithmetic, &a, rows, (self.prologue(true), flag.as_ref()))?;
        let b = self.stage(arithmetic, &b, cols, (self.prologue(false), flag.as_ref()))?;
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

    /// Defines what every kernel needs.
    pub(super) fn units(&self, prelude: &mut Prelude<'_>, name: &str, arithmetic: Arithmetic, orders: [bool; 2]) {
        let p = self.problem;
        prelude.sums(p.sum, self.index);
        result(prelude, p, Outcome::Final);
        define_units(prelude, name, arithmetic, orders, [p.c.tensor.dtype(), p.compute]);
    }
}

/// Defines what every kernel's operands and results are: `types` are those of the result and of the epilogue.
pub(crate) fn define_units(
    prelude: &mut Prelude<'_>,
    kernel: &str,
    arithmetic: Arithmetic,
    orders: [bool; 2],
    types: [DType; 2],
) {
    prelude.part(arithmetic.name());
    prelude.defines([
        ("SIZE", arithmetic.size()),
        ("PARTS", arithmetic.parts()),
        ("A_ALONG_K", usize::from(orders[0])),
        ("B_ALONG_K", usize::from(orders[1])),
        ("DENSE", dense_kind(types)),
    ]);
    prelude.define("KERNEL", kernel);
    prelude.define("VALUE", types[1].cl_type());
}

/// How the kernels write four results at once.
fn dense_kind([result, compute]: [DType; 2]) -> usize {
    match (result, compute) {
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
