//! Running sums on the native CPU.

use netcl_core::dtype::Element;
use netcl_core::simd;

use crate::lines::{LineKernel, MAX_LINES, RowsMut};
use crate::reduce::Lane;

/// The running sum.
#[derive(Clone, Copy)]
pub(super) struct Cumsum;

impl LineKernel for Cumsum {
    const BLOCK: usize = usize::MAX;

    fn line<T: Lane>(self, x: &[T], y: &mut [T]) {
        line(x, y);
    }

    fn block<T: Lane>(self, x: &[T], step: usize, rows: usize, y: &mut RowsMut<'_, T>, _scratch: &mut Vec<T>) {
        block(x, step, rows, y);
    }
}

simd! {
    fn line<T: Lane>(x: &[T], y: &mut [T]) {
        let mut total = 0.0;
        // Eight at a time: only one addition in eight waits for the one before.
        let mut xs = x.chunks_exact(8);
        let mut ys = y.chunks_exact_mut(8);
        for (x, y) in (&mut xs).zip(&mut ys) {
            let mut v = [0.0f64; 8];
            for (v, &x) in v.iter_mut().zip(x) {
                *v = Element::to_f64(x);
            }
            for distance in [1, 2, 4] {
                let before = v;
                for i in distance..8 {
                    v[i] = before[i] + before[i - distance];
                }
            }
            for (y, v) in y.iter_mut().zip(v) {
                *y = <T as Element>::from_f64(total + v);
            }
            total += v[7];
        }
        for (&x, y) in xs.remainder().iter().zip(ys.into_remainder()) {
            total += Element::to_f64(x);
            *y = <T as Element>::from_f64(total);
        }
    }

    fn block<T: Lane>(x: &[T], step: usize, rows: usize, y: &mut RowsMut<'_, T>) {
        let n = y.row(0).len();
        let mut totals = [0.0f64; MAX_LINES];
        let totals = &mut totals[..n];
        for i in 0..rows {
            for ((y, &x), total) in y.row(i).iter_mut().zip(&x[i * step..i * step + n]).zip(&mut *totals) {
                *total += Element::to_f64(x);
                *y = <T as Element>::from_f64(*total);
            }
        }
    }
}
