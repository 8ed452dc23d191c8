//! Launches of `norm_registers.cl` and `norm_planes.cl` where tensors fit them, else of `norm.cl` and `norm_backward.cl`.

use netcl_core::Result;
use netcl_core::backend::opencl::Stream;
use netcl_core::kernels::VECTOR_BYTES;
use netcl_core::kernels::group_limit::largest_group;
use netcl_core::kernels::launch::Cost;
use netcl_core::shape::Slice;
use netcl_core::tensor::Tensor;

use super::batch::{Forward, Planes};
use super::cost;
use super::rows::{Rows, Saved};
use super::statistics::{ChannelStatistics, Cut};
use crate::dense::{Args, ClCode, Job, Number, group_size};
use crate::row_tile::RowTile;

/// Elements of a row that each lane should have.
const PER_LANE: usize = 4;
/// Elements of a part of a channel at least.
const PART: usize = 4096;
/// Channels with fewer neighbouring elements are added up by single work-items.
const PLANE: usize = 32;
/// Groups for each compute unit where they also add up the parameters' gradients, and rows for each of their slots at least.
const PER_UNIT: usize = 4;
const ROWS_OF_SUMS: usize = 8;
/// Parts of a channel that one work-item merges at last, and those that it merges before where there are more.
const FEW: usize = 64;
const MERGED: usize = 32;

