//! How many classes a language model hesitates between.

use netcl_nn::autograd::ops::elementwise::neg;
use netcl_nn::autograd::ops::loss::{Target, pick};
use netcl_nn::autograd::ops::reduce::sum;
use netcl_nn::autograd::ops::softmax::log_softmax;
use netcl_nn::autograd::{DType, Tensor};

use super::labels::{LabelOptions, Labelled};
use super::sums::{Sums, aside};
use crate::error::{Error, Result};
use crate::trainer::Metric;

/// e to the mean cross-entropy over all tokens that count, from logits.
///
/// ```
/// use netcl_nn::autograd::{DType, Tensor, manager};
/// use netcl_trainer::metric::Perplexity;
/// use netcl_trainer::trainer::Metric;
///
/// // Logits of 2 texts of 3 tokens out of 8: the model knows nothing. The last token is padding.
/// let logits = Tensor::full(&manager().cpu().queue, [2, 3, 8], DType::F32, 0.0)?;
/// let mut perplexity = Perplexity::default();
/// perplexity.update(&logits, (&[1, 2, 3, 4, 5, -100]).into())?;
/// assert!((perplexity.compute()? - 8.0).abs() < 1e-5);
/// # Ok::<(), netcl_trainer::Error>(())
/// ```
pub struct Perplexity {
    ignore_index: Option<i64>,
    /// Cross-entropy, tokens.
    sums: Sums,
}

impl Default for Perplexity {
    fn default() -> Self {
        Perplexity::new(LabelOptions::default().ignore_index)
    }
}

impl Perplexity {
    /// Perplexity of the tokens that are not `ignore_index`.
    pub fn new(ignore_index: Option<i64>) -> Perplexity {
        Perplexity { ignore_index, sums: Sums::default() }
    }
}

impl Metric for Perplexity {
    fn name(&self) -> String {
        "perplexity".to_owned()
    }

    fn update(&mut self, predictions: &Tensor, target: Target<'_>) -> Result<()> {
        aside(|| {
            let options = LabelOptions { ignore_index: self.ignore_index, ..LabelOptions::default() };
            let batch = Labelled::new("perplexity", predictions, target, options)?;
            let Some(axis) = batch.axis else {
                return Err(Error::setting(format!(
                    "perplexity: the predictions of shape {} have no axis of classes; give logits of shape (N, C), (N, T, C) or \
                     (N, C, T)",
                    predictions.shape()
                )));
            };
            let logits = batch.scores.raw().cast(DType::F32)?.into();
            let axis = axis as isize;
            let picked = pick(&log_softmax(&logits, axis)?, axis, &batch.labels, self.ignore_index)?;
            let counted = batch.counted(&batch.float_labels()?)?;
            self.sums.add("perplexity", &[&neg(&sum(&picked, (), false)?)?, &sum(&counted, (), false)?])
        })
    }

    fn compute(&self) -> Result<f64> {
        let sums = self.sums.read("perplexity")?;
        Ok((sums[0] / sums[1]).exp())
    }

    fn reset(&mut self) -> Result<()> {
        self.sums.reset()
    }

    fn sums(&self) -> Vec<Tensor> {
        self.sums.tensors()
    }

    fn fresh(&self) -> Result<Box<dyn Metric>> {
        Ok(Box::new(Perplexity::new(self.ignore_index)))
    }
}
