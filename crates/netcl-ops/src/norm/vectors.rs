//! Launches of `norm_vector_forward.cl` and `norm_vector_backward.cl`: normalisation on processors.

use netcl_core::Result;
use netcl_core::backend::opencl::Stream;
use netcl_core::dtype::DType;
use netcl_core::kernels::form::Form;
use netcl_core::kernels::launch::Access;
use netcl_core::tensor::Tensor;

use super::batch::Planes;
use super::cost;
use super::rows::{Rows, Saved};
use super::statistics::{ChannelStatistics, Cut};
use crate::dense::{Args, ClCode, Job, Number};
use crate::wide::{ITEMS_PER_UNIT, SMALLEST_ITEM, deal, vector_width};

/// Whether the device works through neighbouring elements in vectors.
pub(super) fn suit(stream: &Stream) -> bool {
    Form::of(stream.device()) == Form::Items
}

/// Whether the channels of a tensor have fewer elements side by side than a vector.
pub(super) fn narrow(dtype: DType, planes: Planes) -> bool {
    planes.span < vector_width(dtype)
}

fn forward_code(kernel: &'static str) -> ClCode<'static> {
    let text = concat!(include_str!("../vector_sums.cl"), include_str!("norm_vector_forward.cl"));
    code("norm_vector_forward.cl", text, kernel)
}

fn backward_code(kernel: &'static str) -> ClCode<'static> {
    let text = concat!(include_str!("../vector_sums.cl"), include_str!("norm_vector_backward.cl"));
    code("norm_vector_backward.cl", text, kernel)
}

fn code(file: &'static str, text: &'static str, kernel: &'static str) -> ClCode<'static> {
    ClCode { file, text, kernel, scalars: &[], items: 0, group: Some(1), local: 0, wide: None, loose: true }
}

/// Parts of a channel, so that every compute unit is busy, and the samples of each but the last.
pub(super) fn parts(stream: &Stream, planes: Planes) -> (usize, usize) {
    let wanted = (stream.device().info().compute_units as usize * ITEMS_PER_UNIT).div_ceil(planes.channels);
    let parts = wanted.min(planes.count() / SMALLEST_ITEM).clamp(1, planes.samples);
    let per = planes.samples.div_ceil(parts);
    (planes.samples.div_ceil(per), per)
}

pub(super) fn rows_forward(stream: &Stream, job: Job, rows: Rows, eps: f64) -> Result<()> {
    let (per, items) = deal(stream, rows.rows, rows.n);
    let scalars = [
        Number::Count(rows.rows),
        Number::Count(rows.n),
        Number::Count(rows.groups),
        Number::Count(rows.channels),
        Number::Count(rows.span),
        Number::Real(eps),
        Number::Flag(usize::from(rows.centred)),
        Number::Count(per),
    ];
    job.run_cl(stream, &ClCode { scalars: &scalars, items, ..forward_code("norm_rows_vector") })
}

/// The statistics of a dense tensor.
pub(super) fn statistics(stream: &Stream, op: &'static str, x: &Tensor, planes: Planes) -> Result<ChannelStatistics> {
    let Planes { samples, channels, span } = planes;
    let count = planes.count();
    let narrow = narrow(x.dtype(), planes);
    let (parts, per) = parts(stream, planes);
    // Where channels are narrow, each of their places is a part.
    let cut = Cut { count, per: if narrow { samples } else { per * span } };
    let partial = Tensor::uninit(x.queue(), [channels, cut.parts(), 2], x.dtype().accumulator())?;
    let args = Args::default().read(x).write(&partial);
    let job = Job { name: op, queue: x.queue().clone(), dtype: x.dtype(), cost: cost(x, 1, 6), args };
    if narrow {
        let (per, items) = by_vectors(stream, x.dtype(), planes);
        let scalars = [samples, channels * span, per].map(Number::Count);
        job.run_cl(stream, &ClCode { scalars: &scalars, items, ..forward_code("norm_moments_columns") })?;
    } else {
        let scalars = [channels, span, samples, parts, per].map(Number::Count);
        let items = channels * parts;
        job.run_cl(stream, &ClCode { scalars: &scalars, items, ..forward_code("norm_moments_vector") })?;
    }
    Ok(ChannelStatistics { parts: partial, cut })
}

/// How many vectors of neighbouring elements of all samples a work-item takes, and the work-items.
fn by_vectors(stream: &Stream, dtype: DType, planes: Planes) -> (usize, usize) {
    let width = vector_width(dtype);
    deal(stream, (planes.channels * planes.span).div_ceil(width), width * planes.samples)
}

/// How a pass over all elements is dealt out: by planes, or by samples where channels are narrow.
struct Pass {
    kernel: &'static str,
    /// Planes or samples, and those of a work-item.
    count: usize,
    per: usize,
    items: usize,
}

impl Pass {
    fn new(stream: &Stream, dtype: DType, planes: Planes, by_planes: &'static str, by_samples: &'static str) -> Pass {
        let Planes { samples, channels, span } = planes;
        let (kernel, count, size) = match narrow(dtype, planes) {
            true => (by_samples, samples, channels * span),
            false => (by_planes, samples * channels, span),
        };
        let (per, items) = deal(stream, count, size);
        Pass { kernel, count, per, items }
    }
}

pub(super) fn batch_apply(stream: &Stream, job: Job, planes: Planes) -> Result<()> {
    let pass = Pass::new(stream, job.dtype, planes, "norm_apply_vector", "norm_apply_columns");
    let scalars = [pass.count, planes.channels, planes.span, pass.per].map(Number::Count);
    job.run_cl(stream, &ClCode { scalars: &scalars, items: pass.items, ..forward_code(pass.kernel) })
}

/// The input's gradient from its channel's sums.
pub(super) fn batch_input(stream: &Stream, job: Job, planes: Planes, training: bool) -> Result<()> {
    let pass = Pass::new(stream, job.dtype, planes, "norm_batch_vector", "norm_batch_columns");
    let [count, channels, span, per] = [pass.count, planes.channels, planes.span, pass.per].map(Number::Count);
    let (all, training) = (Number::Real(planes.count() as f64), Number::Flag(usize::from(training)));
    let scalars = [count, channels, span, all, training, per];
    job.run_cl(stream, &ClCode { scalars: &scalars, items: pass.items, ..backward_code(pass.kernel) })
}

/// The sums of channels, by parts of samples; `scalars` say how they are cut.
pub(super) fn sums(stream: &Stream, job: Job, scalars: &[Number], items: usize) -> Result<()> {
    job.run_cl(stream, &ClCode { scalars, items, ..backward_code("norm_sums_vector") })
}

/// The same of narrow channels, whose places are the parts.
pub(super) fn sums_of_places(stream: &Stream, job: Job, planes: Planes) -> Result<()> {
    let (per, items) = by_vectors(stream, job.dtype, planes);
    let scalars = [planes.samples, planes.channels, planes.span, per].map(Number::Count);
    job.run_cl(stream, &ClCode { scalars: &scalars, items, ..backward_code("norm_sums_places") })
}

/// Sums over rows for the gradients of parameters, in parts.
pub(super) struct RowSums {
    pub(super) partial: Tensor,
    pub(super) parts: usize,
}

/// The input's gradient. Where every element of a row has parameters of its own, and their gradients are wanted, also their sums.
pub(super) fn rows_backward(
    stream: &Stream,
    op: &'static str,
    saved: &Saved<'_>,
    rows: Rows,
    input: &Tensor,
    wanted: bool,
) -> Result<Option<RowSums>> {
    let x = saved.x;
    let (per, items) = deal(stream, rows.rows, rows.n);
    let alone = rows.groups == 1 && rows.span == 1;
    // What the sums lost stands behind them.
    let sums = (wanted && alone)
        .then(|| Tensor::uninit(x.queue(), [4 * items * rows.n], x.dtype().accumulator()))
        .transpose()?;
    let args = saved.args().write(input).maybe(sums.as_ref(), Access::Write);
    let job = Job { name: op, queue: x.queue().clone(), dtype: x.dtype(), cost: cost(x, 3, 12), args };
    let [count, n, groups, channels, span, per] =
        [rows.rows, rows.n, rows.groups, rows.channels, rows.span, per].map(Number::Count);
    let scalars = [count, n, groups, channels, span, Number::Flag(usize::from(rows.centred)), per];
    job.run_cl(stream, &ClCode { scalars: &scalars, items, ..backward_code("norm_rows_back_vector") })?;
    Ok(sums.map(|partial| RowSums { partial, parts: items }))
}
