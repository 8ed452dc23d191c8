//! Resampling on the native CPU: planes are the tasks; bilinear rows are blended first, then columns.

use netcl_core::Result;
use netcl_core::backend::cpu::parallel_for;
use netcl_core::dtype::Element;
use netcl_core::host;
use netcl_core::kernels::expr::vecmath::Real;
use netcl_core::simd;

use super::{Axis, Mode, Plan};
use crate::dense::{Job, Output, Stored, with_stored};
use crate::reduce::Lane;

/// Elements that one task should have at least.
const TASK: usize = 1 << 14;

/// Where a result lies: between an element and its neighbour.
#[derive(Clone, Copy)]
struct Source<T> {
    first: usize,
    next: usize,
    /// The distance from the first; 0 for the nearest.
    share: T,
}

impl Axis {
    /// Where each result lies, rounded like the kernels do it.
    fn sources<T: Lane>(&self, op: &'static str, mode: Mode) -> Result<Vec<Source<T>>> {
        let real = |v: f64| <T as Real>::from_f64(v);
        let (scale, half) = (real(self.scale), real(0.5));
        let source = |o: usize| {
            let at = real(o as f64);
            let at = if mode == Mode::Centres { (at + half) * scale - half } else { at * scale };
            let at = if at < T::ZERO { T::ZERO } else { at };
            let whole = match mode {
                Mode::Nearest => f64::from((Element::to_f64(at) as f32).floor()),
                _ => Element::to_f64(at.floor()),
            };
            let first = (whole as usize).min(self.input - 1);
            let share = at - real(first as f64);
            let share = if share > T::ONE { T::ONE } else { share };
            match mode {
                Mode::Nearest => Source { first, next: first, share: T::ZERO },
                _ => Source { first, next: (first + 1).min(self.input - 1), share },
            }
        };
        host::collect(op, (0..self.output).map(source))
    }
}

simd! {
    fn blend<T: Lane>(a: &[T], b: &[T], share: T, to: &mut [T]) {
        let rest = T::ONE - share;
        for ((to, &a), &b) in to.iter_mut().zip(a).zip(b) {
            *to = a * rest + b * share;
        }
    }

    fn add_scaled<T: Lane>(x: &[T], by: T, to: &mut [T]) {
        for (to, &x) in to.iter_mut().zip(x) {
            *to = *to + x * by;
        }
    }
}

fn sizes(plan: Plan) -> (usize, usize) {
    let [height, width] = plan.axes;
    (height.input * width.input, height.output * width.output)
}

/// Tensors: x, output.
pub(super) fn forward(job: Job, plan: Plan) -> Result<()> {
    let (op, dtype) = (job.name, job.dtype);
    job.run_cpu(move |views| {
        with_stored!(dtype, E => {
            let (x, y) = (views.input::<E>(0)?, views.output::<E>(1)?);
            match plan.mode {
                Mode::Nearest => nearest(op, x, y, plan),
                _ => bilinear(op, x, y, plan),
            }
        })
    })
}

fn nearest<E: Stored>(op: &'static str, x: &[E], y: Output<'_, E>, plan: Plan) -> Result<()> {
    let [rows, columns] = tables::<E::Lane>(op, plan)?;
    let (size, results) = sizes(plan);
    let (width, to_width) = (plan.axes[1].input, plan.axes[1].output);
    parallel_for(op, plan.planes, (TASK / results).max(1), |range| {
        for plane in range {
            let x = &x[plane * size..][..size];
            // SAFETY: every plane belongs to one task.
            let y = unsafe { y.part(plane * results, results) };
            for (o, source) in rows.iter().enumerate() {
                let (done, rest) = y.split_at_mut(o * to_width);
                let to = &mut rest[..to_width];
                if o > 0 && rows[o - 1].first == source.first {
                    to.copy_from_slice(&done[(o - 1) * to_width..]);
                    continue;
                }
                let row = &x[source.first * width..][..width];
                to.iter_mut().zip(&columns).for_each(|(to, column)| *to = row[column.first]);
            }
        }
    })
}

fn tables<T: Lane>(op: &'static str, plan: Plan) -> Result<[Vec<Source<T>>; 2]> {
    let [height, width] = plan.axes;
    Ok([height.sources(op, plan.mode)?, width.sources(op, plan.mode)?])
}

fn bilinear<E: Stored>(op: &'static str, x: &[E], y: Output<'_, E>, plan: Plan) -> Result<()> {
    let [rows, columns] = tables::<E::Lane>(op, plan)?;
    let (size, results) = sizes(plan);
    let (width, to_width) = (plan.axes[1].input, plan.axes[1].output);
    parallel_for(op, plan.planes, (TASK / results).max(1), |range| {
        let (mut from, mut to, mut line) = (Vec::new(), Vec::new(), vec![E::Lane::ZERO; width]);
        for plane in range {
            let x = E::widen(&x[plane * size..][..size], &mut from);
            // SAFETY: every plane belongs to one task.
            E::fill(unsafe { y.part(plane * results, results) }, &mut to, |y| {
                for (to, row) in y.chunks_exact_mut(to_width).zip(&rows) {
                    blend(&x[row.first * width..][..width], &x[row.next * width..][..width], row.share, &mut line);
                    for (to, &Source { first, next, share }) in to.iter_mut().zip(&columns) {
                        *to = line[first] * (E::Lane::ONE - share) + line[next] * share;
                    }
                }
            });
        }
    })
}

/// Tensors: gradient, input gradient.
pub(super) fn backward(job: Job, plan: Plan) -> Result<()> {
    let (op, dtype) = (job.name, job.dtype);
    job.run_cpu(move |views| with_stored!(dtype, E => spread(op, views.input::<E>(0)?, views.output::<E>(1)?, plan)))
}

/// The columns of a row of gradients are added up first, then rows.
fn spread<E: Stored>(op: &'static str, grad: &[E], to: Output<'_, E>, plan: Plan) -> Result<()> {
    let [rows, columns] = tables::<E::Lane>(op, plan)?;
    let (size, results) = sizes(plan);
    let (width, from_width) = (plan.axes[1].input, plan.axes[1].output);
    parallel_for(op, plan.planes, (TASK / results.max(size)).max(1), |range| {
        let (mut from, mut own, mut line) = (Vec::new(), Vec::new(), vec![E::Lane::ZERO; width]);
        for plane in range {
            let grad = E::widen(&grad[plane * results..][..results], &mut from);
            // SAFETY: every plane belongs to one task.
            E::fill(unsafe { to.part(plane * size, size) }, &mut own, |to| {
                to.fill(E::Lane::ZERO);
                for (grad, row) in grad.chunks_exact(from_width).zip(&rows) {
                    line.fill(E::Lane::ZERO);
                    for (&g, &Source { first, next, share }) in grad.iter().zip(&columns) {
                        if plan.mode == Mode::Nearest {
                            line[first] = line[first] + g;
                        } else {
                            line[first] = line[first] + g * (E::Lane::ONE - share);
                            line[next] = line[next] + g * share;
                        }
                    }
                    add_scaled(&line, E::Lane::ONE - row.share, &mut to[row.first * width..][..width]);
                    if plan.mode != Mode::Nearest {
                        add_scaled(&line, row.share, &mut to[row.next * width..][..width]);
                    }
                }
            });
        }
    })
}
