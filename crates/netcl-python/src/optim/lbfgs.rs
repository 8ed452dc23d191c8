//! L-BFGS, whose step evaluates the loss several times.

use netcl::optim::{self, LbfgsOptions, LbfgsStepper, LineSearch};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use super::optimizer::{Optimizer, describe};
use crate::error::{IntoPyResult, carry, kind};

/// L-BFGS, as PyTorch defines it: for whole data sets and smooth losses. ``step`` needs a closure.
#[pyclass(module = "netcl.optim", frozen, subclass, extends = Optimizer, name = "LBFGS")]
pub(crate) struct Lbfgs {
    options: LbfgsOptions,
    stepper: LbfgsStepper,
}

#[pymethods]
impl Lbfgs {
    /// ``params`` are tensors: there are no groups. ``line_search_fn`` is ``None`` or ``"strong_wolfe"``.
    #[new]
    #[pyo3(signature = (params, lr=1.0, max_iter=20, max_eval=None, tolerance_grad=1e-7, tolerance_change=1e-9, history_size=100,
        line_search_fn=None, *, maximize=false),
        text_signature = "(params, lr=1.0, max_iter=20, max_eval=None, tolerance_grad=1e-7, tolerance_change=1e-9, history_size=100, \
        line_search_fn=None, *, maximize=False)")]
    #[expect(clippy::too_many_arguments, reason = "the settings of the optimizer")]
    fn new(
        params: &Bound<'_, PyAny>,
        lr: f64,
        max_iter: u64,
        max_eval: Option<u64>,
        tolerance_grad: f64,
        tolerance_change: f64,
        history_size: usize,
        line_search_fn: Option<&str>,
        maximize: bool,
    ) -> PyResult<PyClassInitializer<Lbfgs>> {
        let line_search = match line_search_fn {
            None => LineSearch::Fixed,
            Some("strong_wolfe") => LineSearch::StrongWolfe,
            Some(other) => {
                let what = format!("LBFGS: line_search_fn is {other:?}; use None or 'strong_wolfe'");
                return Err(PyValueError::new_err(what));
            }
        };
        let options = LbfgsOptions {
            lr,
            max_iter,
            max_eval,
            tolerance_grad,
            tolerance_change,
            history_size,
            line_search,
            maximize,
        };
        let mut stepper = None;
        let base = Optimizer::build(params, lr, 0.0, |params, lr, _| {
            let opt = optim::LBFGS::new_with(params, LbfgsOptions { lr, ..options })?;
            stepper = Some(opt.stepper());
            Ok(opt)
        })?;
        let stepper = stepper.ok_or_else(|| PyValueError::new_err("LBFGS: there are no parameters"))?;
        Ok(PyClassInitializer::from(base).add_subclass(Lbfgs { options, stepper }))
    }

    /// Up to ``max_iter`` iterations with a function that computes the gradients anew and returns the loss. Returns the first loss.
    fn step(&self, py: Python<'_>, closure: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        if !closure.is_callable() {
            let what = format!("step: closure is a function that returns the loss, not {}", kind(closure));
            return Err(PyTypeError::new_err(what));
        }
        let closure = closure.clone().unbind();
        let mut first = None;
        // The optimizer is not locked meanwhile: the closure calls its zero_grad().
        let evaluate = || {
            Python::attach(|py| -> PyResult<f64> {
                let loss = closure.bind(py).call0()?;
                let number = match loss.extract() {
                    Ok(number) => number,
                    Err(_) => loss.call_method0("item")?.extract()?,
                };
                first.get_or_insert(loss.unbind());
                Ok(number)
            })
            .map_err(carry)
        };
        py.detach(|| self.stepper.step(evaluate)).py()?;
        first.ok_or_else(|| PyValueError::new_err("step: the closure was not called"))
    }

    fn __repr__(slf: PyRef<'_, Self>) -> String {
        let LbfgsOptions { max_iter, history_size, maximize, .. } = slf.options;
        let numbers = [("max_iter", max_iter as f64), ("history_size", history_size as f64)];
        describe("LBFGS", slf.as_super(), &numbers, &[("maximize", maximize)])
    }
}
