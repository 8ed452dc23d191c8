//! Operands as matrix units' kernels copy them to local memory: from where they lie if they can, else from a copy with even rows.

use netcl_core::Result;
use netcl_core::backend::opencl::Grid;
use netcl_core::dtype::DType;
use netcl_core::kernels::launch::{Access, Arg, Cost, Scalar};
use netcl_core::tensor::Tensor;
use smallvec::smallvec;

use super::super::problem::{Matrix, OperandPrologue};
use super::arithmetic::Arithmetic;
use super::prologue::inline;
use super::{Args, Multiplication, Operand};

/// Rows of copies are multiples of so many elements: 16 bytes of the smallest.
pub(super) const PITCH: usize = 8;
/// What is copied at once, in bytes.
pub(super) const UNIT: usize = 16;
/// Bytes that a stride must stay below: the tensor copy engine has no more room for it.
const STRIDE_LIMIT: usize = 1 << 40;

/// An operand that is ready to be copied to local memory, tile by tile.
pub(super) struct Staged {
    pub(super) arg: Arg,
    pub(super) at: usize,
    /// Neighbours in memory lie along k, not along m or n.
    pub(super) along_k: bool,
    /// Elements from one row in memory (a line of terms, or a term of lines) to the next.
    pub(super) pitch: isize,
    /// Two further axes: their lengths and elements from one index to the next.
    pub(super) further: [(usize, isize); 2],
    /// Steps along the first of them per index of the outer and of the inner batch axis, and along the second per index of
    /// the outer one.
    pub(super) steps: [i32; 3],
    /// Elements from one part to the next.
    pub(super) part: usize,
}

impl Staged {
    /// Elements from one matrix to the next along the outer and along the inner batch axis.
    pub(super) fn batch_steps(&self) -> [isize; 2] {
        let [outer, inner, second] = self.steps.map(|step| step as isize);
        let [first, last] = self.further.map(|(_, stride)| stride);
        [outer * first + second * last, inner * first]
    }
}

/// An operand's lines (rows of the first, columns of the second) in memory.
#[derive(Clone, Copy)]
pub(super) struct Lines {
    pub(super) count: usize,
    /// How many of them a tile has.
    pub(super) tile: usize,
    /// Elements from one to the next.
    pub(super) step: isize,
    /// Elements from one term to the next.
    pub(super) term_step: isize,
    /// Whether neighbours in memory may lie along the lines, not along k.
    pub(super) any_order: bool,
}

/// Whether a stride leads from one boundary of [`UNIT`] bytes to another, no further than the copy engine can go.
fn is_even(stride: isize, size: usize) -> bool {
    usize::try_from(stride).is_ok_and(|s| (s * size).is_multiple_of(UNIT) && s * size < STRIDE_LIMIT)
}

/// Whether a matrix whose elements need no conversion can be read where it lies, along k or across.
pub(in crate::matmul) fn lies_evenly(matrix: &Matrix<'_>) -> bool {
    let size = matrix.tensor.dtype().size();
    let rows = [(matrix.cs, matrix.rs), (matrix.rs, matrix.cs)];
    rows.iter().any(|&(step, pitch)| step == 1 && pitch > 0 && is_even(pitch, size))
        && is_even(matrix.offset() as isize, size)
        && matrix.batch.iter().all(|&stride| is_even(stride, size))
}

