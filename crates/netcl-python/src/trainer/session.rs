//! What a captured step of Python's calls: gradients, metrics and the update.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use netcl::trainer::trainer::session::Parts;
use netcl::trainer::trainer::{Output, Session as Inner, Truth};
use pyo3::prelude::*;

use crate::amp::GradScaler;
use crate::autograd::Labels;
use crate::error::trainer_to_py;
use crate::optim::{Ema, Optimizer};
use crate::tensor::Tensor;

/// The part of a step that does not depend on the model.
#[pyclass(module = "netcl._netcl.trainer", frozen)]
pub(super) struct Session {
    pub(super) inner: Arc<Mutex<Inner>>,
    pub(super) optimizer: Py<Optimizer>,
    pub(super) scaler: Option<Py<GradScaler>>,
    pub(super) ema: Option<Py<Ema>>,
}

impl Session {
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls a function with everything that an update changes.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&mut Inner, &mut Parts<'_>) -> netcl::trainer::Result<R> + Send,
    ) -> PyResult<R> {
        let (optimizer, scaler, ema) = (self.optimizer.get(), self.scaler.as_ref(), self.ema.as_ref());
        py.detach(|| {
            let mut session = self.lock();
            let mut optimizer = optimizer.lock();
            let mut scaler = scaler.map(|scaler| scaler.get().lock());
            let mut ema = ema.map(|ema| ema.get().lock());
            let mut parts =
                Parts { optimizer: optimizer.as_mut(), scaler: scaler.as_deref_mut(), ema: ema.as_deref_mut() };
            f(&mut session, &mut parts)
        })
        .map_err(trainer_to_py)
    }
}

/// A batch's loss, and what metrics compare.
pub(super) fn output(
    loss: &Tensor,
    predictions: Option<&Tensor>,
    target: Option<&Bound<'_, PyAny>>,
) -> PyResult<Output> {
    let predictions = match (predictions, target) {
        (Some(predictions), Some(target)) => {
            let predictions = predictions.inner().as_ref().clone();
            let truth = truth(target, &predictions)?;
            Some((predictions, truth))
        }
        _ => None,
    };
    Ok(Output { loss: loss.inner().as_ref().clone(), predictions })
}

fn truth(target: &Bound<'_, PyAny>, predictions: &netcl::Tensor) -> PyResult<Truth> {
    Ok(match Labels::new(target, predictions)? {
        Labels::Index(index) => Truth::Index(index),
        Labels::Tensor(tensor) => Truth::Values(tensor),
    })
}

#[pymethods]
impl Session {
    /// The gradients of a batch that has this share of the update's samples.
    #[pyo3(signature = (loss, share, predictions=None, target=None))]
    fn backward(
        &self,
        py: Python<'_>,
        loss: &Tensor,
        share: f64,
        predictions: Option<&Tensor>,
        target: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let output = output(loss, predictions, target)?;
        self.with(py, |session, parts| session.backward(&output, share, parts))
    }

    /// The update from the gradients so far.
    fn apply(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |session, parts| session.apply(parts))
    }

    /// The metrics that cannot be a part of a captured step.
    fn observe(&self, predictions: &Tensor, target: &Bound<'_, PyAny>) -> PyResult<()> {
        let predictions = predictions.inner().detach();
        let truth = truth(target, &predictions)?;
        self.lock().observe(&predictions, &truth).map_err(trainer_to_py)
    }

    /// Whether there are such metrics.
    #[getter]
    fn observes(&self) -> bool {
        self.lock().observes()
    }
}
