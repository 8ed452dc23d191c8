//! Keeping gradients within bounds.

use netcl::optim;
use pyo3::prelude::*;

use super::optimizer::tensors;
use crate::error::IntoPyResult;
use crate::tensor::Tensor;

/// Scales the gradients of parameters down so that their norm together is at most ``max_norm``; returns the norm they had.
#[pyfunction]
pub(super) fn clip_grad_norm(py: Python<'_>, params: &Bound<'_, PyAny>, max_norm: f64) -> PyResult<f64> {
    let params = tensors(params)?;
    py.detach(|| optim::clip_grad_norm(&params, max_norm)).py()
}

/// ``clip_grad_norm`` without a word to the host: the norm stays on the device, as a tensor without axes. Without any gradient
/// it is the number 0.
#[pyfunction]
pub(super) fn clip_grad_norm_device<'py>(
    py: Python<'py>,
    params: &Bound<'py, PyAny>,
    max_norm: f64,
) -> PyResult<Bound<'py, PyAny>> {
    let params = tensors(params)?;
    match py.detach(|| optim::clip_grad_norm_device(&params, max_norm)).py()? {
        Some(norm) => Ok(Tensor::new(norm).into_pyobject(py)?.into_any()),
        None => Ok(0f64.into_pyobject(py)?.into_any()),
    }
}

/// Limits every element of the gradients of parameters to ``[-clip_value, clip_value]``.
#[pyfunction]
pub(super) fn clip_grad_value(py: Python<'_>, params: &Bound<'_, PyAny>, clip_value: f64) -> PyResult<()> {
    let params = tensors(params)?;
    py.detach(|| optim::clip_grad_value(&params, clip_value)).py()
}
