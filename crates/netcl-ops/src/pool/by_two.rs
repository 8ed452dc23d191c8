//! Maxima of fixed windows that lie two elements apart, on the native CPU: eight windows of a row at a time, held in registers.
//!
//! Most poolings halve the plane. Going tap by tap, as other distances do, reads and writes the maxima so far again for each element
//! of a window, in runs that are short where planes are small.

use std::ops::Range;

use netcl_core::kernels::expr::vecmath::Real;
use netcl_core::simd;

use super::cpu::{Best, Taps, offer};
use crate::reduce::Lane;

/// Windows at a time.
const LANES: usize = 8;
/// The elements over which one tap of so many windows reaches.
const REACH: usize = 2 * LANES - 1;

/// The windows of a row that have all taps, if there are enough of them.
fn inside(taps: &Taps) -> Range<usize> {
    let both = |a: Range<usize>, start: usize, end: usize| a.start.max(start)..a.end.min(end);
    let all = taps.columns.iter().fold(0..taps.width[1], |range, tap| both(range, tap.start, tap.start + tap.len));
    if all.len() < LANES { 0..0 } else { all }
}

simd! {
    pub(super) fn max_by_two<T: Lane>(taps: &Taps, x: &[T], best: &mut Best<'_, T>) {
        let (inside, [from, to]) = (inside(taps), taps.width);
        for rows in taps.rows.chunk_by(|a, b| a.0 == b.0) {
            let results = rows[0].0 * to..(rows[0].0 + 1) * to;
            let (best_values, best_places) = (&mut best.values[results.clone()], &mut best.places[results]);
            let mut next = inside.start;
            while next < inside.end {
                // The last eight may overlap those before.
                let window = next.min(inside.end - LANES);
                let (mut values, mut places) = ([<T as Real>::from_f64(f64::NEG_INFINITY); LANES], [-1i32; LANES]);
                for &(_, row) in rows {
                    for tap in &taps.columns {
                        let first = row * from + tap.column + 2 * (window - tap.start);
                        let x: &[T] = &x[first..first + REACH];
                        for j in 0..LANES {
                            offer((&mut values[j], &mut places[j]), x[2 * j], (first + 2 * j) as i32);
                        }
                    }
                }
                best_values[window..window + LANES].copy_from_slice(&values);
                best_places[window..window + LANES].copy_from_slice(&places);
                next += LANES;
            }
            for window in (0..inside.start).chain(inside.end..to) {
                for &(_, row) in rows {
                    for tap in taps.columns.iter().filter(|tap| (tap.start..tap.start + tap.len).contains(&window)) {
                        let at = row * from + tap.column + 2 * (window - tap.start);
                        offer((&mut best_values[window], &mut best_places[window]), x[at], at as i32);
                    }
                }
            }
        }
    }
}
