//! Launches of `norm.cl` and `norm_backward.cl`.

use netcl_core::Result;
use netcl_core::backend::opencl::Stream;
use netcl_core::kernels::launch::Cost;
use netcl_core::tensor::Tensor;

use super::batch::{Forward, Planes};
use super::cost;
use super::dense::{Args, ClCode, Job, Number, group_size, is_processor};
use super::rows::{Rows, Saved};
use super::statistics::{ChannelStatistics, Cut};

/// Elements of a row that each lane should have.
const PER_LANE: usize = 4;
/// Elements of a part of a channel at least.
const PART: usize = 4096;
/// Channels with fewer neighbouring elements are added up by single work-items.
const PLANE: usize = 32;
/// Parts of a channel that one work-item merges at last, and those that it merges before where there are more.
const FEW: usize = 64;
const MERGED: usize = 32;

fn forward_code(kernel: &'static str) -> ClCode<'static> {
    let text = include_str!("norm.cl");
    ClCode { file: "norm.cl", text, kernel, scalars: &[], items: 0, group: None, local: 0 }
}

fn backward_code(kernel: &'static str) -> ClCode<'static> {
    let text = include_str!("norm_backward.cl");
    ClCode { file: "norm_backward.cl", text, kernel, scalars: &[], items: 0, group: None, local: 0 }
}

/// The cost of a step that touches next to nothing.
const SMALL: Cost = Cost { flops: 0.0, bytes: 0.0 };

/// The number of work-items over rows, those of a group, and the lanes of a row.
fn lanes(stream: &Stream, job: &Job, rows: Rows) -> (usize, usize, usize) {
    let group = group_size(stream, job.dtype);
    let lanes = rows.n.div_ceil(PER_LANE).next_power_of_two().min(group);
    (rows.rows.div_ceil(group / lanes) * group, group, lanes)
}

/// How many parts something is cut into so that every compute unit is busy, and the size of each but the last.
fn cut(stream: &Stream, total: usize, smallest: usize, already: usize) -> (usize, usize) {
    let units = stream.device().info().compute_units as usize * if is_processor(stream) { 2 } else { 8 };
    let parts = units.div_ceil(already).min(total / smallest.max(1)).max(1);
    let per = total.div_ceil(parts);
    (total.div_ceil(per), per)
}

pub(super) fn rows_forward(stream: &Stream, job: Job, rows: Rows, eps: f64) -> Result<()> {
    let (items, group, lanes) = lanes(stream, &job, rows);
    let scalars = [
        Number::Count(rows.rows),
        Number::Count(rows.n),
        Number::Count(rows.groups),
        Number::Count(rows.channels),
        Number::Count(rows.span),
        Number::Real(eps),
        Number::Flag(usize::from(rows.centred)),
        Number::Flag(lanes),
    ];
    let code = ClCode { scalars: &scalars, items, group: Some(group), local: group, ..forward_code("norm_rows") };
    job.run_cl(stream, &code)
}

/// The statistics of a dense tensor.
pub(super) fn statistics(stream: &Stream, op: &'static str, x: &Tensor, planes: Planes) -> Result<ChannelStatistics> {
    let count = planes.count();
    let (parts, per) = cut(stream, count, PART, planes.channels);
    let partial = Tensor::uninit(x.queue(), [planes.channels, parts, 2], x.dtype().accumulator())?;
    let group = group_size(stream, x.dtype());
    let args = Args::default().read(x).write(&partial);
    let job = Job { name: op, queue: x.queue().clone(), dtype: x.dtype(), cost: cost(x, 1, 6), args };
    let code = ClCode {
        scalars: &[planes.channels, planes.span, count, parts, per].map(Number::Count),
        items: planes.channels * parts * group,
        group: Some(group),
        local: group,
        ..forward_code("norm_moments")
    };
    job.run_cl(stream, &code)?;
    Ok(ChannelStatistics { parts: partial, cut: Cut { count, per } })
}

/// What becomes of statistics: means, scales and averages.
pub(super) fn finish(
    stream: &Stream,
    op: &'static str,
    forward: &Forward<'_>,
    statistics: &ChannelStatistics,
    momentum: f64,
    eps: f64,
) -> Result<()> {
    let channels = statistics.channels();
    let (mut parts, mut cut) = (statistics.parts.clone(), statistics.cut);
    while cut.parts() > FEW {
        let fewer = Cut { per: cut.per * MERGED, ..cut };
        let merged = Tensor::uninit(parts.queue(), [channels, fewer.parts(), 2], parts.dtype())?;
        let args = Args::default().read(&parts).write(&merged);
        let dtype = forward.x.dtype();
        let job = Job { name: op, queue: parts.queue().clone(), dtype, cost: cost(&parts, 1, 4), args };
        let scalars = [channels, cut.count, cut.parts(), cut.per, MERGED].map(Number::Count);
        let items = channels * fewer.parts();
        job.run_cl(stream, &ClCode { scalars: &scalars, items, ..forward_code("norm_merge") })?;
        (parts, cut) = (merged, fewer);
    }
    let [channels_, all, parts_, per] = [channels, cut.count, cut.parts(), cut.per].map(Number::Count);
    let scalars = [channels_, all, parts_, per, Number::Real(eps), Number::Real(momentum)];
    let code = ClCode { scalars: &scalars, items: channels, ..forward_code("norm_finish") };
    forward.finish(op, &parts).run_cl(stream, &code)
}

pub(super) fn batch_apply(stream: &Stream, job: Job, planes: Planes) -> Result<()> {
    let size = planes.count() * planes.channels;
    let scalars = [size, planes.channels, planes.span].map(Number::Count);
    job.run_cl(stream, &ClCode { scalars: &scalars, items: size, ..forward_code("norm_apply") })
}

/// Where the statistics of a channel of a sample stand.
struct Lines {
    by_sample: usize,
    per_line: usize,
    by_line: usize,
}

/// The sums of g * h and of g per channel, in parts.
struct Sums {
    partial: Tensor,
    channels: usize,
    parts: usize,
    scalars: [Number; 8],
    /// A work-item has a part of a channel, else a group.
    columns: bool,
}

impl Sums {
    fn new(stream: &Stream, x: &Tensor, planes: Planes, lines: &Lines) -> Result<Sums> {
        let Planes { samples, channels, span } = planes;
        let columns = span < PLANE;
        let already = if columns { channels.div_ceil(group_size(stream, x.dtype())) } else { channels };
        let (parts, per) = cut(stream, samples, if columns { 16 } else { PART.div_ceil(span) }, already);
        let partial = Tensor::uninit(x.queue(), [2 * parts * channels], x.dtype().accumulator())?;
        let scalars =
            [samples, channels, span, parts, per, lines.by_sample, lines.per_line, lines.by_line].map(Number::Count);
        Ok(Sums { partial, channels, parts, scalars, columns })
    }

    /// The work-items that find the parts, in groups of `group`.
    fn items(&self, group: usize) -> usize {
        self.parts * self.channels * if self.columns { 1 } else { group }
    }

    /// Adds the parts up, in order.
    fn finish(&self, stream: &Stream, op: &'static str, x: &Tensor, [d_weight, d_bias]: [&Tensor; 2]) -> Result<()> {
        let args = Args::default().read(&self.partial).write(d_weight).write(d_bias);
        let scalars = [Number::Count(self.channels), Number::Count(self.parts)];
        let code = ClCode { scalars: &scalars, items: self.channels, ..backward_code("norm_sums_finish") };
        Job { name: op, queue: x.queue().clone(), dtype: x.dtype(), cost: SMALL, args }.run_cl(stream, &code)
    }
}

pub(super) fn rows_backward(
    stream: &Stream,
    op: &'static str,
    saved: &Saved<'_>,
    rows: Rows,
    input: &Tensor,
    parameters: Option<[&Tensor; 2]>,
) -> Result<()> {
    let x = saved.x;
    let mut args = saved.args().write(input);
    let planes = Planes { samples: rows.rows / rows.groups, channels: rows.groups * rows.channels, span: rows.span };
    let lines = Lines { by_sample: rows.groups, per_line: rows.channels, by_line: 1 };
    let sums = parameters.map(|_| Sums::new(stream, x, planes, &lines)).transpose()?;
    if let Some(sums) = &sums {
        args = args.write(&sums.partial);
    }
    let tensors = if sums.is_some() { 5 } else { 3 };
    let job = Job { name: op, queue: x.queue().clone(), dtype: x.dtype(), cost: cost(x, tensors, 12), args };
    let (items, group, lanes) = lanes(stream, &job, rows);
    let cut = [
        Number::Count(rows.rows),
        Number::Count(rows.n),
        Number::Count(rows.groups),
        Number::Count(rows.channels),
        Number::Flag(usize::from(rows.centred)),
        Number::Flag(lanes),
    ];
    let code =
        |kernel, scalars, items| ClCode { scalars, items, group: Some(group), local: group, ..backward_code(kernel) };
    let (Some(sums), Some(gradients)) = (sums, parameters) else {
        let scalars: Vec<Number> = [Number::Count(rows.span)].into_iter().chain(cut).collect();
        return job.run_cl(stream, &code("norm_rows_backward", &scalars, items));
    };
    // Neither needs what the other writes: one launch for both.
    let kernel = if sums.columns { "norm_rows_and_columns" } else { "norm_rows_and_planes" };
    let scalars: Vec<Number> = sums.scalars.into_iter().chain(cut).chain([Number::Count(items / group)]).collect();
    job.run_cl(stream, &code(kernel, &scalars, items + sums.items(group)))?;
    sums.finish(stream, op, x, gradients)
}

pub(super) fn batch_backward(
    stream: &Stream,
    op: &'static str,
    saved: &Saved<'_>,
    planes: Planes,
    input: &Tensor,
    [d_weight, d_bias]: [&Tensor; 2],
    training: bool,
) -> Result<()> {
    let x = saved.x;
    let lines = Lines { by_sample: 0, per_line: 1, by_line: 1 };
    let sums = Sums::new(stream, x, planes, &lines)?;
    let job = |cost, args| Job { name: op, queue: x.queue().clone(), dtype: x.dtype(), cost, args };
    let group = group_size(stream, x.dtype());
    let code = ClCode { scalars: &sums.scalars, items: sums.items(group), ..backward_code("norm_sums_columns") };
    let code = if sums.columns {
        code
    } else {
        ClCode { kernel: "norm_sums_planes", group: Some(group), local: group, ..code }
    };
    job(cost(x, 2, 6), saved.args().write(&sums.partial)).run_cl(stream, &code)?;
    sums.finish(stream, op, x, [d_weight, d_bias])?;
    let args = saved.args().read(d_weight).read(d_bias).write(input);
    let [size, channels, span] = [x.size(), planes.channels, planes.span].map(Number::Count);
    let scalars = [size, channels, span, Number::Real(planes.count() as f64), Number::Flag(usize::from(training))];
    let code = ClCode { scalars: &scalars, items: x.size(), ..backward_code("norm_batch_backward") };
    job(cost(x, 3, 6), args).run_cl(stream, &code)
}
