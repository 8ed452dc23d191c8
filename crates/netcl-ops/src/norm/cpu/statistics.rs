//! The statistics of channels by themselves: of planes that were just written, and what becomes of them.

use netcl_core::Result;
use netcl_core::backend::cpu::parallel_for;
use netcl_core::dtype::Element;

use super::TASK;
use super::batch::share;
use super::moments::{Moments, moments, real};
use crate::dense::{Job, Stored, with_stored};
use crate::norm::batch::Planes;
use crate::norm::statistics::Cut;

/// The mean and the sum of squared deviations of a few values.
pub(crate) fn plane<E: Stored>(values: &[E], scratch: &mut Vec<E::Lane>) -> [f64; 2] {
    let found = moments(E::widen(values, scratch));
    [found.mean, found.m2]
}

/// Those of parts together, in their order; each comes with the number of its values.
pub(crate) fn merge(parts: impl IntoIterator<Item = (usize, [f64; 2])>) -> [f64; 2] {
    let all = parts.into_iter().map(|(n, [mean, m2])| Moments { n: n as f64, mean, m2 });
    let found = all.fold(Moments::default(), Moments::merge);
    [found.mean, found.m2]
}

/// Tensors: x, its statistics in one part.
pub(in crate::norm) fn of(job: Job, planes: Planes) -> Result<()> {
    let (op, dtype) = (job.name, job.dtype);
    let Planes { samples, channels, span } = planes;
    job.run_cpu(move |views| {
        with_stored!(dtype, E => {
            let (x, parts) = (views.input::<E>(0)?, views.output(1)?);
            parallel_for(op, channels, (TASK / (samples * span).max(1)).max(1), |range| {
                let mut scratch = Vec::new();
                for c in range {
                    let planes = (0..samples).map(|sample| &x[(sample * channels + c) * span..][..span]);
                    let found = merge(planes.map(|values| (span, plane(values, &mut scratch))));
                    // SAFETY: every channel belongs to one task.
                    unsafe { parts.part(2 * c, 2) }.copy_from_slice(&found.map(real::<<E as Stored>::Lane>));
                }
            })
        })
    })
}

/// Tensors: statistics, mean, rstd, running mean, running variance, number of batches.
pub(in crate::norm) fn finish(job: Job, channels: usize, cut: Cut, momentum: Option<f64>, eps: f64) -> Result<()> {
    let dtype = job.dtype;
    job.run_cpu(move |views| {
        let momentum = share(views, 5, momentum)?;
        with_stored!(dtype, E => {
            type Lane = <E as Stored>::Lane;
            let parts = views.input::<Lane>(0)?;
            // SAFETY: one task writes each of these once.
            let whole = |at: usize| Ok::<_, netcl_core::Error>(unsafe { views.output::<Lane>(at)?.part(0, channels) });
            let (mean, rstd) = (whole(1)?, whole(2)?);
            let mut running = if views.has(3) { Some([whole(3)?, whole(4)?]) } else { None };
            for (c, parts) in parts.chunks_exact(2 * cut.parts()).enumerate() {
                let each = parts.as_chunks::<2>().0.iter().enumerate();
                let [middle, m2] = merge(each.map(|(i, part)| (cut.length(i), part.map(Element::to_f64))));
                let n = cut.count as f64;
                mean[c] = real(middle);
                rstd[c] = real((m2 / n + eps).sqrt().recip());
                let Some(running) = &mut running else { continue };
                for (running, new) in running.iter_mut().zip([middle, m2 / (n - 1.0)]) {
                    running[c] = real((1.0 - momentum) * Element::to_f64(running[c]) + momentum * new);
                }
            }
            Ok(())
        })
    })
}
