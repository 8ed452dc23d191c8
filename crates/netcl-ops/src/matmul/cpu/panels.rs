//! The types that are multiplied: how each reaches [`gemm`], which knows f32 and f64.

use std::ops::{Add, Mul};

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use netcl_core::dtype::Element;
use netcl_core::simd;

use super::gemm::{Multiply, gemm};

/// Terms that 16-bit panels are widened for at once: a panel of a tile's side is half a megabyte.
pub(super) const DEPTH: usize = 512;
/// Terms of a transposed first operand that are multiplied at once. `gemm` reads such an operand where it lies, in a narrow product,
/// or packs it, and either way column by column: as many pages and cache lines as there are terms must stay within
/// reach. (1024 x 256 x 2048 has 83 GFLOP/s on a core with all terms at once, 115 with 64, 102 with 128.)
const COLUMNS: usize = 64;

/// A matrix in memory, by its first element and the distances between rows and columns in elements.
#[derive(Clone, Copy)]
pub(crate) struct View<T> {
    pub(crate) data: *mut T,
    pub(crate) rs: isize,
    pub(crate) cs: isize,
}

impl<T> View<T> {
    /// The same matrix with rows for columns.
    pub(crate) fn transposed(self) -> View<T> {
        View { data: self.data, rs: self.cs, cs: self.rs }
    }

    /// The same rows, the last of them first.
    pub(super) fn upside_down(self, rows: usize) -> View<T> {
        let last = self.data.wrapping_offset(rows.saturating_sub(1) as isize * self.rs);
        View { data: last, rs: -self.rs, cs: self.cs }
    }

    /// The same memory as elements of another type.
    pub(super) fn cast<U>(self) -> View<U> {
        View { data: self.data.cast(), rs: self.rs, cs: self.cs }
    }
}

/// Memory of one thread, kept from tile to tile.
#[derive(Default)]
pub(crate) struct Scratch<S> {
    /// A tile's sums, where they cannot be built up in the result.
    pub(super) sums: Vec<S>,
    /// What [`skinny`](super::skinny) reads often.
    pub(super) values: Vec<S>,
    pub(super) a: Vec<S>,
    pub(super) b: Vec<S>,
}

/// A type to sum in.
pub(crate) trait Sum: Operand<Sum = Self> + Multiply + Mul<Output = Self> + Add<Output = Self> {
    const ZERO: Self;
    const ONE: Self;
}

impl Sum for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;
}

impl Sum for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
}

/// A type of operands, which are summed in [`Operand::Sum`].
pub(crate) trait Operand: Element {
    type Sum: Sum;

    /// Whether [`Operand::wide`] vectorises inside a loop, so that widening beforehand would only cost.
    const WIDENS_IN_LOOPS: bool;

    /// The value in the type of the sum.
    fn wide(self) -> Self::Sum;

    /// A run of values in the type of the sum, in a buffer of the same length if they are not of that type already.
    fn widen<'v>(from: &'v [Self], buffer: &'v mut [Self::Sum]) -> &'v [Self::Sum];

    /// A part of a matrix in the type of the sum: where it lies, if it has that type, else in a buffer.
    ///
    /// # Safety
    /// Every element of the rows x cols part is valid for reading.
    unsafe fn as_sums(from: View<Self>, size: (usize, usize), buffer: &mut Vec<Self::Sum>) -> View<Self::Sum>;

    /// `out = a x b` on the calling thread.
    ///
    /// # Safety
    /// `size` is (m, n, k). All elements of the m x k, k x n and m x n matrices are valid for reading (`a`, `b`) and writing (`out`); those of `out`
    /// are distinct, nobody else touches them, and none belongs to an operand.
    unsafe fn multiply(
        size: (usize, usize, usize),
        a: View<Self>,
        b: View<Self>,
        out: View<Self::Sum>,
        scratch: &mut Scratch<Self::Sum>,
    );
}

