//! The area under the receiver operating characteristic: how well scores put classes in order.

use netcl_distributed::Group;
use netcl_nn::autograd::ops::layout::{flatten, permute};
use netcl_nn::autograd::ops::loss::Target;
use netcl_nn::autograd::ops::softmax::softmax;
use netcl_nn::autograd::{DType, Tensor, manager};

use super::labels::{LabelOptions, Labelled};
use super::sums::{aside, no_batch};
use crate::error::Result;
use crate::trainer::{Metric, ranks};

/// The chance that a sample of a class has a larger score for it than one of the others; equal scores count half.
///
/// Predictions of one number per sample are scores of class 1. With more, it is the mean over the classes, each against the rest, of
/// which there are samples on both sides. Exact: all scores are kept on the device until [`Metric::reset`], so that it can be no part
/// of a captured step; over ranks the scores of all are gathered.
///
/// ```
/// use netcl_nn::autograd::{Tensor, manager};
/// use netcl_trainer::metric::Auroc;
/// use netcl_trainer::trainer::Metric;
///
/// let scores = Tensor::from_host(&manager().cpu().queue, &[0.1f32, 0.4, 0.35, 0.8], [4])?;
/// let mut auroc = Auroc::default();
/// auroc.update(&scores, (&[0, 0, 1, 1]).into())?;
/// assert_eq!(auroc.compute()?, 0.75);
/// # Ok::<(), netcl_trainer::Error>(())
/// ```
pub struct Auroc {
    ignore_index: Option<i64>,
    from_logits: bool,
    /// Scores of shape (samples, classes) or (samples,), and labels, by batch.
    kept: Vec<(Tensor, Tensor)>,
    seen: bool,
}

impl Default for Auroc {
    fn default() -> Self {
        Auroc::new(LabelOptions::default().ignore_index, true)
    }
}

impl Auroc {
    /// With `from_logits`, predictions of several classes go through softmax, without which they could not be compared between
    /// samples; `false` for probabilities.
    pub fn new(ignore_index: Option<i64>, from_logits: bool) -> Auroc {
        Auroc { ignore_index, from_logits, kept: Vec::new(), seen: false }
    }
}

/// All that was kept, on the host.
struct Rows {
    scores: Vec<f32>,
    labels: Vec<i64>,
    classes: usize,
}

impl Auroc {
    fn rows(&self) -> Result<Rows> {
        let mut rows = Rows { scores: Vec::new(), labels: Vec::new(), classes: 1 };
        for (scores, label) in &self.kept {
            rows.classes = scores.shape().get(1).copied().unwrap_or(1);
            rows.scores.extend(scores.to_host::<f32>()?);
            rows.labels.extend(label.raw().cast(DType::I64)?.to_host::<i64>()?);
        }
        Ok(rows)
    }
}

impl Metric for Auroc {
    fn name(&self) -> String {
        "auroc".to_owned()
    }

    fn update(&mut self, predictions: &Tensor, target: Target<'_>) -> Result<()> {
        aside(|| {
            let options = LabelOptions { ignore_index: self.ignore_index, ..LabelOptions::default() };
            let batch = Labelled::new("auroc", predictions, target, options)?;
            let scores: Tensor = batch.scores.raw().cast(DType::F32)?.into();
            let scores = match batch.axis {
                None => flatten(&scores, 0, -1)?,
                Some(axis) => {
                    let scores = if self.from_logits { softmax(&scores, axis as isize)? } else { scores };
                    let others = (0..scores.ndim()).filter(|&other| other != axis);
                    let order: Vec<isize> = others.chain([axis]).map(|axis| axis as isize).collect();
                    flatten(&permute(&scores, &order)?, 0, -2)?
                }
            };
            // Copies: a captured model writes its next predictions to the same memory.
            let labels = batch.labels.tensor().duplicate()?.into();
            self.kept.push((scores.raw().duplicate()?.into(), labels));
            self.seen = true;
            Ok(())
        })
    }

    fn compute(&self) -> Result<f64> {
        if !self.seen {
            return Err(no_batch("auroc"));
        }
        let Rows { scores: rows, labels, classes } = self.rows()?;
        let positives = if classes == 1 { 1..2 } else { 0..classes as i64 };
        let areas: Vec<f64> = positives
            .enumerate()
            .filter_map(|(column, positive)| {
                let scores = rows.iter().skip(column).step_by(classes).copied();
                let counted = scores.zip(&labels).filter(|(_, label)| Some(**label) != self.ignore_index);
                area(counted.map(|(score, &label)| (score, label == positive)).collect())
            })
            .collect();
        Ok(areas.iter().sum::<f64>() / areas.len() as f64)
    }

    fn reset(&mut self) -> Result<()> {
        self.kept.clear();
        Ok(())
    }

    fn can_capture(&self) -> bool {
        false
    }

    fn sums(&self) -> Vec<Tensor> {
        Vec::new()
    }

    fn merge(&mut self, group: &Group) -> Result<bool> {
        let kept = self.rows()?;
        let labels: Vec<f64> = kept.labels.iter().map(|&label| label as f64).collect();
        let scores: Vec<f64> = kept.scores.iter().map(|&score| f64::from(score)).collect();
        let (scores, labels) = (ranks::numbers(group, &scores)?.concat(), ranks::numbers(group, &labels)?.concat());
        if labels.is_empty() {
            return Ok(true);
        }
        let queue = manager().cpu().queue;
        let shape = [labels.len(), scores.len() / labels.len()];
        let scores = Tensor::from_host(&queue, &scores, shape)?.cast(DType::F32)?;
        let labels = Tensor::from_host(&queue, &labels, [labels.len()])?.cast(DType::I64)?;
        (self.kept, self.seen) = (vec![(scores, labels)], true);
        Ok(true)
    }

    fn fresh(&self) -> Result<Box<dyn Metric>> {
        Ok(Box::new(Auroc::new(self.ignore_index, self.from_logits)))
    }
}

/// The share of pairs of a positive and another in which the positive has the larger score; `None` without pairs.
fn area(mut samples: Vec<(f32, bool)>) -> Option<f64> {
    samples.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut below, mut wins) = (0.0, 0.0);
    for equal in samples.chunk_by(|a, b| a.0 == b.0) {
        let positives = equal.iter().filter(|(_, positive)| *positive).count() as f64;
        let others = equal.len() as f64 - positives;
        wins += positives * (below + others / 2.0);
        below += others;
    }
    let pairs = below * (samples.len() as f64 - below);
    (pairs > 0.0).then(|| wins / pairs)
}
