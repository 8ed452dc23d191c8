//! Products whose terms are split: groups compute partial results, and a second launch adds them up.

use netcl_core::Result;
use netcl_core::backend::opencl::Grid;
use netcl_core::kernels::launch::{Access, Arg, Cost, Scalar};
use netcl_core::tensor::Tensor;
use smallvec::smallvec;

use super::source::{Outcome, result};
use super::{Args, Multiplication, choice};
use crate::prelude::Prelude;

/// Work-items that share the parts of a result, from so many parts on.
const SLICES: usize = 16;
const MANY_PARTS: usize = 12;

/// How the terms of a product are shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Split {
    pub(super) parts: usize,
    pub(super) depth: usize,
}

impl Multiplication<'_> {
    /// Adds partial results and applies the epilogue.
    pub(super) fn reduce(&self, parts: &Tensor, split: Split) -> Result<()> {
        const NAME: &str = "matmul_splitk_reduce";
        let p = self.problem;
        let mut prelude = Prelude::with_sums(p.sum, self.index);
        result(&mut prelude, p, Outcome::Final);
        let [width, height] = choice::flat_group(self.device);
        let slices =
            if split.parts >= MANY_PARTS && !self.device.processor { SLICES.min(self.device.group / width) } else { 1 };
        prelude.define("SLICES", slices);
        prelude.define("WIDTH", width);
        let kernel = self.build_named(NAME, prelude, include_str!("../matmul_splitk_reduce.cl"))?;
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
