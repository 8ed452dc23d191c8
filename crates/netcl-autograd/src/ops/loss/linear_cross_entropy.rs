//! The cross-entropy of a linear layer's results, whose logits are never in memory all at once.

use std::sync::{Arc, LazyLock};

use netcl_core::Error as CoreError;
use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_core::kernels::elementwise::Elementwise;
use netcl_core::kernels::expr::Graph;
use netcl_core::shape::Layout;
use netcl_core::tensor::{Tensor as Raw, reshape as raw_reshape};
use netcl_ops as ops;
use netcl_ops::linear_cross_entropy::{LinearLoss, LinearLosses, RowRule};
use smallvec::{SmallVec, smallvec};

use super::labels::{Checked, Labels, Target};
use super::pick::SavedLabels;
use super::{CrossEntropyOptions, Reduction, check_number, cross_entropy};
use crate::autocast;
use crate::error::Result;
use crate::graph::{
    BackwardOptions, Edge, Gradients, RuleContext, Save, enable_grad, grad_enabled, grad_up_to, record,
};
use crate::ops::layout::reshape;
use crate::ops::matmul::linear;
use crate::tensor::Tensor;

const OP: &str = "linear_cross_entropy";

/// How [`linear_cross_entropy`] compares rows, and how many at a time.
#[derive(Clone, Debug)]
pub struct LinearCrossEntropyOptions {
    /// Rows with this label count for nothing. It need not be a class.
    pub ignore_index: Option<i64>,
    /// From 0 to 1: the part of each target that is spread evenly over all classes.
    pub label_smoothing: f64,
    /// What becomes of the rows' losses.
    pub reduction: Reduction,
    /// How many rows of logits are in memory at once; `None` for as many as fit 256 MiB.
    pub chunk: Option<usize>,
}

impl Default for LinearCrossEntropyOptions {
    fn default() -> Self {
        let CrossEntropyOptions { ignore_index, label_smoothing, reduction, .. } = CrossEntropyOptions::default();
        LinearCrossEntropyOptions { ignore_index, label_smoothing, reduction, chunk: None }
    }
}

