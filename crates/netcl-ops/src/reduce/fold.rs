//! The innermost loops of the native reductions: tiles of rows or columns into partial results.
//!
//! A tile is a slice of rows `step` apart. Short runs are combined in the type of the computation, in many independent
//! lanes; runs are combined in f64, so that a long sum of f32 loses nothing that matters. (`_op` only names a type.)

use netcl_core::dtype::Element;
use netcl_core::kernels::expr::vecmath::Real;
pub(crate) use netcl_core::kernels::fold::{Max, Min, Op, Prod, RUN, Sum, plain_row};
use netcl_core::simd;

use crate::matmul::Multiply;

/// A type that reductions compute in.
pub(crate) trait Lane: Real + Element + Multiply {}

impl Lane for f32 {}
impl Lane for f64 {}

/// Rows of one run when columns are reduced.
const RUN_ROWS: usize = 16;
/// The most columns a tile may have.
pub(crate) const MAX_COLUMNS: usize = 1024;

/// A reduction as the native engine sees it.
pub(crate) trait Fold<T: Lane>: Copy + Send + Sync + 'static {
    /// What is known after some elements.
    type Partial: Copy + Send + Sync;
    /// What is known before any.
    fn nothing() -> Self::Partial;
    /// Of two parts, the first of which comes before the second.
    fn merge(a: Self::Partial, b: Self::Partial) -> Self::Partial;
    /// Merges each of `partials.len()` rows of `n` elements, the first of which is element `at` of its reduction.
    fn rows(tile: &[T], step: usize, n: usize, at: usize, partials: &mut [Self::Partial]);
    /// Merges each of `partials.len()` (at most [`MAX_COLUMNS`]) columns of `m` elements.
    fn columns(tile: &[T], step: usize, m: usize, at: usize, partials: &mut [Self::Partial]);
}

/// A reduction of values alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plain<O>(std::marker::PhantomData<O>);

impl<T: Lane, O: Op> Fold<T> for Plain<O> {
    type Partial = f64;
    fn nothing() -> f64 {
        O::IDENTITY
    }
    #[inline(always)]
    fn merge(a: f64, b: f64) -> f64 {
        O::join(a, b)
    }
    fn rows(tile: &[T], step: usize, n: usize, _at: usize, partials: &mut [f64]) {
        plain_rows(O::default(), tile, step, n, partials);
    }
    fn columns(tile: &[T], step: usize, m: usize, _at: usize, partials: &mut [f64]) {
        plain_columns(O::default(), tile, step, m, partials);
    }
}

simd! {
    fn plain_rows<T: Lane, O: Op>(_op: O, tile: &[T], step: usize, n: usize, partials: &mut [f64]) {
        for (i, partial) in partials.iter_mut().enumerate() {
            *partial = O::join(*partial, plain_row::<T, O>(&tile[i * step..i * step + n]));
        }
    }

    fn plain_columns<T: Lane, O: Op>(_op: O, tile: &[T], step: usize, m: usize, partials: &mut [f64]) {
        let n = partials.len();
        let mut lanes = [T::ZERO; MAX_COLUMNS];
        let lanes = &mut lanes[..n];
        let row = |i: usize| &tile[i * step..i * step + n];
        for first in (0..m).step_by(RUN_ROWS) {
            let end = m.min(first + RUN_ROWS);
            lanes.fill(<T as Real>::from_f64(O::IDENTITY));
            let mut i = first;
            while i + 4 <= end {
                let (a, b, c, d) = (row(i), row(i + 1), row(i + 2), row(i + 3));
                for ((((lane, &a), &b), &c), &d) in lanes.iter_mut().zip(a).zip(b).zip(c).zip(d) {
                    *lane = O::join(*lane, O::join(O::join(a, b), O::join(c, d)));
                }
                i += 4;
            }
            for i in i..end {
                for (lane, &x) in lanes.iter_mut().zip(row(i)) {
                    *lane = O::join(*lane, x);
                }
            }
            for (partial, &lane) in partials.iter_mut().zip(&*lanes) {
                *partial = O::join(*partial, Element::to_f64(lane));
            }
        }
    }
}

