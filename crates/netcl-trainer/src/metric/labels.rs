//! Predictions and class labels of any shape, brought into one form.

use netcl_nn::autograd::ops::elementwise::{indicator, mul};
use netcl_nn::autograd::ops::loss::Target;
use netcl_nn::autograd::ops::reduce::argmax;
use netcl_nn::autograd::{DType, IndexTensor, Shape, Tensor, reshape};

use crate::error::{Error, Result};

/// How predictions and labels become classes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LabelOptions {
    /// Samples with this label count for nothing. It need not be a class.
    pub ignore_index: Option<i64>,
    /// Where there is one number per sample, one above this is class 1: 0 for logits, 0.5 for probabilities.
    pub threshold: f64,
}

impl Default for LabelOptions {
    fn default() -> Self {
        LabelOptions { ignore_index: Some(-100), threshold: 0.0 }
    }
}

/// A batch of predictions and the class labels beside them.
pub(super) struct Labelled {
    /// The predictions: with an axis of classes, or of the labels' shape.
    pub(super) scores: Tensor,
    /// The axis of classes; `None` for one number per sample.
    pub(super) axis: Option<usize>,
    /// The predictions' shape without the axis of classes.
    pub(super) labels: IndexTensor,
    options: LabelOptions,
}

impl Labelled {
    /// Reads a batch. Labels on a device are not looked at, which would wait for it.
    pub(super) fn new(metric: &str, scores: &Tensor, target: Target<'_>, options: LabelOptions) -> Result<Labelled> {
        scores.check_float("metric")?;
        let shape = scores.shape();
        let on_device = match target {
            Target::Labels(_) => None,
            Target::Index(index) => Some(index.tensor()),
            Target::Tensor(tensor) => {
                tensor.check_float("metric")?;
                Some(tensor.raw())
            }
        };
        if let Some(tensor) = on_device {
            scores.queue().check_same_device("metric", tensor.queue())?;
        }
        if let Target::Tensor(probabilities) = target
            && probabilities.shape() == shape
            && shape.ndim() >= 2
            && shape[1] > 1
        {
            let labels = argmax(probabilities, Some(1), false)?;
            return Ok(Labelled { scores: scores.clone(), axis: Some(1), labels, options });
        }
        let fits = |shape: &Shape| match (target, on_device) {
            (Target::Labels(labels), _) => labels.len() == shape.size(),
            (_, Some(tensor)) => tensor.shape() == shape,
            (_, None) => false,
        };
        // The axis of classes is the second, else the last; without one there is a number per sample.
        let axes = if shape.ndim() >= 2 { vec![1, shape.ndim() - 1] } else { Vec::new() };
        let axis = axes.into_iter().find(|&axis| fits(&shape.without_axis(axis, false)));
        let rows = axis.map_or(shape.clone(), |axis| shape.without_axis(axis, false));
        if !fits(&rows) {
            let got = match (target, on_device) {
                (Target::Labels(labels), _) => format!("{} labels", labels.len()),
                (_, tensor) => format!("targets of shape {}", tensor.map_or(&rows, |tensor| tensor.shape())),
            };
            return Err(Error::setting(format!(
                "{metric}: got predictions of shape {shape} and {got}; beside (N, C) or (N, C, d1, ...) labels have the shape (N,) or \
                 (N, d1, ...), beside (N, T, C) they have (N, T), and beside one number per sample they have its shape"
            )));
        }
        let axis = axis.filter(|&axis| shape[axis] != 1);
        let scores = if axis.is_none() { reshape(scores, rows.clone())? } else { scores.clone() };
        let classes = axis.map_or(2, |axis| shape[axis]);
        let labels = match target {
            Target::Labels(labels) => {
                check(metric, labels, classes, options.ignore_index)?;
                IndexTensor::from_host(scores.queue(), labels, rows)?
            }
            Target::Index(index) => index.clone(),
            Target::Tensor(tensor) => IndexTensor::from_tensor(tensor.raw().cast(DType::I64)?)?,
        };
        Ok(Labelled { scores, axis, labels, options })
    }

    /// The number of classes.
    pub(super) fn classes(&self) -> usize {
        self.axis.map_or(2, |axis| self.scores.shape()[axis])
    }

    /// The predicted classes as float32: classes have less than 24 bits.
    pub(super) fn guesses(&self) -> Result<Tensor> {
        match self.axis {
            Some(axis) => float(&argmax(&self.scores, Some(axis as isize), false)?),
            None => Ok(indicator("gt", &self.scores.raw().cast(DType::F32)?.into(), self.options.threshold)?),
        }
    }

    /// The labels as float32.
    pub(super) fn float_labels(&self) -> Result<Tensor> {
        float(&self.labels)
    }

    /// 1 for every sample that counts, 0 for the others.
    pub(super) fn counted(&self, labels: &Tensor) -> Result<Tensor> {
        match self.options.ignore_index {
            Some(ignored) => Ok(indicator("ne", labels, ignored as f64)?),
            None => Ok(Tensor::full(labels.queue(), labels.shape().clone(), DType::F32, 1.0)?),
        }
    }

    /// 1 where two tensors of classes agree and the sample counts.
    pub(super) fn agree(&self, guesses: &Tensor, labels: &Tensor, counted: &Tensor) -> Result<Tensor> {
        let equal = indicator("eq", guesses, labels)?;
        // No guess equals a negative label.
        if self.options.ignore_index.is_some_and(|ignored| ignored >= 0) {
            Ok(mul(&equal, counted)?)
        } else {
            Ok(equal)
        }
    }
}

fn float(index: &IndexTensor) -> Result<Tensor> {
    Ok(index.tensor().cast(DType::F32)?.into())
}

/// Whole numbers of a float32 tensor as indices.
pub(super) fn index(tensor: &Tensor) -> Result<IndexTensor> {
    Ok(IndexTensor::from_tensor(tensor.raw().cast(DType::I64)?)?)
}

/// Labels on the host can be looked at without waiting.
fn check(metric: &str, labels: &[i64], classes: usize, ignored: Option<i64>) -> Result<()> {
    let outside = |label: i64| Some(label) != ignored && (label < 0 || label as u64 >= classes as u64);
    match labels.iter().position(|&label| outside(label)) {
        None => Ok(()),
        Some(at) => Err(Error::setting(format!(
            "{metric}: label {} of sample {at} is outside 0..{classes}, the classes of the predictions; samples to leave out have the \
             label of ignore_index ({})",
            labels[at],
            ignored.map_or("not set".to_owned(), |ignored| ignored.to_string())
        ))),
    }
}
