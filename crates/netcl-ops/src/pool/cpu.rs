//! Pooling on the native CPU: planes are the tasks.
//!
//! Fixed windows go tap by tap: element (kh, kw) of all windows of a row lies at a fixed distance, which makes loops without
//! branches. Adaptive windows differ in size and go one by one.

use netcl_core::Result;
use netcl_core::backend::cpu::parallel_for;
use netcl_core::kernels::expr::vecmath::Real;
use netcl_core::simd;

use super::average::Averaging;
use super::geometry::{Axis, Plane};
use crate::norm::dense::{Job, Output, Stored, Views, with_stored};
use crate::reduce::{Lane, Sum, plain_row};

/// Elements that one task should have at least.
const TASK: usize = 1 << 14;

simd! {
    /// Keeps the larger of `best` and every `stride`-th element of `x`, and where it was found; -1 is nowhere yet.
    fn keep_larger<T: Lane>(x: &[T], stride: usize, best: &mut [T], place: &mut [i32], first: i32) {
        #[inline(always)]
        fn keep<T: Lane>(x: T, at: i32, best: &mut T, place: &mut i32) {
            #[allow(clippy::eq_op, reason = "x != x is the test for NaN that vectorises")]
            let better = (x > *best) | (x != x) | (*place < 0);
            *best = if better { x } else { *best };
            *place = if better { at } else { *place };
        }
        let results = best.iter_mut().zip(place).enumerate();
        if stride == 1 {
            for ((i, (best, place)), &x) in results.zip(x) {
                keep(x, first + i as i32, best, place);
            }
        } else {
            for ((i, (best, place)), x) in results.zip(x.chunks(stride)) {
                keep(x[0], first + (i * stride) as i32, best, place);
            }
        }
    }

    /// `total += x`, for every `stride`-th element.
    fn add_strided<T: Lane>(x: &[T], stride: usize, total: &mut [T]) {
        if stride == 1 {
            total.iter_mut().zip(x).for_each(|(total, &x)| *total = *total + x);
        } else {
            total.iter_mut().zip(x.chunks(stride)).for_each(|(total, x)| *total = *total + x[0]);
        }
    }

    /// The reverse: adds to every `stride`-th element of `to`.
    fn spread_strided<T: Lane>(x: &[T], stride: usize, to: &mut [T]) {
        if stride == 1 {
            to.iter_mut().zip(x).for_each(|(to, &x)| *to = *to + x);
        } else {
            to.chunks_mut(stride).zip(x).for_each(|(to, &x)| to[0] = to[0] + x);
        }
    }

    /// `y = x * by`, element by element.
    fn multiply<T: Lane>(x: &[T], by: &[T], y: &mut [T]) {
        for ((y, &x), &by) in y.iter_mut().zip(x).zip(by) {
            *y = x * by;
        }
    }

    fn row_sum<T: Lane>(x: &[T]) -> f64 {
        plain_row::<T, Sum>(x)
    }
}

/// Runs a body for each plane, with the memory a task keeps.
fn each_plane<S: Default>(
    op: &'static str,
    plane: Plane,
    count: usize,
    body: impl Fn(usize, &mut S) + Sync,
) -> Result<()> {
    let [height, width] = plane.axes;
    let size = (height.input * width.input).max(height.output * width.output);
    parallel_for(op, count, (TASK / size).max(1), |range| {
        let mut memory = S::default();
        range.for_each(|i| body(i, &mut memory));
    })
}

/// The sizes of an input plane and of a result.
fn sizes(plane: Plane) -> (usize, usize) {
    let [height, width] = plane.axes;
    (height.input * width.input, height.output * width.output)
}

/// Calls `body` with row of results, row of the input, and the taps of the width, for every tap of the height.
fn each_tap(plane: Plane, mut body: impl FnMut(usize, usize, Tap)) {
    let [height, width] = plane.axes;
    let taps: Vec<Tap> = (0..width.kernel)
        .map(|k| {
            let (windows, column) = width.tap(k);
            Tap { start: windows.start, len: windows.len(), column }
        })
        .filter(|tap| tap.len > 0)
        .collect();
    // Height taps by row, so that a row of results stays in the cache until it is done.
    for o in 0..height.output {
        for k in 0..height.kernel {
            let (windows, row) = height.tap(k);
            if windows.contains(&o) {
                let row = row + (o - windows.start) * height.stride;
                taps.iter().for_each(|&tap| body(o, row, tap));
            }
        }
    }
}

