//! Losses, which take targets beside the input.

use netcl::nn::{
    BCELoss, BCEWithLogitsLoss, CTCLoss, CosineEmbeddingLoss, CrossEntropyLoss, GaussianNLLLoss, HingeEmbeddingLoss,
    HuberLoss, KLDivLoss, L1Loss, MSELoss, MarginRankingLoss, MultiLabelMarginLoss, MultiLabelSoftMarginLoss,
    MultiMarginLoss, NLLLoss, PoissonNLLLoss, SmoothL1Loss, SoftMarginLoss, TripletMarginLoss,
};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::layer::Layer;
use crate::autograd::{Labels, Sequences, like, wrap};
use crate::index::Made;
use crate::layer_ops::indices;
use crate::tensor::Tensor;

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(loss, module)?)?;
    module.add_function(wrap_pyfunction!(loss_of_three, module)?)?;
    module.add_function(wrap_pyfunction!(ctc_loss, module)?)
}

/// Calls a layer that is one of several kinds.
macro_rules! of_kind {
    ($py:ident, $layer:ident, $own:ident, $on:expr, [$($kind:ident),+], |$loss:ident| $value:expr) => {
        match $layer.kind() {
            $(stringify!($kind) => $layer.with_kind($py, $own, $on, |$loss: &$kind| $value),)+
            kind => Err(PyTypeError::new_err(format!("{kind} is no loss of so many tensors"))),
        }
    };
}

/// The loss of an input and a target: a tensor or numbers, for classes also labels.
#[pyfunction]
fn loss(
    py: Python<'_>,
    layer: &Layer,
    own: &Bound<'_, PyDict>,
    input: &Tensor,
    target: &Bound<'_, PyAny>,
) -> PyResult<Made> {
    let x = &input.inner();
    let found = match layer.kind() {
        "CrossEntropyLoss" | "MultiMarginLoss" | "NLLLoss" => {
            let labels = Labels::new(target, x)?;
            of_kind!(py, layer, own, x, [CrossEntropyLoss, MultiMarginLoss, NLLLoss], |loss| {
                loss.forward(x, labels.target())
            })
        }
        "MultiLabelMarginLoss" => {
            let labels = indices(target, x.queue())?;
            of_kind!(py, layer, own, x, [MultiLabelMarginLoss], |loss| loss.forward(x, &labels))
        }
        _ => {
            let target = like(target, x)?;
            of_kind!(
                py,
                layer,
                own,
                x,
                [
                    BCELoss,
                    BCEWithLogitsLoss,
                    HingeEmbeddingLoss,
                    HuberLoss,
                    KLDivLoss,
                    L1Loss,
                    MSELoss,
                    MultiLabelSoftMarginLoss,
                    PoissonNLLLoss,
                    SmoothL1Loss,
                    SoftMarginLoss
                ],
                |loss| loss.forward(x, &target)
            )
        }
    };
    wrap(py, found?)
}

/// The loss of three tensors.
#[pyfunction]
fn loss_of_three(
    py: Python<'_>,
    layer: &Layer,
    own: &Bound<'_, PyDict>,
    first: &Tensor,
    second: &Bound<'_, PyAny>,
    third: &Bound<'_, PyAny>,
) -> PyResult<Made> {
    let x = &first.inner();
    let (second, third) = (like(second, x)?, like(third, x)?);
    let found = of_kind!(
        py,
        layer,
        own,
        x,
        [CosineEmbeddingLoss, GaussianNLLLoss, MarginRankingLoss, TripletMarginLoss],
        |loss| { loss.forward(x, &second, &third) }
    );
    wrap(py, found?)
}

/// The loss of sequences of labels.
#[pyfunction]
fn ctc_loss(
    py: Python<'_>,
    layer: &Layer,
    own: &Bound<'_, PyDict>,
    log_probs: &Tensor,
    targets: &Bound<'_, PyAny>,
    input_lengths: &Bound<'_, PyAny>,
    target_lengths: &Bound<'_, PyAny>,
) -> PyResult<Made> {
    let x = &log_probs.inner();
    let given = Sequences::new(targets, input_lengths, target_lengths)?;
    let found = layer.with_kind(py, own, x, |loss: &CTCLoss| {
        loss.forward(x, &given.targets, &given.input_lengths, &given.target_lengths)
    });
    wrap(py, found?)
}
