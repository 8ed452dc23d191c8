//! Linear layers of more than one input, and with quantised weights.

use netcl::nn::{Bilinear, QuantizedLinear};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::layer::Layer;
use crate::autograd::{run, wrap};
use crate::error::IntoPyResult;
use crate::index::Made;
use crate::tensor::Tensor;

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(bilinear, module)?)?;
    module.add_function(wrap_pyfunction!(quantized_linear, module)?)
}

/// The result of a ``Bilinear`` for two tensors.
#[pyfunction]
fn bilinear(py: Python<'_>, layer: &Layer, own: &Bound<'_, PyDict>, x1: &Tensor, x2: &Tensor) -> PyResult<Made> {
    let (x1, x2) = (&x1.inner(), &x2.inner());
    wrap(py, layer.with_kind(py, own, x1, |layer: &Bilinear| layer.forward(x1, x2))?)
}

/// The layer that a ``QuantizedLinear`` of a linear layer's weight and bias computes with.
#[pyfunction]
fn quantized_linear(
    py: Python<'_>,
    weight: &Tensor,
    bias: Option<&Tensor>,
    bits: usize,
    group: usize,
) -> PyResult<Layer> {
    let (weight, bias) = (&weight.inner(), bias.map(Tensor::inner));
    let make = || QuantizedLinear::from_parameters(weight, bias.as_deref(), bits, group);
    Ok(Layer::holding(py, Box::new(run(py, weight, make).py()?)))
}
