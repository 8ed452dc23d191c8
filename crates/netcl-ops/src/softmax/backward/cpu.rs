//! The gradients on the native CPU.

use netcl_core::Result;
use netcl_core::backend::cpu::parallel_for;
use netcl_core::backend::cpu::simd::{Level, level};
use netcl_core::dtype::Element;
use netcl_core::kernels::expr::vecmath::Real;
use netcl_core::simd;

use super::Shape;
use crate::dense::{Job, Stored, Views, with_stored};
use crate::reduce::Lane;
use crate::softmax::cpu::{Fused, No, Yes, exp};

/// Elements that one task should have at least.
const TASK: usize = 1 << 15;
/// Elements of a run that is summed in the type of the computation, and the lanes of such a sum.
const RUN: usize = 1024;
const LANES: usize = 64;
/// Neighbouring lines that are handled together, vectorised across them, and the rows summed in their own type.
const COLUMNS: usize = 128;
const RUN_ROWS: usize = 16;

/// Tensors: upstream, y, gradient.
pub(super) fn run(job: Job, shape: Shape, log: bool) -> Result<()> {
    let (op, dtype) = (job.name, job.dtype);
    job.run_cpu(move |views| with_stored!(dtype, E => run_of::<E>(op, views, shape, log)))
}

fn run_of<E: Stored>(op: &'static str, views: &Views<'_, '_>, shape: Shape, log: bool) -> Result<()> {
    let (upstream, y, out) = (views.input::<E>(0)?, views.input::<E>(1)?, views.output::<E>(2)?);
    let Shape { outer, len, inner } = shape;
    if inner == 1 {
        return parallel_for(op, outer, (TASK / len).max(1), |range| {
            let mut scratch = [Vec::new(), Vec::new(), Vec::new()];
            let [g_scratch, y_scratch, to] = &mut scratch;
            for row in range {
                let at = row * len;
                let (g, y) = (E::widen(&upstream[at..at + len], g_scratch), E::widen(&y[at..at + len], y_scratch));
                // SAFETY: every line belongs to one task.
                let out = unsafe { out.part(at, len) };
                E::fill(out, to, |out| match level() {
                    Level::Avx2 => line(Yes, g, y, out, log),
                    Level::Baseline => line(No, g, y, out, log),
                });
            }
        });
    }
    let blocks = inner.div_ceil(COLUMNS);
    parallel_for(op, outer * blocks, (TASK / (len * COLUMNS.min(inner))).max(1), |range| {
        let mut scratch = [Vec::new(), Vec::new(), Vec::new()];
        for block in range {
            let first = block % blocks * COLUMNS;
            let width = COLUMNS.min(inner - first);
            let at = |row: usize| (block / blocks * len + row) * inner + first;
            let totals = totals::<E>(upstream, y, len, width, at, &mut scratch, log);
            let [g_scratch, y_scratch, to] = &mut scratch;
            for row in 0..len {
                let at = at(row);
                let (g, y) = (E::widen(&upstream[at..at + width], g_scratch), E::widen(&y[at..at + width], y_scratch));
                // SAFETY: every part of a row belongs to one block, and every block to one task.
                let out = unsafe { out.part(at, width) };
                E::fill(out, to, |out| match level() {
                    Level::Avx2 => finish(Yes, g, y, &totals[..width], out, log),
                    Level::Baseline => finish(No, g, y, &totals[..width], out, log),
                });
            }
        }
    })
}

/// The sums of neighbouring lines.
fn totals<E: Stored>(
    upstream: &[E],
    y: &[E],
    len: usize,
    width: usize,
    at: impl Fn(usize) -> usize,
    scratch: &mut [Vec<E::Lane>; 3],
    log: bool,
) -> [E::Lane; COLUMNS] {
    let [g_scratch, y_scratch, _] = scratch;
    let mut totals = [0.0f64; COLUMNS];
    for run in (0..len).step_by(RUN_ROWS) {
        let mut sums = [E::Lane::ZERO; COLUMNS];
        for row in run..len.min(run + RUN_ROWS) {
            let at = at(row);
            let g = E::widen(&upstream[at..at + width], g_scratch);
            // The logarithm's sum is of the gradients alone.
            let y = if log { g } else { E::widen(&y[at..at + width], y_scratch) };
            add_terms(g, y, &mut sums[..width], log);
        }
        for (total, &sum) in totals.iter_mut().zip(&sums) {
            *total += Element::to_f64(sum);
        }
    }
    totals.map(<E::Lane as Real>::from_f64)
}

/// The sum of `of(g, y)` over a line, in lanes.
#[inline(always)]
fn sum_of<T: Lane>(g: &[T], y: &[T], of: impl Fn(T, T) -> T) -> T {
    let mut sum = 0.0;
    for (g, y) in g.chunks(RUN).zip(y.chunks(RUN)) {
        let mut lanes = [T::ZERO; LANES];
        for (g, y) in g.chunks(LANES).zip(y.chunks(LANES)) {
            for ((lane, &g), &y) in lanes.iter_mut().zip(g).zip(y) {
                *lane = *lane + of(g, y);
            }
        }
        for lane in lanes {
            sum += Element::to_f64(lane);
        }
    }
    <T as Real>::from_f64(sum)
}

simd! {
    fn line<F: Fused, T: Lane>(_fused: F, g: &[T], y: &[T], out: &mut [T], log: bool) {
        if log {
            let total = sum_of(g, g, |g, _| g);
            for ((out, &g), &y) in out.iter_mut().zip(g).zip(y) {
                *out = g - exp::<T, F>(y) * total;
            }
        } else {
            let total = sum_of(g, y, |g, y| g * y);
            for ((out, &g), &y) in out.iter_mut().zip(g).zip(y) {
                *out = y * (g - total);
            }
        }
    }

    fn add_terms<T: Lane>(g: &[T], y: &[T], sums: &mut [T], log: bool) {
        if log {
            for (sum, &g) in sums.iter_mut().zip(g) {
                *sum = *sum + g;
            }
        } else {
            for ((sum, &g), &y) in sums.iter_mut().zip(g).zip(y) {
                *sum = *sum + g * y;
            }
        }
    }

    fn finish<F: Fused, T: Lane>(_fused: F, g: &[T], y: &[T], totals: &[T], out: &mut [T], log: bool) {
        let each = out.iter_mut().zip(g).zip(y).zip(totals);
        if log {
            for (((out, &g), &y), &total) in each {
                *out = g - exp::<T, F>(y) * total;
            }
        } else {
            for (((out, &g), &y), &total) in each {
                *out = y * (g - total);
            }
        }
    }
}
