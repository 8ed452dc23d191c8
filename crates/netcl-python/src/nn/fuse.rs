//! Folding layers into one.

use netcl::nn::fuse::{Averages, fold_batch_norm as fold};
use pyo3::prelude::*;

use crate::autograd::{run, wrap};
use crate::error::IntoPyResult;
use crate::index::Made;
use crate::tensor::Tensor;

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(fold_batch_norm, module)?)
}

/// The weight and bias with which a layer does the work of the batch norm after it, too.
#[pyfunction]
#[pyo3(signature = (weight, bias, axis, mean, var, scale, shift, eps))]
#[allow(clippy::too_many_arguments, reason = "the tensors of two layers")]
fn fold_batch_norm(
    py: Python<'_>,
    weight: &Tensor,
    bias: Option<&Tensor>,
    axis: usize,
    mean: &Tensor,
    var: &Tensor,
    scale: Option<&Tensor>,
    shift: Option<&Tensor>,
    eps: f64,
) -> PyResult<(Made, Made)> {
    let (weight, mean, var) = (&weight.inner(), &mean.inner(), &var.inner());
    let [bias, scale, shift] = [bias, scale, shift].map(|tensor| tensor.map(Tensor::inner));
    let norm = Averages { mean, var, weight: scale.as_deref(), bias: shift.as_deref(), eps };
    let (weight, bias) = run(py, weight, || fold(weight, bias.as_deref(), axis, &norm)).py()?;
    Ok((wrap(py, weight)?, wrap(py, bias)?))
}
