//! What a classification loss is compared with: class labels in several forms, or probabilities.

use netcl_core::Error as CoreError;
use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_core::kernels::launch;
use netcl_core::shape::Shape;

use crate::error::Result;
use crate::tensor::Tensor;

/// The target of a classification loss.
///
/// Beside logits of shape `(N, C)` or `(N, C, d1, ...)`, class labels have the shape `(N,)` or `(N, d1, ...)`, and
/// probabilities have the logits' own shape. Made with `into()` from `&[i64]`, `&Vec<i64>`, [`&IndexTensor`](IndexTensor) and
/// [`&Tensor`](Tensor).
///
/// ```
/// use netcl_autograd::{IndexTensor, Tensor, manager, ops::loss::{CrossEntropyOptions, cross_entropy}};
///
/// let queue = manager().cpu().queue;
/// let logits = Tensor::from_host(&queue, &[2.0f32, 0.0, -1.0, 0.5], [2, 2])?;
/// let options = CrossEntropyOptions::default();
/// let from_slice = cross_entropy(&logits, &[0, 1], &options)?.item()?;
/// let index = IndexTensor::from_host(&queue, &[0i64, 1], [2])?;
/// assert_eq!(cross_entropy(&logits, &index, &options)?.item()?, from_slice);
/// let whole = Tensor::from_host(&queue, &[0.0f32, 1.0], [2])?;
/// assert_eq!(cross_entropy(&logits, &whole, &options)?.item()?, from_slice);
/// let one_hot = Tensor::from_host(&queue, &[1.0f32, 0.0, 0.0, 1.0], [2, 2])?;
/// assert_eq!(cross_entropy(&logits, &one_hot, &options)?.item()?, from_slice);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Target<'t> {
    /// Class labels on the host, in row-major order.
    Labels(&'t [i64]),
    /// Class labels on the logits' device.
    Index(&'t IndexTensor),
    /// By its shape: class labels as whole numbers, or probabilities.
    Tensor(&'t Tensor),
}

impl<'t> From<&'t [i64]> for Target<'t> {
    fn from(labels: &'t [i64]) -> Self {
        Target::Labels(labels)
    }
}

impl<'t, const N: usize> From<&'t [i64; N]> for Target<'t> {
    fn from(labels: &'t [i64; N]) -> Self {
        Target::Labels(labels)
    }
}

impl<'t> From<&'t Vec<i64>> for Target<'t> {
    fn from(labels: &'t Vec<i64>) -> Self {
        Target::Labels(labels)
    }
}

impl<'t> From<&'t IndexTensor> for Target<'t> {
    fn from(labels: &'t IndexTensor) -> Self {
        Target::Index(labels)
    }
}

impl<'t> From<&'t Tensor> for Target<'t> {
    fn from(tensor: &'t Tensor) -> Self {
        Target::Tensor(tensor)
    }
}

/// A target after all checks.
pub(super) enum Checked<'t> {
    Labels(Labels),
    Probabilities(&'t Tensor),
}

/// Class labels on the logits' device.
pub(super) struct Labels {
    pub(super) index: IndexTensor,
    pub(super) ignore: Option<i64>,
    /// The axis of the classes in the logits.
    pub(super) axis: usize,
    /// How many are not ignored; `None` while launches are recorded and nothing can be read.
    pub(super) counted: Option<usize>,
}

/// The axis of the classes: the second, or the only one.
pub(super) fn class_axis(op: &'static str, logits: &Tensor) -> Result<usize> {
    logits.check_float(op)?;
    match logits.ndim() {
        0 => {
            let why = "logits have an axis of classes: (N, C), (N, C, d1, ...) or (C,)".to_owned();
            Err(CoreError::Shape { op, shape: logits.shape().clone(), why }.into())
        }
        1 => Ok(0),
        _ => Ok(1),
    }
}

