//! Adagrad.

use netcl::optim::{self, AdagradOptions};
use pyo3::prelude::*;

use super::optimizer::{Optimizer, describe};

/// Adagrad, as PyTorch defines it.
#[pyclass(module = "netcl.optim", frozen, subclass, extends = Optimizer)]
pub(crate) struct Adagrad(AdagradOptions);

#[pymethods]
impl Adagrad {
    /// ``params`` are tensors, or dicts ``{"params": [...], "lr": ..., "weight_decay": ...}``.
    #[new]
    #[pyo3(signature = (params, lr=1e-2, lr_decay=0.0, weight_decay=0.0, initial_accumulator_value=0.0, eps=1e-10, *, maximize=false))]
    fn new(
        params: &Bound<'_, PyAny>,
        lr: f64,
        lr_decay: f64,
        weight_decay: f64,
        initial_accumulator_value: f64,
        eps: f64,
        maximize: bool,
    ) -> PyResult<PyClassInitializer<Adagrad>> {
        let options = AdagradOptions { lr, lr_decay, weight_decay, initial_accumulator_value, eps, maximize };
        let base = Optimizer::build(params, lr, weight_decay, |params, lr, weight_decay| {
            optim::Adagrad::new_with(params, AdagradOptions { lr, weight_decay, ..options })
        })?;
        Ok(PyClassInitializer::from(base).add_subclass(Adagrad(options)))
    }

    fn __repr__(slf: PyRef<'_, Self>) -> String {
        let AdagradOptions { lr_decay, initial_accumulator_value, eps, maximize, .. } = slf.0;
        let numbers = [("lr_decay", lr_decay), ("initial_accumulator_value", initial_accumulator_value), ("eps", eps)];
        describe("Adagrad", slf.as_super(), &numbers, &[("maximize", maximize)])
    }
}
