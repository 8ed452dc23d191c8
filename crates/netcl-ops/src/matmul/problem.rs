//! A product as both backends see it: matrices as strides, batch axes merged, rows of a batch folded where they can be.

use netcl_core::Result;
use netcl_core::dtype::DType;
use netcl_core::kernel_selector::MatmulSpec;
use netcl_core::kernels::elementwise::Number;
use netcl_core::kernels::expr::Expr;
use netcl_core::kernels::expr::cpu::Program;
use netcl_core::kernels::launch::Cost;
use netcl_core::precision::MatmulPrecision;
use netcl_core::shape::Layout;
use netcl_core::tensor::Tensor;
use smallvec::SmallVec;

use super::opencl::lies_evenly;
use super::{Epilogue, ShapeRule};
use crate::prologue::CheckedPrologue;

/// The lengths of the batch axes.
type Lengths = SmallVec<[usize; 4]>;
/// An operand's strides along them.
type Strides = SmallVec<[isize; 6]>;

/// A batch of matrices in a tensor's memory.
pub(super) struct Matrix<'t> {
    pub(super) tensor: &'t Tensor,
    /// The distance between rows, in elements.
    pub(super) rs: isize,
    /// The distance between columns.
    pub(super) cs: isize,
    /// The distance along each batch axis of the problem; zero where it is broadcast.
    pub(super) batch: Strides,
}

impl Matrix<'_> {
    /// The first element, counted from the start of the storage.
    pub(super) fn offset(&self) -> usize {
        self.tensor.layout().offset()
    }

    fn transpose(&mut self) {
        std::mem::swap(&mut self.rs, &mut self.cs);
    }
}

/// An operand that is computed while it is read.
pub(super) struct OperandPrologue<'t> {
    /// Whether it is the first one.
    pub(super) first: bool,
    pub(super) expr: &'t Expr,
    /// The expression's inputs beside the operand itself, addressed like it.
    pub(super) inputs: Vec<Matrix<'t>>,
    pub(super) scalars: &'t [Number],
    pub(super) compute: DType,
}

/// What is to be computed. No length is zero.
pub(super) struct Problem<'t> {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    /// The merged batch axes.
    pub(super) batch: Lengths,
    pub(super) a: Matrix<'t>,
    pub(super) b: Matrix<'t>,
    pub(super) c: Matrix<'t>,
    /// The epilogue's tensors, addressed like the result.
    pub(super) inputs: Vec<Matrix<'t>>,
    pub(super) epilogue: Option<&'t Expr>,
    pub(super) scalars: &'t [Number],
    /// How one of the operands is computed.
    pub(super) prologue: Option<OperandPrologue<'t>>,
    /// The type of the sum: f32, or f64 for f64 operands.
    pub(super) sum: DType,
    /// The type the epilogue computes in.
    pub(super) compute: DType,
    pub(super) cost: Cost,
}

impl<'t> Problem<'t> {
    pub(super) fn new(
        rule: &ShapeRule,
        a: &'t Tensor,
        b: &'t Tensor,
        out: &'t Tensor,
        inputs: &'t [Tensor],
        epilogue: Option<&'t Epilogue<'_>>,
        prologue: Option<(bool, &'t CheckedPrologue<'_>)>,
    ) -> Result<Problem<'t>> {
        let mut operands: SmallVec<[&'t Tensor; 6]> = [a, b, out].into_iter().chain(inputs).collect();
        // What an operand is computed from comes last.
        let results = operands.len();
        operands.extend(prologue.into_iter().flat_map(|(_, prologue)| &prologue.inputs));
        let (batch, strides) = Self::batch(rule, &operands, results)?;
        let result = |strides: &[isize]| {
            let at = rule.batch.ndim();
            let rs = if rule.rows { strides[at] } else { 0 };
            let cs = if rule.cols { strides[at + usize::from(rule.rows)] } else { 0 };
            (rs, cs)
        };
        let mut matrices = operands.iter().enumerate().map(|(i, &tensor)| {
            let second = || usize::from(!prologue.is_some_and(|(first, _)| first));
            let side = if i < results { i } else { second() };
            let (rs, cs) = match (side, tensor.layout().strides()) {
                (0, [.., rs, cs]) | (1, [.., rs, cs]) => (*rs, *cs),
                (0, [cs]) => (0, *cs),
                (1, [rs]) => (*rs, 0),
                (_, strides) => result(strides),
            };
            let batch = strides.get(i).cloned().unwrap_or_default();
            Matrix { tensor, rs, cs, batch }
        });
        let (Some(a), Some(b), Some(c)) = (matrices.next(), matrices.next(), matrices.next()) else {
            return Err(netcl_core::Error::argument(super::OP, "a product has two operands and a result"));
        };
        let inputs: Vec<Matrix<'t>> = matrices.by_ref().take(results - 3).collect();
        let prologue = prologue.map(|(first, prologue)| OperandPrologue {
            first,
            expr: prologue.expr,
            inputs: matrices.collect(),
            scalars: prologue.scalars,
            compute: prologue.compute,
        });
        let sum = a.tensor.dtype().accumulator();
        let types = inputs.iter().map(|i| i.tensor.dtype()).chain([sum, c.tensor.dtype()]);
        let mut problem = Problem {
            m: rule.m,
            n: rule.n,
            k: rule.k,
            batch,
            sum,
            compute: Program::compute_type(types),
            epilogue: epilogue.map(|e| e.expr),
            scalars: epilogue.map(|e| e.scalars.as_slice()).unwrap_or_default(),
            cost: rule.cost(&operands),
            prologue,
            a,
            b,
            c,
            inputs,
        };
        problem.fold_rows();
        Ok(problem)
    }