/// One element of all windows of a row that have it.
#[derive(Clone, Copy)]
struct Tap {
    /// The first window.
    start: usize,
    len: usize,
    /// Where the first window has it.
    column: usize,
}

/// Tensors: x, output, places.
pub(super) fn max(job: Job, plane: Plane, count: usize) -> Result<()> {
    let (op, dtype) = (job.name, job.dtype);
    job.run_cpu(move |views| with_stored!(dtype, E => max_of::<E>(op, views, plane, count)))
}

fn max_of<E: Stored>(op: &'static str, views: &Views<'_, '_>, plane: Plane, count: usize) -> Result<()> {
    let (x, y, places) = (views.input::<E>(0)?, views.output::<E>(1)?, views.output::<i32>(2)?);
    let (size, results) = sizes(plane);
    each_plane(op, plane, count, |i, (from, to): &mut (Vec<E::Lane>, Vec<E::Lane>)| {
        let x = E::widen(&x[i * size..][..size], from);
        // SAFETY: every plane belongs to one task.
        let (y, places) = unsafe { (y.part(i * results, results), places.part(i * results, results)) };
        places.fill(-1);
        E::fill(y, to, |y| {
            y.fill(<E::Lane as Real>::from_f64(f64::NEG_INFINITY));
            if plane.adaptive { max_adaptive(plane, x, y, places) } else { max_fixed(plane, x, y, places) }
        });
    })
}

fn max_fixed<T: Lane>(plane: Plane, x: &[T], y: &mut [T], places: &mut [i32]) {
    let width = plane.axes[1];
    each_tap(plane, |o, row, tap| {
        let (at, to) = (row * width.input + tap.column, o * width.output + tap.start);
        let x = &x[at..(row + 1) * width.input];
        keep_larger(x, width.stride, &mut y[to..][..tap.len], &mut places[to..][..tap.len], at as i32);
    });
}

fn max_adaptive<T: Lane>(plane: Plane, x: &[T], y: &mut [T], places: &mut [i32]) {
    let [height, width] = plane.axes;
    for oh in 0..height.output {
        for row in height.covered(oh, true) {
            for ow in 0..width.output {
                let (columns, to) = (width.covered(ow, true), oh * width.output + ow);
                for column in columns {
                    let at = row * width.input + column;
                    keep_larger(&x[at..=at], 1, &mut y[to..=to], &mut places[to..=to], at as i32);
                }
            }
        }
    }
}

/// Tensors: gradient, places, input gradient.
pub(super) fn max_backward(job: Job, plane: Plane, count: usize) -> Result<()> {
    let (op, dtype) = (job.name, job.dtype);
    job.run_cpu(move |views| with_stored!(dtype, E => max_backward_of::<E>(op, views, plane, count)))
}

fn max_backward_of<E: Stored>(op: &'static str, views: &Views<'_, '_>, plane: Plane, count: usize) -> Result<()> {
    let (grad, places, to) = (views.input::<E>(0)?, views.input::<i32>(1)?, views.output::<E>(2)?);
    let (size, results) = sizes(plane);
    each_plane(op, plane, count, |i, (from, own): &mut (Vec<E::Lane>, Vec<E::Lane>)| {
        let grad = E::widen(&grad[i * results..][..results], from);
        // SAFETY: every plane belongs to one task.
        E::fill(unsafe { to.part(i * size, size) }, own, |to| {
            to.fill(E::Lane::ZERO);
            for (&g, &place) in grad.iter().zip(&places[i * results..][..results]) {
                // Places outside the plane, also -1, are nobody's.
                if let Some(to) = usize::try_from(place).ok().and_then(|place| to.get_mut(place)) {
                    *to = *to + g;
                }
            }
        });
    })
}

/// What each window's sum is divided by: the factors of rows of windows, and of columns.
fn shares(plane: Plane, averaging: Averaging) -> [Vec<f64>; 2] {
    let [height, width] = plane.axes;
    let one = |axis: Axis| -> Vec<f64> {
        let count = |o| axis.counted(o, plane.adaptive, averaging.count_include_pad) as f64;
        (0..axis.output).map(|o| if averaging.divisor.is_some() { 1.0 } else { count(o) }).collect()
    };
    let rows = one(height).into_iter().map(|n| n * averaging.divisor.unwrap_or(1) as f64).collect();
    [rows, one(width)]
}

