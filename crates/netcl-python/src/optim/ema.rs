//! Averages of weights.

use std::sync::{Mutex, MutexGuard, PoisonError};

use netcl::optim::{self, EmaOptions};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::optimizer::tensors;
use super::state::{from_dict, to_dict};
use crate::error::IntoPyResult;
use crate::tensor::Tensor;

/// An exponential moving average of parameters: ``average = decay * average + (1 - decay) * p`` at each ``update()``.
#[pyclass(module = "netcl.optim", frozen, subclass)]
pub(crate) struct Ema(Mutex<optim::Ema>);

impl Ema {
    pub(crate) fn lock(&self) -> MutexGuard<'_, optim::Ema> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Ema {
    /// With ``warmup`` the decay starts at 1/10 and rises as ``(1 + n) / (10 + n)`` with the updates.
    #[new]
    #[pyo3(signature = (params, decay=0.999, warmup=true))]
    fn new(params: &Bound<'_, PyAny>, decay: f64, warmup: bool) -> PyResult<Ema> {
        let params = tensors(params)?;
        Ok(Ema(Mutex::new(optim::Ema::new(params, EmaOptions { decay, warmup }).py()?)))
    }

    /// Takes the parameters into the average: call it after each step.
    fn update(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.lock().update()).py()
    }

    /// Exchanges parameters and averages; once more brings them back.
    fn swap(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.lock().swap()).py()
    }

    /// Overwrites the parameters with the averages for good.
    fn copy_to_params(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.lock().copy_to_params()).py()
    }

    /// The averages, one for each parameter; they share the average's memory.
    #[getter]
    fn averages(&self) -> PyResult<Vec<Tensor>> {
        Ok(self.lock().averages().py()?.into_iter().map(Tensor::new).collect())
    }

    /// How much of the average is kept in an update.
    #[getter]
    fn decay(&self) -> f64 {
        self.lock().options().decay
    }

    /// How many updates there were.
    #[getter]
    fn updates(&self) -> u64 {
        self.lock().updates()
    }

    /// The decay of the next update.
    fn current_decay(&self) -> f64 {
        self.lock().current_decay()
    }

    /// Everything another average needs to go on exactly.
    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let state = self.lock().state().py()?;
        to_dict(py, state)
    }

    /// Goes on from a ``state_dict`` of the same parameters; an error names everything that does not fit.
    fn load_state_dict(&self, py: Python<'_>, state: &Bound<'_, PyDict>) -> PyResult<()> {
        let state = from_dict(state)?;
        py.detach(|| self.lock().load_state(&state)).py()
    }
}