macro_rules! direct {
    ($($ty:ty),*) => {$(
        impl Operand for $ty {
            type Sum = $ty;
            const WIDENS_IN_LOOPS: bool = true;

            #[inline(always)]
            fn wide(self) -> $ty {
                self
            }

            #[inline(always)]
            fn widen<'v>(from: &'v [$ty], _buffer: &'v mut [$ty]) -> &'v [$ty] {
                from
            }

            unsafe fn as_sums(from: View<$ty>, _size: (usize, usize), _buffer: &mut Vec<$ty>) -> View<$ty> {
                from
            }

            unsafe fn multiply(
                (m, n, k): (usize, usize, usize),
                a: View<$ty>,
                b: View<$ty>,
                out: View<$ty>,
                _scratch: &mut Scratch<$ty>,
            ) {
                // Without terms there are zeros to write.
                let depth = if a.rs == 1 { COLUMNS } else { k.max(1) };
                for start in (0..k.max(1)).step_by(depth) {
                    // SAFETY: both are parts of their matrices, and the sums were written by the block before.
                    unsafe {
                        let a = View { data: a.data.offset(start as isize * a.cs), ..a };
                        let b = View { data: b.data.offset(start as isize * b.rs), ..b };
                        gemm((m, n, depth.min(k - start)), a, b, out, start > 0, Sum::ONE);
                    }
                }
            }
        }
    )*};
}

direct!(f32, f64);

macro_rules! widened {
    ($($ty:ty, $in_loops:expr, $wide:expr, $widen:expr;)*) => {$(
        impl Operand for $ty {
            type Sum = f32;
            const WIDENS_IN_LOOPS: bool = $in_loops;

            #[inline(always)]
            fn wide(self) -> f32 {
                $wide(self)
            }

            fn widen<'v>(from: &'v [$ty], buffer: &'v mut [f32]) -> &'v [f32] {
                $widen(from, buffer);
                buffer
            }

            unsafe fn as_sums(from: View<$ty>, size: (usize, usize), buffer: &mut Vec<f32>) -> View<f32> {
                // SAFETY: the caller's promise, passed on.
                unsafe { panel(from, size, buffer) }
            }

            unsafe fn multiply(
                (m, n, k): (usize, usize, usize),
                a: View<$ty>,
                b: View<$ty>,
                out: View<f32>,
                scratch: &mut Scratch<f32>,
            ) {
                for start in (0..k).step_by(DEPTH) {
                    let depth = DEPTH.min(k - start);
                    // SAFETY: both panels are parts of their matrices, and the sums were written by the block before.
                    unsafe {
                        let a = panel(View { data: a.data.offset(start as isize * a.cs), ..a }, (m, depth), &mut scratch.a);
                        let b = panel(View { data: b.data.offset(start as isize * b.rs), ..b }, (depth, n), &mut scratch.b);
                        gemm((m, n, depth), a, b, out, start > 0, Sum::ONE);
                    }
                }
            }
        }
    )*};
}

widened! {
    // The conversion instruction is behind a run-time check, which is made once per slice.
    f16, false, f16::to_f32, |from: &[f16], to: &mut [f32]| from.convert_to_f32_slice(to);
    bf16, true, wide_bf16, widen_bf16;
}

/// A bfloat16 is the upper half of a float; a plain shift vectorises where the library's conversion does not.
#[inline(always)]
fn wide_bf16(value: bf16) -> f32 {
    f32::from_bits(u32::from(value.to_bits()) << 16)
}

simd! {
    fn widen_bf16(from: &[bf16], to: &mut [f32]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = wide_bf16(*from);
        }
    }
}

/// Widens a part of a matrix of 16-bit floats, along whichever axis its elements are neighbours.
///
/// # Safety
/// Every element of the rows x cols part is valid for reading.
unsafe fn panel<E: Operand>(from: View<E>, (rows, cols): (usize, usize), to: &mut Vec<E::Sum>) -> View<E::Sum> {
    to.resize(rows * cols, E::Sum::ZERO);
    let by_columns = from.rs == 1 && from.cs != 1;
    let (lines, length, line, step) =
        if by_columns { (cols, rows, from.cs, from.rs) } else { (rows, cols, from.rs, from.cs) };
    for (i, to) in to.chunks_exact_mut(length).enumerate().take(lines) {
        // SAFETY: line i of the part; its elements are `step` apart.
        unsafe {
            let from = from.data.offset(i as isize * line);
            if step == 1 {
                E::widen(std::slice::from_raw_parts(from, length), to);
            } else {
                for (j, to) in to.iter_mut().enumerate() {
                    *to = (*from.offset(j as isize * step)).wide();
                }
            }
        }
    }
    let (rs, cs) = if by_columns { (1, rows as isize) } else { (cols as isize, 1) };
    View { data: to.as_mut_ptr(), rs, cs }
}
