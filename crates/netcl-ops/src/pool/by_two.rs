//! Maxima of fixed windows that lie two elements apart, on the native CPU: eight windows of a row at a time, held in registers.
//!
//! Most poolings halve the plane. Going tap by tap, as other distances do, reads and writes the maxima so far again for each element
//! of a window, in runs that are short where planes are small.

use std::ops::Range;

use netcl_core::kernels::expr::vecmath::Real;
use netcl_core::simd;

use super::cpu::{Best, Taps, offer};
use crate::reduce::Lane;

/// The windows of a row that have all taps.
fn inside(taps: &Taps) -> Range<usize> {
    let both = |a: Range<usize>, start: usize, end: usize| a.start.max(start)..a.end.min(end);
    let all = taps.columns.iter().fold(0..taps.width[1], |range, tap| both(range, tap.start, tap.start + tap.len));
    if all.is_empty() { 0..0 } else { all }
}

/// The maxima of some windows of a row, which have all taps, `L` at a time; there are at least so many.
#[inline(always)]
fn row<T: Lane, const L: usize>(
    taps: &Taps,
    rows: &[(usize, usize)],
    x: &[T],
    best: &mut Best<'_, T>,
    of: Range<usize>,
) {
    let mut next = of.start;
    while next < of.end {
        // The last ones may overlap those before.
        let window = next.min(of.end - L);
        let (mut values, mut places) = ([<T as Real>::from_f64(f64::NEG_INFINITY); L], [-1i32; L]);
        for &(_, row) in rows {
            for tap in &taps.columns {
                let first = row * taps.width[0] + tap.column + 2 * (window - tap.start);
                let x = &x[first..first + 2 * L - 1];
                for j in 0..L {
                    offer((&mut values[j], &mut places[j]), x[2 * j], (first + 2 * j) as i32);
                }
            }
        }
        best.values[window..window + L].copy_from_slice(&values);
        best.places[window..window + L].copy_from_slice(&places);
        next += L;
    }
}

simd! {
    pub(super) fn max_by_two<T: Lane>(taps: &Taps, x: &[T], best: &mut Best<'_, T>) {
        let (inside, [from, to]) = (inside(taps), taps.width);
        for rows in taps.rows.chunk_by(|a, b| a.0 == b.0) {
            let results = rows[0].0 * to..(rows[0].0 + 1) * to;
            let mut best = Best { values: &mut best.values[results.clone()], places: &mut best.places[results] };
            match inside.len() {
                8.. => row::<T, 8>(taps, rows, x, &mut best, inside.clone()),
                4.. => row::<T, 4>(taps, rows, x, &mut best, inside.clone()),
                _ => row::<T, 1>(taps, rows, x, &mut best, inside.clone()),
            }
            // Those that reach over an edge.
            for window in (0..inside.start).chain(inside.end..to) {
                for &(_, row) in rows {
                    for tap in taps.columns.iter().filter(|tap| (tap.start..tap.start + tap.len).contains(&window)) {
                        let at = row * from + tap.column + 2 * (window - tap.start);
                        offer((&mut best.values[window], &mut best.places[window]), x[at], at as i32);
                    }
                }
            }
        }
    }
}
