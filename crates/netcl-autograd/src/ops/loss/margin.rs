//! Losses that ask for a distance: of scores, of classes, of labels.

use std::sync::{Arc, LazyLock};

use netcl_core::Error as CoreError;
use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_core::kernels::expr::Graph;
use netcl_core::kernels::launch;
use netcl_core::tensor::Tensor as Raw;
use netcl_ops as ops;
use netcl_ops::integer::{IntegerOp, integer};

use super::binary::{BceWithLogitsOptions, binary_cross_entropy_with_logits, softplus};
use super::cross_entropy::{check_class_weight, constant_weight};
use super::labels::{Checked, class_axis};
use super::{Reduction, Target, check_number, check_same_shape, check_weight, pick};
use crate::autocast;
use crate::error::{Error, Result};
use crate::ops::elementwise::{ExprOp, mul};
use crate::ops::indexing::gather;
use crate::ops::layout::{reshape, squeeze, unsqueeze};
use crate::ops::reduce::{mean, sum};
use crate::tensor::Tensor;

/// The margin of [`margin_ranking_loss`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MarginRankingOptions {
    /// How much larger the better score should be.
    pub margin: f64,
    /// What becomes of the pairs' losses.
    pub reduction: Reduction,
}

/// The margin of [`hinge_embedding_loss`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HingeEmbeddingOptions {
    /// The distance at which pairs that should differ cost nothing.
    pub margin: f64,
    /// What becomes of the elements' losses.
    pub reduction: Reduction,
}

impl Default for HingeEmbeddingOptions {
    fn default() -> Self {
        HingeEmbeddingOptions { margin: 1.0, reduction: Reduction::Mean }
    }
}

/// How [`multi_margin_loss`] measures.
#[derive(Clone, Debug)]
pub struct MultiMarginOptions {
    /// The exponent of each class's hinge: 1 or 2.
    pub p: u32,
    /// How much larger the score of the right class should be.
    pub margin: f64,
    /// A factor for the rows of each class.
    pub weight: Option<Tensor>,
    /// What becomes of the rows' losses.
    pub reduction: Reduction,
}

impl Default for MultiMarginOptions {
    fn default() -> Self {
        MultiMarginOptions { p: 1, margin: 1.0, weight: None, reduction: Reduction::Mean }
    }
}

/// How [`multilabel_soft_margin_loss`] weighs classes.
#[derive(Clone, Debug, Default)]
pub struct MultilabelSoftMarginOptions {
    /// A factor for each class; it is broadcast to the input's shape.
    pub weight: Option<Tensor>,
    /// What becomes of the rows' losses.
    pub reduction: Reduction,
}

/// `max(0, margin - target * (first - second))`: the first score should be the larger one where the target is 1, the second where
/// it is -1.
///
/// ```
/// use netcl_autograd::manager;
/// use netcl_autograd::{Tensor, ops::loss::{MarginRankingOptions, margin_ranking_loss}};
///
/// let queue = manager().cpu().queue;
/// let row = |v: [f32; 2]| Tensor::from_host(&queue, &v, [2]);
/// let (first, second, target) = (row([3.0, 3.0])?, row([1.0, 1.0])?, row([1.0, -1.0])?);
/// assert_eq!(margin_ranking_loss(&first, &second, &target, &MarginRankingOptions::default())?.item()?, 1.0);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn margin_ranking_loss(
    first: &Tensor,
    second: &Tensor,
    target: &Tensor,
    options: &MarginRankingOptions,
) -> Result<Tensor> {
    static OP: LazyLock<Arc<ExprOp>> = LazyLock::new(|| {
        let g = Graph::new();
        let loss = (g.scalar(0) - g.input(2) * (g.input(0) - g.input(1))).relu();
        ExprOp::new("margin_ranking_loss", g.finish(&[loss]))
    });
    let op = "margin_ranking_loss";
    if let Some(casts) = autocast::enter(op, [first, second, target]) {
        return margin_ranking_loss(&casts.of(first)?, &casts.of(second)?, &casts.of(target)?, options);
    }
    check_number(op, "margin", options.margin, !options.margin.is_nan(), "a number")?;
    check_same_shape(op, first, second)?;
    check_same_shape(op, first, target)?;
    options.reduction.apply(OP.apply(&[first, second, target], &[options.margin.into()])?)
}