impl Multiplication<'_> {
    /// Makes an operand readable; copies in parts lower the flag.
    pub(super) fn stage(
        &self,
        arithmetic: Arithmetic,
        from: &Operand,
        lines: Lines,
        (prologue, flag): (Option<&OperandPrologue<'_>>, Option<&Tensor>),
    ) -> Result<Staged> {
        match self.readable_along(arithmetic, from, lines) {
            Some(along_k) => Ok(self.in_place(from, lines, along_k)),
            None => self.copied(arithmetic, from, lines, (prologue, flag)),
        }
    }

    /// Whether the operand can be copied from where it lies: along k (true), along its lines (false), or not at all.
    fn readable_along(&self, arithmetic: Arithmetic, from: &Operand, lines: Lines) -> Option<bool> {
        if matches!(arithmetic, Arithmetic::Split | Arithmetic::Rounded) {
            return None;
        }
        let size = arithmetic.size();
        let even = |stride: isize| is_even(stride, size);
        let batches = [(self.batch[0], from.b0), (self.batch[1], from.b1)];
        if !(from.at * size).is_multiple_of(UNIT) || !batches.iter().all(|&(n, stride)| n == 1 || even(stride)) {
            return None;
        }
        let rows_of = |inner: usize, step: isize, outer: usize, outer_step: isize| {
            (inner == 1 || step == 1) && (outer == 1 || (outer_step > 0 && even(outer_step)))
        };
        let k = self.problem.k;
        if rows_of(k, lines.term_step, lines.count, lines.step) {
            Some(true)
        } else if lines.any_order && rows_of(lines.count, lines.step, k, lines.term_step) {
            Some(false)
        } else {
            None
        }
    }

    fn in_place(&self, from: &Operand, lines: Lines, along_k: bool) -> Staged {
        let pitch = if along_k { lines.step } else { lines.term_step };
        // A broadcast batch axis is one matrix that every index finds.
        let axis = |n: usize, stride: isize| if n == 1 || stride == 0 { (1, 0) } else { (n, stride) };
        let further = [axis(self.batch[1], from.b1), axis(self.batch[0], from.b0)];
        let [inner, outer] = further.map(|(n, _)| i32::from(n > 1));
        Staged { arg: from.arg.clone(), at: from.at, along_k, pitch, further, steps: [0, inner, outer], part: 0 }
    }

    /// Copies the operand, in parts if the arithmetic wants them, and computes it on the way if that is asked.
    fn copied(
        &self,
        arithmetic: Arithmetic,
        from: &Operand,
        lines: Lines,
        (prologue, flag): (Option<&OperandPrologue<'_>>, Option<&Tensor>),
    ) -> Result<Staged> {
        let p = self.problem;
        let inputs = self.prologue_inputs(prologue);
        // The copy keeps the operand's order where it may.
        let along_k = !lines.any_order || lines.term_step.abs() <= lines.step.abs();
        let (length, rows) = if along_k { (p.k, lines.count) } else { (lines.count, p.k) };
        let pitch = length.next_multiple_of(PITCH);
        // A broadcast operand is copied once.
        let varies = |axis: usize| std::iter::once(from).chain(&inputs).any(|o| [o.b0, o.b1][axis] != 0);
        let batch = [0, 1].map(|axis| if varies(axis) { self.batch[axis] } else { 1 });
        let matrices = batch[0] * batch[1];
        let dtype = match arithmetic {
            Arithmetic::Tf32 => DType::F32,
            Arithmetic::F16 => DType::F16,
            Arithmetic::BF16 | Arithmetic::Rounded | Arithmetic::Split => DType::BF16,
        };
        let shape = [arithmetic.parts(), matrices, rows, pitch];
        let to = Tensor::uninit(p.c.tensor.queue(), shape, dtype)?;
        let elements = (matrices * rows * length) as f64;
        let bytes = elements * (p.a.tensor.dtype().size() + arithmetic.parts() * arithmetic.size()) as f64;
        let cost = Cost { flops: 0.0, bytes };
        let arg = |access| Arg::Buffer(to.storage().clone(), access);
        let mut args: Args = smallvec![from.arg.clone(), Arg::Scalar(Scalar::U64(from.at as u64)), arg(Access::Write)];
        args.extend([length, rows, pitch, batch[1]].map(|value| self.count(value)));
        if arithmetic == Arithmetic::Tf32 && along_k && lines.step == 1 && lines.term_step != 1 {
            args.extend([lines.term_step, from.b0, from.b1].map(|stride| self.number(stride)));
            let kernel =
                self.build("matmul_turn", include_str!("../matmul_turn.cl"), |prelude| prelude.index(self.index))?;
            let grid = Grid::new([rows.next_multiple_of(32), length.div_ceil(32) * 8, matrices]).local([32, 8, 1]);
            self.send("matmul_turn", kernel, grid, args, cost)?;
        } else {
            let (step, row_step) = if along_k { (lines.term_step, lines.step) } else { (lines.step, lines.term_step) };
            args.extend([step, row_step, from.b0, from.b1].map(|stride| self.number(stride)));
            args.push(Arg::Scalar(Scalar::U64((matrices * rows * pitch) as u64)));
            args.push(flag.map_or(Arg::Null, |flag| Arg::Buffer(flag.storage().clone(), Access::Write)));
            let (ty, part) = match arithmetic {
                Arithmetic::Split | Arithmetic::Rounded => ("float", "ushort"),
                Arithmetic::Tf32 => ("float", "float"),
                Arithmetic::F16 | Arithmetic::BF16 => ("ushort", "ushort"),
            };
            let parts = if ty == part { 0 } else { arithmetic.parts() };
            // Vectors of eight numbers as they are, or of four floats that are cut into parts.
            let vector = if parts == 0 { 8 } else { 4 };
            let even = [from.at as isize, row_step, from.b0, from.b1].iter().all(|at| at % vector == 0);
            if let Some(prologue) = prologue {
                // A product's lines are rows of the copy, or its terms are.
                let swapped = along_k == prologue.first;
                let strides = |o: &Operand| if swapped { [o.cs, o.rs, o.b0, o.b1] } else { [o.rs, o.cs, o.b0, o.b1] };
                self.push_prologue_args(&mut args, Some(prologue), &inputs, strides);
            }
            let kernel = self.build("matmul_split", include_str!("../matmul_split.cl"), |prelude| {
                prelude.index(self.index);
                prelude.define("T", ty);
                prelude.derive("VECTOR", format_args!("{ty}8"));
                prelude.define("PART", part);
                prelude.defines([("PARTS", parts), ("ALIGNED", usize::from(step == 1 && even))]);
                if let Some(prologue) = prologue {
                    prelude.define("SUM", p.sum.cl_type());
                    prelude.prologue(prologue.expr, &inline(prologue, ["at", "line"]));
                }
            })?;
            let group = self.device.group.min(128).min(pitch / PITCH);
            let grid = Grid::new([(pitch / PITCH).next_multiple_of(group), rows, matrices]).local([group, 1, 1]);
            self.send("matmul_split", kernel, grid, args, cost)?;
        }
        let matrix = (pitch * rows) as isize;
        let step = |n: usize, by: usize| if n == 1 { 0 } else { by as i32 };
        Ok(Staged {
            arg: arg(Access::Read),
            at: 0,
            along_k,
            pitch: pitch as isize,
            further: [(matrices, matrix), (arithmetic.parts(), matrix * matrices as isize)],
            steps: [step(batch[0], batch[1]), step(batch[1], 1), 0],
            part: matrices * rows * pitch,
        })
    }
}
