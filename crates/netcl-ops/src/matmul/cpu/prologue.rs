//! Products one of whose operands is computed while it is read: block by block of its terms, into the memory that `gemm` packs from.

use netcl_core::Result;
use netcl_core::backend::cpu::CpuArgs;
use netcl_core::backend::cpu::threads::SharedPtr;
use netcl_core::dtype::Element;
use netcl_core::kernels::expr::cpu::{Nest, Registers, Source, Target};
use smallvec::SmallVec;

use super::gemm::gemm;
use super::panels::{DEPTH, Operand, Scratch, Sum, View};
use super::{Place, ProloguePlace};

/// The memory of what an operand is computed from, and its numbers.
pub(super) struct BoundPrologue<'g> {
    pub(super) place: &'g ProloguePlace,
    inputs: SmallVec<[SharedPtr<u8>; 2]>,
    scalars: SmallVec<[f64; 4]>,
}

impl<'g> BoundPrologue<'g> {
    /// Its arguments begin at `first`.
    pub(super) fn new(place: &'g ProloguePlace, args: &CpuArgs<'_>, first: usize) -> Result<Self> {
        let inputs = place.inputs.iter().enumerate().map(|(i, input)| input.pointer(args, first + i));
        let first = first + place.inputs.len();
        let scalars = (0..place.scalars).map(|i| args.float(first + i));
        Ok(BoundPrologue { place, inputs: inputs.collect::<Result<_>>()?, scalars: scalars.collect::<Result<_>>()? })
    }

    /// `out = a x b`, where one of them is what the operand is computed from; `at` says where the tile's part of a matrix begins.
    ///
    /// # Safety
    /// As [`Operand::multiply`], and what the expression reads beside the operand is as large.
    pub(super) unsafe fn multiply<E: Operand>(
        &self,
        (m, n, k): (usize, usize, usize),
        a: View<E>,
        b: View<E>,
        out: View<E::Sum>,
        scratch: &mut Scratch<E::Sum>,
        (operand, at): (&Place, impl Fn(&Place) -> isize),
    ) {
        for start in (0..k).step_by(DEPTH) {
            let depth = DEPTH.min(k - start);
            // SAFETY: blocks of the operands' terms, and the sums were written by the block before.
            unsafe {
                let left = View { data: a.data.offset(start as isize * a.cs), ..a };
                let right = View { data: b.data.offset(start as isize * b.rs), ..b };
                let (left, right) = if self.place.first {
                    let left = self.block(left, (m, depth), (0, start), operand, &at, &mut scratch.a);
                    (left, E::as_sums(right, (depth, n), &mut scratch.b))
                } else {
                    let right = self.block(right, (depth, n), (start, 0), operand, &at, &mut scratch.b);
                    (E::as_sums(left, (m, depth), &mut scratch.a), right)
                };
                gemm((m, n, depth), left, right, out, start > 0, Sum::ONE);
            }
        }
    }

    /// Computes a block of the operand, along whichever axis its elements are neighbours.
    ///
    /// # Safety
    /// As [`BoundPrologue::multiply`], for this block.
    unsafe fn block<E: Operand>(
        &self,
        view: View<E>,
        (rows, cols): (usize, usize),
        (row, col): (usize, usize),
        operand: &Place,
        at: &impl Fn(&Place) -> isize,
        to: &mut Vec<E::Sum>,
    ) -> View<E::Sum> {
        to.resize(rows * cols, E::Sum::ZERO);
        let by_columns = view.rs.abs() < view.cs.abs();
        let (shape, order) = if by_columns { ([cols, rows], [1, 0]) } else { ([rows, cols], [0, 1]) };
        let turned = |strides: [isize; 2]| order.map(|axis| strides[axis]);
        let own = turned([view.rs, view.cs]);
        let strides: SmallVec<[[isize; 2]; 2]> = self.place.inputs.iter().map(|i| turned([i.rs, i.cs])).collect();
        let others = self.place.inputs.iter().zip(&self.inputs).zip(&strides).map(|((place, data), strides)| {
            let first = at(place) + row as isize * place.rs + col as isize * place.cs;
            // SAFETY: the first element of the block; the caller's promise.
            let data = unsafe { data.get().offset(first * place.dtype.size() as isize) };
            Source { data, dtype: place.dtype, strides }
        });
        let main = Source { data: view.data.cast_const().cast(), dtype: operand.dtype, strides: &own };
        let sources: SmallVec<[Source<'_>; 4]> = std::iter::once(main).chain(others).collect();
        let program = &self.place.program;
        let dense = [shape[1] as isize, 1];
        let target = Target { data: to.as_mut_ptr().cast(), dtype: <E::Sum as Element>::DTYPE, strides: &dense };
        // SAFETY: all elements of the block are valid for reading (the caller's promise); the target is as large, and ours.
        unsafe {
            let (sources, size) = (&sources[..program.inputs()], rows * cols);
            program.run_nest_in(
                &mut Registers::default(),
                Nest { shape: &shape },
                sources,
                &[target],
                &self.scalars,
                0..size,
            );
        }
        let (rs, cs) = if by_columns { (1, rows as isize) } else { (cols as isize, 1) };
        View { data: to.as_mut_ptr(), rs, cs }
    }
}
