//! Adam and AdamW.

use netcl::optim::{self, AdamOptions, AdamWOptions};
use pyo3::prelude::*;

use super::optimizer::{Optimizer, describe};

/// Adam, as PyTorch defines it.
#[pyclass(module = "netcl.optim", frozen, subclass, extends = Optimizer)]
pub(crate) struct Adam(AdamOptions);

#[pymethods]
impl Adam {
    /// ``params`` are tensors, or dicts ``{"params": [...], "lr": ..., "weight_decay": ...}``. ``foreach`` and ``fused`` change
    /// nothing: all parameters of a dtype are updated together.
    #[new]
    #[pyo3(signature = (params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, amsgrad=false, *, maximize=false, foreach=None, fused=None),
        text_signature = "(params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, amsgrad=False, *, maximize=False, foreach=None, fused=None)")]
    #[allow(clippy::too_many_arguments, reason = "Python's arguments have names")]
    fn new(
        params: &Bound<'_, PyAny>,
        lr: f64,
        betas: (f64, f64),
        eps: f64,
        weight_decay: f64,
        amsgrad: bool,
        maximize: bool,
        foreach: Option<bool>,
        fused: Option<bool>,
    ) -> PyResult<PyClassInitializer<Adam>> {
        let _ = [foreach, fused];
        let options = AdamOptions { lr, betas, eps, weight_decay, amsgrad, maximize };
        let base = Optimizer::build(params, lr, weight_decay, |params, lr, weight_decay| {
            optim::Adam::new_with(params, AdamOptions { lr, weight_decay, ..options })
        })?;
        Ok(PyClassInitializer::from(base).add_subclass(Adam(options)))
    }

    /// How much of the averages of the gradients and of their squares is kept in a step.
    #[getter]
    fn betas(slf: PyRef<'_, Self>) -> (f64, f64) {
        (slf.as_super().momentum().unwrap_or(slf.0.betas.0), slf.0.betas.1)
    }

    fn __repr__(slf: PyRef<'_, Self>) -> String {
        let AdamOptions { betas, eps, amsgrad, maximize, .. } = slf.0;
        let numbers = [("beta1", betas.0), ("beta2", betas.1), ("eps", eps)];
        describe("Adam", slf.as_super(), &numbers, &[("amsgrad", amsgrad), ("maximize", maximize)])
    }
}

/// Adam whose weight decay acts on the parameters directly, as PyTorch defines it.
#[pyclass(module = "netcl.optim", frozen, subclass, extends = Optimizer)]
pub(crate) struct AdamW(AdamWOptions);

#[pymethods]
impl AdamW {
    /// ``params`` are tensors, or dicts ``{"params": [...], "lr": ..., "weight_decay": ...}``. ``foreach`` and ``fused`` change
    /// nothing: all parameters of a dtype are updated together.
    #[new]
    #[pyo3(signature = (params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, amsgrad=false, *, maximize=false, foreach=None, fused=None),
        text_signature = "(params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, amsgrad=False, *, maximize=False, foreach=None, fused=None)")]
    #[allow(clippy::too_many_arguments, reason = "Python's arguments have names")]
    fn new(
        params: &Bound<'_, PyAny>,
        lr: f64,
        betas: (f64, f64),
        eps: f64,
        weight_decay: f64,
        amsgrad: bool,
        maximize: bool,
        foreach: Option<bool>,
        fused: Option<bool>,
    ) -> PyResult<PyClassInitializer<AdamW>> {
        let _ = [foreach, fused];
        let options = AdamWOptions { lr, betas, eps, weight_decay, amsgrad, maximize };
        let base = Optimizer::build(params, lr, weight_decay, |params, lr, weight_decay| {
            optim::AdamW::new_with(params, AdamWOptions { lr, weight_decay, ..options })
        })?;
        Ok(PyClassInitializer::from(base).add_subclass(AdamW(options)))
    }

    /// How much of the averages of the gradients and of their squares is kept in a step.
    #[getter]
    fn betas(slf: PyRef<'_, Self>) -> (f64, f64) {
        (slf.as_super().momentum().unwrap_or(slf.0.betas.0), slf.0.betas.1)
    }

    fn __repr__(slf: PyRef<'_, Self>) -> String {
        let AdamWOptions { betas, eps, amsgrad, maximize, .. } = slf.0;
        let numbers = [("beta1", betas.0), ("beta2", betas.1), ("eps", eps)];
        describe("AdamW", slf.as_super(), &numbers, &[("amsgrad", amsgrad), ("maximize", maximize)])
    }
}
