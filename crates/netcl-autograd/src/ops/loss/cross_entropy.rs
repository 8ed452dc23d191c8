//! Cross-entropy of logits, and the negative log-likelihood of log-probabilities.

use std::sync::{Arc, LazyLock};

use netcl_core::Error as CoreError;
use netcl_core::dtype::DType;
use netcl_core::kernels::expr::Graph;
use netcl_core::shape::{Shape, Slice};
use netcl_core::tensor::{Tensor as Raw, reshape as raw_reshape};
use netcl_ops as ops;
use netcl_ops::Axes;
use smallvec::{SmallVec, smallvec};

use super::labels::{Checked, Labels, Target, class_axis};
use super::pick::{SavedLabels, pick, unpick};
use super::{Reduction, check_number};
use crate::autocast;
use crate::error::Result;
use crate::graph::{Save, grad_enabled, record};
use crate::ops::elementwise::{ExprOp, Operand, cast, div, mul, neg};
use crate::ops::layout::{expand, reshape};
use crate::ops::reduce::{mean, sum};
use crate::ops::softmax::{log_softmax, log_softmax_backward};
use crate::tensor::Tensor;

/// How [`cross_entropy`] weighs classes and rows.
#[derive(Clone, Debug)]
pub struct CrossEntropyOptions {
    /// A factor for each class, of shape `(C,)`.
    pub weight: Option<Tensor>,
    /// Rows with this label count for nothing. It need not be a class.
    pub ignore_index: Option<i64>,
    /// From 0 to 1: the part of each target that is spread evenly over all classes.
    pub label_smoothing: f64,
    /// What becomes of the rows' losses. With weights, [`Reduction::Mean`] divides by the sum of the targets' weights.
    pub reduction: Reduction,
}

impl Default for CrossEntropyOptions {
    fn default() -> Self {
        CrossEntropyOptions { weight: None, ignore_index: Some(-100), label_smoothing: 0.0, reduction: Reduction::Mean }
    }
}

/// How [`nll_loss`] weighs classes and rows.
#[derive(Clone, Debug)]
pub struct NllOptions {
    /// A factor for each class, of shape `(C,)`.
    pub weight: Option<Tensor>,
    /// Rows with this label count for nothing. It need not be a class.
    pub ignore_index: Option<i64>,
    /// What becomes of the rows' losses. With weights, [`Reduction::Mean`] divides by the sum of the targets' weights.
    pub reduction: Reduction,
}

impl Default for NllOptions {
    fn default() -> Self {
        NllOptions { weight: None, ignore_index: Some(-100), reduction: Reduction::Mean }
    }
}

/// The cross-entropy between logits of shape `(N, C)`, `(N, C, d1, ...)` or `(C,)` and a [`Target`]: class labels without
/// the axis of classes, or probabilities of the logits' shape. Stable for logits of any size.
///
/// As in PyTorch, the mean over rows that are all ignored is NaN (their gradient is 0), and weights do not enter the
/// divisor of the mean when the target is probabilities.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::loss::{CrossEntropyOptions, cross_entropy}};
///
/// let logits = Tensor::from_host(&manager().cpu().queue, &[0.0f32, 0.0, 1e4, -1e4], [2, 2])?.with_grad();
/// let loss = cross_entropy(&logits, &[1, 0], &CrossEntropyOptions::default())?;
/// assert!((loss.item()? - 2f64.ln() / 2.0).abs() < 1e-6);
/// loss.backward()?;
/// assert_eq!(logits.grad().unwrap().to_host::<f32>()?, [0.25, -0.25, 0.0, 0.0]);
///
/// let error = cross_entropy(&logits, &[0, 7], &CrossEntropyOptions::default()).unwrap_err().to_string();
/// assert!(error.contains("label 7 in row 1 is outside 0..2"));
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
///
/// # Errors
/// Names the row and the value of a label that is no class, and both shapes where they do not fit. While launches are
/// recorded, labels on a device cannot be read: one that is no class then gives NaN.
#[track_caller]
pub fn cross_entropy<'t>(
    logits: &Tensor,
    target: impl Into<Target<'t>>,
    options: &CrossEntropyOptions,
) -> Result<Tensor> {
    let op = "cross_entropy";
    if let Some(casts) = autocast::enter(op, [logits]) {
        return cross_entropy(&casts.of(logits)?, target, options);
    }
    let smoothing = options.label_smoothing;
    let axis = class_axis(op, logits)?;
    check_number(op, "label_smoothing", smoothing, (0.0..=1.0).contains(&smoothing), "a number from 0 to 1")?;
    let weight = options.weight.as_ref();
    check_class_weight(op, logits, axis, weight)?;
    match target.into().check(op, logits, options.ignore_index)? {
        Checked::Probabilities(target) => {
            soft(&log_softmax(logits, axis as isize)?, target, axis, weight, smoothing, options.reduction)
        }
        Checked::Labels(labels) => {
            let weight = constant_weight(op, weight)?;
            let plain = weight.is_none() && smoothing == 0.0 && options.reduction == Reduction::Mean;
            if plain && ops::cross_entropy_fits(logits.raw()) {
                return fused(logits, &labels);
            }
            nll(&log_softmax(logits, axis as isize)?, &labels, weight, smoothing, options.reduction)
        }
    }
}

