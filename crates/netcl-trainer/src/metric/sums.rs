//! Sums over batches that stay exact: what metrics keep on the device.

use netcl_nn::autograd::autocast::suspend;
use netcl_nn::autograd::ops::layout::stack;
use netcl_nn::autograd::{DType, Tensor, no_grad};

use crate::error::{Error, Result};

/// Several sums of one shape, made at the first batch and kept in place after it.
///
/// float32 counts only up to 2^24 one by one, which a validation set of text exceeds. Sums are float64 where the device has it; else
/// float32 with the rest that rounding lost (Kahan), which is exact for counts below 2^48.
#[derive(Default)]
pub(super) struct Sums {
    total: Option<Tensor>,
    /// What was rounded away, to be subtracted; only where there is no float64.
    lost: Option<Tensor>,
}

impl Sums {
    /// Adds float32 tensors of one shape, each to its own sum. Under [`no_grad`] and without autocast, both of which the caller
    /// needs anyway: see [`aside`].
    pub(super) fn add(&mut self, metric: &str, parts: &[&Tensor]) -> Result<()> {
        let parts = stack(parts, 0)?;
        if self.total.is_none() {
            let wide = parts.queue().check_dtype("metric", DType::F64).is_ok();
            let zeros = |dtype| Tensor::from_shape(parts.queue(), parts.shape().clone(), dtype);
            self.total = Some(zeros(if wide { DType::F64 } else { DType::F32 })?);
            self.lost = if wide { None } else { Some(zeros(DType::F32)?) };
        }
        let Some(total) = &mut self.total else { return Ok(()) };
        if total.shape() != parts.shape() {
            let [before, now] = [total.shape(), parts.shape()].map(|shape| shape.last().copied().unwrap_or_default());
            return Err(Error::setting(format!(
                "{metric}: this batch has {now} classes, earlier ones had {before}; use reset() and a metric per model"
            )));
        }
        match &mut self.lost {
            None => total.add_(&parts)?,
            Some(lost) => {
                let part = (&parts - &*lost)?;
                let sum = (&*total + &part)?;
                lost.copy_(&(&(&sum - &*total)? - &part)?)?;
                total.copy_(&sum)?;
            }
        }
        Ok(())
    }

    /// All sums in order. This waits for the device.
    pub(super) fn read(&self, metric: &str) -> Result<Vec<f64>> {
        let Some(total) = &self.total else { return Err(no_batch(metric)) };
        let mut sums = total.to_f64_vec()?;
        if let Some(lost) = &self.lost {
            sums.iter_mut().zip(lost.to_f64_vec()?).for_each(|(sum, lost)| *sum -= lost);
        }
        Ok(sums)
    }

    pub(super) fn reset(&mut self) -> Result<()> {
        for tensor in self.total.iter_mut().chain(&mut self.lost) {
            tensor.zero_()?;
        }
        Ok(())
    }

    /// What is added over ranks.
    pub(super) fn tensors(&self) -> Vec<Tensor> {
        self.total.iter().chain(&self.lost).cloned().collect()
    }
}

/// The error of a metric that has seen nothing.
pub(super) fn no_batch(metric: &str) -> Error {
    Error::setting(format!("{metric}: no batch was seen yet; call update(predictions, targets) first"))
}

/// Runs work that leaves no graph and in which autocast narrows nothing: float16 counts only up to 2048.
pub(super) fn aside<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let (_grad, _cast) = (no_grad(), suspend());
    work()
}

#[cfg(test)]
mod tests {
    use netcl_nn::autograd::manager;

    use super::*;

    #[test]
    fn counts_stay_exact_past_the_end_of_float32() -> Result<()> {
        let queue = manager().cpu().queue;
        let zeros = || Tensor::from_shape(&queue, [1], DType::F32).map(Some);
        for narrow in [false, true] {
            let mut sums = Sums::default();
            if narrow {
                sums = Sums { total: zeros()?, lost: zeros()? };
            }
            let many = Tensor::full(&queue, (), DType::F32, 2f64.powi(24))?;
            sums.add("count", &[&many])?;
            for _ in 0..1001 {
                sums.add("count", &[&Tensor::full(&queue, (), DType::F32, 1.0)?])?;
            }
            assert_eq!(sums.read("count")?, [2f64.powi(24) + 1001.0]);
            sums.reset()?;
            assert_eq!(sums.read("count")?, [0.0]);
            assert_eq!(sums.tensors().len(), 1 + usize::from(narrow));
        }
        assert!(
            Sums::default().read("accuracy").is_err_and(|error| error.to_string().starts_with("accuracy: no batch"))
        );
        Ok(())
    }
}