fn forward_code(kernel: &'static str) -> ClCode<'static> {
    let text = include_str!("norm.cl");
    ClCode { file: "norm.cl", text, kernel, scalars: &[], items: 0, group: None, local: 0, wide: None }
}

fn backward_code(kernel: &'static str) -> ClCode<'static> {
    let text = include_str!("norm_backward.cl");
    ClCode { file: "norm_backward.cl", text, ..forward_code(kernel) }
}

fn registers_code(kernel: &'static str) -> ClCode<'static> {
    let text = concat!(include_str!("row_moments.cl"), include_str!("norm_registers.cl"));
    ClCode { file: "norm_registers.cl", text, ..forward_code(kernel) }
}

fn planes_code(kernel: &'static str) -> ClCode<'static> {
    let text = include_str!("norm_planes.cl");
    ClCode { file: "norm_planes.cl", text, ..forward_code(kernel) }
}

fn columns_code(kernel: &'static str) -> ClCode<'static> {
    let text = include_str!("norm_columns.cl");
    ClCode { file: "norm_columns.cl", text, ..forward_code(kernel) }
}

/// How channels that are neighbours in memory are cut: a group has so many vectors of them in so many rows.
#[derive(Clone, Copy)]
struct Columns {
    wide: RowTile,
    parts: usize,
    per: usize,
    groups: usize,
}

impl Columns {
    /// Work-items of a group; vectors of a row that it takes at most, and rows that each work-item should have.
    const GROUP: usize = 256;
    const MOST_LANES: usize = 32;
    const ROWS: usize = 16;
    /// Groups for each compute unit.
    const PER_UNIT: usize = 4;

    /// For dense tensors of samples x channels in whole vectors, on devices with groups as large.
    fn new(stream: &Stream, job: &Job, planes: Planes) -> Option<Columns> {
        let width = VECTOR_BYTES / job.dtype.size();
        let info = stream.device().info();
        // Two vectors and a number for each work-item.
        let local = Self::GROUP * (2 * width + 1) * job.dtype.accumulator().size();
        let fits = largest_group(stream.device()) >= Self::GROUP && info.local_mem_size >= local as u64;
        let vectors = planes.channels / width;
        if planes.span > 1 || !fits || !planes.channels.is_multiple_of(width) || !job.args.aligned(width) {
            return None;
        }
        let lanes = (1 << vectors.trailing_zeros()).min(Self::MOST_LANES);
        let rows = Self::GROUP / lanes;
        let blocks = vectors / lanes;
        let wanted = (info.compute_units as usize * Self::PER_UNIT).div_ceil(blocks);
        let parts = wanted.min(planes.samples / (rows * Self::ROWS)).max(1);
        let per = planes.samples.div_ceil(parts);
        let parts = planes.samples.div_ceil(per);
        let wide = RowTile { width, vectors: 4, lanes, group: Self::GROUP };
        Some(Columns { wide, parts, per, groups: parts * blocks })
    }

    fn code<'s>(&self, kernel: &'static str, scalars: &'s [Number]) -> ClCode<'s> {
        let group = Some(Self::GROUP);
        ClCode { scalars, items: self.groups * Self::GROUP, group, wide: Some(self.wide), ..columns_code(kernel) }
    }
}

/// A kernel that has a group for each channel, where the device has groups that large and there are parts enough for them.
fn by_channel(stream: &Stream, kernel: &'static str, channels: usize, parts: usize) -> Option<ClCode<'static>> {
    const GROUP: usize = 64;
    let wide = RowTile { group: GROUP, ..RowTile::vectors(1) };
    (parts > 4 && largest_group(stream.device()) >= GROUP).then(|| ClCode {
        items: channels * GROUP,
        group: Some(GROUP),
        wide: Some(wide),
        ..columns_code(kernel)
    })
}

/// How rows are held in registers, where they are: vectors must not reach from one channel into the next.
fn in_registers(stream: &Stream, job: &Job, rows: Rows) -> Option<RowTile> {
    let wide = RowTile::for_rows(stream, job.dtype, rows.n, &job.args)?;
    (rows.span == 1 || rows.span.is_multiple_of(wide.width)).then_some(wide)
}

/// How vectors of a channel's elements are read, where whole ones are.
fn in_planes(stream: &Stream, job: &Job, planes: Planes) -> Option<RowTile> {
    RowTile::for_planes(stream, job.dtype, planes.span, &job.args)
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
    let units = stream.device().info().compute_units as usize;
    // A GPU runs eight groups of a unit at once: a few more than that would have it to themselves afterwards.
    let wanted = units * 8 / already;
    let parts = wanted.min(total / smallest.max(1)).max(1);
    let per = total.div_ceil(parts);
    (total.div_ceil(per), per)
}

pub(super) fn rows_forward(stream: &Stream, job: Job, rows: Rows, eps: f64) -> Result<()> {
    let wide = in_registers(stream, &job, rows);
    let (items, group, lanes) = wide.map_or_else(|| lanes(stream, &job, rows), |wide| (0, 0, wide.lanes));
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
    if let Some(wide) = wide {
        let code = ClCode { scalars: &scalars, ..registers_code("norm_rows_registers") };
        return job.run_cl(stream, &ClCode { local: 2 * wide.group, ..wide.code(code, rows.rows) });
    }
    let code = ClCode { scalars: &scalars, items, group: Some(group), local: group, ..forward_code("norm_rows") };
    job.run_cl(stream, &code)
}

/// The statistics of a dense tensor.
pub(super) fn statistics(stream: &Stream, op: &'static str, x: &Tensor, planes: Planes) -> Result<ChannelStatistics> {
    let count = planes.count();
    let args = Args::default().read(x);
    let job = Job { name: op, queue: x.queue().clone(), dtype: x.dtype(), cost: cost(x, 1, 6), args };
    if let Some(columns) = Columns::new(stream, &job, planes) {
        let partial = Tensor::uninit(x.queue(), [planes.channels, columns.parts, 2], x.dtype().accumulator())?;
        let scalars = [planes.samples, planes.channels, columns.parts, columns.per].map(Number::Count);
        let scalars = [&scalars[..], &[Number::Flag(columns.wide.lanes)]].concat();
        let job = Job { args: job.args.write(&partial), ..job };
        job.run_cl(stream, &columns.code("norm_moments_columns", &scalars))?;
        return Ok(ChannelStatistics { parts: partial, cut: Cut { count, per: columns.per } });
    }
    let (_, per) = cut(stream, count, PART, planes.channels);
    // Whole vectors in every part, of whatever element.
    let per = per.next_multiple_of(VECTOR_BYTES).min(count);
    let parts = count.div_ceil(per);
    let partial = Tensor::uninit(x.queue(), [planes.channels, parts, 2], x.dtype().accumulator())?;
    let group = group_size(stream, x.dtype());
    let job = Job { args: job.args.write(&partial), ..job };
    let scalars = [planes.channels, planes.span, count, parts, per].map(Number::Count);
    let code = ClCode { scalars: &scalars, ..forward_code("norm_moments") };
    let code = match in_planes(stream, &job, planes) {
        Some(wide) => {
            let code = ClCode { scalars: &scalars, ..planes_code("norm_moments_planes") };
            ClCode { local: 3 * wide.group, ..wide.code(code, planes.channels * parts) }
        }
        None => ClCode { items: planes.channels * parts * group, group: Some(group), local: group, ..code },
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
    share: Option<f64>,
    eps: f64,
) -> Result<()> {
    let channels = statistics.channels();
    let (mut parts, mut cut) = (statistics.parts.clone(), statistics.cut);
    let by_channel = by_channel(stream, "norm_finish_group", channels, cut.parts());
    while by_channel.is_none() && cut.parts() > FEW {
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
    let (momentum, average) = (Number::Real(share.unwrap_or_default()), Number::Flag(usize::from(share.is_none())));
    let scalars = [channels_, all, parts_, per, Number::Real(eps), momentum, average];
    let code = by_channel.unwrap_or_else(|| ClCode { items: channels, ..forward_code("norm_finish") });
    forward.finish(op, &parts).run_cl(stream, &ClCode { scalars: &scalars, ..code })
}

/// Raises the number of batches by one.
pub(super) fn count(stream: &Stream, job: Job) -> Result<()> {
    job.run_cl(stream, &ClCode { items: 1, ..forward_code("norm_count") })
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
    by: By,
}

/// What finds the sums of a part.
#[derive(Clone, Copy)]
enum By {
    /// A work-item, element by element.
    Items,
    /// A group.
    Groups,
    /// A group, vectors of neighbouring channels.
    Columns(Columns),
}

impl Sums {
    fn new(stream: &Stream, saved: &Saved<'_>, planes: Planes, lines: &Lines) -> Result<Sums> {
        let Planes { samples, channels, span } = planes;
        let x = saved.x;
        // Statistics of channels, which the kernel for neighbouring channels needs side by side.
        let by_channel = (lines.by_sample, lines.per_line, lines.by_line) == (0, 1, 1);
        let job = Job { name: "", queue: x.queue().clone(), dtype: x.dtype(), cost: SMALL, args: saved.args() };
        let by = match Columns::new(stream, &job, planes).filter(|_| by_channel) {
            Some(columns) => By::Columns(columns),
            None if span < PLANE => By::Items,
            None => By::Groups,
        };
        let (parts, per) = match by {
            By::Columns(columns) => (columns.parts, columns.per),
            By::Items => cut(stream, samples, 16, channels.div_ceil(group_size(stream, x.dtype()))),
            By::Groups => cut(stream, samples, PART.div_ceil(span), channels),
        };
        let partial = Tensor::uninit(x.queue(), [2 * parts * channels], x.dtype().accumulator())?;
        let scalars =
            [samples, channels, span, parts, per, lines.by_sample, lines.per_line, lines.by_line].map(Number::Count);
        Ok(Sums { partial, channels, parts, scalars, by })
    }

    /// The work-items that find the parts, in groups of `group`.
    fn items(&self, group: usize) -> usize {
        self.parts * self.channels * if matches!(self.by, By::Groups) { group } else { 1 }
    }

    /// Finds the parts.
    fn find(&self, stream: &Stream, op: &'static str, saved: &Saved<'_>, planes: Planes) -> Result<()> {
        let x = saved.x;
        let group = group_size(stream, x.dtype());
        let args = saved.args().write(&self.partial);
        let job = Job { name: op, queue: x.queue().clone(), dtype: x.dtype(), cost: cost(x, 2, 6), args };
        let wanted: [Number; 4];
        let code = match &self.by {
            By::Columns(columns) => {
                let [samples, channels, per] = [planes.samples, planes.channels, columns.per].map(Number::Count);
                wanted = [samples, channels, per, Number::Flag(columns.wide.lanes)];
                columns.code("norm_sums_columns_wide", &wanted)
            }
            By::Items => {
                let code = backward_code("norm_sums_columns");
                ClCode { scalars: &self.scalars, items: self.items(group), ..code }
            }
            By::Groups => match in_planes(stream, &job, planes) {
                Some(wide) => {
                    let code = ClCode { scalars: &self.scalars, ..planes_code("norm_sums_vectors") };
                    ClCode { local: 2 * wide.group, ..wide.code(code, self.parts * self.channels) }
                }
                None => {
                    let code = ClCode { scalars: &self.scalars, ..backward_code("norm_sums_planes") };
                    ClCode { items: self.items(group), group: Some(group), local: group, ..code }
                }
            },
        };
        job.run_cl(stream, &code)
    }

    /// Adds the parts up, in order.
    fn finish(&self, stream: &Stream, op: &'static str, x: &Tensor, [d_weight, d_bias]: [&Tensor; 2]) -> Result<()> {
        let args = Args::default().read(&self.partial).write(d_weight).write(d_bias);
        let scalars = [Number::Count(d_weight.size()), Number::Count(self.parts)];
        let code = by_channel(stream, "norm_sums_group", d_weight.size(), self.parts);
        let code = code.unwrap_or_else(|| ClCode { items: d_weight.size(), ..backward_code("norm_sums_finish") });
        let code = ClCode { scalars: &scalars, ..code };
        Job { name: op, queue: x.queue().clone(), dtype: x.dtype(), cost: SMALL, args }.run_cl(stream, &code)
    }
}

/// The input's gradient, and those of the parameters where they are wanted.
pub(super) fn rows_backward(
    stream: &Stream,
    op: &'static str,
    saved: &Saved<'_>,
    rows: Rows,
    input: &Tensor,
    wanted: bool,
) -> Result<Option<[Tensor; 2]>> {
    let x = saved.x;
    let gradient = || Tensor::uninit(x.queue(), [rows.groups * rows.channels], x.dtype().accumulator());
    let planes = Planes { samples: rows.rows / rows.groups, channels: rows.groups * rows.channels, span: rows.span };
    let lines = Lines { by_sample: rows.groups, per_line: rows.channels, by_line: 1 };
    let make =
        |args, tensors| Job { name: op, queue: x.queue().clone(), dtype: x.dtype(), cost: cost(x, tensors, 12), args };
    let job = make(saved.args().write(input), 3);
    let [count, n, groups, channels, span] =
        [rows.rows, rows.n, rows.groups, rows.channels, rows.span].map(Number::Count);
    let centred = Number::Flag(usize::from(rows.centred));
    let wide = in_registers(stream, &job, rows);
    if let Some(wide) = wide {
        let scalars = [count, n, groups, channels, span, centred, Number::Flag(wide.lanes)];
        if wanted && rows.groups == 1 && rows.span == 1 {
            // Rows enough for each group that its sums, which are written too, weigh little.
            let together = wide.group / wide.lanes;
            let groups = (stream.device().info().compute_units as usize * PER_UNIT)
                .min(rows.rows.div_ceil(together * ROWS_OF_SUMS))
                .max(1);
            let slots = groups * together;
            let partial = Tensor::uninit(x.queue(), [slots, 2 * rows.n], x.dtype().accumulator())?;
            let code = ClCode { scalars: &scalars, ..registers_code("norm_back_sums") };
            let code = ClCode { local: 2 * wide.group, ..wide.code(code, slots) };
            make(saved.args().write(input).write(&partial), 3).run_cl(stream, &code)?;
            let sums = crate::reduce::sum(&partial, 0, false)?;
            let part = |from: usize| sums.slice(0, Slice::new(Some(from as isize), Some((from + rows.n) as isize), 1));
            return Ok(Some([part(0)?, part(rows.n)?]));
        }
        let code = ClCode { scalars: &scalars, ..registers_code("norm_back_registers") };
        job.run_cl(stream, &ClCode { local: 2 * wide.group, ..wide.code(code, rows.rows) })?;
    }
    let (items, group, lanes) = lanes(stream, &make(saved.args(), 3), rows);
    let lanes = Number::Flag(lanes);
    let code =
        |kernel, scalars, items| ClCode { scalars, items, group: Some(group), local: group, ..backward_code(kernel) };
    if !wanted {
        if wide.is_none() {
            let scalars = [span, count, n, groups, channels, centred, lanes];
            make(saved.args().write(input), 3).run_cl(stream, &code("norm_rows_backward", &scalars, items))?;
        }
        return Ok(None);
    }
    let sums = Sums::new(stream, saved, planes, &lines)?;
    if wide.is_some() {
        sums.find(stream, op, saved, planes)?;
    } else {
        // Neither needs what the other writes: one launch for both.
        let kernel = if matches!(sums.by, By::Items) { "norm_rows_and_columns" } else { "norm_rows_and_planes" };
        let own = [count, n, groups, channels, centred, lanes, Number::Count(items / group)];
        let scalars: Vec<Number> = sums.scalars.into_iter().chain(own).collect();
        let job = make(saved.args().write(input).write(&sums.partial), 5);
        job.run_cl(stream, &code(kernel, &scalars, items + sums.items(group)))?;
    }
    let gradients = [gradient()?, gradient()?];
    sums.finish(stream, op, x, [&gradients[0], &gradients[1]])?;
    Ok(Some(gradients))
}

/// The sums that the gradients of batch norm's parameters are, and that the input's gradient needs.
pub(super) fn batch_sums(
    stream: &Stream,
    op: &'static str,
    saved: &Saved<'_>,
    planes: Planes,
    gradients: [&Tensor; 2],
) -> Result<()> {
    let lines = Lines { by_sample: 0, per_line: 1, by_line: 1 };
    let sums = Sums::new(stream, saved, planes, &lines)?;
    sums.find(stream, op, saved, planes)?;
    sums.finish(stream, op, saved.x, gradients)
}