/// The negative log-likelihood of class labels under log-probabilities of shape `(N, C)`, `(N, C, d1, ...)` or `(C,)`: what
/// is left of [`cross_entropy`] after a [`log_softmax`].
#[track_caller]
pub fn nll_loss<'t>(log_probabilities: &Tensor, target: impl Into<Target<'t>>, options: &NllOptions) -> Result<Tensor> {
    let op = "nll_loss";
    if let Some(casts) = autocast::enter(op, [log_probabilities]) {
        return nll_loss(&casts.of(log_probabilities)?, target, options);
    }
    let axis = class_axis(op, log_probabilities)?;
    check_class_weight(op, log_probabilities, axis, options.weight.as_ref())?;
    match target.into().check(op, log_probabilities, options.ignore_index)? {
        Checked::Labels(labels) => {
            let weight = constant_weight(op, options.weight.as_ref())?;
            nll(log_probabilities, &labels, weight, 0.0, options.reduction)
        }
        Checked::Probabilities(target) => {
            let labels = log_probabilities.shape().without_axis(axis, false);
            let why = format!("nll_loss takes class labels of shape {labels}; cross_entropy takes probabilities");
            Err(CoreError::Shape { op, shape: target.shape().clone(), why }.into())
        }
    }
}

/// The mean over rows: one launch, and one for the gradient.
#[track_caller]
fn fused(logits: &Tensor, labels: &Labels) -> Result<Tensor> {
    let Labels { index, ignore, .. } = labels;
    let (ignore, classes) = (*ignore, logits.shape()[1]);
    let (loss, stats) = ops::cross_entropy(logits.raw(), index, ignore)?;
    let saved = SavedLabels::new("cross_entropy", index);
    record("cross_entropy", &[logits], loss, Save::INPUTS, || {
        Box::new(move |context, upstream| {
            let (x, labels) = (context.input(0)?, saved.get()?);
            if !grad_enabled() {
                let grad = ops::cross_entropy_backward(x.raw(), labels, ignore, &stats, upstream.raw())?;
                return Ok(smallvec![Some(grad.into())]);
            }
            // For gradients of gradients, in parts that have some.
            let rows = labels.tensor().shape().clone();
            let counted = stats.slice(0, Slice::index(-1))?;
            let share = neg(&div(upstream, &raw_reshape(&counted, ())?.into())?)?;
            let spread = unpick(&expand(&share, rows)?, 1, labels, classes, ignore)?;
            Ok(smallvec![Some(log_softmax_backward(&spread, &log_softmax(&x, 1)?, 1)?)])
        })
    })
}

pub(super) fn check_class_weight(
    op: &'static str,
    logits: &Tensor,
    axis: usize,
    weight: Option<&Tensor>,
) -> Result<()> {
    let Some(weight) = weight else { return Ok(()) };
    logits.queue().check_same_device(op, weight.queue())?;
    let classes = Shape::from([logits.shape()[axis]]);
    if *weight.shape() != classes {
        let why = format!("weight needs shape {classes}, one factor per class of logits of shape {}", logits.shape());
        return Err(CoreError::Shape { op, shape: weight.shape().clone(), why }.into());
    }
    if weight.dtype() != logits.dtype() {
        return Err(CoreError::DtypeMismatch { op, lhs: logits.dtype(), rhs: weight.dtype() }.into());
    }
    Ok(())
}

/// The weight as a constant: beside class labels it has no gradient, in PyTorch neither, and silence would be worse.
pub(super) fn constant_weight<'w>(op: &'static str, weight: Option<&'w Tensor>) -> Result<Option<&'w Raw>> {
    match weight {
        Some(weight) if weight.requires_grad() => {
            let what =
                "weight requires a gradient, but class weights beside labels are constants; pass weight.detach()";
            Err(CoreError::argument(op, what).into())
        }
        weight => Ok(weight.map(Tensor::raw)),
    }
}

/// The shape in which a value per class broadcasts against the logits.
fn along_classes(logits: &Shape, axis: usize) -> Shape {
    (0..logits.ndim()).map(|a| if a == axis { logits[a] } else { 1 }).collect()
}

/// The loss of a row from its parts, by (weighted, smoothed). Inputs: the label's log-probability; the label's weight; the
/// mean of the (weighted) log-probabilities, and 1 where the row counts. Scalars: what the label keeps, what is spread.
static ROWS: LazyLock<[[Arc<ExprOp>; 2]; 2]> = LazyLock::new(|| {
    [false, true].map(|weighted| {
        [false, true].map(|smoothed| {
            let g = Graph::new();
            let (picked, at) = (g.input(0), usize::from(weighted));
            let own = if weighted { picked * g.input(1) } else { picked };
            let row = if smoothed {
                // Cut off, not multiplied: an ignored row may hold anything.
                let (spread, counts) = (g.input(at + 1), g.input(at + 2));
                counts.select(-(own * g.scalar(0) + spread * g.scalar(1)), 0.0)
            } else {
                -own
            };
            ExprOp::new("nll_loss", g.finish(&[row]))
        })
    })
});

