//! Operands that are computed while they are read, and operands in panels.

use netcl_core::Result;
use netcl_core::backend::opencl::{Grid, Stream};
use netcl_core::kernel_selector::KernelConfig;
use netcl_core::kernels::described::CanFuse;
use netcl_core::kernels::expr::Expr;
use netcl_core::kernels::launch::{Access, Arg, Cost, Scalar};
use netcl_core::precision::MatmulPrecision;
use netcl_core::tensor::Tensor;
use smallvec::{SmallVec, smallvec};

use super::super::Variant;
use super::super::problem::{OperandPrologue, Problem};
use super::choice::{Device, Tile};
use super::{Args, Arithmetic, Multiplication, Operand, flips, tuned};
use crate::prelude::{Inline, Prelude};
use crate::prologue::{TOO_DEAR, pays, pays_for_one};

/// Whether an operand may be computed while it is read: once, where it is copied for the kernel anyway; else each time that a
/// tile is loaded, where that costs less than memory does.
pub(in crate::matmul) fn can_fuse(
    stream: &Stream,
    mut problem: Problem<'_>,
    (variant, config): (Variant, Option<KernelConfig>),
    precision: MatmulPrecision,
    (first, expr): (bool, &Expr),
) -> Result<CanFuse> {
    if let Some(arithmetic) = Arithmetic::of(variant, problem.a.tensor.dtype(), precision) {
        return Ok(match arithmetic {
            Arithmetic::Split | Arithmetic::Rounded => CanFuse::Yes,
            _ => CanFuse::No("the matrix units copy their operands from memory without passing registers"),
        });
    }
    let flip = flips(variant, &problem);
    if flip {
        problem.transpose();
    }
    let device = Device::new(stream);
    let this = Multiplication { config: config.as_ref(), ..Multiplication::new(stream, &device, &problem, &[], 0) };
    let tile = match &config {
        Some(config) => tuned::tile(config, &problem),
        None => this.chosen_tile(variant)?,
    };
    let elements = problem.k * if first { problem.m } else { problem.n } * problem.matrices();
    let taken = match tile {
        Tile::Vectors { pack_a, pack_b, .. } if (first != flip && pack_a) || (first == flip && pack_b) => CanFuse::Yes,
        Tile::Vectors { .. } => CanFuse::No("a product of a few rows reads its operands where they lie"),
        Tile::One => CanFuse::when(pays_for_one(expr, elements, if first { problem.n } else { problem.m }), TOO_DEAR),
        _ => {
            let times = if first { problem.n.div_ceil(tile.cols()) } else { problem.m.div_ceil(tile.rows()) };
            CanFuse::when(pays(expr, elements, times), TOO_DEAR)
        }
    };
    Ok(taken)
}

/// How a kernel computes an operand from its own and other elements at two coordinates and in two axes of the batch.
pub(super) fn inline(prologue: &OperandPrologue<'_>, [line, term]: [&'static str; 2]) -> Inline {
    Inline {
        compute: prologue.compute,
        inputs: prologue.inputs.iter().map(|input| input.tensor.dtype()).collect(),
        coordinates: [(line, "ls"), (term, "ts"), ("i0", "b0"), ("i1", "b1")],
    }
}

impl<'p> Multiplication<'p> {
    /// How the first or the second operand is computed, if it is.
    pub(super) fn prologue(&self, first: bool) -> Option<&'p OperandPrologue<'p>> {
        self.problem.prologue.as_ref().filter(|prologue| prologue.first == first)
    }

    /// What an operand is computed from beside itself.
    pub(super) fn prologue_inputs(&self, prologue: Option<&OperandPrologue<'_>>) -> SmallVec<[Operand; 2]> {
        prologue.iter().flat_map(|prologue| &prologue.inputs).map(|input| self.operand(input, Access::Read)).collect()
    }

