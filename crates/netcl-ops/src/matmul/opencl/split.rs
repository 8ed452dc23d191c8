//! Products whose terms are split: groups compute partial results, and a second launch adds them up.

use netcl_core::Result;
use netcl_core::backend::opencl::Grid;
use netcl_core::kernels::launch::{Access, Arg, Cost, Scalar};
use netcl_core::tensor::Tensor;
use smallvec::smallvec;

use super::source::{Outcome, result};
use super::{Args, Multiplication, choice};

/// Parts are multiples of this.
const PART_STEP: usize = 4;
/// Work-items that share the parts of a result, from so many parts on.
const SLICES: usize = 16;
const MANY_PARTS: usize = 12;

/// How the terms of a product are shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Split {
    pub(super) parts: usize,
    pub(super) depth: usize,
}

impl Split {
    /// At most so many parts that all begin on a boundary, where vectors can read them.
    pub(super) fn of(terms: usize, parts: usize) -> Split {
        let depth = if parts == 1 { terms } else { terms.div_ceil(parts).next_multiple_of(PART_STEP) };
        Split { parts: terms.div_ceil(depth), depth }
    }
}

impl Multiplication<'_> {
    /// Adds partial results and applies the epilogue. Work-items share the parts of a result where there are many.
    pub(super) fn reduce(&self, parts: &Tensor, split: Split) -> Result<()> {
        self.reduce_by(if split.parts >= MANY_PARTS { SLICES } else { 1 }, parts, split)
    }

    /// [`reduce`](Self::reduce) by so many work-items for each result, or as many as a group may have.
    pub(super) fn reduce_by(&self, slices: usize, parts: &Tensor, split: Split) -> Result<()> {
        const NAME: &str = "matmul_splitk_reduce";
        let p = self.problem;
        let [width, height] = choice::flat_group(self.device);
        let slices = slices.min(self.device.group / width);
        let kernel = self.build(NAME, include_str!("../matmul_splitk_reduce.cl"), |prelude| {
            prelude.sums(p.sum, self.index);
            result(prelude, p, Outcome::Final);
            prelude.defines([("SLICES", slices), ("WIDTH", width)]);
        })?;
        let c = self.operand(&p.c, Access::Write);
        let mut args: Args = smallvec![
            Arg::Buffer(parts.storage().clone(), Access::Read),
            c.arg.clone(),
            Arg::Scalar(Scalar::U64(c.at as u64)),
        ];
        let part = self.matrices() * p.m * p.n;
        args.extend([p.m, p.n, self.batch[1], split.parts, part].map(|value| self.count(value)));
        args.extend(self.place(&c));
        self.epilogue_args(&mut args);
        let grid = match slices {
            1 => Grid::new([p.n.next_multiple_of(width), p.m.next_multiple_of(height), self.matrices()])
                .local([width, height, 1]),
            _ => Grid::new([p.n.next_multiple_of(width), p.m * slices, self.matrices()]).local([width, slices, 1]),
        };
        let elements = (part * (split.parts + 1) * p.sum.size()) as f64;
        let cost = Cost { flops: (part * split.parts) as f64, bytes: elements };
        self.send(NAME, kernel, grid, args, cost)
    }
}
