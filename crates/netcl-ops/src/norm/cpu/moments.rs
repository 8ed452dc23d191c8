//! The innermost loops: means and squared deviations, products with deviations, and the passes that use them.
//!
//! A run is short enough for the first-level cache and is summed in the type of the computation, in independent lanes; runs
//! are merged in f64.

use netcl_core::dtype::Element;
use netcl_core::kernels::expr::vecmath::Real;
use netcl_core::simd;

use crate::reduce::{Lane, Sum, plain_row};

/// Elements of a run.
const RUN: usize = 1024;
const LANES: usize = 32;

/// Count, mean and sum of squared deviations from it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moments {
    pub(super) n: f64,
    pub(super) mean: f64,
    pub(super) m2: f64,
}

impl Moments {
    /// Of two parts together (Chan, Golub and LeVeque).
    #[inline(always)]
    pub(super) fn merge(self, other: Moments) -> Moments {
        if self.n == 0.0 {
            return other;
        }
        let n = self.n + other.n;
        let (step, share) = (other.mean - self.mean, other.n / n);
        Moments { n, mean: self.mean + step * share, m2: self.m2 + other.m2 + step * step * self.n * share }
    }

    /// From squared deviations from a value that is `off` away from the mean, which adds a known amount to them.
    #[inline(always)]
    pub(super) fn around(n: f64, mean: f64, squares: f64, off: f64) -> Moments {
        let m2 = squares - n * off * off;
        // Not `max`, which would lose a NaN.
        Moments { n, mean, m2: if m2 < 0.0 { 0.0 } else { m2 } }
    }

    /// One divided by the standard deviation.
    #[inline(always)]
    pub(super) fn rstd(self, eps: f64) -> f64 {
        (self.m2 / self.n + eps).sqrt().recip()
    }
}

/// What gradients are mapped with: `g * scale - (x - mean) * slope - shift`.
#[derive(Clone, Copy)]
pub(super) struct Slopes<T> {
    pub(super) scale: T,
    pub(super) slope: T,
    pub(super) shift: T,
}

/// Shorthand: both conversion traits have a `from_f64`.
#[inline(always)]
pub(super) fn real<T: Lane>(value: f64) -> T {
    <T as Real>::from_f64(value)
}

/// Adds up lanes in a fixed tree.
#[inline(always)]
fn total<T: Lane>(mut lanes: [T; LANES]) -> f64 {
    let mut width = LANES / 2;
    while width > 0 {
        let (low, high) = lanes.split_at_mut(width);
        for (low, &high) in low.iter_mut().zip(&*high) {
            *low = *low + high;
        }
        width /= 2;
    }
    Element::to_f64(lanes[0])
}