/// Rows are handled in the type sums are carried in and rounded to the logits' dtype once, at the end.
#[track_caller]
fn nll(
    log_probabilities: &Tensor,
    labels: &Labels,
    weight: Option<&Raw>,
    smoothing: f64,
    reduction: Reduction,
) -> Result<Tensor> {
    let Labels { index, ignore, axis, counted } = labels;
    let (axis, shape, dtype) = (*axis as isize, log_probabilities.shape(), log_probabilities.dtype());
    let wide = |t: &Tensor| cast(t, dtype.accumulator());
    // One value per class, or one for all, as every row's label sees it.
    let of_label =
        |values: &Raw| -> Result<Tensor> { wide(&ops::pick(&values.expand(shape)?, axis, index, *ignore)?.into()) };
    let counts = || of_label(&Raw::full(log_probabilities.queue(), (), dtype, 1.0)?);
    let picked = wide(&pick(log_probabilities, axis, index, *ignore)?)?;
    if let (None, 0.0, Reduction::Mean) = (weight, smoothing, reduction) {
        // The usual case needs no pass over the rows but the sum; 0 rows give 0 * inf = NaN.
        let total = sum(&picked, (), false)?;
        let mean = match counted {
            Some(counted) => mul(&total, -1.0 / *counted as f64)?,
            // Counted on the device, and rounded as the host does it.
            None => mul(
                &total,
                &div(&Tensor::full(picked.queue(), (), picked.dtype(), -1.0)?, &sum(&counts()?, (), false)?)?,
            )?,
        };
        return cast(&mean, dtype);
    }
    let weight = weight.map(|weight| raw_reshape(weight, along_classes(shape, axis as usize))).transpose()?;
    let own = weight.as_ref().map(of_label).transpose()?;
    let smoothed = if smoothing > 0.0 {
        let spread = match &weight {
            Some(weight) => mean(&mul(log_probabilities, &weight.clone().into())?, axis, false)?,
            None => mean(log_probabilities, axis, false)?,
        };
        Some([wide(&spread)?, counts()?])
    } else {
        None
    };
    let inputs: SmallVec<[&Tensor; 4]> = [&picked].into_iter().chain(&own).chain(smoothed.iter().flatten()).collect();
    let numbers = [(1.0 - smoothing).into(), smoothing.into()];
    let numbers = if smoothed.is_some() { &numbers[..] } else { &[] };
    let rows = ROWS[usize::from(own.is_some())][usize::from(smoothed.is_some())].apply(&inputs, numbers)?;
    match reduction {
        Reduction::None => cast(&rows, dtype),
        Reduction::Sum => cast(&sum(&rows, (), false)?, dtype),
        Reduction::Mean => {
            let total = match (&own, counted) {
                (Some(own), _) => Some(ops::sum(own.raw(), (), false)?.into()),
                (None, Some(_)) => None,
                (None, None) => Some(sum(&counts()?, (), false)?),
            };
            let divisor = match &total {
                Some(total) => Operand::Tensor(total),
                None => Operand::Number(counted.unwrap_or_default() as f64),
            };
            cast(&div(&sum(&rows, (), false)?, divisor)?, dtype)
        }
    }
}

/// The loss of each element, by whether there are weights. Inputs: log-probabilities, target, weight. Scalars: the part of
/// the target that is kept, and what every class gets.
static SOFT: LazyLock<[Arc<ExprOp>; 2]> = LazyLock::new(|| {
    [false, true].map(|weighted| {
        let g = Graph::new();
        let loss = -(g.input(0) * (g.input(1) * g.scalar(0) + g.scalar(1)));
        ExprOp::new("cross_entropy", g.finish(&[if weighted { loss * g.input(2) } else { loss }]))
    })
});

#[track_caller]
fn soft(
    log_probabilities: &Tensor,
    target: &Tensor,
    axis: usize,
    weight: Option<&Tensor>,
    smoothing: f64,
    reduction: Reduction,
) -> Result<Tensor> {
    let (shape, dtype) = (log_probabilities.shape(), log_probabilities.dtype());
    let weight = weight.map(|weight| reshape(weight, along_classes(shape, axis))).transpose()?;
    let mut inputs: SmallVec<[&Tensor; 3]> = smallvec![log_probabilities, target];
    inputs.extend(&weight);
    let numbers = [(1.0 - smoothing).into(), (smoothing / shape[axis] as f64).into()];
    let losses = SOFT[usize::from(weight.is_some())].apply(&inputs, &numbers)?;
    let rows = sum(&losses, Axes::One(axis as isize), false)?;
    if reduction == Reduction::None || !matches!(dtype, DType::F16 | DType::BF16) {
        return reduction.apply(rows);
    }
    cast(&reduction.apply(cast(&rows, dtype.accumulator())?)?, dtype)
}
