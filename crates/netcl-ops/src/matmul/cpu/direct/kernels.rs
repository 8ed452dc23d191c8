//! The blocks of the result that stay in registers.

use std::arch::x86_64::*;

use super::Kind;
use crate::matmul::cpu::panels::View;

const LANES: usize = 16;
/// Vectors of a row in a block of [`outer`].
const WIDE: usize = super::PANEL / LANES;
/// Rows and columns of a block of dot products: their sixteen sums end in one vector.
const DOTS: usize = 4;

/// `out = a x b`.
///
/// # Safety
/// As [`Operand::multiply`](crate::matmul::cpu::panels::Operand::multiply); [`kind`](super::kind) has given `kind` for these
/// operands.
pub(in crate::matmul::cpu) unsafe fn multiply(
    kind: Kind,
    size: (usize, usize, usize),
    a: View<f32>,
    b: View<f32>,
    out: View<f32>,
) {
    // SAFETY: the caller's promise, passed on; a kind is only given where the processor has AVX-512.
    unsafe {
        match kind {
            Kind::Outer => outer(size, a, b, out),
            Kind::Dot => dot(size, a, b, out),
        }
    }
}

/// # Safety
/// As [`multiply`], with rows of `b` and `out` that lie densely, on a processor with AVX-512F.
#[target_feature(enable = "avx512f")]
unsafe fn outer((m, n, k): (usize, usize, usize), a: View<f32>, b: View<f32>, out: View<f32>) {
    for col in (0..n).step_by(WIDE * LANES) {
        let width = (n - col).min(WIDE * LANES);
        let vectors = width.div_ceil(LANES);
        // The lanes of the last vector.
        let mask = u16::MAX >> (vectors * LANES - width);
        let mut row = 0;
        while row < m {
            // SAFETY: a block of at most `m - row` rows and `width` columns, and its operands.
            row += unsafe {
                let a = View { data: a.data.offset(row as isize * a.rs), ..a };
                let b = View { data: b.data.add(col), ..b };
                let out = View { data: out.data.offset(row as isize * out.rs).add(col), ..out };
                match (m - row, vectors) {
                    (8.., 3) => outer_block::<8, 3>(k, a, b, mask, out),
                    (8.., 2) => outer_block::<8, 2>(k, a, b, mask, out),
                    (8.., _) => outer_block::<8, 1>(k, a, b, mask, out),
                    (4.., 3) => outer_block::<4, 3>(k, a, b, mask, out),
                    (4.., 2) => outer_block::<4, 2>(k, a, b, mask, out),
                    (4.., _) => outer_block::<4, 1>(k, a, b, mask, out),
                    (2.., 3) => outer_block::<2, 3>(k, a, b, mask, out),
                    (2.., 2) => outer_block::<2, 2>(k, a, b, mask, out),
                    (2.., _) => outer_block::<2, 1>(k, a, b, mask, out),
                    (_, 3) => outer_block::<1, 3>(k, a, b, mask, out),
                    (_, 2) => outer_block::<1, 2>(k, a, b, mask, out),
                    (_, _) => outer_block::<1, 1>(k, a, b, mask, out),
                }
            };
        }
    }
}

/// `ROWS` rows of `VECTORS` vectors, of which the last has the lanes of a mask; gives the number of rows.
///
/// # Safety
/// As [`outer`], for as many rows and columns.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn outer_block<const ROWS: usize, const VECTORS: usize>(
    k: usize,
    a: View<f32>,
    b: View<f32>,
    mask: __mmask16,
    out: View<f32>,
) -> usize {
    let mut sums = [[_mm512_setzero_ps(); VECTORS]; ROWS];
    let lanes = |vector: usize| if vector + 1 == VECTORS { mask } else { u16::MAX };
    let (mut from_a, mut from_b) = (a.data.cast_const(), b.data.cast_const());
    for _ in 0..k {
        let mut row = [_mm512_setzero_ps(); VECTORS];
        for (v, part) in row.iter_mut().enumerate() {
            // SAFETY: lanes of the columns in a row of the second operand.
            *part = unsafe { _mm512_maskz_loadu_ps(lanes(v), from_b.wrapping_add(v * LANES)) };
        }
        for (i, sums) in sums.iter_mut().enumerate() {
            // SAFETY: a term of one of the rows of the first operand.
            let by = _mm512_set1_ps(unsafe { *from_a.wrapping_offset(i as isize * a.rs) });
            for (sum, part) in sums.iter_mut().zip(row) {
                *sum = _mm512_fmadd_ps(by, part, *sum);
            }
        }
        // After the last term they point behind the operands, where nothing reads.
        (from_a, from_b) = (from_a.wrapping_offset(a.cs), from_b.wrapping_offset(b.rs));
    }
    for (i, sums) in sums.into_iter().enumerate() {
        for (v, sum) in sums.into_iter().enumerate() {
            let to = out.data.wrapping_offset(i as isize * out.rs).wrapping_add(v * LANES);
            // SAFETY: lanes of the columns in a row of the result.
            unsafe { _mm512_mask_storeu_ps(to, lanes(v), sum) };
        }
    }
    ROWS
}

