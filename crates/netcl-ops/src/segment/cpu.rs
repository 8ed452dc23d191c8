//! Sums and maxima of stretches of rows on the native CPU: every stretch belongs to one task.

use std::ops::Range;

use netcl_core::Result;
use netcl_core::backend::cpu::parallel_for;

use super::Stretches;
use crate::dense::{Job, Output, Stored, with_stored};

/// Elements that one task should read at least.
const TASK: usize = 1 << 14;

impl Stretches {
    /// The rows of a stretch, as far as there are any.
    fn range(&self, offsets: &[i64], at: usize) -> Range<usize> {
        let inside = |offset: i64| offset.clamp(0, self.rows as i64) as usize;
        inside(offsets[at])..offsets.get(at + 1).map_or(self.rows, |&end| inside(end))
    }

    /// Stretches of one task.
    fn per_task(&self) -> usize {
        (TASK * self.count / (self.rows * self.width)).max(1)
    }
}

/// Tensors: rows, offsets, sums.
pub(super) fn sum(job: Job, stretches: Stretches) -> Result<()> {
    let (op, dtype) = (job.name, job.dtype);
    job.run_cpu(move |views| {
        with_stored!(dtype, E => add(op, views.input::<E>(0)?, views.input(1)?, views.output::<E>(2)?, stretches))
    })
}

fn add<E: Stored>(op: &'static str, x: &[E], offsets: &[i64], to: Output<'_, E>, stretches: Stretches) -> Result<()> {
    let width = stretches.width;
    parallel_for(op, stretches.count, stretches.per_task(), |range| {
        let mut totals = vec![0.0f64; width];
        for at in range {
            totals.fill(0.0);
            for row in stretches.range(offsets, at) {
                totals.iter_mut().zip(&x[row * width..][..width]).for_each(|(total, x)| *total += x.to_f64());
            }
            // SAFETY: every stretch belongs to one task.
            let to = unsafe { to.part(at * width, width) };
            to.iter_mut().zip(&totals).for_each(|(to, &total)| *to = E::from_f64(total));
        }
    })
}

/// Tensors: rows, offsets, places.
pub(super) fn argmax(job: Job, stretches: Stretches) -> Result<()> {
    let (op, dtype) = (job.name, job.dtype);
    job.run_cpu(move |views| {
        with_stored!(dtype, E => best(op, views.input::<E>(0)?, views.input(1)?, views.output::<i64>(2)?, stretches))
    })
}

fn best<E: Stored>(
    op: &'static str,
    x: &[E],
    offsets: &[i64],
    to: Output<'_, i64>,
    stretches: Stretches,
) -> Result<()> {
    let width = stretches.width;
    parallel_for(op, stretches.count, stretches.per_task(), |range| {
        for at in range {
            // SAFETY: every stretch belongs to one task.
            let to = unsafe { to.part(at * width, width) };
            let rows = stretches.range(offsets, at);
            to.fill(if rows.is_empty() { 0 } else { rows.start as i64 });
            for row in rows.skip(1) {
                for (column, to) in to.iter_mut().enumerate() {
                    let (now, new) = (x[*to as usize * width + column].to_f64(), x[row * width + column].to_f64());
                    if new > now || (new.is_nan() && !now.is_nan()) {
                        *to = row as i64;
                    }
                }
            }
        }
    })
}