/// Which of two values an extremum prefers.
pub(crate) trait Extremum: Op {
    /// Whether the later `x` replaces the earlier `best`: it is strictly better, or the first NaN.
    fn better<T: Real>(x: T, best: T) -> bool;
}

impl Extremum for Max {
    #[inline(always)]
    #[allow(clippy::eq_op, reason = "x != x is the test for NaN that vectorises")]
    fn better<T: Real>(x: T, best: T) -> bool {
        (x > best) | ((x != x) & (best == best))
    }
}

impl Extremum for Min {
    #[inline(always)]
    #[allow(clippy::eq_op, reason = "x != x is the test for NaN that vectorises")]
    fn better<T: Real>(x: T, best: T) -> bool {
        (x < best) | ((x != x) & (best == best))
    }
}

/// A value and its position; `None` before any element.
pub(crate) type Found = Option<(f64, usize)>;

/// The first position of an extremum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position<O>(std::marker::PhantomData<O>);

impl<T: Lane, O: Extremum> Fold<T> for Position<O> {
    type Partial = Found;
    fn nothing() -> Found {
        None
    }
    #[inline(always)]
    fn merge(a: Found, b: Found) -> Found {
        match (a, b) {
            (Some((best, _)), Some((x, _))) if O::better(x, best) => b,
            (None, _) => b,
            _ => a,
        }
    }
    fn rows(tile: &[T], step: usize, n: usize, at: usize, partials: &mut [Found]) {
        position_rows(O::default(), tile, step, n, at, partials);
    }
    fn columns(tile: &[T], step: usize, m: usize, at: usize, partials: &mut [Found]) {
        position_columns(O::default(), tile, step, m, at, partials);
    }
}

simd! {
    fn position_rows<T: Lane, O: Extremum>(_op: O, tile: &[T], step: usize, n: usize, at: usize, partials: &mut [Found]) {
        for (i, partial) in partials.iter_mut().enumerate() {
            let row = &tile[i * step..i * step + n];
            // The extremum of a run is found in lanes; only a run that beats the best so far is searched for it.
            for (k, run) in row.chunks(RUN).enumerate() {
                let value = plain_row::<T, O>(run);
                if partial.is_none_or(|(best, _)| O::better(value, best)) {
                    let here = run.iter().position(|&x| {
                        let x = Element::to_f64(x);
                        x == value || (x.is_nan() && value.is_nan())
                    });
                    *partial = Some((value, at + k * RUN + here.unwrap_or(0)));
                }
            }
        }
    }

    fn position_columns<T: Lane, O: Extremum>(_op: O, tile: &[T], step: usize, m: usize, at: usize, partials: &mut [Found]) {
        let n = partials.len();
        let (mut best, mut place) = ([T::ZERO; MAX_COLUMNS], [0u32; MAX_COLUMNS]);
        let (best, place) = (&mut best[..n], &mut place[..n]);
        // Positions within a block fit 32 bits, which a vector holds twice as many of.
        const BLOCK: usize = 1 << 20;
        for first in (0..m).step_by(BLOCK) {
            best.copy_from_slice(&tile[first * step..first * step + n]);
            place.fill(0);
            for i in first + 1..m.min(first + BLOCK) {
                let here = (i - first) as u32;
                for ((best, place), &x) in best.iter_mut().zip(&mut *place).zip(&tile[i * step..i * step + n]) {
                    let better = O::better(x, *best);
                    *best = if better { x } else { *best };
                    *place = if better { here } else { *place };
                }
            }
            for ((partial, &best), &place) in partials.iter_mut().zip(&*best).zip(&*place) {
                let found = Some((Element::to_f64(best), at + first + place as usize));
                *partial = <Position<O> as Fold<T>>::merge(*partial, found);
            }
        }
    }
}
