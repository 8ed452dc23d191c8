//! Stochastic gradient descent.

use netcl::optim::{self, MomentumOptions, SgdOptions};
use pyo3::prelude::*;

use super::optimizer::{Optimizer, describe};

/// Stochastic gradient descent with momentum, as PyTorch defines it.
#[pyclass(module = "netcl.optim", frozen, subclass, extends = Optimizer, name = "SGD")]
pub(crate) struct Sgd(SgdOptions);

#[pymethods]
impl Sgd {
    /// ``params`` are tensors, or dicts ``{"params": [...], "lr": ..., "weight_decay": ...}``. ``foreach`` and ``fused`` change
    /// nothing: all parameters of a dtype are updated together.
    #[new]
    #[pyo3(signature = (params, lr=0.01, momentum=0.0, *, dampening=0.0, weight_decay=0.0, nesterov=false, maximize=false, foreach=None, fused=None))]
    #[allow(clippy::too_many_arguments, reason = "Python's arguments have names")]
    fn new(
        params: &Bound<'_, PyAny>,
        lr: f64,
        momentum: f64,
        dampening: f64,
        weight_decay: f64,
        nesterov: bool,
        maximize: bool,
        foreach: Option<bool>,
        fused: Option<bool>,
    ) -> PyResult<PyClassInitializer<Sgd>> {
        let _ = [foreach, fused];
        let options = SgdOptions { lr, momentum, dampening, weight_decay, nesterov, maximize };
        let base = Optimizer::build(params, lr, weight_decay, |params, lr, weight_decay| {
            optim::SGD::new_with(params, SgdOptions { lr, weight_decay, ..options })
        })?;
        Ok(PyClassInitializer::from(base).add_subclass(Sgd(options)))
    }

    /// How much of the last step is kept.
    #[getter]
    fn momentum(slf: PyRef<'_, Self>) -> f64 {
        slf.as_super().momentum().unwrap_or(slf.0.momentum)
    }

    fn __repr__(slf: PyRef<'_, Self>) -> String {
        let SgdOptions { momentum, dampening, nesterov, maximize, .. } = slf.0;
        let numbers = [("momentum", momentum), ("dampening", dampening)];
        describe("SGD", slf.as_super(), &numbers, &[("nesterov", nesterov), ("maximize", maximize)])
    }
}

/// ``SGD`` whose momentum is on unless told otherwise.
#[pyclass(module = "netcl.optim", frozen, subclass, extends = Optimizer)]
pub(crate) struct Momentum(MomentumOptions);

#[pymethods]
impl Momentum {
    /// ``params`` are tensors, or dicts ``{"params": [...], "lr": ..., "weight_decay": ...}``. ``foreach`` and ``fused`` change
    /// nothing: all parameters of a dtype are updated together.
    #[new]
    #[pyo3(signature = (params, lr=0.01, momentum=0.9, nesterov=false, weight_decay=0.0))]
    fn new(
        params: &Bound<'_, PyAny>,
        lr: f64,
        momentum: f64,
        nesterov: bool,
        weight_decay: f64,
    ) -> PyResult<PyClassInitializer<Momentum>> {
        let options = MomentumOptions { lr, momentum, nesterov, weight_decay };
        let base = Optimizer::build(params, lr, weight_decay, |params, lr, weight_decay| {
            optim::Momentum::new_with(params, MomentumOptions { lr, weight_decay, ..options })
        })?;
        Ok(PyClassInitializer::from(base).add_subclass(Momentum(options)))
    }

    /// How much of the last step is kept.
    #[getter]
    fn momentum(slf: PyRef<'_, Self>) -> f64 {
        slf.as_super().momentum().unwrap_or(slf.0.momentum)
    }

    fn __repr__(slf: PyRef<'_, Self>) -> String {
        describe("Momentum", slf.as_super(), &[("momentum", slf.0.momentum)], &[("nesterov", slf.0.nesterov)])
    }
}
