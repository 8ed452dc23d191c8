//! RMSprop.

use netcl::optim::{self, RmsPropOptions};
use pyo3::prelude::*;

use super::optimizer::{Optimizer, describe};

/// RMSprop, as PyTorch defines it.
#[pyclass(module = "netcl.optim", frozen, subclass, extends = Optimizer, name = "RMSProp")]
pub(crate) struct RmsProp(RmsPropOptions);

#[pymethods]
impl RmsProp {
    /// ``params`` are tensors, or dicts ``{"params": [...], "lr": ..., "weight_decay": ...}``.
    #[new]
    #[pyo3(signature = (params, lr=1e-2, alpha=0.99, eps=1e-8, weight_decay=0.0, momentum=0.0, centered=false, *, maximize=false))]
    #[expect(clippy::too_many_arguments, reason = "the settings of the optimizer")]
    fn new(
        params: &Bound<'_, PyAny>,
        lr: f64,
        alpha: f64,
        eps: f64,
        weight_decay: f64,
        momentum: f64,
        centered: bool,
        maximize: bool,
    ) -> PyResult<PyClassInitializer<RmsProp>> {
        let options = RmsPropOptions { lr, alpha, eps, weight_decay, momentum, centered, maximize };
        let base = Optimizer::build(params, lr, weight_decay, |params, lr, weight_decay| {
            optim::RMSProp::new_with(params, RmsPropOptions { lr, weight_decay, ..options })
        })?;
        Ok(PyClassInitializer::from(base).add_subclass(RmsProp(options)))
    }

    fn __repr__(slf: PyRef<'_, Self>) -> String {
        let RmsPropOptions { alpha, eps, momentum, centered, maximize, .. } = slf.0;
        let numbers = [("alpha", alpha), ("eps", eps), ("momentum", momentum)];
        describe("RMSProp", slf.as_super(), &numbers, &[("centered", centered), ("maximize", maximize)])
    }
}
