//! Errors of predicted numbers.

use netcl_nn::autograd::ops::elementwise::{abs, sub};
use netcl_nn::autograd::ops::loss::Target;
use netcl_nn::autograd::ops::reduce::sum;
use netcl_nn::autograd::{IndexTensor, Shape, Tensor};

use super::sums::{Sums, aside};
use crate::error::{Error, Result};
use crate::trainer::Metric;

/// The mean absolute error, `mae`.
///
/// ```
/// use netcl_nn::autograd::{Tensor, manager};
/// use netcl_trainer::metric::MeanError;
/// use netcl_trainer::trainer::Metric;
///
/// let of = |values: &[f32]| Tensor::from_host(&manager().cpu().queue, values, [values.len()]);
/// let mut error = MeanError::default();
/// error.update(&of(&[1.0, 2.0])?, (&of(&[0.0, 4.0])?).into())?;
/// error.update(&of(&[1.0])?, (&of(&[1.0])?).into())?;
/// assert_eq!(error.compute()?, 1.0);
/// # Ok::<(), netcl_trainer::Error>(())
/// ```
#[derive(Default)]
pub struct MeanError {
    /// Errors, numbers.
    sums: Sums,
}

/// The mean squared error, `mse`, or its root, `rmse`.
#[derive(Default)]
pub struct MeanSquaredError {
    root: bool,
    /// Squared errors, numbers.
    sums: Sums,
}

impl MeanSquaredError {
    /// The mean squared error; with `root` its square root, in the unit of the predictions.
    pub fn new(root: bool) -> MeanSquaredError {
        MeanSquaredError { root, sums: Sums::default() }
    }
}

/// Predictions less targets, at least as float32. Shapes must be equal: `(N, 1)` beside `(N,)` would be an `(N, N)` matrix.
fn differences(metric: &str, predictions: &Tensor, target: Target<'_>) -> Result<Tensor> {
    let wrong = |got: &Shape| {
        Error::setting(format!(
            "{metric}: got predictions of shape {} and targets of shape {got}; reshape one of them to the other's shape",
            predictions.shape()
        ))
    };
    predictions.check_float("metric")?;
    let dtype = predictions.dtype().accumulator();
    let target: Tensor = match target {
        Target::Tensor(tensor) => tensor.raw().cast(dtype)?.into(),
        Target::Index(index) => index.tensor().cast(dtype)?.into(),
        Target::Labels(labels) => {
            if labels.len() != predictions.size() {
                return Err(wrong(&[labels.len()].into()));
            }
            let values = IndexTensor::from_host(predictions.queue(), labels, predictions.shape().clone())?;
            values.tensor().cast(dtype)?.into()
        }
    };
    if target.shape() != predictions.shape() {
        return Err(wrong(target.shape()));
    }
    Ok(sub(&predictions.raw().cast(dtype)?.into(), &target)?)
}

/// Adds the errors of a batch and how many they are.
fn add(sums: &mut Sums, metric: &str, errors: &Tensor) -> Result<()> {
    let count = Tensor::full(errors.queue(), (), errors.dtype(), errors.size() as f64)?;
    sums.add(metric, &[&sum(errors, (), false)?, &count])
}

impl Metric for MeanError {
    fn name(&self) -> String {
        "mae".to_owned()
    }

    fn update(&mut self, predictions: &Tensor, target: Target<'_>) -> Result<()> {
        aside(|| add(&mut self.sums, "mae", &abs(&differences("mae", predictions, target)?)?))
    }

    fn compute(&self) -> Result<f64> {
        let sums = self.sums.read("mae")?;
        Ok(sums[0] / sums[1])
    }

    fn reset(&mut self) -> Result<()> {
        self.sums.reset()
    }

    fn sums(&self) -> Vec<Tensor> {
        self.sums.tensors()
    }

    fn fresh(&self) -> Result<Box<dyn Metric>> {
        Ok(Box::new(MeanError::default()))
    }
}

impl Metric for MeanSquaredError {
    fn name(&self) -> String {
        if self.root { "rmse" } else { "mse" }.to_owned()
    }

    fn update(&mut self, predictions: &Tensor, target: Target<'_>) -> Result<()> {
        aside(|| {
            let name = self.name();
            let differences = differences(&name, predictions, target)?;
            add(&mut self.sums, &name, &(&differences * &differences)?)
        })
    }

    fn compute(&self) -> Result<f64> {
        let sums = self.sums.read(&self.name())?;
        let mean = sums[0] / sums[1];
        Ok(if self.root { mean.sqrt() } else { mean })
    }

    fn reset(&mut self) -> Result<()> {
        self.sums.reset()
    }

    fn sums(&self) -> Vec<Tensor> {
        self.sums.tensors()
    }

    fn fresh(&self) -> Result<Box<dyn Metric>> {
        Ok(Box::new(MeanSquaredError::new(self.root)))
    }
}
