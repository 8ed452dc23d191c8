//! Losses. Argument names, order and defaults are PyTorch's.

use netcl::Tensor as Recorded;
use netcl::autograd::ops::loss::{
    self, BceOptions, BceWithLogitsOptions, CosineEmbeddingOptions, CrossEntropyOptions, CtcOptions,
    GaussianNllOptions, HingeEmbeddingOptions, HuberOptions, KlDivOptions, LinearCrossEntropyOptions,
    MarginRankingOptions, MultiMarginOptions, MultilabelSoftMarginOptions, NllOptions, PoissonNllOptions, Reduction,
    SmoothL1Options, Target, TripletMarginOptions,
};
use netcl::core::device::manager;
use netcl::core::dtype::DType;
use netcl::core::index::IndexTensor as Index;
use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::{like, record};
use crate::error::IntoPyResult;
use crate::index::Made;
use crate::index::{self, index_from_host};
use crate::layer_ops::{count, indices};
use crate::ndarray::numpy;
use crate::tensor::Tensor;

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    macro_rules! add {
        ($($function:ident),*) => {$(module.add_function(wrap_pyfunction!($function, module)?)?;)*};
    }
    add!(mse_loss, l1_loss, smooth_l1_loss, huber_loss, cross_entropy, linear_cross_entropy, nll_loss, kl_div);
    add!(binary_cross_entropy, binary_cross_entropy_with_logits, cosine_embedding_loss, triplet_margin_loss);
    add!(margin_ranking_loss, hinge_embedding_loss, soft_margin_loss, multi_margin_loss, multilabel_margin_loss);
    add!(multilabel_soft_margin_loss, poisson_nll_loss, gaussian_nll_loss, ctc_loss);
    Ok(())
}

/// Labels as Python gives them.
pub(crate) enum Labels {
    Index(Index),
    Tensor(Recorded),
}

impl Labels {
    /// An ``IndexTensor``, a ``Tensor``, or an array: whole numbers are labels, other numbers probabilities.
    pub(crate) fn new(object: &Bound<'_, PyAny>, logits: &Recorded) -> PyResult<Self> {
        if let Ok(tensor) = object.cast::<Tensor>() {
            let inner = tensor.get().inner();
            return match inner.dtype().is_float() {
                true => Ok(Labels::Tensor(inner.as_ref().clone())),
                false => index::core(tensor.get()).map(Labels::Index),
            };
        }
        let array = numpy(object.py())?.call_method1("asarray", (object,))?;
        match array.cast::<PyUntypedArray>()?.dtype().kind() {
            b'f' => Ok(Labels::Tensor(like(&array, logits)?)),
            _ => Ok(Labels::Index(index_from_host(logits.queue(), &array, DType::I64)?)),
        }
    }

    pub(crate) fn target(&self) -> Target<'_> {
        match self {
            Labels::Index(index) => index.into(),
            Labels::Tensor(tensor) => tensor.into(),
        }
    }
}

/// What ``ctc_loss`` takes beside log-probabilities, on the host, where it is read.
pub(crate) struct Sequences {
    pub(crate) targets: Index,
    pub(crate) input_lengths: Vec<usize>,
    pub(crate) target_lengths: Vec<usize>,
}

impl Sequences {
    pub(crate) fn new(
        targets: &Bound<'_, PyAny>,
        input_lengths: &Bound<'_, PyAny>,
        target_lengths: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let queue = manager().cpu().queue;
        let lengths = |name: &str, given: &Bound<'_, PyAny>| -> PyResult<Vec<usize>> {
            let read = indices(given, &queue)?;
            let one = |length: i64| {
                let what =
                    || PyValueError::new_err(format!("ctc_loss: {name} cannot be negative, and {length} is given"));
                usize::try_from(length).map_err(|_| what())
            };
            given.py().detach(|| read.to_host()).py()?.into_iter().map(one).collect()
        };
        Ok(Sequences {
            targets: indices(targets, &queue)?,
            input_lengths: lengths("input_lengths", input_lengths)?,
            target_lengths: lengths("target_lengths", target_lengths)?,
        })
    }
}