/// # Safety
/// As [`multiply`], with rows of `a` and columns of `b` that lie densely, on a processor with AVX-512F.
#[target_feature(enable = "avx512f")]
unsafe fn dot((m, n, k): (usize, usize, usize), a: View<f32>, b: View<f32>, out: View<f32>) {
    for col in (0..n).step_by(DOTS) {
        let cols = (n - col).min(DOTS);
        // A block at the edge works on its last line several times, and keeps the results that there are.
        let columns: [*const f32; DOTS] =
            std::array::from_fn(|j| b.data.wrapping_offset((col + j.min(cols - 1)) as isize * b.cs).cast_const());
        for row in (0..m).step_by(DOTS) {
            let rows = (m - row).min(DOTS);
            let lines: [*const f32; DOTS] =
                std::array::from_fn(|i| a.data.wrapping_offset((row + i.min(rows - 1)) as isize * a.rs).cast_const());
            // SAFETY: lines of the operands, of k elements each; then elements of the result.
            unsafe {
                let sums = dot_block(k, lines, columns);
                for i in 0..rows {
                    for j in 0..cols {
                        let at = (row + i) as isize * out.rs + (col + j) as isize * out.cs;
                        *out.data.offset(at) = sums[i * DOTS + j];
                    }
                }
            }
        }
    }
}

/// The products of four lines with four others, row by row.
///
/// # Safety
/// Every line has `k` elements, and the processor AVX-512F.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn dot_block(k: usize, a: [*const f32; DOTS], b: [*const f32; DOTS]) -> [f32; DOTS * DOTS] {
    let mut sums = [[_mm512_setzero_ps(); DOTS]; DOTS];
    let mut at = 0;
    while at + LANES <= k {
        // SAFETY: sixteen elements of each line.
        unsafe {
            let b = [
                _mm512_loadu_ps(b[0].add(at)),
                _mm512_loadu_ps(b[1].add(at)),
                _mm512_loadu_ps(b[2].add(at)),
                _mm512_loadu_ps(b[3].add(at)),
            ];
            for (sums, line) in sums.iter_mut().zip(a) {
                let a = _mm512_loadu_ps(line.add(at));
                for (sum, b) in sums.iter_mut().zip(b) {
                    *sum = _mm512_fmadd_ps(a, b, *sum);
                }
            }
        }
        at += LANES;
    }
    if at < k {
        let mask = u16::MAX >> (LANES - (k - at));
        // SAFETY: what is left of each line.
        unsafe {
            let b = [
                _mm512_maskz_loadu_ps(mask, b[0].add(at)),
                _mm512_maskz_loadu_ps(mask, b[1].add(at)),
                _mm512_maskz_loadu_ps(mask, b[2].add(at)),
                _mm512_maskz_loadu_ps(mask, b[3].add(at)),
            ];
            for (sums, line) in sums.iter_mut().zip(a) {
                let a = _mm512_maskz_loadu_ps(mask, line.add(at));
                for (sum, b) in sums.iter_mut().zip(b) {
                    *sum = _mm512_fmadd_ps(a, b, *sum);
                }
            }
        }
    }
    let [w, x, y, z] = sums.map(|sums| add_lanes_of_four(sums));
    // Each holds its four sums four times over, in parts: pairs of quarters, then pairs of pairs.
    let (first, last) = (add_quarters(w, x), add_quarters(y, z));
    let mut result = [0.0; DOTS * DOTS];
    // SAFETY: sixteen elements of the result.
    unsafe { _mm512_storeu_ps(result.as_mut_ptr(), add_quarters(first, last)) };
    result
}

/// In each quarter of a vector, the sums of that quarter of four vectors.
#[inline]
#[target_feature(enable = "avx512f")]
fn add_lanes_of_four([a, b, c, d]: [__m512; DOTS]) -> __m512 {
    let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
    _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)), _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)))
}

/// The sums of neighbouring quarters: the two of `x`, then the two of `y`.
#[inline]
#[target_feature(enable = "avx512f")]
fn add_quarters(x: __m512, y: __m512) -> __m512 {
    _mm512_add_ps(_mm512_shuffle_f32x4::<0b10_00_10_00>(x, y), _mm512_shuffle_f32x4::<0b11_01_11_01>(x, y))
}
