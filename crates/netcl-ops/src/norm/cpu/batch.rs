//! Batch normalisation. A channel of one sample is a plane of neighbouring elements; statistics are merged plane by plane,
//! in the order of samples. Planes of few elements are handled as columns (`columns.rs`).

use netcl_core::Result;
use netcl_core::backend::cpu::threads::parallel_chunks_mut;
use netcl_core::backend::cpu::{num_threads, parallel_for};
use netcl_core::dtype::Element;

use super::moments::{Moments, Slopes, input_gradient, moments, products, real, scale};
use super::{TASK, columns};
use crate::dense::{Job, Output, Stored, Views, with_stored};
use crate::norm::batch::Planes;

/// Planes with fewer elements are not worth a loop of their own.
const PLANE: usize = 32;
/// Channels per thread from which on every channel is one task, which finds its elements in the cache again.
const CHANNELS_PER_THREAD: usize = 4;

/// Tensors: x, weight, bias, output, mean, rstd, running mean, running variance, number of batches.
pub(in crate::norm) fn forward(job: Job, planes: Planes, momentum: Option<f64>, eps: f64) -> Result<()> {
    let (op, dtype) = (job.name, job.dtype);
    job.run_cpu(move |views| {
        with_stored!(dtype, E => {
            let results = Results::<E>::new(views, planes, share(views, 8, momentum)?, eps)?;
            let (x, y) = (views.input::<E>(0)?, views.output::<E>(3)?);
            if planes.span < PLANE { columns::forward(op, planes, x, y, &results) } else { results.forward(op, x, y) }
        })
    })
}

/// Tensors: number of batches, which is raised by one.
pub(in crate::norm) fn count(job: Job) -> Result<()> {
    job.run_cpu(move |views| {
        // SAFETY: one task writes it.
        unsafe { views.output::<i64>(0)?.part(0, 1)[0] += 1 };
        Ok(())
    })
}

/// The share of a batch in the averages: the momentum, and the batch is counted; or one over the number of batches, which was
/// raised before.
pub(super) fn share(views: &Views<'_, '_>, batches: usize, momentum: Option<f64>) -> Result<f64> {
    if !views.has(batches) {
        return Ok(momentum.unwrap_or_default());
    }
    // SAFETY: this is called once, before the tasks.
    let batches = unsafe { &mut views.output::<i64>(batches)?.part(0, 1)[0] };
    Ok(momentum.inspect(|_| *batches += 1).unwrap_or_else(|| 1.0 / *batches as f64))
}

/// Tensors: x, weight, bias, output, mean, rstd.
pub(in crate::norm) fn apply(job: Job, planes: Planes) -> Result<()> {
    let (op, dtype) = (job.name, job.dtype);
    job.run_cpu(move |views| {
        with_stored!(dtype, E => {
            let (x, y) = (views.input::<E>(0)?, views.output::<E>(3)?);
            let (weight, bias) = (views.input(1)?, views.input(2)?);
            let (mean, rstd) = (views.input(4)?, views.input(5)?);
            let channels: Vec<Channel<_>> = (0..planes.channels)
                .map(|c| Channel::new(c, mean[c], rstd[c], weight, bias))
                .collect();
            apply_planes(op, planes, x, y, &channels)
        })
    })
}

/// What a channel's elements are mapped with: `(x - mean) * scale + shift`.
#[derive(Clone, Copy, Default)]
pub(super) struct Channel<T> {
    pub(super) mean: T,
    pub(super) scale: T,
    pub(super) shift: T,
}

impl<T: netcl_core::kernels::expr::vecmath::Real> Channel<T> {
    fn new(c: usize, mean: T, rstd: T, weight: &[T], bias: &[T]) -> Self {
        let scale = weight.get(c).map_or(rstd, |&w| rstd * w);
        Channel { mean, scale, shift: bias.get(c).copied().unwrap_or_default() }
    }
}

/// Where a channel's statistics go.
pub(super) struct Results<'v, E: Stored> {
    planes: Planes,
    momentum: f64,
    eps: f64,
    weight: &'v [E::Lane],
    bias: &'v [E::Lane],
    mean: Output<'v, E::Lane>,
    rstd: Output<'v, E::Lane>,
    running: Option<[Output<'v, E::Lane>; 2]>,
}

