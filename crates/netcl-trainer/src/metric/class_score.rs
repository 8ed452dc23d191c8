//! Precision, recall and F1: by class, and averaged.

use netcl_nn::autograd::Tensor;
use netcl_nn::autograd::ops::elementwise::mul;
use netcl_nn::autograd::ops::layout::flatten;
use netcl_nn::autograd::ops::loss::{Target, unpick};
use netcl_nn::autograd::ops::reduce::sum;

use super::labels::{LabelOptions, Labelled, index};
use super::sums::{Sums, aside};
use crate::error::{Error, Result};
use crate::trainer::Metric;

/// What [`ClassScore`] measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Score {
    /// Of the samples that are taken for a class, the share that are of it.
    Precision,
    /// Of the samples of a class, the share that are found.
    Recall,
    /// The harmonic mean of precision and recall.
    F1,
}

/// How the figures of the classes become one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Average {
    /// The mean over all classes that occur in labels or predictions.
    #[default]
    Macro,
    /// Of all samples together; for one label per sample this is the accuracy.
    Micro,
    /// The mean over classes, each counted by its samples.
    Weighted,
}

impl Average {
    /// Reads `"macro"`, `"micro"` or `"weighted"`.
    ///
    /// # Errors
    /// For another name.
    pub fn parse(name: &str) -> Result<Average> {
        match name {
            "macro" => Ok(Average::Macro),
            "micro" => Ok(Average::Micro),
            "weighted" => Ok(Average::Weighted),
            _ => Err(Error::setting(format!(
                "there is no average {name:?}; use \"macro\", \"micro\" or \"weighted\", and per_class() for every class"
            ))),
        }
    }
}

/// Precision, recall or F1, with scikit-learn's meaning; a figure of 0 / 0 is 0.
///
/// Predictions of one number per sample give the figure of class 1, whatever the average.
///
/// ```
/// use netcl_nn::autograd::{Tensor, manager};
/// use netcl_trainer::metric::{Average, ClassScore, Score};
/// use netcl_trainer::trainer::Metric;
///
/// let mut recall = ClassScore::new(Score::Recall, Average::Macro, Default::default());
/// let logits = Tensor::from_host(&manager().cpu().queue, &[1.5f32, -0.5, 2.0, -1.0], [4])?;
/// recall.update(&logits, (&[1, 1, 0, 0]).into())?;
/// assert_eq!(recall.compute()?, 0.5);
/// # Ok::<(), netcl_trainer::Error>(())
/// ```
pub struct ClassScore {
    score: Score,
    average: Average,
    options: LabelOptions,
    /// Whether there is one number per sample, once a batch was seen.
    binary: bool,
    /// For every class: found, predicted, there.
    sums: Sums,
}

impl ClassScore {
    /// A score with an average.
    pub fn new(score: Score, average: Average, options: LabelOptions) -> ClassScore {
        ClassScore { score, average, options, binary: false, sums: Sums::default() }
    }

    /// The figure of every class. This waits for the device.
    ///
    /// # Errors
    /// Before the first batch, for a label that is no class, and what the device says.
    pub fn per_class(&self) -> Result<Vec<f64>> {
        Ok(self.counts()?.into_iter().map(|counts| self.figure(counts)).collect())
    }

    /// Found, predicted and there, by class.
    fn counts(&self) -> Result<Vec<[f64; 3]>> {
        let name = self.name();
        let sums = self.sums.read(&name)?;
        let classes = sums.len() / 3;
        if sums.iter().any(|count| count.is_nan()) {
            return Err(outside(&name, classes));
        }
        Ok((0..classes).map(|class| [sums[class], sums[classes + class], sums[2 * classes + class]]).collect())
    }

    fn figure(&self, [found, predicted, there]: [f64; 3]) -> f64 {
        let (over, under) = match self.score {
            Score::Precision => (found, predicted),
            Score::Recall => (found, there),
            Score::F1 => (2.0 * found, predicted + there),
        };
        if under == 0.0 { 0.0 } else { over / under }
    }
}

/// The error of labels that no class has, which are NaN in the sums.
pub(super) fn outside(metric: &str, classes: usize) -> Error {
    Error::setting(format!(
        "{metric}: some labels were outside 0..{classes}, the classes of the predictions; samples to leave out have the label of \
         ignore_index"
    ))
}

/// One-hot rows of the predicted classes and of the labels, of shape `(samples, classes)`; zeros for samples that do not count.
pub(super) fn one_hot(batch: &Labelled, ignored: Option<i64>) -> Result<[Tensor; 2]> {
    let labels = batch.float_labels()?;
    let flat = |tensor: &Tensor| flatten(tensor, 0, -1);
    let (guesses, counted) = (flat(&batch.guesses()?)?, flat(&batch.counted(&labels)?)?);
    let classes = batch.classes();
    let guesses = unpick(&counted, 1, &index(&guesses)?, classes, None)?;
    Ok([guesses, unpick(&counted, 1, &index(&flat(&labels)?)?, classes, ignored)?])
}

impl Metric for ClassScore {
    fn name(&self) -> String {
        match self.score {
            Score::Precision => "precision",
            Score::Recall => "recall",
            Score::F1 => "f1",
        }
        .to_owned()
    }

    fn update(&mut self, predictions: &Tensor, target: Target<'_>) -> Result<()> {
        aside(|| {
            let name = self.name();
            let batch = Labelled::new(&name, predictions, target, self.options)?;
            let [guesses, labels] = one_hot(&batch, self.options.ignore_index)?;
            let sums = [&mul(&guesses, &labels)?, &guesses, &labels].map(|rows| sum(rows, 0, false));
            let [found, predicted, there] = sums;
            self.binary = batch.axis.is_none();
            self.sums.add(&name, &[&found?, &predicted?, &there?])
        })
    }

    fn compute(&self) -> Result<f64> {
        let counts = self.counts()?;
        if self.binary {
            return Ok(self.figure(counts[1]));
        }
        let weighted = |weight: fn(&[f64; 3]) -> f64| {
            let total: f64 = counts.iter().map(weight).sum();
            counts.iter().map(|&counts| self.figure(counts) * weight(&counts)).sum::<f64>() / total
        };
        Ok(match self.average {
            Average::Micro => self.figure([0, 1, 2].map(|i| counts.iter().map(|counts| counts[i]).sum())),
            Average::Macro => weighted(|[_, predicted, there]| f64::from(u8::from(predicted + there > 0.0))),
            Average::Weighted => weighted(|[_, _, there]| *there),
        })
    }

    fn reset(&mut self) -> Result<()> {
        self.sums.reset()
    }

    fn sums(&self) -> Vec<Tensor> {
        self.sums.tensors()
    }

    fn fresh(&self) -> Result<Box<dyn Metric>> {
        Ok(Box::new(ClassScore::new(self.score, self.average, self.options)))
    }
}
