//! The cross-entropy of each row of logits, whose gradient takes their place: what a loss in pieces is made of.

use netcl_core::backend::Queue;
use netcl_core::backend::cpu::threads::parallel_for;
use netcl_core::backend::opencl::Stream;
use netcl_core::dtype::{DType, Element};
use netcl_core::index::IndexTensor;
use netcl_core::kernels::expr::vecmath::Real;
use netcl_core::kernels::launch::{Access, Cost};
use netcl_core::shape::Layout;
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};

use crate::dense::{Args, ClCode, Job, Number, Stored, Views, group_size, with_stored};
use crate::reduce::{Lane, Max, plain_row};
use crate::row_tile::RowTile;
use crate::softmax::cpu::powers;

const OP: &str = "cross_entropy_rows";
/// Elements that a task of the native CPU should have.
const TASK: usize = 1 << 14;

/// How rows are compared with their labels.
#[derive(Clone, Copy, Debug, Default)]
pub struct RowRule {
    /// Rows with this label count for nothing.
    pub ignore: Option<i64>,
    /// The part of each target that is spread evenly over all classes.
    pub smoothing: f64,
}

/// The loss of each row of `logits`, in the dtype of its computation; with `backward` its gradient takes the logits' place, each
/// row times its element of `scales`. Elements of a row lie together, rows at any distance that is the same for all.
pub(crate) fn cross_entropy_rows(
    logits: &Tensor,
    labels: &IndexTensor,
    rule: RowRule,
    scales: Option<&Tensor>,
    losses: &Tensor,
    backward: bool,
) -> Result<()> {
    let rows = Rows::new(logits, labels, rule, scales, losses, backward)?;
    let (dtype, queue) = (logits.dtype(), logits.queue().clone());
    // Labels of either width: few beside the logits.
    let labels = labels.tensor().cast(DType::I64)?.contiguous()?;
    let args = Args::default().write(&rows.all).read(&labels).maybe(scales, Access::Read).write(losses);
    let passes = if backward { 3.0 } else { 1.0 };
    let elements = logits.size() as f64;
    let cost = Cost { flops: 6.0 * elements, bytes: passes * elements * dtype.size() as f64 };
    let job = Job { name: OP, queue: queue.clone(), dtype, cost, args };
    match &queue {
        Queue::Cpu(_) => with_stored!(dtype, T => job.run_cpu(move |views| rows.run_cpu::<T>(views))),
        Queue::OpenCl(stream) => rows.run_cl(stream, job),
    }
}

/// Rows of logits and what is done with them.
struct Rows {
    /// From the first logit to the last, as a vector.
    all: Tensor,
    rows: usize,
    classes: usize,
    step: usize,
    rule: RowRule,
    scaled: bool,
    backward: bool,
}

impl Rows {
    fn new(
        logits: &Tensor,
        labels: &IndexTensor,
        rule: RowRule,
        scales: Option<&Tensor>,
        losses: &Tensor,
        backward: bool,
    ) -> Result<Rows> {
        let wrong = |why: &str| Error::Shape { op: OP, shape: logits.shape().clone(), why: why.to_owned() };
        let (&[rows, classes], &[step, across]) = (&logits.shape()[..], logits.layout().strides()) else {
            return Err(wrong("logits are (rows, classes)"));
        };
        if rows == 0 || classes == 0 || across != 1 || (step as usize) < classes {
            return Err(wrong("logits are rows of one element and more, which lie together"));
        }
        let vectors = [Some(labels.tensor()), scales, Some(losses)];
        if vectors.into_iter().flatten().any(|vector| vector.shape()[..] != [rows]) {
            return Err(wrong("labels, scales and losses have one element for each row"));
        }
        let (step, size) = (step as usize, (rows - 1) * step as usize + classes);
        let all = logits.with_layout(Layout::strided([size].into(), &[1], logits.layout().offset())?)?;
        Ok(Rows { all, rows, classes, step, rule, scaled: scales.is_some(), backward })
    }

