//! Layer, group and root-mean-square normalisation: a row stays in the cache between the passes over it.

use netcl_core::Result;
use netcl_core::backend::cpu::parallel_for;
use netcl_core::backend::cpu::threads::parallel_chunks_mut;
use netcl_core::dtype::Element;

use super::TASK;
use super::moments::{
    Moments, Slopes, add_parameter_gradients, drain, input_gradient, moments, products, real, scale, scale_each,
    square_sum, weighted_input_gradient, weighted_products,
};
use crate::dense::{Job, Output, Stored, Views, with_stored};
use crate::norm::rows::Rows;

/// Parts that the sums over rows are cut into at most.
const PARTS: usize = 32;
/// Elements of rows that are short enough to have the next one in the first-level cache as well.
const AHEAD: usize = 1 << 12;
/// Rows whose parameter gradients are added up in the type of the computation.
const RUN_ROWS: usize = 16;

/// Tensors: x, weight, bias, output, mean, rstd.
pub(in crate::norm) fn forward(job: Job, rows: Rows, eps: f64) -> Result<()> {
    let (op, dtype) = (job.name, job.dtype);
    job.run_cpu(move |views| with_stored!(dtype, E => forward_of::<E>(op, views, rows, eps)))
}

/// The parameters of a row; none of them stay none.
fn parameters<T>(of: &[T], rows: Rows, row: usize) -> &[T] {
    if of.is_empty() { of } else { &of[row % rows.groups * rows.channels..][..rows.channels] }
}

fn forward_of<E: Stored>(op: &'static str, views: &Views<'_, '_>, rows: Rows, eps: f64) -> Result<()> {
    let (x, weight, bias) = (views.input::<E>(0)?, views.input::<E::Lane>(1)?, views.input::<E::Lane>(2)?);
    let y = views.output::<E>(3)?;
    let [means, rstds] = [views.output::<E::Lane>(4)?, views.output::<E::Lane>(5)?];
    let n = rows.n;
    // Parameters that are not there change nothing.
    let (ones, zeros);
    let weight = if weight.is_empty() {
        ones = vec![real::<E::Lane>(1.0); rows.groups * rows.channels];
        &ones[..]
    } else {
        weight
    };
    let bias = if bias.is_empty() {
        zeros = vec![E::Lane::default(); rows.groups * rows.channels];
        &zeros[..]
    } else {
        bias
    };
    parallel_for(op, rows.rows, (TASK / n).max(1), |range| {
        let (mut from, mut to) = (Vec::new(), Vec::new());
        for row in range {
            let next = x.as_ptr().wrapping_add(if n <= AHEAD { (row + 1) * n } else { row * n });
            let x = E::widen(&x[row * n..][..n], &mut from);
            let found: Moments = if rows.centred { moments(x) } else { square_sum(x) };
            let (mean, rstd) = (real::<E::Lane>(found.mean), real::<E::Lane>(found.rstd(eps)));
            let (weight, bias) = (parameters(weight, rows, row), parameters(bias, rows, row));
            // SAFETY: every row belongs to one task.
            let (y, [mean_to, rstd_to]) = unsafe { (y.part(row * n, n), [means.part(row, 1), rstds.part(row, 1)]) };
            E::fill(y, &mut to, |y| {
                if rows.span == 1 {
                    return scale_each(x, y, mean, rstd, weight, bias, next);
                }
                let channels = x.chunks_exact(rows.span).zip(y.chunks_exact_mut(rows.span)).enumerate();
                for (c, (x, y)) in channels {
                    scale(x, y, mean, rstd * weight[c], bias[c], next.wrapping_add(c * rows.span));
                }
            });
            (mean_to[0], rstd_to[0]) = (mean, rstd);
        }
    })
}

/// Tensors: gradient, x, weight, mean, rstd, input gradient, weight gradient, bias gradient.
pub(in crate::norm) fn backward(job: Job, rows: Rows, parameters: bool) -> Result<()> {
    let (op, dtype) = (job.name, job.dtype);
    job.run_cpu(move |views| with_stored!(dtype, E => Backward::<E>::new(views, rows)?.run(op, parameters)))
}

struct Backward<'v, E: Stored> {
    rows: Rows,
    grad: &'v [E],
    x: &'v [E],
    weight: &'v [E::Lane],
    mean: &'v [E::Lane],
    rstd: &'v [E::Lane],
    input: Output<'v, E>,
    d_weight: Output<'v, E::Lane>,
    d_bias: Output<'v, E::Lane>,
}

/// Memory of a task.
struct Scratch<T> {
    grad: Vec<T>,
    x: Vec<T>,
    input: Vec<T>,
    /// Sums over a few rows: of the weight's gradient, and of the bias's.
    runs: [Vec<T>; 2],
}

impl<'v, E: Stored> Backward<'v, E> {
    fn new(views: &Views<'v, '_>, rows: Rows) -> Result<Self> {
        Ok(Backward {
            rows,
            grad: views.input(0)?,
            x: views.input(1)?,
            weight: views.input(2)?,
            mean: views.input(3)?,
            rstd: views.input(4)?,
            input: views.output(5)?,
            d_weight: views.output(6)?,
            d_bias: views.output(7)?,
        })
    }

