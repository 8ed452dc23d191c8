//! The innermost loops: means and squared deviations, products with deviations, and the passes that use them.
//!
//! A run is short enough for the first-level cache and is summed in the type of the computation, in independent lanes; runs
//! are merged in f64.

use netcl_core::dtype::Element;
use netcl_core::kernels::expr::vecmath::Real;
use netcl_core::simd;

use crate::reduce::Lane;

/// Elements of a run.
const RUN: usize = 1024;
/// Lanes of a sum: enough to hide how long one addition takes. Two sums at once share them.
const LANES: usize = 64;
const HALF_LANES: usize = LANES / 2;
/// Elements between two hints about what is read next: a cache line of f32.
pub(super) const LINE: usize = 16;

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
#[derive(Clone, Copy, Default)]
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
fn total<T: Lane, const N: usize>(mut lanes: [T; N]) -> f64 {
    let mut width = N / 2;
    while width > 0 {
        let (low, high) = lanes.split_at_mut(width);
        for (low, &high) in low.iter_mut().zip(&*high) {
            *low = *low + high;
        }
        width /= 2;
    }
    Element::to_f64(lanes[0])
}

/// The sum of something of each element of a run.
#[inline(always)]
fn run_sum<T: Lane>(run: &[T], of: impl Fn(T) -> T) -> f64 {
    let mut lanes = [T::ZERO; LANES];
    let (parts, rest) = run.as_chunks::<LANES>();
    for part in parts {
        for (lane, &x) in lanes.iter_mut().zip(part) {
            *lane = *lane + of(x);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane = *lane + of(x);
    }
    total(lanes)
}

/// Asks for memory that will be read soon. The place may be anywhere: nothing is read.
#[inline(always)]
pub(super) fn prefetch<E>(place: *const E) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint that every x86-64 processor knows, and that never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(place.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

simd! {
    /// The moments of a row. (Loops, not `fold`: that would be compiled on its own, without these instructions.)
    pub(super) fn moments<T: Lane>(x: &[T]) -> Moments {
        let mut so_far = Moments::default();
        for run in x.chunks(RUN) {
            let n = run.len() as f64;
            let mean = run_sum(run, |x| x) / n;
            let rounded = real::<T>(mean);
            let off = mean - Element::to_f64(rounded);
            let squares = run_sum(run, |x| (x - rounded) * (x - rounded));
            so_far = so_far.merge(Moments::around(n, mean, squares, off));
        }
        so_far
    }

    /// The same around zero: the mean of the result is 0, its `m2` the sum of squares.
    pub(super) fn square_sum<T: Lane>(x: &[T]) -> Moments {
        let mut m2 = 0.0;
        for run in x.chunks(RUN) {
            m2 += run_sum(run, |x| x * x);
        }
        Moments { n: x.len() as f64, mean: 0.0, m2 }
    }

    /// `y = (x - mean) * scale + shift`. Meanwhile the memory at `next`, which is read next, moves into the cache.
    pub(super) fn scale<T: Lane, E: Element>(x: &[T], y: &mut [T], mean: T, scale: T, shift: T, next: *const E) {
        let each = |(y, &x): (&mut T, &T)| *y = (x - mean) * scale + shift;
        let ((lines, x), (to, y)) = (x.as_chunks::<LINE>(), y.as_chunks_mut::<LINE>());
        let mut ahead = next;
        for (x, y) in lines.iter().zip(to) {
            prefetch(ahead);
            ahead = ahead.wrapping_add(LINE);
            y.iter_mut().zip(x).for_each(each);
        }
        y.iter_mut().zip(x).for_each(each);
    }

    /// `y = (x - mean) * rstd * weight + bias`, and the same with `next`.
    pub(super) fn scale_each<T: Lane, E: Element>(
        x: &[T],
        y: &mut [T],
        mean: T,
        rstd: T,
        weight: &[T],
        bias: &[T],
        next: *const E,
    ) {
        let each = |(((y, &x), &w), &b): (((&mut T, &T), &T), &T)| *y = (x - mean) * rstd * w + b;
        let ((lines, x), (to, y)) = (x.as_chunks::<LINE>(), y.as_chunks_mut::<LINE>());
        let ((weights, weight), (biases, bias)) = (weight.as_chunks::<LINE>(), bias.as_chunks::<LINE>());
        let mut ahead = next;
        for (((x, y), w), b) in lines.iter().zip(to).zip(weights).zip(biases) {
            prefetch(ahead);
            ahead = ahead.wrapping_add(LINE);
            y.iter_mut().zip(x).zip(w).zip(b).for_each(each);
        }
        y.iter_mut().zip(x).zip(weight).zip(bias).for_each(each);
    }

    /// The sums of `g` and of `g * (x - mean)`.
    pub(super) fn products<T: Lane>(g: &[T], x: &[T], mean: T) -> [f64; 2] {
        let mut sums = [0.0; 2];
        for (g, x) in g.chunks(RUN).zip(x.chunks(RUN)) {
            let (mut plain, mut mixed) = ([T::ZERO; HALF_LANES], [T::ZERO; HALF_LANES]);
            let (mut gs, mut xs) = (g.chunks_exact(HALF_LANES), x.chunks_exact(HALF_LANES));
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
            let (mut plain, mut mixed) = ([T::ZERO; HALF_LANES], [T::ZERO; HALF_LANES]);
            let (mut gs, mut ws, mut xs) = (g.chunks_exact(HALF_LANES), w.chunks_exact(HALF_LANES), x.chunks_exact(HALF_LANES));
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
