//! Softmax on the native CPU: maximum, exponentials with their sum, scaling; lines stay in the cache between the passes.

#[cfg(target_arch = "x86_64")]
mod avx512;

use netcl_core::backend::cpu::simd::{Level, level};
#[cfg(target_arch = "x86_64")]
use netcl_core::dtype::DType;
use netcl_core::dtype::Element;
use netcl_core::kernels::expr::vecmath::Real;
use netcl_core::simd;

use crate::lines::{LineKernel, MAX_LINES, RowsMut};
use crate::reduce::{Lane, Max, Op, Sum, plain_row};

/// Softmax, or its logarithm.
#[derive(Clone, Copy)]
pub(super) struct Softmax {
    pub(super) log: bool,
}

/// Whether a fused multiply-add is one instruction, as a type: `simd!` knows no constants.
pub(super) trait Fused: Copy {
    const FMA: bool;
}

#[derive(Clone, Copy)]
pub(super) struct Yes;
#[derive(Clone, Copy)]
pub(super) struct No;

impl Fused for Yes {
    const FMA: bool = true;
}

impl Fused for No {
    const FMA: bool = cfg!(target_arch = "aarch64");
}

impl LineKernel for Softmax {
    /// Four megabytes of f32: rows long enough for the prefetcher matter more than the second-level cache.
    const BLOCK: usize = 1 << 20;

    fn line<T: Lane>(self, x: &[T], y: &mut [T]) {
        #[cfg(target_arch = "x86_64")]
        if let Some((x, y)) = wide(x, y) {
            // SAFETY: `wide` asked for AVX-512.
            return unsafe { avx512::line(x, y, self.log) };
        }
        match level() {
            Level::Avx2 => line(Yes, x, y, self.log),
            Level::Baseline => line(No, x, y, self.log),
        }
    }

    fn block<T: Lane>(self, x: &[T], step: usize, rows: usize, y: &mut RowsMut<'_, T>, scratch: &mut Vec<T>) {
        scratch.resize(rows * y.row(0).len(), T::ZERO);
        match level() {
            Level::Avx2 => block(Yes, x, step, rows, y, scratch, self.log),
            Level::Baseline => block(No, x, step, rows, y, scratch, self.log),
        }
    }
}

#[inline(always)]
pub(super) fn exp<T: Real, F: Fused>(x: T) -> T {
    if F::FMA { x.exp::<true>() } else { x.exp::<false>() }
}

/// Elements whose exponentials are summed in the type of the computation.
const RUN: usize = 512;
/// The same for rows of a block.
const RUN_ROWS: usize = 16;

/// A line and its result as f32, where that is what they are and the processor has wider registers than `simd!` uses.
#[cfg(target_arch = "x86_64")]
fn wide<'l, T: Lane>(x: &'l [T], y: &'l mut [T]) -> Option<(&'l [f32], &'l mut [f32])> {
    if T::DTYPE != DType::F32 || !netcl_core::backend::cpu::simd::avx512() {
        return None;
    }
    let (n, m, to) = (x.len(), y.len(), y.as_mut_ptr().cast::<f32>());
    // SAFETY: T is f32, whatever the compiler calls it, and the slices stay borrowed.
    Some(unsafe { (std::slice::from_raw_parts(x.as_ptr().cast::<f32>(), n), std::slice::from_raw_parts_mut(to, m)) })
}

/// `exp(x - top)` into `y`, and the sum.
pub(crate) fn powers<T: Lane>(x: &[T], top: T, y: &mut [T]) -> f64 {
    #[cfg(target_arch = "x86_64")]
    if let Some((x, y)) = wide(x, y) {
        // SAFETY: `wide` asked for AVX-512.
        return unsafe { avx512::powers(x, Element::to_f64(top) as f32, y) };
    }
    match level() {
        Level::Avx2 => narrow_powers(Yes, x, top, y),
        Level::Baseline => narrow_powers(No, x, top, y),
    }
}

simd! {
    fn narrow_powers<F: Fused, T: Lane>(_fused: F, x: &[T], top: T, y: &mut [T]) -> f64 {
        let mut total = 0.0;
        for (x, y) in x.chunks(RUN).zip(y.chunks_mut(RUN)) {
            for (y, &x) in y.iter_mut().zip(x) {
                *y = exp::<T, F>(x - top);
            }
            total += plain_row::<T, Sum>(y);
        }
        total
    }

    fn line<F: Fused, T: Lane>(fused: F, x: &[T], y: &mut [T], log: bool) {
        let top = <T as Real>::from_f64(plain_row::<T, Max>(x));
        let total = narrow_powers(fused, x, top, y);
        if log {
            let total = <T as Real>::from_f64(total.ln());
            for (y, &x) in y.iter_mut().zip(x) {
                *y = (x - top) - total;
            }
        } else {
            let scale = <T as Real>::from_f64(total.recip());
            for y in y.iter_mut() {
                *y = *y * scale;
            }
        }
    }

    fn block<F: Fused, T: Lane>(
        _fused: F,
        x: &[T],
        step: usize,
        rows: usize,
        y: &mut RowsMut<'_, T>,
        scratch: &mut [T],
        log: bool,
    ) {
        let n = y.row(0).len();
        let (mut top, mut sums, mut totals) = ([T::ZERO; MAX_LINES], [T::ZERO; MAX_LINES], [0.0; MAX_LINES]);
        let (top, sums, totals) = (&mut top[..n], &mut sums[..n], &mut totals[..n]);
        let powers = &mut [T::ZERO; MAX_LINES][..n];
        top.fill(<T as Real>::from_f64(Max::IDENTITY));
        // The rows of a block lie far apart, often at distances that share few sets of a cache: a dense copy stays in it.
        for (i, copy) in scratch.chunks_exact_mut(n).enumerate() {
            for ((top, copy), &x) in top.iter_mut().zip(copy).zip(&x[i * step..i * step + n]) {
                *copy = x;
                *top = Max::join(*top, x);
            }
        }
        for run in scratch.chunks_mut(RUN_ROWS * n) {
            sums.fill(T::ZERO);
            // One simple loop after the other over a row that stays in the first-level cache: each one vectorises.
            for row in run.chunks_exact_mut(n) {
                for (v, &top) in row.iter_mut().zip(&*top) {
                    *v = *v - top;
                }
                for (e, &v) in powers.iter_mut().zip(&*row) {
                    *e = exp::<T, F>(v);
                }
                for (sum, &e) in sums.iter_mut().zip(&*powers) {
                    *sum = *sum + e;
                }
                if !log {
                    row.copy_from_slice(powers);
                }
            }
            for (total, &sum) in totals.iter_mut().zip(&*sums) {
                *total += Element::to_f64(sum);
            }
        }
        // From here on `sums` holds what the last pass subtracts or multiplies with.
        for (sum, &total) in sums.iter_mut().zip(&*totals) {
            *sum = <T as Real>::from_f64(if log { total.ln() } else { total.recip() });
        }
        for (i, row) in scratch.chunks_exact(n).take(rows).enumerate() {
            let row = y.row(i).iter_mut().zip(row).zip(&*sums);
            if log {
                row.for_each(|((y, &v), &last)| *y = v - last);
            } else {
                row.for_each(|((y, &v), &last)| *y = v * last);
            }
        }
    }
}