    fn run(&self, op: &'static str, parameters: bool) -> Result<()> {
        let Rows { rows, n, groups, channels, span, .. } = self.rows;
        // Rows of one part, whole samples each; where channels are sums already, a sample is a part.
        let samples = rows / groups;
        let per = if span > 1 { 1 } else { samples.div_ceil(PARTS) } * groups;
        let width = if parameters { 2 * groups * channels } else { 0 };
        if !parameters {
            return parallel_for(op, rows, (TASK / n).max(1), |range| {
                self.rows(range, &mut Scratch::new(0), &mut []);
            });
        }
        let mut parts = vec![0.0f64; rows.div_ceil(per) * width];
        let together = (TASK / (per * n)).max(1);
        parallel_chunks_mut(op, &mut parts, together * width, |start, parts| {
            let mut scratch = Scratch::new(if span == 1 { width / 2 } else { 0 });
            for (i, part) in parts.chunks_exact_mut(width).enumerate() {
                let first = (start / width + i) * per;
                self.rows(first..rows.min(first + per), &mut scratch, part);
            }
        })?;
        // SAFETY: nobody else writes the parameters' gradients.
        let (d_weight, d_bias) = unsafe { (self.d_weight.part(0, width / 2), self.d_bias.part(0, width / 2)) };
        let (sums, others) = parts.split_at_mut(width);
        for part in others.chunks_exact(width) {
            sums.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
        }
        for (to, &sum) in d_weight.iter_mut().chain(d_bias).zip(&*sums) {
            *to = real(sum);
        }
        Ok(())
    }

    /// Handles rows and adds up the parameters' gradients in `part`, unless that is empty.
    fn rows(&self, range: std::ops::Range<usize>, scratch: &mut Scratch<E::Lane>, part: &mut [f64]) {
        let Rows { n, groups, channels, span, .. } = self.rows;
        let middle = part.len() / 2;
        let (first, last) = (range.start, range.end);
        for row in range {
            let at = row * n;
            let grad = E::widen(&self.grad[at..][..n], &mut scratch.grad);
            let x = E::widen(&self.x[at..][..n], &mut scratch.x);
            // SAFETY: every row belongs to one task.
            let input = unsafe { self.input.part(at, n) };
            let weight = parameters(self.weight, self.rows, row);
            let place = row % groups * channels;
            if span > 1 {
                let sums = if part.is_empty() { None } else { Some(part.split_at_mut(middle)) };
                let sums = sums.map(|(w, b)| (&mut w[place..][..channels], &mut b[place..][..channels]));
                E::fill(input, &mut scratch.input, |to| self.channels(row, grad, x, weight, to, sums));
                continue;
            }
            let (mean, rstd) = self.statistics(row);
            let sums = match weight {
                [] => products(grad, x, mean),
                weight => weighted_products(grad, weight, x, mean),
            };
            let by = self.slopes(sums, rstd);
            E::fill(input, &mut scratch.input, |to| match weight {
                [] => input_gradient(grad, x, to, mean, by),
                weight => weighted_input_gradient(grad, weight, x, to, mean, by),
            });
            if !part.is_empty() {
                let [d_weight, d_bias] = &mut scratch.runs;
                let (d_weight_row, d_bias_row) = (&mut d_weight[place..][..n], &mut d_bias[place..][..n]);
                add_parameter_gradients(grad, x, mean, rstd, d_weight_row, d_bias_row);
                if (row + 1 - first).is_multiple_of(RUN_ROWS * groups) || row + 1 == last {
                    let (to_weight, to_bias) = part.split_at_mut(middle);
                    drain(d_weight, to_weight);
                    drain(d_bias, to_bias);
                }
            }
        }
    }

    fn statistics(&self, row: usize) -> (E::Lane, E::Lane) {
        (self.mean.get(row).copied().unwrap_or_default(), self.rstd[row])
    }

    /// What a row's gradient is mapped with, from the sums of weighted gradients.
    fn slopes(&self, [plain, mixed]: [f64; 2], scale: E::Lane) -> Slopes<E::Lane> {
        let (n, rstd) = (self.rows.n as f64, Element::to_f64(scale));
        let shift = if self.rows.centred { rstd * plain / n } else { 0.0 };
        Slopes { scale, slope: real(rstd * rstd * rstd * mixed / n), shift: real(shift) }
    }

    /// A row whose channels have several elements each.
    fn channels(
        &self,
        row: usize,
        grad: &[E::Lane],
        x: &[E::Lane],
        weight: &[E::Lane],
        to: &mut [E::Lane],
        mut sums: Option<(&mut [f64], &mut [f64])>,
    ) {
        let span = self.rows.span;
        let (mean, rstd) = self.statistics(row);
        let mut row_sums = [0.0; 2];
        for (c, (g, x)) in grad.chunks_exact(span).zip(x.chunks_exact(span)).enumerate() {
            let [plain, mixed] = products(g, x, mean);
            let w = weight.get(c).map_or(1.0, |&w| Element::to_f64(w));
            row_sums = [row_sums[0] + w * plain, row_sums[1] + w * mixed];
            if let Some((d_weight, d_bias)) = &mut sums {
                (d_weight[c], d_bias[c]) = (mixed * Element::to_f64(rstd), plain);
            }
        }
        let by = self.slopes(row_sums, rstd);
        let parts = grad.chunks_exact(span).zip(x.chunks_exact(span)).zip(to.chunks_exact_mut(span));
        for (c, ((g, x), to)) in parts.enumerate() {
            let scale = weight.get(c).map_or(rstd, |&w| rstd * w);
            input_gradient(g, x, to, mean, Slopes { scale, ..by });
        }
    }
}

impl<T: Copy + Default> Scratch<T> {
    fn new(channels: usize) -> Self {
        let run = vec![T::default(); channels];
        Scratch { grad: Vec::new(), x: Vec::new(), input: Vec::new(), runs: [run.clone(), run] }
    }
}