/// The cross-entropy between class labels and the logits `x @ weight.T + bias`, without keeping the logits: for `x` of shape
/// `(..., features)`, a weight `(classes, features)` and labels of the shape `(...)`. [`Reduction::None`] gives a loss for each row.
///
/// The same as [`cross_entropy`] of [`linear`](crate::ops::matmul::linear), but only some rows of logits are in memory at a time. With
/// [`Reduction::Mean`] and [`Reduction::Sum`] the gradients are made in the forward pass, while the logits are there.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::loss::{LinearCrossEntropyOptions, linear_cross_entropy}};
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::from_host(&queue, &[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
/// let weight = Tensor::from_host(&queue, &[0.0f32; 6], [3, 2])?.with_grad();
/// let loss = linear_cross_entropy(&x, &weight, None, &[0, 2], &LinearCrossEntropyOptions::default())?;
/// assert!((loss.item()? - 3f64.ln()).abs() < 1e-6);
/// loss.backward()?;
/// assert!((weight.grad().unwrap().to_host::<f32>()?[0] - 1.0 / 6.0).abs() < 1e-6);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
///
/// # Errors
/// For shapes that do not fit, and labels that are no classes.
#[track_caller]
pub fn linear_cross_entropy<'t>(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    target: impl Into<Target<'t>>,
    options: &LinearCrossEntropyOptions,
) -> Result<Tensor> {
    let smoothing = options.label_smoothing;
    check_number(OP, "label_smoothing", smoothing, (0.0..=1.0).contains(&smoothing), "a number from 0 to 1")?;
    let casts = autocast::enter(OP, [x, weight].into_iter().chain(bias));
    // The weight takes part with its own dtype: its gradient is never rounded to 16 bits.
    let (x, narrow) = match &casts {
        Some(casts) => (casts.of(x)?, casts.of(weight)?.raw().clone()),
        None => (x.clone(), weight.raw().clone()),
    };
    let features = x.shape().last().copied().unwrap_or_default();
    let rows = x.size() / features.max(1);
    if x.ndim() == 0 || features == 0 || weight.ndim() != 2 {
        let why =
            format!("x must be (..., features) and weight (classes, features); weight has shape {}", weight.shape());
        return Err(CoreError::Shape { op: OP, shape: x.shape().clone(), why }.into());
    }
    let outer = x.shape().without_axis(x.ndim() - 1, false);
    let x = reshape(&x, [rows, features])?;
    let Labels { index, ignore, counted, .. } = labels(target.into(), &narrow, rows, options.ignore_index)?;
    let part = Part {
        x: x.raw().clone(),
        weight: narrow,
        bias: bias.map(|bias| bias.raw().clone()),
        labels: SavedLabels::new(OP, &index),
        rule: RowRule { ignore, smoothing },
        chunk: options.chunk,
        classes: weight.shape()[0],
    };
    let reduction = options.reduction;
    let inputs: SmallVec<[&Tensor; 3]> = [&x, weight].into_iter().chain(bias).collect();
    let wanted: SmallVec<[bool; 3]> = inputs.iter().map(|input| grad_enabled() && input.needs_grad()).collect();
    let at_once = reduction != Reduction::None;
    let made = part.run(if at_once { &wanted } else { &[] }, None)?;
    let wide = made.losses.dtype();
    // Under autocast a loss is float32, as that of cross_entropy.
    let dtype = if casts.is_some() { wide } else { x.dtype() };
    let divisor = match (reduction, counted) {
        (Reduction::Mean, Some(counted)) => Some(Raw::full(x.queue(), (), wide, counted as f64)?),
        (Reduction::Mean, None) => Some(part.counted(wide)?),
        _ => None,
    };
    let loss = match (&divisor, reduction) {
        (_, Reduction::None) => raw_reshape(&made.losses, outer.clone())?,
        (None, _) => ops::sum(&made.losses, (), false)?,
        (Some(divisor), _) => quotient(&ops::sum(&made.losses, (), false)?, divisor)?,
    };
    let (again, count) = (options.clone(), inputs.len());
    let scope = casts.as_ref().map(|_| part.weight.dtype());
    record(OP, &inputs, loss.cast(dtype)?, Save::INPUTS, || {
        Box::new(move |context, upstream| {
            if grad_enabled() {
                return recorded(context, count, upstream, part.labels.get()?, &again, scope);
            }
            let upstream = upstream.raw().cast(wide)?;
            if at_once {
                let scale = match &divisor {
                    Some(divisor) => quotient(&upstream, divisor)?,
                    None => upstream,
                };
                return made.gradients(context, count, &scale);
            }
            let wanted: SmallVec<[bool; 3]> = (0..count).map(|i| context.wants(i)).collect();
            let made = part.run(&wanted, Some(&raw_reshape(&upstream, [upstream.size()])?.contiguous()?))?;
            made.gradients(context, count, &Raw::full(upstream.queue(), (), wide, 1.0)?)
        })
    })
}

/// The labels of so many rows, after all checks.
fn labels(target: Target<'_>, weight: &Raw, rows: usize, ignore: Option<i64>) -> Result<Labels> {
    // Checks look at the logits' shape, device and dtype only.
    let layout = Layout::strided([rows, weight.shape()[0]].into(), &[0, 0], weight.layout().offset())?;
    let logits: Tensor = weight.with_layout(layout)?.into();
    let fits = |size: usize| size == rows;
    let checked = match target {
        Target::Index(index) if fits(index.tensor().size()) => {
            let flat = IndexTensor::from_tensor(raw_reshape(index.tensor(), [rows])?)?;
            Target::Index(&flat).check(OP, &logits, ignore)?.labels()
        }
        Target::Tensor(labels) if fits(labels.size()) => {
            Target::Tensor(&raw_reshape(labels.raw(), [rows])?.into()).check(OP, &logits, ignore)?.labels()
        }
        other => other.check(OP, &logits, ignore)?.labels(),
    };
    checked.ok_or_else(|| {
        let what = "the target is probabilities, of which it would keep as much as of logits; use class labels, or \
                    cross_entropy of linear";
        CoreError::argument(OP, what).into()
    })
}

impl Checked<'_> {
    fn labels(self) -> Option<Labels> {
        match self {
            Checked::Labels(labels) => Some(labels),
            Checked::Probabilities(_) => None,
        }
    }
}