fn optional(tensor: Option<&Tensor>) -> Option<Recorded> {
    tensor.map(|tensor| tensor.inner().as_ref().clone())
}

/// Targets that are numbers: whole ones and truth values in the input's dtype.
fn targets(object: &Bound<'_, PyAny>, input: &Recorded) -> PyResult<Recorded> {
    let target = like(object, input)?;
    if target.dtype().is_float() { Ok(target) } else { target.cast(input.dtype()).py() }
}

macro_rules! of_two {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[pyfunction]
        #[pyo3(signature = (input, target, reduction="mean"))]
        fn $name(py: Python<'_>, input: &Tensor, target: &Bound<'_, PyAny>, reduction: &str) -> PyResult<Made> {
            let (input, target) = (&input.inner(), targets(target, &input.inner())?);
            let reduction = Reduction::parse(reduction).py()?;
            record(py, input, || loss::$name(input, &target, reduction))
        }
    )*};
}

of_two! {
    /// The squared difference.
    mse_loss;
    /// The absolute difference.
    l1_loss;
    /// ``log(1 + exp(-target * input))`` for targets of 1 and -1.
    soft_margin_loss;
}

/// The squared difference below ``beta``, the absolute one above.
#[pyfunction]
#[pyo3(signature = (input, target, reduction="mean", beta=1.0))]
fn smooth_l1_loss(
    py: Python<'_>,
    input: &Tensor,
    target: &Bound<'_, PyAny>,
    reduction: &str,
    beta: f64,
) -> PyResult<Made> {
    let (input, target) = (&input.inner(), targets(target, &input.inner())?);
    let options = SmoothL1Options { beta, reduction: Reduction::parse(reduction).py()? };
    record(py, input, || loss::smooth_l1_loss(input, &target, &options))
}

/// ``delta`` times the smooth L1 loss with ``beta=delta``.
#[pyfunction]
#[pyo3(signature = (input, target, reduction="mean", delta=1.0))]
fn huber_loss(
    py: Python<'_>,
    input: &Tensor,
    target: &Bound<'_, PyAny>,
    reduction: &str,
    delta: f64,
) -> PyResult<Made> {
    let (input, target) = (&input.inner(), targets(target, &input.inner())?);
    let options = HuberOptions { delta, reduction: Reduction::parse(reduction).py()? };
    record(py, input, || loss::huber_loss(input, &target, &options))
}

/// The negative log-likelihood of labels under ``softmax(input)``. Labels are an array of whole numbers, an ``IndexTensor`` or a
/// ``Tensor`` that holds whole numbers; a target of the input's shape is probabilities.
#[pyfunction]
#[pyo3(signature = (input, target, weight=None, ignore_index=Some(-100), reduction="mean", label_smoothing=0.0),
    text_signature = "(input, target, weight=None, ignore_index=-100, reduction='mean', label_smoothing=0.0)")]
fn cross_entropy(
    py: Python<'_>,
    input: &Tensor,
    target: &Bound<'_, PyAny>,
    weight: Option<&Tensor>,
    ignore_index: Option<i64>,
    reduction: &str,
    label_smoothing: f64,
) -> PyResult<Made> {
    let (input, target) = (&input.inner(), Labels::new(target, &input.inner())?);
    let reduction = Reduction::parse(reduction).py()?;
    let options = CrossEntropyOptions { weight: optional(weight), ignore_index, label_smoothing, reduction };
    record(py, input, || loss::cross_entropy(input, target.target(), &options))
}

/// ``cross_entropy`` of ``linear(x, weight, bias)`` that keeps some rows of logits in memory at a time: ``chunk`` of them, or as many
/// as fit 256 MiB. For ``x`` (..., features), ``weight`` (classes, features) and whole numbers (...) as labels.
#[pyfunction]
#[pyo3(signature = (x, weight, target, bias=None, ignore_index=Some(-100), reduction="mean", label_smoothing=0.0, chunk=None),
    text_signature = "(x, weight, target, bias=None, ignore_index=-100, reduction='mean', label_smoothing=0.0, chunk=None)")]