/// The sum of squared distances from a value.
#[inline(always)]
fn squares<T: Lane>(x: &[T], from: T) -> f64 {
    let mut lanes = [T::ZERO; LANES];
    let mut parts = x.chunks_exact(LANES);
    for part in &mut parts {
        for (lane, &x) in lanes.iter_mut().zip(part) {
            *lane = *lane + (x - from) * (x - from);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(parts.remainder()) {
        *lane = *lane + (x - from) * (x - from);
    }
    total(lanes)
}

simd! {
    /// The moments of a row.
    pub(super) fn moments<T: Lane>(x: &[T]) -> Moments {
        x.chunks(RUN).fold(Moments::default(), |so_far, run| {
            let n = run.len() as f64;
            let mean = plain_row::<T, Sum>(run) / n;
            let rounded = real::<T>(mean);
            let off = mean - Element::to_f64(rounded);
            so_far.merge(Moments::around(n, mean, squares(run, rounded), off))
        })
    }

    /// The same around zero: the mean of the result is 0, its `m2` the sum of squares.
    pub(super) fn square_sum<T: Lane>(x: &[T]) -> Moments {
        let m2 = x.chunks(RUN).map(|run| squares(run, T::ZERO)).sum();
        Moments { n: x.len() as f64, mean: 0.0, m2 }
    }

    /// `y = (x - mean) * scale + shift`.
    pub(super) fn scale<T: Lane>(x: &[T], y: &mut [T], mean: T, scale: T, shift: T) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = (x - mean) * scale + shift;
        }
    }

    /// `y = (x - mean) * rstd * weight + bias`; parameters that are not there have no elements.
    pub(super) fn scale_each<T: Lane>(x: &[T], y: &mut [T], mean: T, rstd: T, weight: &[T], bias: &[T]) {
        match (weight.is_empty(), bias.is_empty()) {
            (true, true) => {
                for (y, &x) in y.iter_mut().zip(x) {
                    *y = (x - mean) * rstd;
                }
            }
            (false, true) => {
                for ((y, &x), &w) in y.iter_mut().zip(x).zip(weight) {
                    *y = (x - mean) * rstd * w;
                }
            }
            (true, false) => {
                for ((y, &x), &b) in y.iter_mut().zip(x).zip(bias) {
                    *y = (x - mean) * rstd + b;
                }
            }
            (false, false) => {
                for (((y, &x), &w), &b) in y.iter_mut().zip(x).zip(weight).zip(bias) {
                    *y = (x - mean) * rstd * w + b;
                }
            }
        }
    }

    /// The sums of `g` and of `g * (x - mean)`.
    pub(super) fn products<T: Lane>(g: &[T], x: &[T], mean: T) -> [f64; 2] {
        let mut sums = [0.0; 2];
        for (g, x) in g.chunks(RUN).zip(x.chunks(RUN)) {
            let (mut plain, mut mixed) = ([T::ZERO; LANES], [T::ZERO; LANES]);
            let (mut gs, mut xs) = (g.chunks_exact(LANES), x.chunks_exact(LANES));
            for (g, x) in (&mut gs).zip(&mut xs) {
                for (((plain, mixed), &g), &x) in plain.iter_mut().zip(&mut mixed).zip(g).zip(x) {
                    *plain = *plain + g;
                    *mixed = *mixed + g * (x - mean);
                }
            }
            let rest = gs.remainder().iter().zip(xs.remainder());
            for ((plain, mixed), (&g, &x)) in plain.iter_mut().zip(&mut mixed).zip(rest) {
                *plain = *plain + g;
                *mixed = *mixed + g * (x - mean);
            }
            sums = [sums[0] + total(plain), sums[1] + total(mixed)];
        }
        sums
    }

    /// The sums of `g * w` and of `g * w * (x - mean)`.
    pub(super) fn weighted_products<T: Lane>(g: &[T], w: &[T], x: &[T], mean: T) -> [f64; 2] {
        let mut sums = [0.0; 2];
        for ((g, w), x) in g.chunks(RUN).zip(w.chunks(RUN)).zip(x.chunks(RUN)) {
            let (mut plain, mut mixed) = ([T::ZERO; LANES], [T::ZERO; LANES]);
            let (mut gs, mut ws, mut xs) = (g.chunks_exact(LANES), w.chunks_exact(LANES), x.chunks_exact(LANES));
            for ((g, w), x) in (&mut gs).zip(&mut ws).zip(&mut xs) {
                for ((((plain, mixed), &g), &w), &x) in plain.iter_mut().zip(&mut mixed).zip(g).zip(w).zip(x) {
                    *plain = *plain + g * w;
                    *mixed = *mixed + g * w * (x - mean);
                }
            }
            let rest = gs.remainder().iter().zip(ws.remainder()).zip(xs.remainder());
            for ((plain, mixed), ((&g, &w), &x)) in plain.iter_mut().zip(&mut mixed).zip(rest) {
                *plain = *plain + g * w;
                *mixed = *mixed + g * w * (x - mean);
            }
            sums = [sums[0] + total(plain), sums[1] + total(mixed)];
        }
        sums
    }

    /// `dx = g * scale - (x - mean) * slope - shift`.
    pub(super) fn input_gradient<T: Lane>(g: &[T], x: &[T], dx: &mut [T], mean: T, by: Slopes<T>) {
        let Slopes { scale, slope, shift } = by;
        for ((dx, &g), &x) in dx.iter_mut().zip(g).zip(x) {
            *dx = g * scale - (x - mean) * slope - shift;
        }
    }

    /// The same with a weight for each element.
    pub(super) fn weighted_input_gradient<T: Lane>(g: &[T], w: &[T], x: &[T], dx: &mut [T], mean: T, by: Slopes<T>) {
        let Slopes { scale, slope, shift } = by;
        for (((dx, &g), &w), &x) in dx.iter_mut().zip(g).zip(w).zip(x) {
            *dx = g * w * scale - (x - mean) * slope - shift;
        }
    }

    /// `d_weight += g * (x - mean) * rstd` and `d_bias += g`.
    pub(super) fn add_parameter_gradients<T: Lane>(
        g: &[T],
        x: &[T],
        mean: T,
        rstd: T,
        d_weight: &mut [T],
        d_bias: &mut [T],
    ) {
        for (((dw, db), &g), &x) in d_weight.iter_mut().zip(d_bias).zip(g).zip(x) {
            *dw = *dw + g * (x - mean) * rstd;
            *db = *db + g;
        }
    }

    /// `into += from`, which is cleared.
    pub(super) fn drain<T: Lane>(from: &mut [T], into: &mut [f64]) {
        for (into, from) in into.iter_mut().zip(from) {
            *into += Element::to_f64(*from);
            *from = T::ZERO;
        }
    }
}
