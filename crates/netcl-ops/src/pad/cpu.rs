//! Padding on the native CPU: rows of the last padded axis are copied, and gradients added back, run by run.

use std::ops::Range;

use netcl_core::Result;
use netcl_core::backend::cpu::parallel_for;
use netcl_core::kernels::expr::vecmath::Real;

use super::{Axis, PadMode, Plan};
use crate::dense::{Job, Output, Stored, with_stored};

/// Elements that one task should have at least.
const TASK: usize = 1 << 14;

/// The places of the result that hold the input in its own order, and the first element they hold.
fn middle(axis: Axis) -> (Range<usize>, usize) {
    let start = axis.before.max(0) as usize;
    let end = axis.before.saturating_add_unsigned(axis.input).clamp(0, axis.output as isize) as usize;
    (start.min(end)..end, (-axis.before).max(0) as usize)
}

/// Elements of the input and of the result that belong to one index of the outer axes.
fn sizes(plan: Plan) -> (usize, usize) {
    let size = |length: fn(&Axis) -> usize| plan.axes.iter().map(length).product::<usize>() * plan.inner;
    (size(|axis| axis.input), size(|axis| axis.output))
}

/// Tensors: x, output.
pub(super) fn forward(job: Job, plan: Plan) -> Result<()> {
    let (op, dtype) = (job.name, job.dtype);
    job.run_cpu(move |views| with_stored!(dtype, E => copy(op, views.input::<E>(0)?, views.output::<E>(1)?, plan)))
}

fn copy<E: Stored>(op: &'static str, x: &[E], y: Output<'_, E>, plan: Plan) -> Result<()> {
    let Plan { outer, axes: [a, b, c], inner, mode } = plan;
    let value = E::from_f64(if let PadMode::Constant(value) = mode { value } else { 0.0 });
    let (places, first) = middle(c);
    let (from_row, to_row) = (c.input * inner, c.output * inner);
    // Rows of the result are independent: as many tasks as there are.
    parallel_for(op, outer * a.output * b.output, (TASK / to_row).max(1), |range| {
        for i in range {
            // SAFETY: every row belongs to one task.
            let y = unsafe { y.part(i * to_row, to_row) };
            let (sample, place_a, place_b) = (i / (a.output * b.output), i / b.output % a.output, i % b.output);
            let (Some(at_a), Some(at_b)) = (a.source(place_a, mode), b.source(place_b, mode)) else {
                y.fill(value);
                continue;
            };
            let x = &x[((sample * a.input + at_a) * b.input + at_b) * from_row..][..from_row];
            y[places.start * inner..places.end * inner].copy_from_slice(&x[first * inner..][..places.len() * inner]);
            for o in (0..places.start).chain(places.end..c.output) {
                let to = &mut y[o * inner..][..inner];
                match c.source(o, mode) {
                    Some(at) => to.copy_from_slice(&x[at * inner..][..inner]),
                    None => to.fill(value),
                }
            }
        }
    })
}

/// Tensors: gradient, input gradient.
pub(super) fn backward(job: Job, plan: Plan) -> Result<()> {
    let (op, dtype) = (job.name, job.dtype);
    job.run_cpu(move |views| with_stored!(dtype, E => add(op, views.input::<E>(0)?, views.output::<E>(1)?, plan)))
}

fn add<E: Stored>(op: &'static str, grad: &[E], to: Output<'_, E>, plan: Plan) -> Result<()> {
    let Plan { outer, axes: [a, b, c], inner, mode } = plan;
    let (size, results) = sizes(plan);
    let (from_row, to_row) = (c.output * inner, c.input * inner);
    parallel_for(op, outer, (TASK / size.max(results)).max(1), |range| {
        let (mut from, mut own) = (Vec::new(), Vec::new());
        for sample in range {
            let grad = E::widen(&grad[sample * results..][..results], &mut from);
            // SAFETY: every sample belongs to one task.
            E::fill(unsafe { to.part(sample * size, size) }, &mut own, |to| {
                to.fill(E::Lane::ZERO);
                for (i, grad) in grad.chunks_exact(from_row).enumerate() {
                    let (Some(at_a), Some(at_b)) = (a.source(i / b.output, mode), b.source(i % b.output, mode)) else {
                        continue;
                    };
                    let to = &mut to[(at_a * b.input + at_b) * to_row..][..to_row];
                    for (o, grad) in grad.chunks_exact(inner).enumerate() {
                        let Some(at) = c.source(o, mode) else { continue };
                        to[at * inner..][..inner].iter_mut().zip(grad).for_each(|(to, &g)| *to = *to + g);
                    }
                }
            });
        }
    })
}
