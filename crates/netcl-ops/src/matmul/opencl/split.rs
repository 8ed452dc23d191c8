//! Products whose terms are split: groups compute partial results, and a second launch adds them up.

use netcl_core::Result;
use netcl_core::backend::opencl::Grid;
use netcl_core::kernels::launch::{Access, Arg, Cost, Scalar};
use netcl_core::tensor::Tensor;
use smallvec::smallvec;

use super::source::{Outcome, result};
use super::{Args, Multiplication, choice};
use crate::prelude::Prelude;

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
        let local = choice::flat_group(self.device);
        let global = [p.n.next_multiple_of(local[0]), p.m.next_multiple_of(local[1]), self.matrices()];
        let elements = (part * (split.parts + 1) * p.sum.size()) as f64;
        let cost = Cost { flops: (part * split.parts) as f64, bytes: elements };
        self.send(NAME, kernel, Grid::new(global).local([local[0], local[1], 1]), args, cost)
    }
}
