//! How often each class is taken for which.

use netcl_nn::autograd::Tensor;
use netcl_nn::autograd::ops::layout::transpose;
use netcl_nn::autograd::ops::loss::Target;
use netcl_nn::autograd::ops::matmul::matmul;

use super::class_score::{one_hot, outside};
use super::labels::{LabelOptions, Labelled};
use super::sums::{Sums, aside};
use crate::error::Result;
use crate::trainer::Metric;

/// Counts of (class, predicted class). As a single figure it is the accuracy.
///
/// ```
/// use netcl_nn::autograd::{Tensor, manager};
/// use netcl_trainer::metric::ConfusionMatrix;
/// use netcl_trainer::trainer::Metric;
///
/// let logits = Tensor::from_host(&manager().cpu().queue, &[3.0f32, 2.0, 1.0, 4.0, 0.0, 1.0], [3, 2])?;
/// let mut confusion = ConfusionMatrix::default();
/// confusion.update(&logits, (&[0, 0, 1]).into())?;
/// assert_eq!(confusion.matrix()?, [[1, 1], [0, 1]]);
/// # Ok::<(), netcl_trainer::Error>(())
/// ```
#[derive(Default)]
pub struct ConfusionMatrix {
    options: LabelOptions,
    sums: Sums,
}

impl ConfusionMatrix {
    /// A matrix with options.
    pub fn new(options: LabelOptions) -> ConfusionMatrix {
        ConfusionMatrix { options, sums: Sums::default() }
    }

    /// `matrix()[class][guess]`: how many samples of a class are taken for which. This waits for the device.
    ///
    /// # Errors
    /// Before the first batch, for a label that is no class, and what the device says.
    pub fn matrix(&self) -> Result<Vec<Vec<u64>>> {
        let sums = self.sums.read("confusion_matrix")?;
        let classes = sums.len().isqrt();
        if sums.iter().any(|count| count.is_nan()) {
            return Err(outside("confusion_matrix", classes));
        }
        Ok(sums.chunks(classes.max(1)).map(|row| row.iter().map(|&count| count as u64).collect()).collect())
    }
}

impl Metric for ConfusionMatrix {
    fn name(&self) -> String {
        "confusion_matrix".to_owned()
    }

    fn update(&mut self, predictions: &Tensor, target: Target<'_>) -> Result<()> {
        aside(|| {
            let batch = Labelled::new("confusion_matrix", predictions, target, self.options)?;
            let [guesses, labels] = one_hot(&batch, self.options.ignore_index)?;
            // Products of zeros and ones are exact in any precision of products, as sums are float32.
            self.sums.add("confusion_matrix", &[&matmul(&transpose(&labels, 0, 1)?, &guesses)?])
        })
    }

    fn compute(&self) -> Result<f64> {
        let matrix = self.matrix()?;
        let right: u64 = matrix.iter().enumerate().map(|(class, row)| row[class]).sum();
        Ok(right as f64 / matrix.iter().flatten().sum::<u64>() as f64)
    }

    fn reset(&mut self) -> Result<()> {
        self.sums.reset()
    }

    fn sums(&self) -> Vec<Tensor> {
        self.sums.tensors()
    }

    fn fresh(&self) -> Result<Box<dyn Metric>> {
        Ok(Box::new(ConfusionMatrix::new(self.options)))
    }
}
