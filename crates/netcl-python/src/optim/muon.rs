//! Muon.

use netcl::optim::{self, AdjustLr, MuonOptions};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::optimizer::{Optimizer, describe};

/// Muon: momentum whose matrices are made orthogonal, as PyTorch defines it. For matrices only.
#[pyclass(module = "netcl.optim", frozen, subclass, extends = Optimizer)]
pub(crate) struct Muon(MuonOptions);

#[pymethods]
impl Muon {
    /// ``params`` are matrices, or dicts ``{"params": [...], "lr": ..., "weight_decay": ...}``. ``adjust_lr_fn`` is ``"original"``,
    /// ``"match_rms_adamw"`` or ``"spectral_unclamped"``.
    #[new]
    #[pyo3(signature = (params, lr=1e-3, weight_decay=0.1, momentum=0.95, nesterov=true, ns_coefficients=(3.4445, -4.775, 2.0315), eps=1e-7,
        ns_steps=5, adjust_lr_fn=None),
        text_signature = "(params, lr=1e-3, weight_decay=0.1, momentum=0.95, nesterov=True, ns_coefficients=(3.4445, -4.775, 2.0315), \
        eps=1e-7, ns_steps=5, adjust_lr_fn=None)")]
    #[expect(clippy::too_many_arguments, reason = "the settings of the optimizer")]
    fn new(
        params: &Bound<'_, PyAny>,
        lr: f64,
        weight_decay: f64,
        momentum: f64,
        nesterov: bool,
        ns_coefficients: (f64, f64, f64),
        eps: f64,
        ns_steps: u64,
        adjust_lr_fn: Option<&str>,
    ) -> PyResult<PyClassInitializer<Muon>> {
        let adjust_lr = match adjust_lr_fn {
            None | Some("original") => AdjustLr::Original,
            Some("match_rms_adamw") => AdjustLr::MatchRmsAdamw,
            Some("spectral_unclamped") => AdjustLr::SpectralUnclamped,
            Some(other) => {
                let what = format!(
                    "Muon: adjust_lr_fn is {other:?}; use 'original', 'match_rms_adamw' or 'spectral_unclamped'"
                );
                return Err(PyValueError::new_err(what));
            }
        };
        let options = MuonOptions { lr, weight_decay, momentum, nesterov, ns_coefficients, eps, ns_steps, adjust_lr };
        let base = Optimizer::build(params, lr, weight_decay, |params, lr, weight_decay| {
            optim::Muon::new_with(params, MuonOptions { lr, weight_decay, ..options })
        })?;
        Ok(PyClassInitializer::from(base).add_subclass(Muon(options)))
    }

    fn __repr__(slf: PyRef<'_, Self>) -> String {
        let MuonOptions { momentum, eps, ns_steps, nesterov, .. } = slf.0;
        let numbers = [("momentum", momentum), ("eps", eps), ("ns_steps", ns_steps as f64)];
        describe("Muon", slf.as_super(), &numbers, &[("nesterov", nesterov)])
    }
}