impl<'v, E: Stored> Results<'v, E> {
    fn new(views: &Views<'v, '_>, planes: Planes, momentum: f64, eps: f64) -> Result<Self> {
        let running = if views.has(6) { Some([views.output(6)?, views.output(7)?]) } else { None };
        let (weight, bias) = (views.input(1)?, views.input(2)?);
        Ok(Results { planes, momentum, eps, weight, bias, mean: views.output(4)?, rstd: views.output(5)?, running })
    }

    /// Writes a channel's statistics and averages. Every channel belongs to one task.
    pub(super) fn finish(&self, c: usize, found: Moments) -> Channel<E::Lane> {
        let (mean, rstd) = (real::<E::Lane>(found.mean), real::<E::Lane>(found.rstd(self.eps)));
        // SAFETY: the caller's task is the only one with this channel.
        unsafe {
            self.mean.part(c, 1)[0] = mean;
            self.rstd.part(c, 1)[0] = rstd;
        }
        if let Some([running_mean, running_var]) = &self.running {
            for (running, new) in [(running_mean, found.mean), (running_var, found.m2 / (found.n - 1.0))] {
                // SAFETY: as above.
                let running = unsafe { &mut running.part(c, 1)[0] };
                *running = real((1.0 - self.momentum) * Element::to_f64(*running) + self.momentum * new);
            }
        }
        Channel::new(c, mean, rstd, self.weight, self.bias)
    }

    fn forward(&self, op: &'static str, x: &[E], y: Output<'_, E>) -> Result<()> {
        let Planes { samples, channels, span } = self.planes;
        let plane = |sample: usize, c: usize| (sample * channels + c) * span;
        if channels >= num_threads() * CHANNELS_PER_THREAD {
            return parallel_for(op, channels, (TASK / (samples * span)).max(1), |range| {
                let (mut from, mut to) = (Vec::new(), Vec::new());
                for c in range {
                    let found = (0..samples).fold(Moments::default(), |so_far, sample| {
                        so_far.merge(moments(E::widen(&x[plane(sample, c)..][..span], &mut from)))
                    });
                    let channel = self.finish(c, found);
                    for at in (0..samples).map(|sample| plane(sample, c)) {
                        // SAFETY: every channel belongs to one task.
                        let y = unsafe { y.part(at, span) };
                        let x = E::widen(&x[at..][..span], &mut from);
                        E::fill(y, &mut to, |y| scale(x, y, channel.mean, channel.scale, channel.shift, x.as_ptr()));
                    }
                }
            });
        }
        // Few large channels: planes are the tasks, and the same moments are merged in the same order.
        let mut parts = vec![Moments::default(); samples * channels];
        parallel_chunks_mut(op, &mut parts, (TASK / span).max(1), |start, parts| {
            let mut from = Vec::new();
            for (i, part) in parts.iter_mut().enumerate() {
                *part = moments(E::widen(&x[(start + i) * span..][..span], &mut from));
            }
        })?;
        let merged: Vec<Channel<_>> = (0..channels)
            .map(|c| {
                let all = parts.iter().skip(c).step_by(channels);
                self.finish(c, all.fold(Moments::default(), |so_far, &part| so_far.merge(part)))
            })
            .collect();
        apply_planes(op, self.planes, x, y, &merged)
    }
}

fn apply_planes<E: Stored>(
    op: &'static str,
    planes: Planes,
    x: &[E],
    y: Output<'_, E>,
    channels: &[Channel<E::Lane>],
) -> Result<()> {
    let Planes { span, .. } = planes;
    if span < PLANE {
        return columns::apply(op, planes, x, y, channels);
    }
    parallel_for(op, planes.samples * planes.channels, (TASK / span).max(1), |range| {
        let (mut from, mut to) = (Vec::new(), Vec::new());
        for plane in range {
            let Channel { mean, scale: by, shift } = channels[plane % planes.channels];
            let x = E::widen(&x[plane * span..][..span], &mut from);
            // SAFETY: every plane belongs to one task.
            E::fill(unsafe { y.part(plane * span, span) }, &mut to, |y| {
                scale(x, y, mean, by, shift, x.as_ptr().wrapping_add(span))
            });
        }
    })
}

