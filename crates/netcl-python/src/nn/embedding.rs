//! Layers that take indices.

use netcl::nn::{Embedding, EmbeddingBag};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::layer::Layer;
use crate::autograd::wrap;
use crate::index::Made;
use crate::layer_ops::indices as index;
use crate::tensor::Tensor;

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(embedding, module)?)?;
    module.add_function(wrap_pyfunction!(embedding_bag, module)?)
}

/// The rows of an ``Embedding`` with the given indices, of any shape.
#[pyfunction]
fn embedding(py: Python<'_>, layer: &Layer, own: &Bound<'_, PyDict>, indices: &Bound<'_, PyAny>) -> PyResult<Made> {
    let weight = layer.look(py, own, |table: &Embedding| table.weight().clone())?;
    let at = index(indices, weight.queue())?;
    wrap(py, layer.with_kind(py, own, &weight, |table: &Embedding| table.lookup(&at))?)
}

/// The rows of an ``EmbeddingBag`` at bags of indices, put together to one row per bag.
#[pyfunction]
fn embedding_bag(
    py: Python<'_>,
    layer: &Layer,
    own: &Bound<'_, PyDict>,
    indices: &Bound<'_, PyAny>,
    offsets: Option<&Bound<'_, PyAny>>,
    per_sample_weights: Option<&Tensor>,
) -> PyResult<Made> {
    let weight = layer.look(py, own, |table: &EmbeddingBag| table.weight().clone())?;
    let at = index(indices, weight.queue())?;
    let offsets = offsets.map(|offsets| index(offsets, weight.queue())).transpose()?;
    let factors = per_sample_weights.map(Tensor::inner);
    let bags = |table: &EmbeddingBag| table.bags(&at, offsets.as_ref(), factors.as_deref());
    wrap(py, layer.with_kind(py, own, &weight, bags)?)
}
