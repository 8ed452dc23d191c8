//! Products with a few rows: each element of the second operand is used a few times only, so that reading it is what they
//! cost. It is read once, in the order in which it lies in memory, and never packed.

use netcl_core::simd;

use super::panels::{Operand, Sum, View};

/// The most rows that are done this way.
pub(super) const ROWS: usize = 8;
/// Columns whose sums stay in the first-level cache while rows of the second operand stream by: a page of memory for each row,
/// because that is how far prefetchers look.
const STRIP: usize = 1024;
/// Elements of the second operand that make a tile worth a thread.
const TILE: usize = 1 << 16;
/// Independent partial sums of a dot product: enough to hide the latency of an addition.
const LANES: usize = 32;

/// Whether a product with a second operand of these strides is one for this file.
pub(super) fn fits(m: usize, n: usize, k: usize, (rs, cs): (isize, isize)) -> bool {
    // The smallest products are for whichever path has the least to set up.
    m <= ROWS && (rs == 1 || cs == 1) && n * k >= 64
}

/// Rows and columns of a tile.
pub(super) fn tile(m: usize, n: usize, k: usize) -> (usize, usize) {
    // Narrower strips read memory more slowly, but several threads make up for that.
    let strip = if n >= 4 * STRIP { STRIP } else { STRIP / 4 };
    (m, (TILE / k.max(1)).next_multiple_of(strip).max(strip).min(n))
}

/// Rows of the second operand that are added at once, so that sums are loaded and stored a quarter as often.
const UNROLL: usize = 4;

/// `out = a x b` for at most [`ROWS`] rows, where the rows or the columns of `b` lie densely.
///
/// # Safety
/// As [`Operand::multiply`].
pub(super) unsafe fn multiply<E: Operand>(
    (m, n, k): (usize, usize, usize),
    a: View<E>,
    b: View<E>,
    out: View<E::Sum>,
    values: &mut Vec<E::Sum>,
) {
    // The rows of the first operand, and room for a widened column, or for widened parts of rows and the sums.
    let width = n.min(STRIP);
    values.resize(m * k + k.max((UNROLL + m) * width), E::Sum::ZERO);
    let (rows, buffer) = values.split_at_mut(m * k);
    for (i, row) in rows.chunks_exact_mut(k).enumerate() {
        for (j, value) in row.iter_mut().enumerate() {
            // SAFETY: element (i, j) of the first operand.
            *value = unsafe { *a.data.offset(i as isize * a.rs + j as isize * a.cs) }.wide();
        }
    }
    if b.cs == 1 {
        // SAFETY: the caller's promise, passed on.
        unsafe { dense_rows((m, n, k), rows, b, out, buffer) }
    } else {
        for j in 0..n {
            // SAFETY: column j of the second operand, whose k elements lie densely.
            let column = unsafe { std::slice::from_raw_parts(b.data.offset(j as isize * b.cs), k) };
            let column = E::widen(column, &mut buffer[..k]);
            for (i, row) in rows.chunks_exact(k).enumerate() {
                // SAFETY: element (i, j) of the result.
                unsafe { *out.data.offset(i as isize * out.rs + j as isize * out.cs) = dot(row, column) };
            }
        }
    }
}

/// The sums of a strip of columns stay, the rows of `b` pass by.
///
/// # Safety
/// As [`multiply`]; the rows of `b` lie densely.
unsafe fn dense_rows<E: Operand>(
    (m, n, k): (usize, usize, usize),
    rows: &[E::Sum],
    b: View<E>,
    out: View<E::Sum>,
    buffer: &mut [E::Sum],
) {
    for start in (0..n).step_by(STRIP) {
        let width = STRIP.min(n - start);
        let (widened, sums) = buffer.split_at_mut(UNROLL * width);
        let sums = &mut sums[..m * width];
        sums.fill(E::Sum::ZERO);
        // SAFETY: a part of a row of the second operand, whose elements lie densely.
        let part = |row: usize| unsafe {
            std::slice::from_raw_parts(b.data.offset(row as isize * b.rs + start as isize), width)
        };
        let whole = k - k % UNROLL;
        for first in (0..whole).step_by(UNROLL) {
            let parts: [&[E]; UNROLL] = std::array::from_fn(|i| part(first + i));
            if E::WIDENS_IN_LOOPS {
                for (row, sums) in rows.chunks_exact(k).zip(sums.chunks_exact_mut(width)) {
                    add_rows(&row[first..first + UNROLL], parts, sums);
                }
                continue;
            }
            for (part, to) in parts.iter().zip(widened.chunks_exact_mut(width)) {
                E::widen(part, to);
            }
            let parts = std::array::from_fn(|i| &widened[i * width..(i + 1) * width]);
            for (row, sums) in rows.chunks_exact(k).zip(sums.chunks_exact_mut(width)) {
                add_rows(&row[first..first + UNROLL], parts, sums);
            }
        }
        for last in whole..k {
            let x = E::widen(part(last), &mut widened[..width]);
            for (row, sums) in rows.chunks_exact(k).zip(sums.chunks_exact_mut(width)) {
                add_row(row[last], x, sums);
            }
        }
        for (i, sums) in sums.chunks_exact(width).enumerate() {
            for (j, &sum) in sums.iter().enumerate() {
                // SAFETY: element (i, start + j) of the result.
                unsafe { *out.data.offset(i as isize * out.rs + (start + j) as isize * out.cs) = sum };
            }
        }
    }
}

simd! {
    /// Adds four rows, scaled, to the sums.
    fn add_rows<E: Operand>(by: &[E::Sum], parts: [&[E]; UNROLL], sums: &mut [E::Sum]) {
        let n = sums.len();
        let [w, x, y, z] = parts.map(|part| &part[..n]);
        let (a, b, c, d) = (by[0], by[1], by[2], by[3]);
        for i in 0..n {
            sums[i] = (sums[i] + a * w[i].wide()) + b * x[i].wide() + (c * y[i].wide() + d * z[i].wide());
        }
    }

    /// Adds a row, scaled, to the sums.
    fn add_row<S: Sum>(by: S, x: &[S], sums: &mut [S]) {
        for (sum, &x) in sums.iter_mut().zip(x) {
            *sum = *sum + by * x;
        }
    }

    /// The sum of the products.
    pub(crate) fn dot<S: Sum>(x: &[S], y: &[S]) -> S {
        let mut lanes = [S::ZERO; LANES];
        let (xs, ys) = (x.chunks_exact(LANES), y.chunks_exact(LANES));
        let rest = xs.remainder().iter().zip(ys.remainder()).fold(S::ZERO, |sum, (&x, &y)| sum + x * y);
        for (x, y) in xs.zip(ys) {
            for i in 0..LANES {
                lanes[i] = lanes[i] + x[i] * y[i];
            }
        }
        // Pairwise, so that the error grows with the logarithm.
        let mut width = LANES;
        while width > 1 {
            width /= 2;
            for i in 0..width {
                lanes[i] = lanes[i] + lanes[i + width];
            }
        }
        lanes[0] + rest
    }
}