/// Tensors: gradient, x, weight, mean, rstd, input gradient, weight gradient, bias gradient.
pub(in crate::norm) fn backward(job: Job, planes: Planes, training: bool) -> Result<()> {
    let (op, dtype) = (job.name, job.dtype);
    job.run_cpu(move |views| {
        with_stored!(dtype, E => {
            let backward = Backward::<E> {
                planes,
                training,
                grad: views.input(0)?,
                x: views.input(1)?,
                weight: views.input(2)?,
                mean: views.input(3)?,
                rstd: views.input(4)?,
                input: views.output(5)?,
                d_weight: views.output(6)?,
                d_bias: views.output(7)?,
            };
            if planes.span < PLANE { columns::backward(op, &backward) } else { backward.run(op) }
        })
    })
}

pub(super) struct Backward<'v, E: Stored> {
    pub(super) planes: Planes,
    training: bool,
    pub(super) grad: &'v [E],
    pub(super) x: &'v [E],
    weight: &'v [E::Lane],
    pub(super) mean: &'v [E::Lane],
    rstd: &'v [E::Lane],
    pub(super) input: Output<'v, E>,
    d_weight: Output<'v, E::Lane>,
    d_bias: Output<'v, E::Lane>,
}

impl<E: Stored> Backward<'_, E> {
    /// Writes a channel's parameter gradients, from the sums of g and of g * (x - mean). Every channel belongs to one task.
    pub(super) fn finish(&self, c: usize, [plain, mixed]: [f64; 2]) -> Slopes<E::Lane> {
        let rstd = Element::to_f64(self.rstd[c]);
        // SAFETY: the caller's task is the only one with this channel.
        unsafe {
            self.d_weight.part(c, 1)[0] = real(mixed * rstd);
            self.d_bias.part(c, 1)[0] = real(plain);
        }
        let scale = rstd * self.weight.get(c).map_or(1.0, |&w| Element::to_f64(w));
        let share = if self.training { scale / self.planes.count() as f64 } else { 0.0 };
        Slopes { scale: real(scale), slope: real(share * rstd * rstd * mixed), shift: real(share * plain) }
    }

    fn run(&self, op: &'static str) -> Result<()> {
        let Planes { samples, channels, span } = self.planes;
        let sums = |plane: usize, from: &mut [Vec<E::Lane>; 3]| {
            let [first, second, _] = from;
            let grad = E::widen(&self.grad[plane * span..][..span], first);
            products(grad, E::widen(&self.x[plane * span..][..span], second), self.mean[plane % channels])
        };
        let add = |a: [f64; 2], b: [f64; 2]| [a[0] + b[0], a[1] + b[1]];
        if channels >= num_threads() * CHANNELS_PER_THREAD {
            return parallel_for(op, channels, (TASK / (samples * span)).max(1), |range| {
                let mut scratch = [Vec::new(), Vec::new(), Vec::new()];
                for c in range {
                    let planes = || (0..samples).map(|sample| sample * channels + c);
                    let total = planes().fold([0.0; 2], |so_far, plane| add(so_far, sums(plane, &mut scratch)));
                    let slopes = self.finish(c, total);
                    planes().for_each(|plane| self.input_plane(plane, slopes, &mut scratch));
                }
            });
        }
        let mut parts = vec![[0.0; 2]; samples * channels];
        parallel_chunks_mut(op, &mut parts, (TASK / span).max(1), |start, parts| {
            let mut scratch = [Vec::new(), Vec::new(), Vec::new()];
            parts.iter_mut().enumerate().for_each(|(i, part)| *part = sums(start + i, &mut scratch));
        })?;
        let merged: Vec<Slopes<_>> = (0..channels)
            .map(|c| self.finish(c, parts.iter().skip(c).step_by(channels).fold([0.0; 2], |a, &b| add(a, b))))
            .collect();
        parallel_for(op, samples * channels, (TASK / span).max(1), |range| {
            let mut scratch = [Vec::new(), Vec::new(), Vec::new()];
            range.for_each(|plane| self.input_plane(plane, merged[plane % channels], &mut scratch));
        })
    }

    fn input_plane(&self, plane: usize, slopes: Slopes<E::Lane>, scratch: &mut [Vec<E::Lane>; 3]) {
        let Planes { channels, span, .. } = self.planes;
        let [first, second, third] = scratch;
        let grad = E::widen(&self.grad[plane * span..][..span], first);
        let x = E::widen(&self.x[plane * span..][..span], second);
        // SAFETY: every plane belongs to one task.
        E::fill(unsafe { self.input.part(plane * span, span) }, third, |to| {
            input_gradient(grad, x, to, self.mean[plane % channels], slopes);
        });
    }
}
