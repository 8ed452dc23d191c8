//! Layers that take indices.

use netcl::nn::Embedding;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::layer::Layer;
use crate::autograd::wrap;
use crate::layer_ops::indices as index;
use crate::tensor::Tensor;

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(embedding, module)?)
}

/// The rows of an ``Embedding`` with the given indices, of any shape.
#[pyfunction]
fn embedding(py: Python<'_>, layer: &Layer, own: &Bound<'_, PyDict>, indices: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let weight = layer.look(py, own, |table: &Embedding| table.weight().clone())?;
    let at = index(indices, weight.queue())?;
    wrap(py, layer.with_kind(py, own, &weight, |table: &Embedding| table.lookup(&at))?)
}