#[allow(clippy::too_many_arguments, reason = "PyTorch's, and how many at a time")]
fn linear_cross_entropy(
    py: Python<'_>,
    x: &Tensor,
    weight: &Tensor,
    target: &Bound<'_, PyAny>,
    bias: Option<&Tensor>,
    ignore_index: Option<i64>,
    reduction: &str,
    label_smoothing: f64,
    chunk: Option<usize>,
) -> PyResult<Made> {
    let (x, weight, bias) = (&x.inner(), &weight.inner(), optional(bias));
    let target = Labels::new(target, x)?;
    let reduction = Reduction::parse(reduction).py()?;
    let options = LinearCrossEntropyOptions { ignore_index, label_smoothing, reduction, chunk };
    record(py, x, || loss::linear_cross_entropy(x, weight, bias.as_ref(), target.target(), &options))
}

/// The negative log-likelihood of labels under log-probabilities; labels as for ``cross_entropy``.
#[pyfunction]
#[pyo3(signature = (input, target, weight=None, ignore_index=Some(-100), reduction="mean"),
    text_signature = "(input, target, weight=None, ignore_index=-100, reduction='mean')")]
fn nll_loss(
    py: Python<'_>,
    input: &Tensor,
    target: &Bound<'_, PyAny>,
    weight: Option<&Tensor>,
    ignore_index: Option<i64>,
    reduction: &str,
) -> PyResult<Made> {
    let (input, target) = (&input.inner(), Labels::new(target, &input.inner())?);
    let options = NllOptions { weight: optional(weight), ignore_index, reduction: Reduction::parse(reduction).py()? };
    record(py, input, || loss::nll_loss(input, target.target(), &options))
}

/// The cross entropy of probabilities and targets between 0 and 1.
#[pyfunction]
#[pyo3(signature = (input, target, weight=None, reduction="mean"))]
fn binary_cross_entropy(
    py: Python<'_>,
    input: &Tensor,
    target: &Bound<'_, PyAny>,
    weight: Option<&Tensor>,
    reduction: &str,
) -> PyResult<Made> {
    let (input, target) = (&input.inner(), targets(target, &input.inner())?);
    let options = BceOptions { weight: optional(weight), reduction: Reduction::parse(reduction).py()? };
    record(py, input, || loss::binary_cross_entropy(input, &target, &options))
}

/// ``binary_cross_entropy(sigmoid(input), target)``, stable; ``pos_weight`` scales the positive examples.
#[pyfunction]
#[pyo3(signature = (input, target, weight=None, reduction="mean", pos_weight=None))]
fn binary_cross_entropy_with_logits(
    py: Python<'_>,
    input: &Tensor,
    target: &Bound<'_, PyAny>,
    weight: Option<&Tensor>,
    reduction: &str,
    pos_weight: Option<&Tensor>,
) -> PyResult<Made> {
    let (input, target) = (&input.inner(), targets(target, &input.inner())?);
    let reduction = Reduction::parse(reduction).py()?;
    let options = BceWithLogitsOptions { weight: optional(weight), pos_weight: optional(pos_weight), reduction };
    record(py, input, || loss::binary_cross_entropy_with_logits(input, &target, &options))
}

/// The Kullback-Leibler divergence of log-probabilities from a target; ``reduction="batchmean"`` divides the sum by the batch.
#[pyfunction]
#[pyo3(signature = (input, target, reduction="mean", log_target=false))]
fn kl_div(
    py: Python<'_>,
    input: &Tensor,
    target: &Bound<'_, PyAny>,
    reduction: &str,
    log_target: bool,
) -> PyResult<Made> {
    let (input, target) = (&input.inner(), targets(target, &input.inner())?);
    let batch_mean = reduction == "batchmean";
    let reduction = if batch_mean { Reduction::Mean } else { Reduction::parse(reduction).py()? };
    let options = KlDivOptions { log_target, batch_mean, reduction };
    record(py, input, || loss::kl_div(input, &target, &options))
}

