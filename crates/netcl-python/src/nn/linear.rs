//! Linear layers of more than one input.

use netcl::nn::Bilinear;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::layer::Layer;
use crate::autograd::wrap;
use crate::index::Made;
use crate::tensor::Tensor;

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(bilinear, module)?)
}

/// The result of a ``Bilinear`` for two tensors.
#[pyfunction]
fn bilinear(py: Python<'_>, layer: &Layer, own: &Bound<'_, PyDict>, x1: &Tensor, x2: &Tensor) -> PyResult<Made> {
    let (x1, x2) = (&x1.inner(), &x2.inner());
    wrap(py, layer.with_kind(py, own, x1, |layer: &Bilinear| layer.forward(x1, x2))?)
}