    fn run_cl(&self, stream: &Stream, job: Job) -> Result<()> {
        let dtype = job.dtype;
        let width = (16 / dtype.size()).min(8);
        let lies_well = self.step.is_multiple_of(width) && self.all.layout().offset().is_multiple_of(width);
        let width = if lies_well { width } else { 1 };
        let group = group_size(stream, dtype);
        let ignored = self.rule.ignore.unwrap_or_default() as u64;
        let scalars = [
            Number::Count(self.classes),
            Number::Count(self.step),
            Number::Flag((ignored & 0xffff_ffff) as usize),
            Number::Flag((ignored >> 32) as usize),
            Number::Flag(self.rule.ignore.is_some().into()),
            Number::Real(self.rule.smoothing),
            Number::Flag(self.scaled.into()),
            Number::Flag(self.backward.into()),
        ];
        let code = ClCode {
            file: "cross_entropy_rows.cl",
            text: include_str!("cross_entropy_rows.cl"),
            kernel: OP,
            scalars: &scalars,
            items: self.rows * group,
            group: Some(group),
            local: group,
            wide: Some(RowTile { width, vectors: 1, lanes: group, group }),
        };
        job.run_cl(stream, &code)
    }

    fn run_cpu<T: Stored>(&self, views: &Views<'_, '_>) -> Result<()> {
        let (x, labels) = (views.output::<T>(0)?, views.input::<i64>(1)?);
        let (scales, losses) = (views.input::<T::Lane>(2)?, views.output::<T::Lane>(3)?);
        parallel_for(OP, self.rows, TASK.div_ceil(self.classes), |rows| {
            let (mut wide, mut shares, mut stored) = (Vec::new(), Vec::new(), Vec::new());
            for row in rows {
                // SAFETY: a row of logits and its loss belong to this task alone, in tensors that the launch declared as written.
                let (x, loss) = unsafe { (x.part(row * self.step, self.classes), losses.part(row, 1)) };
                let scale = if self.scaled { Element::to_f64(scales[row]) } else { 1.0 };
                shares.resize(self.classes, <T::Lane as Real>::ZERO);
                let value = self.row(T::widen(x, &mut wide), labels[row], scale, &mut shares);
                loss[0] = <T::Lane as Real>::from_f64(value);
                if self.backward {
                    T::fill(x, &mut stored, |x| x.copy_from_slice(&shares));
                }
            }
        })
    }

    /// The loss of a row; its gradient goes to `shares` where it is wanted.
    fn row<L: Lane>(&self, x: &[L], label: i64, scale: f64, shares: &mut [L]) -> f64 {
        let RowRule { ignore, smoothing } = self.rule;
        if ignore == Some(label) {
            shares.fill(L::ZERO);
            return 0.0;
        }
        let Some(class) = usize::try_from(label).ok().filter(|&class| class < x.len()) else {
            shares.fill(<L as Real>::from_f64(f64::NAN));
            return f64::NAN;
        };
        let top = <L as Real>::from_f64(plain_row::<L, Max>(x));
        let total = powers(x, top, shares);
        let (top, rest) = (Element::to_f64(top), total.ln());
        let plain = (top - Element::to_f64(x[class])) + rest;
        let even = smoothing / x.len() as f64;
        if self.backward {
            let share = <L as Real>::from_f64(scale / total);
            let less = <L as Real>::from_f64(even * scale);
            shares.iter_mut().for_each(|value| *value = *value * share - less);
            shares[class] = shares[class] - <L as Real>::from_f64((1.0 - smoothing) * scale);
        }
        if smoothing == 0.0 {
            return plain;
        }
        let mean = x.iter().map(|&x| Element::to_f64(x)).sum::<f64>() / x.len() as f64;
        (1.0 - smoothing) * plain + smoothing * ((top - mean) + rest)
    }
}