/// One minus the cosine where the target is 1, the cosine above ``margin`` where it is -1.
#[pyfunction]
#[pyo3(signature = (input1, input2, target, margin=0.0, reduction="mean"))]
fn cosine_embedding_loss(
    py: Python<'_>,
    input1: &Tensor,
    input2: &Tensor,
    target: &Bound<'_, PyAny>,
    margin: f64,
    reduction: &str,
) -> PyResult<Made> {
    let (first, second, target) = (&input1.inner(), &input2.inner(), targets(target, &input1.inner())?);
    let options = CosineEmbeddingOptions { margin, reduction: Reduction::parse(reduction).py()? };
    record(py, first, || loss::cosine_embedding_loss(first, second, &target, &options))
}

/// How far the positive is not nearer to the anchor than the negative, by a margin.
#[pyfunction]
#[pyo3(signature = (anchor, positive, negative, margin=1.0, p=2.0, eps=1e-6, swap=false, reduction="mean"))]
#[expect(clippy::too_many_arguments, reason = "PyTorch's signature")]
fn triplet_margin_loss(
    py: Python<'_>,
    anchor: &Tensor,
    positive: &Tensor,
    negative: &Tensor,
    margin: f64,
    p: f64,
    eps: f64,
    swap: bool,
    reduction: &str,
) -> PyResult<Made> {
    let (anchor, positive, negative) = (&anchor.inner(), &positive.inner(), &negative.inner());
    let options = TripletMarginOptions { margin, p, eps, swap, reduction: Reduction::parse(reduction).py()? };
    record(py, anchor, || loss::triplet_margin_loss(anchor, positive, negative, &options))
}

/// How far the better of two scores is not above the other by a margin: the first where the target is 1, the second where it is -1.
#[pyfunction]
#[pyo3(signature = (input1, input2, target, margin=0.0, reduction="mean"))]
fn margin_ranking_loss(
    py: Python<'_>,
    input1: &Tensor,
    input2: &Tensor,
    target: &Bound<'_, PyAny>,
    margin: f64,
    reduction: &str,
) -> PyResult<Made> {
    let (first, second, target) = (&input1.inner(), &input2.inner(), targets(target, &input1.inner())?);
    let options = MarginRankingOptions { margin, reduction: Reduction::parse(reduction).py()? };
    record(py, first, || loss::margin_ranking_loss(first, second, &target, &options))
}

/// A distance where the target is 1, what it lacks to ``margin`` where it is -1.
#[pyfunction]
#[pyo3(signature = (input, target, margin=1.0, reduction="mean"))]
fn hinge_embedding_loss(
    py: Python<'_>,
    input: &Tensor,
    target: &Bound<'_, PyAny>,
    margin: f64,
    reduction: &str,
) -> PyResult<Made> {
    let (input, target) = (&input.inner(), targets(target, &input.inner())?);
    let options = HingeEmbeddingOptions { margin, reduction: Reduction::parse(reduction).py()? };
    record(py, input, || loss::hinge_embedding_loss(input, &target, &options))
}

/// How far other classes are not below the label's score by a margin, as a mean over the classes; labels as for ``cross_entropy``.
#[pyfunction]
#[pyo3(signature = (input, target, p=1, margin=1.0, weight=None, reduction="mean"))]
fn multi_margin_loss(
    py: Python<'_>,
    input: &Tensor,
    target: &Bound<'_, PyAny>,
    p: u32,
    margin: f64,
    weight: Option<&Tensor>,
    reduction: &str,
) -> PyResult<Made> {
    let (input, target) = (&input.inner(), Labels::new(target, &input.inner())?);
    let options =
        MultiMarginOptions { p, margin, weight: optional(weight), reduction: Reduction::parse(reduction).py()? };
    record(py, input, || loss::multi_margin_loss(input, target.target(), &options))
}

/// How far other classes are not below the scores of a row's labels by 1. The labels of a row come first, then -1.
#[pyfunction]
#[pyo3(signature = (input, target, reduction="mean"))]
fn multilabel_margin_loss(
    py: Python<'_>,
    input: &Tensor,
    target: &Bound<'_, PyAny>,
    reduction: &str,
) -> PyResult<Made> {
    let (input, labels) = (&input.inner(), indices(target, input.inner().queue())?);
    let reduction = Reduction::parse(reduction).py()?;
    record(py, input, || loss::multilabel_margin_loss(input, &labels, reduction))
}