/// What the loss is computed from, in the dtype of its products.
struct Part {
    x: Raw,
    weight: Raw,
    bias: Option<Raw>,
    labels: SavedLabels,
    rule: RowRule,
    chunk: Option<usize>,
    classes: usize,
}

impl Part {
    fn run(&self, wanted: &[bool], scales: Option<&Raw>) -> Result<LinearLosses> {
        let Part { x, weight, bias, labels, rule, chunk, .. } = self;
        let given = LinearLoss { x, weight, bias: bias.as_ref(), labels: labels.get()?, rule: *rule, chunk: *chunk };
        let wanted = std::array::from_fn(|i| wanted.get(i).copied().unwrap_or_default());
        Ok(ops::linear_cross_entropy::linear_cross_entropy(&given, wanted, scales)?)
    }

    /// How many rows count, on the device.
    fn counted(&self, dtype: DType) -> Result<Raw> {
        let labels = self.labels.get()?;
        let shape = [labels.tensor().size(), self.classes];
        let one = Raw::full(self.x.queue(), (), dtype, 1.0)?.expand(shape)?;
        Ok(ops::sum(&ops::pick(&one, 1, labels, self.rule.ignore)?, (), false)?)
    }
}

trait Scaled {
    fn gradients(&self, context: &RuleContext<'_>, count: usize, scale: &Raw) -> Result<Gradients>;
}

impl Scaled for LinearLosses {
    /// What was made for the sum of the losses, times a number on the device, in the dtypes of the inputs.
    fn gradients(&self, context: &RuleContext<'_>, count: usize, scale: &Raw) -> Result<Gradients> {
        let mut gradients: Gradients = smallvec![];
        for (at, made) in [&self.x, &self.weight, &self.bias].into_iter().take(count).enumerate() {
            let Some(made) = made.as_ref().filter(|_| context.wants(at)) else {
                gradients.push(None);
                continue;
            };
            let out = Raw::uninit(made.queue(), made.shape().clone(), context.input(at)?.dtype())?;
            SCALED.run(&[made, &scale.expand(made.shape())?], &[], &[&out])?;
            gradients.push(Some(out.into()));
        }
        Ok(gradients)
    }
}

static SCALED: LazyLock<Arc<Elementwise>> = LazyLock::new(|| {
    let g = Graph::new();
    // Where no row counts the gradient is 0, not 0 times an infinite number.
    let (made, scale) = (g.input(0), g.input(1));
    Elementwise::new("mul", g.finish(&[made.eq(0.0).select(made, made * scale)]))
});

fn quotient(a: &Raw, b: &Raw) -> Result<Raw> {
    Ok(ops::elementwise::div(a, b)?)
}

/// The gradients as recorded operations, which have gradients of their own: by way of all logits.
fn recorded(
    context: &RuleContext<'_>,
    count: usize,
    upstream: &Tensor,
    labels: &IndexTensor,
    options: &LinearCrossEntropyOptions,
    scope: Option<DType>,
) -> Result<Gradients> {
    let inputs = (0..count).map(|i| context.input(i)).collect::<Result<Vec<_>>>()?;
    let LinearCrossEntropyOptions { ignore_index, label_smoothing, reduction, .. } = *options;
    let plain = CrossEntropyOptions { weight: None, ignore_index, label_smoothing, reduction };
    let _recording = enable_grad();
    let loss = {
        let _autocast = scope.map(|dtype| autocast::resume(Some(dtype)));
        cross_entropy(&linear(&inputs[0], &inputs[1], inputs.get(2))?, labels, &plain)?
    };
    let wanted: Vec<Edge> =
        inputs.iter().enumerate().map(|(i, input)| if context.wants(i) { input.edge() } else { Edge::None }).collect();
    let options = BackwardOptions { create_graph: true, ..Default::default() };
    grad_up_to(&loss, &reshape(upstream, loss.shape().clone())?, &wanted, options)
}