    /// The arguments that kernels call PROLOGUE_PARAMS; `strides` are along lines, terms and the two axes of the batch.
    pub(super) fn push_prologue_args(
        &self,
        args: &mut Args,
        prologue: Option<&OperandPrologue<'_>>,
        inputs: &[Operand],
        strides: impl Fn(&Operand) -> [isize; 4],
    ) {
        for input in inputs {
            args.extend([input.arg.clone(), Arg::Scalar(Scalar::U64(input.at as u64))]);
            args.extend(strides(input).map(|stride| self.number(stride)));
        }
        args.extend(
            prologue.iter().flat_map(|prologue| prologue.scalars.iter().map(|number| number.arg(prologue.compute))),
        );
    }

    /// Defines A_VALUE or B_VALUE, if an operand is computed.
    pub(super) fn define_prologue(&self, prelude: &mut Prelude<'_>) {
        let Some(prologue) = &self.problem.prologue else { return };
        prelude.prologue(prologue.expr, &inline(prologue, ["line", "term"]));
        let name = if prologue.first { "A_VALUE(v, line, term)" } else { "B_VALUE(v, line, term)" };
        prelude.part(prologue.first);
        prelude.derive(name, "PROLOGUE(v, line, term, i0, i1)");
    }

    /// The arguments that belong to [`Multiplication::define_prologue`].
    pub(super) fn prologue_args(&self, args: &mut Args) {
        let prologue = self.problem.prologue.as_ref();
        let first = prologue.is_some_and(|prologue| prologue.first);
        let strides = |o: &Operand| if first { [o.rs, o.cs, o.b0, o.b1] } else { [o.cs, o.rs, o.b0, o.b1] };
        self.push_prologue_args(args, prologue, &self.prologue_inputs(prologue), strides);
    }

    /// Copies an operand into panels of so many lines: rows of the first, columns of the second. Computes it, if that is asked.
    pub(super) fn pack(&self, first: bool, from: &Operand, panel: usize) -> Result<Operand> {
        let p = self.problem;
        let prologue = self.prologue(first);
        let inputs = self.prologue_inputs(prologue);
        let lines = if first { p.m } else { p.n };
        let strides = |o: &Operand| if first { [o.rs, o.cs, o.b0, o.b1] } else { [o.cs, o.rs, o.b0, o.b1] };
        // A broadcast operand is packed once.
        let varies = |axis: usize| std::iter::once(from).chain(&inputs).any(|o| strides(o)[2 + axis] != 0);
        let batch = [0, 1].map(|axis| if varies(axis) { self.batch[axis] } else { 1 });
        let panels = lines.div_ceil(panel);
        let matrices: usize = batch.iter().product();
        let packed = Tensor::uninit(p.c.tensor.queue(), [matrices, panels, p.k, panel], p.sum)?;
        let dtype = p.a.tensor.dtype();
        let kernel = self.build("matmul_pack", include_str!("../matmul_pack.cl"), |prelude| {
            prelude.sums(p.sum, self.index);
            prelude.loads("T", "LOAD", dtype, p.sum);
            prelude.define("PANEL", panel);
            if let Some(prologue) = prologue {
                prelude.prologue(prologue.expr, &inline(prologue, ["line", "term"]));
            }
        })?;
        let arg = Arg::Buffer(packed.storage().clone(), Access::Write);
        let mut args: Args = smallvec![from.arg.clone(), Arg::Scalar(Scalar::U64(from.at as u64)), arg];
        args.extend([lines, p.k, batch[1]].map(|value| self.count(value)));
        args.extend(strides(from).map(|stride| self.number(stride)));
        self.push_prologue_args(&mut args, prologue, &inputs, strides);
        let group = self.device.group.min(64);
        let grid = Grid::new([p.k.next_multiple_of(group), panels, matrices]).local([group, 1, 1]);
        let elements = (matrices * lines * p.k) as f64;
        let cost = Cost { flops: 0.0, bytes: elements * (dtype.size() + p.sum.size()) as f64 };
        self.send("matmul_pack", kernel, grid, args, cost)?;
        let size = (panels * p.k * panel) as isize;
        let step = |n: usize, by: isize| if n == 1 { 0 } else { by };
        Ok(Operand {
            arg: Arg::Buffer(packed.storage().clone(), Access::Read),
            at: 0,
            // The kernel knows how panels are laid out.
            rs: 0,
            cs: 0,
            b0: step(batch[0], size * batch[1] as isize),
            b1: step(batch[1], size),
        })
    }
}