    /// The batch axes that are left when those are merged that all operands space evenly, and each operand's strides.
    fn batch(rule: &ShapeRule, operands: &[&Tensor], results: usize) -> Result<(Lengths, Vec<Strides>)> {
        if rule.batch.ndim() == 0 {
            return Ok(Default::default());
        }
        let batches = operands
            .iter()
            .enumerate()
            .map(|(i, t)| {
                let operand = i < 2 || i >= results;
                let axes = if operand { t.ndim().saturating_sub(2) } else { rule.batch.ndim() };
                Layout::strided(t.shape()[..axes].into(), &t.layout().strides()[..axes], t.layout().offset())?
                    .expand(super::OP, &rule.batch)
            })
            .collect::<Result<SmallVec<[Layout; 6]>>>()?;
        let (batch, strides) = Layout::collapse(&batches.iter().collect::<SmallVec<[&Layout; 6]>>());
        Ok((batch.iter().copied().collect(), strides.into_vec()))
    }

    /// Number of matrices.
    pub(super) fn matrices(&self) -> usize {
        self.batch.iter().product()
    }

    /// What the selector decides by.
    pub(super) fn spec(&self, precision: MatmulPrecision) -> MatmulSpec {
        let dtype = self.a.tensor.dtype();
        let (larger, steps) = match self.n < self.m {
            true => (&self.a, [self.a.rs, self.a.cs]),
            false => (&self.b, [self.b.cs, self.b.rs]),
        };
        MatmulSpec {
            matrices: self.matrices(),
            precision,
            // Across the terms the lines of a strip's block are read together, of which there must be enough.
            dense: steps[0] == 1 && self.m.max(self.n) >= 64 || steps[1] == 1,
            in_place: dtype.size() == 2 && self.prologue.is_none() && lies_evenly(larger),
            ..MatmulSpec::new(self.m, self.n, self.k, dtype)
        }
    }

    /// The same product seen from the other side: c' = b' x a'.
    pub(super) fn transpose(&mut self) {
        std::mem::swap(&mut self.m, &mut self.n);
        std::mem::swap(&mut self.a, &mut self.b);
        self.a.transpose();
        self.b.transpose();
        self.c.transpose();
        self.inputs.iter_mut().for_each(Matrix::transpose);
        if let Some(prologue) = &mut self.prologue {
            prologue.first = !prologue.first;
            prologue.inputs.iter_mut().for_each(Matrix::transpose);
        }
    }

    /// A batch that shares its second operand is one product with more rows, where rows are evenly spaced throughout.
    fn fold_rows(&mut self) {
        while let Some(&length) = self.batch.last() {
            let m = self.m as isize;
            let even = |matrix: &Matrix| {
                let step = matrix.batch.last().copied().unwrap_or(0);
                step == matrix.rs * m || m == 1
            };
            let shared = |matrix: &Matrix| matrix.batch.last() == Some(&0);
            let prologue = self.prologue.as_ref().is_none_or(|prologue| {
                prologue.inputs.iter().all(|input| if prologue.first { even(input) } else { shared(input) })
            });
            if !prologue || !shared(&self.b) || !even(&self.a) || !even(&self.c) || !self.inputs.iter().all(even) {
                return;
            }
            let (mut rows, mut same) = (vec![&mut self.a, &mut self.c], vec![&mut self.b]);
            rows.extend(&mut self.inputs);
            if let Some(prologue) = &mut self.prologue {
                let side = if prologue.first { &mut rows } else { &mut same };
                side.extend(&mut prologue.inputs);
            }
            for matrix in same {
                matrix.batch.pop();
            }
            for matrix in rows {
                let step = matrix.batch.pop().unwrap_or(0);
                if m == 1 {
                    matrix.rs = step;
                }
            }
            self.batch.pop();
            self.m *= length;
        }
    }
}

/// Whether two tensors may share elements: one storage, and ranges that meet.
pub(super) fn overlap(a: &Tensor, b: &Tensor) -> bool {
    let range = |t: &Tensor| {
        let size = t.dtype().size();
        let below: isize =
            t.shape().iter().zip(t.layout().strides()).map(|(&n, &s)| s.min(0) * (n as isize - 1).max(0)).sum();
        let start = t.layout().offset().saturating_add_signed(below);
        (start * size, t.layout().end() * size)
    };
    if !a.shares_storage(b) {
        return false;
    }
    let ((a0, a1), (b0, b1)) = (range(a), range(b));
    a0 < b1 && b0 < a1
}