/// Binary cross-entropy of the logits of several labels at once, as a mean over the classes (the last axis).
#[pyfunction]
#[pyo3(signature = (input, target, weight=None, reduction="mean"))]
fn multilabel_soft_margin_loss(
    py: Python<'_>,
    input: &Tensor,
    target: &Bound<'_, PyAny>,
    weight: Option<&Tensor>,
    reduction: &str,
) -> PyResult<Made> {
    let (input, target) = (&input.inner(), targets(target, &input.inner())?);
    let options =
        MultilabelSoftMarginOptions { weight: optional(weight), reduction: Reduction::parse(reduction).py()? };
    record(py, input, || loss::multilabel_soft_margin_loss(input, &target, &options))
}

/// The negative log-likelihood of counts under rates, or with ``log_input`` under their logarithms; ``full`` adds Stirling's
/// approximation of what depends on the counts alone.
#[pyfunction]
#[pyo3(signature = (input, target, log_input=true, full=false, eps=1e-8, reduction="mean"))]
fn poisson_nll_loss(
    py: Python<'_>,
    input: &Tensor,
    target: &Bound<'_, PyAny>,
    log_input: bool,
    full: bool,
    eps: f64,
    reduction: &str,
) -> PyResult<Made> {
    let (input, target) = (&input.inner(), targets(target, &input.inner())?);
    let options = PoissonNllOptions { log_input, full, eps, reduction: Reduction::parse(reduction).py()? };
    record(py, input, || loss::poisson_nll_loss(input, &target, &options))
}

/// The negative log-likelihood of values with a variance of their own, shared along the last axis, or one number; ``full`` adds the
/// constant.
#[pyfunction]
#[pyo3(signature = (input, target, var, full=false, eps=1e-6, reduction="mean"))]
fn gaussian_nll_loss(
    py: Python<'_>,
    input: &Tensor,
    target: &Bound<'_, PyAny>,
    var: &Bound<'_, PyAny>,
    full: bool,
    eps: f64,
    reduction: &str,
) -> PyResult<Made> {
    let input = &input.inner();
    let (target, var) = (like(target, input)?, like(var, input)?);
    let options = GaussianNllOptions { full, eps, reduction: Reduction::parse(reduction).py()? };
    record(py, input, || loss::gaussian_nll_loss(input, &target, &var, &options))
}

/// The negative log-likelihood of sequences of labels under log-probabilities (T, N, C) or (T, C), whatever their places in time.
/// Targets are (N, S) or one after the other; lengths are whole numbers, one for each sample. Computed on the host; its gradient
/// has no derivative.
#[pyfunction]
#[pyo3(signature = (log_probs, targets, input_lengths, target_lengths, blank=None, reduction="mean", zero_infinity=false),
    text_signature = "(log_probs, targets, input_lengths, target_lengths, blank=0, reduction='mean', zero_infinity=False)")]
#[expect(clippy::too_many_arguments, reason = "PyTorch's signature")]
fn ctc_loss(
    py: Python<'_>,
    log_probs: &Tensor,
    targets: &Bound<'_, PyAny>,
    input_lengths: &Bound<'_, PyAny>,
    target_lengths: &Bound<'_, PyAny>,
    blank: Option<&Bound<'_, PyAny>>,
    reduction: &str,
    zero_infinity: bool,
) -> PyResult<Made> {
    let x = &log_probs.inner();
    let blank = blank.map_or(Ok(0), |blank| count("ctc_loss", "blank", blank))?;
    let options = CtcOptions { blank, reduction: Reduction::parse(reduction).py()?, zero_infinity };
    let given = Sequences::new(targets, input_lengths, target_lengths)?;
    record(py, x, || loss::ctc_loss(x, &given.targets, &given.input_lengths, &given.target_lengths, &options))
}