/// For distances and a target of 1 or -1: the distance where the pair should agree, `max(0, margin - distance)` where it should
/// not.
#[track_caller]
pub fn hinge_embedding_loss(input: &Tensor, target: &Tensor, options: &HingeEmbeddingOptions) -> Result<Tensor> {
    static OP: LazyLock<Arc<ExprOp>> = LazyLock::new(|| {
        let g = Graph::new();
        let (x, t) = (g.input(0), g.input(1));
        // Any other target counts on both sides, as in PyTorch.
        let loss = t.ne(1.0).select((g.scalar(0) - x).relu(), 0.0) + t.ne(-1.0).select(x, 0.0);
        ExprOp::new("hinge_embedding_loss", g.finish(&[loss]))
    });
    let op = "hinge_embedding_loss";
    if let Some(casts) = autocast::enter(op, [input, target]) {
        return hinge_embedding_loss(&casts.of(input)?, &casts.of(target)?, options);
    }
    check_number(op, "margin", options.margin, !options.margin.is_nan(), "a number")?;
    check_same_shape(op, input, target)?;
    options.reduction.apply(OP.apply(&[input, target], &[options.margin.into()])?)
}

/// `log(1 + exp(-target * input))` for targets of 1 and -1, stable.
#[track_caller]
pub fn soft_margin_loss(input: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    static OP: LazyLock<Arc<ExprOp>> = LazyLock::new(|| {
        let g = Graph::new();
        ExprOp::new("soft_margin_loss", g.finish(&[softplus(-(g.input(0) * g.input(1)))]))
    });
    if let Some(casts) = autocast::enter("soft_margin_loss", [input, target]) {
        return soft_margin_loss(&casts.of(input)?, &casts.of(target)?, reduction);
    }
    check_same_shape("soft_margin_loss", input, target)?;
    reduction.apply(OP.apply(&[input, target], &[])?)
}

/// Binary cross-entropy of the logits of several labels at once, as a mean over the classes (the last axis).
#[track_caller]
pub fn multilabel_soft_margin_loss(
    input: &Tensor,
    target: &Tensor,
    options: &MultilabelSoftMarginOptions,
) -> Result<Tensor> {
    let op = "multilabel_soft_margin_loss";
    if let Some(casts) = autocast::enter(op, [input, target]) {
        return multilabel_soft_margin_loss(&casts.of(input)?, &casts.of(target)?, options);
    }
    check_same_shape(op, input, target)?;
    check_weight(op, input, options.weight.as_ref())?;
    if input.ndim() == 0 {
        return Err(Error::shape(op, input.shape(), "the last axis holds the classes, and a scalar has none"));
    }
    let each = BceWithLogitsOptions { weight: options.weight.clone(), pos_weight: None, reduction: Reduction::None };
    options.reduction.apply(mean(&binary_cross_entropy_with_logits(input, target, &each)?, -1, false)?)
}

/// The mean over classes of `max(0, margin - score of the label + score of the class)^p`, the label's own left out. Scores have the
/// shape `(N, C)` with labels of shape `(N,)`, or `(C,)` with one label.
///
/// ```
/// use netcl_autograd::manager;
/// use netcl_autograd::{Tensor, ops::loss::{MultiMarginOptions, multi_margin_loss}};
///
/// let scores = Tensor::from_host(&manager().cpu().queue, &[2.0f32, 1.5, 0.0, 0.0], [1, 4])?;
/// assert_eq!(multi_margin_loss(&scores, &[0], &MultiMarginOptions::default())?.item()?, 0.125);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn multi_margin_loss<'t>(
    input: &Tensor,
    target: impl Into<Target<'t>>,
    options: &MultiMarginOptions,
) -> Result<Tensor> {
    /// By p. Inputs: scores, the label's score, 1 at the label. Scalar: the margin.
    static OPS: LazyLock<[Arc<ExprOp>; 2]> = LazyLock::new(|| {
        let g = Graph::new();
        let above = (g.scalar(0) - g.input(1) + g.input(0)).relu();
        [above, above * above].map(|loss| ExprOp::new("multi_margin_loss", g.finish(&[g.input(2).select(0.0, loss)])))
    });
    let op = "multi_margin_loss";
    if let Some(casts) = autocast::enter(op, [input]) {
        return multi_margin_loss(&casts.of(input)?, target, options);
    }
    let MultiMarginOptions { p, margin, ref weight, reduction } = *options;
    check_number(op, "p", p.into(), matches!(p, 1 | 2), "1 or 2")?;
    check_number(op, "margin", margin, !margin.is_nan(), "a number")?;
    let axis = class_axis(op, input)?;
    if input.ndim() > 2 {
        return Err(Error::shape(op, input.shape(), "it takes (N, C) or (C,)"));
    }
    check_class_weight(op, input, axis, weight.as_ref())?;
    let labels = match target.into().check(op, input, None)? {
        Checked::Labels(labels) => labels.index,
        Checked::Probabilities(given) => {
            return Err(Error::shape(op, given.shape(), "it takes class labels, one for each row of scores"));
        }
    };
    let along = axis as isize;
    let own = unsqueeze(&pick(input, along, &labels, None)?, along)?;
    let ones = Raw::full(input.queue(), labels.tensor().shape().clone(), input.dtype(), 1.0)?;
    let at_label = Tensor::from(ops::unpick(&ones, along, &labels, input.shape()[axis], None)?);
    let losses = OPS[p as usize - 1].apply(&[input, &own, &at_label], &[margin.into()])?;
    let mut rows = mean(&losses, along, false)?;
    if let Some(weight) = constant_weight(op, weight.as_ref())? {
        rows = mul(&rows, &ops::pick(&weight.expand(input.shape())?, along, &labels, None)?.into())?;
    }
    reduction.apply(rows)
}