/// Tensors: x, output.
pub(super) fn average(job: Job, plane: Plane, averaging: Averaging, count: usize) -> Result<()> {
    let (op, dtype) = (job.name, job.dtype);
    job.run_cpu(move |views| {
        with_stored!(dtype, E => {
            let (x, y) = (views.input::<E>(0)?, views.output::<E>(1)?);
            average_of(op, x, y, plane, averaging, count)
        })
    })
}

fn average_of<E: Stored>(
    op: &'static str,
    x: &[E],
    y: Output<'_, E>,
    plane: Plane,
    averaging: Averaging,
    count: usize,
) -> Result<()> {
    let by = reciprocals::<E::Lane>(plane, averaging);
    let (size, results) = sizes(plane);
    each_plane(op, plane, count, |i, [from, to, sums]: &mut [Vec<E::Lane>; 3]| {
        let x = E::widen(&x[i * size..][..size], from);
        sums.clear();
        sums.resize(results, E::Lane::ZERO);
        let width = plane.axes[1];
        if plane.adaptive {
            sum_adaptive(plane, x, sums);
        } else {
            each_tap(plane, |o, row, tap| {
                let x = &x[row * width.input + tap.column..(row + 1) * width.input];
                add_strided(x, width.stride, &mut sums[o * width.output + tap.start..][..tap.len]);
            });
        }
        // SAFETY: every plane belongs to one task.
        E::fill(unsafe { y.part(i * results, results) }, to, |y| multiply(sums, &by, y));
    })
}

/// One divided by each window's divisor.
fn reciprocals<T: Lane>(plane: Plane, averaging: Averaging) -> Vec<T> {
    let [rows, columns] = shares(plane, averaging);
    rows.iter().flat_map(|r| columns.iter().map(move |c| <T as Real>::from_f64((r * c).recip()))).collect()
}

fn sum_adaptive<T: Lane>(plane: Plane, x: &[T], sums: &mut [T]) {
    let [height, width] = plane.axes;
    for (i, sum) in sums.iter_mut().enumerate() {
        let (rows, columns) = (height.covered(i / width.output, true), width.covered(i % width.output, true));
        let total = if columns.len() == width.input {
            row_sum(&x[rows.start * width.input..rows.end * width.input])
        } else {
            rows.map(|row| row_sum(&x[row * width.input..][columns.clone()])).sum()
        };
        *sum = <T as Real>::from_f64(total);
    }
}

/// Tensors: gradient, input gradient.
pub(super) fn average_backward(job: Job, plane: Plane, averaging: Averaging, count: usize) -> Result<()> {
    let (op, dtype) = (job.name, job.dtype);
    job.run_cpu(move |views| {
        with_stored!(dtype, E => {
            let (grad, to) = (views.input::<E>(0)?, views.output::<E>(1)?);
            average_backward_of(op, grad, to, plane, averaging, count)
        })
    })
}

fn average_backward_of<E: Stored>(
    op: &'static str,
    grad: &[E],
    to: Output<'_, E>,
    plane: Plane,
    averaging: Averaging,
    count: usize,
) -> Result<()> {
    let by = reciprocals::<E::Lane>(plane, averaging);
    let (size, results) = sizes(plane);
    let [height, width] = plane.axes;
    each_plane(op, plane, count, |i, [from, own, shared]: &mut [Vec<E::Lane>; 3]| {
        shared.resize(results, E::Lane::ZERO);
        multiply(E::widen(&grad[i * results..][..results], from), &by, shared);
        // SAFETY: every plane belongs to one task.
        E::fill(unsafe { to.part(i * size, size) }, own, |to| {
            to.fill(E::Lane::ZERO);
            if plane.adaptive {
                for (i, &g) in shared.iter().enumerate() {
                    let columns = width.covered(i % width.output, true);
                    for row in height.covered(i / width.output, true) {
                        to[row * width.input..][columns.clone()].iter_mut().for_each(|to| *to = *to + g);
                    }
                }
            } else {
                each_tap(plane, |o, row, tap| {
                    let to = &mut to[row * width.input + tap.column..(row + 1) * width.input];
                    spread_strided(&shared[o * width.output + tap.start..][..tap.len], width.stride, to);
                });
            }
        });
    })
}
