//! The share of samples whose class is predicted: as the best guess, or among the k best.

use netcl_nn::autograd::ops::layout::unsqueeze;
use netcl_nn::autograd::ops::loss::Target;
use netcl_nn::autograd::ops::reduce::sum;
use netcl_nn::autograd::ops::sort::topk;
use netcl_nn::autograd::{DType, Tensor};

use super::labels::{LabelOptions, Labelled};
use super::sums::{Sums, aside};
use crate::error::{Error, Result};
use crate::trainer::Metric;

/// The share of samples whose largest prediction is that of their class. Of equal predictions the first class counts.
#[derive(Default)]
pub struct Accuracy {
    options: LabelOptions,
    /// Right, counted.
    sums: Sums,
}

impl Accuracy {
    /// Accuracy with options; `Accuracy::default()` has the usual ones.
    pub fn new(options: LabelOptions) -> Accuracy {
        Accuracy { options, sums: Sums::default() }
    }
}

impl Metric for Accuracy {
    fn name(&self) -> String {
        "accuracy".to_owned()
    }

    fn update(&mut self, predictions: &Tensor, target: Target<'_>) -> Result<()> {
        aside(|| {
            let batch = Labelled::new("accuracy", predictions, target, self.options)?;
            let labels = batch.float_labels()?;
            let counted = batch.counted(&labels)?;
            let right = batch.agree(&batch.guesses()?, &labels, &counted)?;
            self.sums.add("accuracy", &[&sum(&right, (), false)?, &sum(&counted, (), false)?])
        })
    }

    fn compute(&self) -> Result<f64> {
        let sums = self.sums.read("accuracy")?;
        Ok(sums[0] / sums[1])
    }

    fn reset(&mut self) -> Result<()> {
        self.sums.reset()
    }

    fn sums(&self) -> Vec<Tensor> {
        self.sums.tensors()
    }

    fn fresh(&self) -> Result<Box<dyn Metric>> {
        Ok(Box::new(Accuracy::new(self.options)))
    }
}

/// The share of samples whose class is among the `k` largest predictions.
///
/// ```
/// use netcl_nn::autograd::{Tensor, manager};
/// use netcl_trainer::metric::TopK;
/// use netcl_trainer::trainer::Metric;
///
/// let logits = Tensor::from_host(&manager().cpu().queue, &[3.0f32, 2.0, 1.0, 1.0, 2.0, 3.0], [2, 3])?;
/// let mut top2 = TopK::new(2, Default::default())?;
/// top2.update(&logits, (&[1, 0]).into())?;
/// assert_eq!(top2.compute()?, 0.5);
/// # Ok::<(), netcl_trainer::Error>(())
/// ```
pub struct TopK {
    k: usize,
    options: LabelOptions,
    /// Right, counted.
    sums: Sums,
}

impl TopK {
    /// Top-k accuracy.
    ///
    /// # Errors
    /// If `k` is 0.
    pub fn new(k: usize, options: LabelOptions) -> Result<TopK> {
        if k == 0 {
            return Err(Error::setting("top-k accuracy: k is 0, but must be at least 1"));
        }
        Ok(TopK { k, options, sums: Sums::default() })
    }
}

impl Metric for TopK {
    fn name(&self) -> String {
        format!("top{}", self.k)
    }

    fn update(&mut self, predictions: &Tensor, target: Target<'_>) -> Result<()> {
        aside(|| {
            let name = self.name();
            let batch = Labelled::new(&name, predictions, target, self.options)?;
            let Some(axis) = batch.axis.filter(|&axis| self.k <= batch.scores.shape()[axis]) else {
                let classes = batch.axis.map_or(1, |axis| batch.scores.shape()[axis]);
                return Err(Error::setting(format!(
                    "{name}: the predictions of shape {} have {classes} per sample, fewer than {}; use a smaller k",
                    predictions.shape(),
                    self.k.max(2)
                )));
            };
            let axis = axis as isize;
            let best = topk(&batch.scores, self.k, axis, true)?.1.tensor().cast(DType::F32)?;
            let labels = unsqueeze(&batch.float_labels()?, axis)?;
            let counted = batch.counted(&labels)?;
            let right = batch.agree(&best.into(), &labels, &counted)?;
            self.sums.add(&name, &[&sum(&right, (), false)?, &sum(&counted, (), false)?])
        })
    }

    fn compute(&self) -> Result<f64> {
        let sums = self.sums.read(&self.name())?;
        Ok(sums[0] / sums[1])
    }

    fn reset(&mut self) -> Result<()> {
        self.sums.reset()
    }

    fn sums(&self) -> Vec<Tensor> {
        self.sums.tensors()
    }

    fn fresh(&self) -> Result<Box<dyn Metric>> {
        Ok(Box::new(TopK { k: self.k, options: self.options, sums: Sums::default() }))
    }
}