/// The mean over classes of `max(0, 1 - score of a label + score of another class)`, summed over the labels of a row. Scores have
/// the shape `(N, C)` or `(C,)`, and so have the labels: those of a row come first, then -1, and what follows is not read.
///
/// ```
/// use netcl_autograd::{IndexTensor, manager};
/// use netcl_autograd::{Tensor, ops::loss::{Reduction, multilabel_margin_loss}};
///
/// let queue = manager().cpu().queue;
/// let scores = Tensor::from_host(&queue, &[0.1f32, 0.2, 0.4, 0.8], [4])?;
/// let labels = IndexTensor::from_host(&queue, &[3i64, 0, -1, 1], [4])?;
/// let loss = multilabel_margin_loss(&scores, &labels, Reduction::Mean)?;
/// assert!((loss.item()? - 0.85).abs() < 1e-6);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn multilabel_margin_loss(input: &Tensor, labels: &IndexTensor, reduction: Reduction) -> Result<Tensor> {
    /// Inputs: the score of a label, that of a class, whether the label is one, whether the class is a label, too.
    static OP: LazyLock<Arc<ExprOp>> = LazyLock::new(|| {
        let g = Graph::new();
        let above = (1.0 - g.input(0) + g.input(1)).relu();
        let loss = g.input(2).select(g.input(3).select(0.0, above), 0.0);
        ExprOp::new("multilabel_margin_loss", g.finish(&[loss]))
    });
    let op = "multilabel_margin_loss";
    if let Some(casts) = autocast::enter(op, [input]) {
        return multilabel_margin_loss(&casts.of(input)?, labels, reduction);
    }
    input.check_float(op)?;
    input.queue().check_same_device(op, labels.tensor().queue())?;
    if labels.tensor().shape() != input.shape() {
        let why = format!(
            "the labels of a row are followed by -1 up to the number of classes: their shape is the scores', {}",
            input.shape()
        );
        return Err(Error::shape(op, labels.tensor().shape(), why));
    }
    let (rows, classes) = match input.shape()[..] {
        [rows, classes] => (rows, classes),
        [_] => {
            let labels = IndexTensor::from_tensor(ops::unsqueeze(labels.tensor(), 0)?)?;
            return squeeze(&multilabel_margin_loss(&unsqueeze(input, 0)?, &labels, Reduction::None)?, &[0]);
        }
        _ => return Err(Error::shape(op, input.shape(), "it takes (N, C) or (C,)")),
    };
    check_labels(op, labels, classes)?;
    if input.size() == 0 {
        return reduction.apply(sum(input, 1, false)?);
    }
    let zero = Raw::full(input.queue(), [1], DType::I64, 0.0)?;
    let ended = ops::cumsum(&integer(IntegerOp::Lt, &[labels.tensor(), &zero], DType::U8)?.cast(DType::F32)?, 1)?;
    let is_label = ops::eq(&ended, 0.0)?;
    let at = ops::where_(&is_label, &labels.tensor().cast(DType::F32)?, 0.0)?.cast(DType::I64)?;
    let at = IndexTensor::from_tensor(at)?;
    let listed = ops::scatter_add(&Raw::full(input.queue(), [rows, classes], DType::F32, 0.0)?, 1, &at, &is_label)?;
    let own = gather(input, 1, &at)?;
    let (down, across) = ([rows, classes, 1], [rows, 1, classes]);
    let constant = |mask: &Raw, shape: [usize; 3]| reshape(&mask.cast(input.dtype())?.into(), shape);
    let pairs = OP.apply(
        &[&reshape(&own, down)?, &reshape(input, across)?, &constant(&is_label, down)?, &constant(&listed, across)?],
        &[],
    )?;
    reduction.apply(mul(&sum(&pairs, &[1, 2], false)?, 1.0 / classes as f64)?)
}

/// An error that names the first label that is neither a class nor -1, where labels can be read.
fn check_labels(op: &'static str, labels: &IndexTensor, classes: usize) -> Result<()> {
    if launch::check_readable(op).is_err() {
        return Ok(());
    }
    let values = labels.to_host()?;
    let Some(at) = values.iter().position(|label| !(-1..classes as i64).contains(label)) else { return Ok(()) };
    let (row, column) = (at / classes.max(1), at % classes.max(1));
    let what =
        format!("label {} at ({row}, {column}) is none of {classes} classes; -1 ends the labels of a row", values[at]);
    Err(CoreError::argument(op, what).into())
}