impl<'t> Target<'t> {
    /// Checks shapes, devices and, where they can be read, the labels themselves.
    pub(super) fn check(self, op: &'static str, logits: &Tensor, ignore: Option<i64>) -> Result<Checked<'t>> {
        let axis = class_axis(op, logits)?;
        let shape = logits.shape().without_axis(axis, false);
        let wrong_shape = |got: &Shape| {
            let why = format!(
                "beside logits of shape {} the target is either class labels of shape {shape} or probabilities of the \
                 logits' shape",
                logits.shape()
            );
            CoreError::Shape { op, shape: got.clone(), why }
        };
        let rules = Rules { op, logits: logits.shape(), classes: logits.shape()[axis], shape: &shape, ignore };
        let readable = launch::check_readable(op).is_ok();
        let (index, counted) = match self {
            Target::Labels(labels) => {
                if labels.len() != shape.size() {
                    let what = format!(
                        "{} labels given for logits of shape {}, which need {} (shape {shape})",
                        labels.len(),
                        logits.shape(),
                        shape.size()
                    );
                    return Err(CoreError::argument(op, what).into());
                }
                let counted = rules.check(labels.iter().copied())?;
                (IndexTensor::from_host(logits.queue(), labels, shape.clone())?, Some(counted))
            }
            Target::Index(index) => {
                logits.queue().check_same_device(op, index.tensor().queue())?;
                if *index.tensor().shape() != shape {
                    return Err(wrong_shape(index.tensor().shape()).into());
                }
                let counted = if readable { Some(rules.check(index.to_host()?.into_iter())?) } else { None };
                (index.clone(), counted)
            }
            Target::Tensor(tensor) => {
                tensor.check_float(op)?;
                logits.queue().check_same_device(op, tensor.queue())?;
                if tensor.shape() == logits.shape() {
                    return Ok(Checked::Probabilities(tensor));
                }
                if *tensor.shape() != shape {
                    return Err(wrong_shape(tensor.shape()).into());
                }
                let counted = if readable { Some(rules.check_floats(&tensor.to_f64_vec()?)?) } else { None };
                (IndexTensor::from_tensor(tensor.raw().cast(DType::I64)?)?, counted)
            }
        };
        Ok(Checked::Labels(Labels { index, ignore, axis, counted }))
    }
}

/// What labels must obey, and what their errors say.
struct Rules<'r> {
    op: &'static str,
    logits: &'r Shape,
    classes: usize,
    /// The labels' shape.
    shape: &'r Shape,
    ignore: Option<i64>,
}

impl Rules<'_> {
    /// Counts the labels that are not ignored; the first one that is no class is an error.
    fn check(&self, labels: impl Iterator<Item = i64>) -> Result<usize> {
        let mut counted = 0;
        for (at, label) in labels.enumerate() {
            if self.ignore == Some(label) {
                continue;
            }
            if label < 0 || label as u64 >= self.classes as u64 {
                return Err(self.outside(at, label));
            }
            counted += 1;
        }
        Ok(counted)
    }

    fn check_floats(&self, labels: &[f64]) -> Result<usize> {
        if let Some((at, label)) = labels.iter().enumerate().find(|(_, label)| label.trunc() != **label) {
            let what = format!(
                "label {label} {} is not a whole number; class labels are, and probabilities have the logits' shape {}",
                self.place(at),
                self.logits
            );
            return Err(CoreError::argument(self.op, what).into());
        }
        // Infinities and huge numbers saturate, and are outside like any other number of that size.
        self.check(labels.iter().map(|&label| label as i64))
    }

    fn outside(&self, at: usize, label: i64) -> crate::Error {
        let hint = match self.ignore {
            Some(ignore) => format!("rows to leave out are labelled {ignore} (ignore_index)"),
            None => "no label is ignored (ignore_index is not set)".to_owned(),
        };
        let what = format!(
            "label {label} {} is outside 0..{}, the classes of logits of shape {}; {hint}",
            self.place(at),
            self.classes,
            self.logits
        );
        CoreError::argument(self.op, what).into()
    }

    /// Where a label stands: a row, or an index where labels have several axes.
    fn place(&self, at: usize) -> String {
        match self.shape.ndim() {
            0 => "of the only row".to_owned(),
            1 => format!("in row {at}"),
            _ => {
                let mut rest = at;
                let mut index: Vec<usize> = Vec::with_capacity(self.shape.ndim());
                for &n in self.shape.iter().rev() {
                    index.push(rest % n);
                    rest /= n;
                }
                index.reverse();
                format!("in row {} (index {})", index[0], Shape::from(index.as_slice()))
            }
        }
    }
}
